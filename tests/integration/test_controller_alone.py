"""`plimsoll controller`: the control loop as a process of its own that leads, shows its metrics, sends webhooks."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.integration.fault_harness import plimsoll, scalar
from tests.ports import own_ports
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration
FIRST_PORT = own_ports()


@contextmanager
def controller(
    url: str, directory: Path, *options: str
) -> "Iterator[subprocess.Popen[bytes]]":
    """`plimsoll controller` on that database; killed at the end."""
    directory.mkdir()
    process = plimsoll(
        ["controller", *options],
        directory,
        PLIMSOLL_DATABASE_URL=url,
        PLIMSOLL_WEBHOOK_PRIVATE="true",
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def shown(port: int) -> str:
    """The page of metrics; empty while there is none."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=5.0).text
    except httpx2.TransportError:
        return ""


def test_it_shows_its_metrics_leads_and_gives_the_lead_back_at_the_end(
    database: str, tmp_path: Path
) -> None:
    with controller(
        database, tmp_path / "c", "--metrics-port", str(FIRST_PORT)
    ) as process:
        until(lambda: "# TYPE plimsoll_ticks_total counter" in shown(FIRST_PORT))
        until(
            lambda: scalar(database, "SELECT holder FROM leader").endswith(
                f":{process.pid}"
            )
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "c" / "log").read_text()
    assert "Traceback" not in (tmp_path / "c" / "log").read_text()
    # Nothing of it is left that could hold the lead.
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'plimsoll-controller%'"
    assert scalar(database, sessions) == 0
