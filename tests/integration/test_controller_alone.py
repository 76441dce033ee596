"""`plimsoll controller`: the control loop as a process of its own that leads, shows its metrics, sends webhooks."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import psycopg
import pytest

from app.db.base.listen import conninfo
from tests.integration.api_harness import NOW, running_api
from tests.integration.fault_harness import plimsoll, scalar
from tests.integration.receivers import is_signed, project, running_receiver, webhook
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


@pytest.mark.thorough  # test_webhooks has the same of a leader in the test's own process
def test_a_webhook_that_was_sent_but_not_recorded_is_sent_again_under_the_same_id(
    database: str, tmp_path: Path
) -> None:
    with running_api(database) as api, running_receiver() as receiver:
        # A process has the machine's clock: what the API writes must not be in its future.
        api.clock.advance(time.time() - NOW.timestamp())
        secret = api.put("webhooks/chat", webhook(receiver.url)).json()["status"][
            "secret"
        ]

        def waiting() -> int:
            return int(api.get("webhooks/chat")["status"]["waiting"])

        project(api)
        with controller(database, tmp_path / "first"):
            until(lambda: len(receiver.got) == 1 and waiting() == 0)
            receiver.gate.clear()
            project(api, "team-b")
            until(lambda: len(receiver.got) == 2)
        assert waiting() == 1
        receiver.gate.set()
        make_due(database)
        with controller(database, tmp_path / "second") as second:
            until(lambda: waiting() == 0)
            second.send_signal(signal.SIGINT)
            assert second.wait(PATIENCE_S) == 0
    assert all(is_signed(secret, headers, body) for headers, body in receiver.got)
    (first, _), (cut_off, body), (again, same_body) = receiver.got
    assert (
        first["Plimsoll-Webhook-Id"]
        != cut_off["Plimsoll-Webhook-Id"]
        == again["Plimsoll-Webhook-Id"]
    )
    assert body == same_body


def make_due(url: str) -> None:
    """Let what waits be tried at once: the 5 seconds after a first try are tested elsewhere."""
    with psycopg.connect(conninfo(url)) as connection:
        connection.execute(
            "UPDATE webhook_delivery SET next_at = %s", [datetime.now(UTC)]
        )
