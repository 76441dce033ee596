"""All of `plimsoll up` as one person has it: processes, their end by one signal, and the demo that goes on."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from app.postgres import server as postgres
from tests.app.runner import cli
from tests.integration.fault_harness import plimsoll
from tests.ports import a_free_port, alone, own_environment
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

QUICKSTART = Path(__file__).parents[2] / "docs" / "examples" / "quickstart.yaml"
REQUEST = {
    "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]
}

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


@pytest.fixture(autouse=True)
def _others_wait() -> Iterator[None]:
    """The gateway's port and the routers' are the same for every `up`."""
    with alone("plimsoll up"):
        yield


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
    """Whether it still does; a zombie that was not reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_first_service_is_served_and_again_by_the_next_up_and_one_signal_ends_all(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # A short path: the gateway has a socket there.
    home = tmp_path_factory.mktemp("up")
    data_dir, port, log = home / "data", a_free_port(), home / "log"
    address = f"http://127.0.0.1:{port}"
    kept = home / ".config" / "plimsoll" / "token"

    def up() -> "subprocess.Popen[bytes]":
        words = ["up", "--data-dir", str(data_dir)]
        return plimsoll(words, home, PLIMSOLL_PORT=str(port))

    def ends_by(number: signal.Signals, process: "subprocess.Popen[bytes]") -> None:
        assert postgres.attach(data_dir) is not None
        assert stop(process, number) == 0, log.read_text()
        assert postgres.attach(data_dir) is None
        assert "Traceback" not in log.read_text()

    first = up()
    with ended_anyway(first, data_dir):
        until(kept.exists)
        token = kept.read_text().strip()
        until(lambda: len(nodes(port, token)) == 2)
        wait = ("-y", "--wait", str(int(PATIENCE_S)))
        applied = cli(
            *("apply", "-f", QUICKSTART, *wait),
            api=None,
            environment={"PLIMSOLL_URL": address},
            home=home,
            sleep=time.sleep,
        )
        assert applied.code == 0, applied.out + applied.err
        until(lambda: is_answered(port, token))
        said = log.read_text()
        assert f"dashboard: {address}/login" in said
        assert "SQL: psql '" in said
        # HAProxy, or its port, may not be there.
        assert ("requests: http" in said) != ("no gateway: " in said)
        ends_by(signal.SIGINT, first)
    second = up()
    with ended_anyway(second, data_dir):
        until(lambda: is_answered(port, token))
        ends_by(signal.SIGTERM, second)
    # pytest keeps what lies outside a test's own directory.
    shutil.rmtree(home)


@pytest.mark.thorough
def test_whatever_it_started_is_started_again_where_it_is_killed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("up")
    data_dir, port, log = home / "data", a_free_port(), home / "log"
    kept = home / ".config" / "plimsoll" / "token"
    words = ["up", "--nodes", "1", "--data-dir", str(data_dir)]
    process = plimsoll(words, home, PLIMSOLL_PORT=str(port))
    with ended_anyway(process, data_dir):
        until(kept.exists)
        token = kept.read_text().strip()
        until(lambda: is_heard(port, token))
        postmaster = int(
            (data_dir / "cluster" / "postmaster.pid").read_text().split()[0]
        )
        psutil.Process(postmaster).kill()
        agents = children_called(process, "agents.main")
        assert len(agents) == 1
        agents[0].kill()
        until(lambda: children_called(process, "agents.main") not in ([], agents))
        # What a node says after both are back is kept.
        before = newest_report(port, token) if is_heard(port, token) else ""
        until(lambda: is_heard(port, token) and newest_report(port, token) > before)
        assert stop(process, signal.SIGTERM) == 0, log.read_text()
    assert "the embedded PostgreSQL was started again" in log.read_text()
    shutil.rmtree(home)


def children_called(
    process: "subprocess.Popen[bytes]", name: str
) -> list[psutil.Process]:
    return [
        each
        for each in psutil.Process(process.pid).children()
        if _runs(each) and name in each.cmdline()
    ]


def is_heard(port: int, token: str) -> bool:
    """Whether the API answers, and knows of a report."""
    try:
        return any(each["status"]["last_seen_at"] for each in nodes(port, token))
    except (OSError, LookupError, AssertionError, httpx2.HTTPError):
        return False


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


def asked(port: int, token: str, path: str) -> Any:
    """What the API answers; nothing while it does not."""
    try:
        answer = httpx2.get(
            f"http://127.0.0.1:{port}/api/v1/{path}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=10.0,
        )
    except httpx2.TransportError:
        return {}
    return answer.json()


def nodes(port: int, token: str) -> list[Any]:
    """The nodes that have registered."""
    found: list[Any] = asked(port, token, "nodes").get("items", [])
    return found


def is_answered(port: int, token: str) -> bool:
    """Whether a request is, at the endpoint of the first service."""
    url = asked(port, token, "services/classify/endpoints").get("url")
    try:
        return (
            url is not None and httpx2.post(url, json=REQUEST, timeout=10.0).is_success
        )
    except httpx2.TransportError:
        return False


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
