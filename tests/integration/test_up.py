"""All of `plimsoll up` as one person has it: processes, their end by one signal, and the demo that goes on."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from app.postgres import server as postgres
from tests.integration.fault_harness import plimsoll
from tests.ports import a_free_port, own_environment
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

SHORT_DEMO = """
import sys
from pathlib import Path
from rich.console import Console
from app.base.settings import Settings
from app.demo.run import DemoOptions, run_demo

settings = Settings(data_dir=Path(sys.argv[1]), port=int(sys.argv[2]))
options = DemoOptions(settings=settings, seed=1, keep=True, duration_s=60.0)
sys.exit(run_demo(options, Console(width=200)))
"""


@contextmanager
def ended_anyway(process: "subprocess.Popen[bytes]", data_dir: Path) -> Iterator[None]:
    """Nothing of it outlives the test, whatever becomes of that."""
    try:
        yield
    finally:
        if process.poll() is None:
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()
        process.kill()
        process.wait()
        postgres.stop(data_dir)


def stop(process: "subprocess.Popen[bytes]", number: signal.Signals) -> int:
    """End it by one signal; its exit code, once nothing that it had started runs any more."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    code = process.wait(PATIENCE_S)
    # Those that end by themselves with their parent's end, as the tracker of Python's multiprocessing, come last.
    until(lambda: not any(map(_runs, children)))
    return code


def _runs(process: psutil.Process) -> bool:
    """Whether it still does; a zombie that nobody reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)],
)
def test_one_signal_ends_all_that_was_started(
    tmp_path: Path, number: signal.Signals
) -> None:
    data_dir, port = tmp_path / "data", a_free_port()
    log = tmp_path / "log"
    process = plimsoll(
        ["up", "--nodes", "1", "--data-dir", str(data_dir)],
        tmp_path,
        PLIMSOLL_PORT=str(port),
    )
    with ended_anyway(process, data_dir):
        token = tmp_path / ".config" / "plimsoll" / "token"
        until(token.exists)
        until(lambda: len(nodes(port, token.read_text().strip())) == 1)
        assert postgres.attach(data_dir) is not None
        assert stop(process, number) == 0, log.read_text()
        assert postgres.attach(data_dir) is None
        assert "Traceback" not in log.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_still_starts_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    data_dir = tmp_path / "data"
    process = plimsoll(
        ["up", "--data-dir", str(data_dir)],
        tmp_path,
        PLIMSOLL_PORT=str(a_free_port()),
    )
    with ended_anyway(process, data_dir):
        until(lambda: postgres.attach(data_dir) is not None)
        stop(process, number)
        assert postgres.attach(data_dir) is None
        assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.thorough
def test_a_demo_that_is_kept_goes_on_after_its_report_and_ends_by_one_signal(
    tmp_path: Path,
) -> None:
    data_dir, port = tmp_path / "data", a_free_port()
    log = tmp_path / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", SHORT_DEMO, str(data_dir), str(port)],
            stdout=written,
            stderr=subprocess.STDOUT,
            env=own_environment() | {"HOME": str(tmp_path)},
        )
    with ended_anyway(process, data_dir):
        until(
            lambda: process.poll() is not None or "still running at" in log.read_text(),
        )
        said = log.read_text()
        assert process.poll() is None, said
        assert "verdict:" in said
        token = (data_dir / "demo-token").read_text().strip()
        seen = newest_report(port, token)
        until(lambda: newest_report(port, token) > seen)
        assert stop(process, signal.SIGINT) in (0, 1), log.read_text()
        assert postgres.attach(data_dir) is None


def nodes(port: int, token: str) -> list[Any]:
    """The nodes that have registered; none while the API does not answer."""
    try:
        answer = httpx2.get(
            f"http://127.0.0.1:{port}/api/v1/nodes",
            headers={"Authorization": f"Bearer {token}"},
            timeout=10.0,
        )
    except httpx2.TransportError:
        return []
    found: list[Any] = answer.json()["items"]
    return found


def newest_report(port: int, token: str) -> str:
    """When a node was last heard of."""
    return max(str(each["status"]["last_seen_at"]) for each in nodes(port, token))


@pytest.mark.thorough
def test_a_second_up_has_routers_at_other_ports_and_says_so(tmp_path: Path) -> None:
    data_dir, log = tmp_path / "data", tmp_path / "log"
    # The first node's usual one; where an `up` runs on this machine, that has it already.
    try:
        taken = socket.create_server(("127.0.0.1", 9411))
    except OSError:
        taken = socket.socket()
    with taken:
        process = plimsoll(
            ["up", "--nodes", "1", "--data-dir", str(data_dir)],
            tmp_path,
            PLIMSOLL_PORT=str(a_free_port()),
        )
        with ended_anyway(process, data_dir):
            until(lambda: "simulated nodes" in log.read_text())
            assert "(9411 taken by other programs)" in log.read_text()
            stop(process, signal.SIGTERM)
