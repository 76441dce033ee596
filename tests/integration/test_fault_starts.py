"""Starts that cannot succeed say why in one line, and nothing is left behind by those that were killed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest

from app.db.base.listen import conninfo
from app.postgres import server as postgres
from app.postgres.files import claim, try_flock
from tests.app.runner import Result, cli
from tests.integration.fault_harness import plimsoll
from tests.ports import a_free_port
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

START_AN_AGENT = """
import os, subprocess, sys, time
process = subprocess.Popen([sys.executable, "-m", "agents.main", "--url", "http://127.0.0.1:9",
                            "--gpu-type", "V100-32GB", "--parent", str(os.getpid()), "--token-file", sys.argv[1]],
                           start_new_session=True)
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose embedded PostgreSQL does not outlive the test."""
    yield tmp_path
    if (tmp_path / ".plimsoll").exists():
        postgres.stop(tmp_path / ".plimsoll")


@pytest.fixture
def start(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """What a start says that fails in this process, which keeps its own log and its own end by SIGTERM."""
    for name in [name for name in os.environ if name.startswith("PLIMSOLL_")]:
        monkeypatch.delenv(name)
    for command in ("control_plane", "up"):
        name = f"app.cli.start.{command}.configure_logs"
        monkeypatch.setattr(name, lambda _settings: None)
    monkeypatch.chdir(home)

    def failed(*arguments: str, **environment: str) -> str:
        environment = {"PLIMSOLL_PORT": str(a_free_port())} | environment
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        result: Result = cli(*arguments, environment=environment, home=home)
        assert result.code == 1
        return result.err

    terminated = signal.getsignal(signal.SIGTERM)
    yield failed
    signal.signal(signal.SIGTERM, terminated)


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (
            ["serve"],
            {
                "PLIMSOLL_DATABASE_URL": "postgresql://ada:opensesame@127.0.0.1:9/plimsoll"
            },
            "the database does not answer (postgresql://ada:***@127.0.0.1:9/plimsoll): connection failed",
        ),
        (["serve"], {}, "there is no database in"),
        (["db", "check"], {}, "there is no database in"),
        (["serve"], {"PLIMSOLL_PORT": "eighty"}, "PLIMSOLL_PORT"),
        (
            ["up"],
            {"PLIMSOLL_DATA_DIR": "/dev/null/data"},
            "cannot use the data directory /dev/null/data",
        ),
    ],
)
def test_a_start_that_cannot_succeed_says_why(
    start: Callable[..., str],
    home: Path,
    arguments: list[str],
    environment: dict[str, str],
    words: str,
) -> None:
    said = start(*arguments, **environment)
    assert words in said and "opensesame" not in said
    # Looking for a database does not make one.
    assert not (home / ".plimsoll").exists()


def test_a_database_without_a_schema_or_in_use_by_another_up_is_said(
    start: Callable[..., str], home: Path, empty_database: str
) -> None:
    said = start("serve", PLIMSOLL_DATABASE_URL=empty_database)
    assert "`plimsoll serve --upgrade` does both" in said
    lock = try_flock(claim(home / ".plimsoll").root / "up.lock")
    assert lock is not None
    assert "another `plimsoll up` runs" in start("up")
    os.close(lock)


def test_a_newer_database_asks_for_a_newer_program_and_for_no_upgrade(
    start: Callable[..., str], empty_database: str
) -> None:
    with psycopg.connect(conninfo(empty_database)) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num varchar(32))")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")
    said = start("serve", PLIMSOLL_DATABASE_URL=empty_database)
    assert "run a newer version" in said and "--upgrade" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--upgrade"],
        # Its database is there already, and ends with it.
        pytest.param(["up", "--nodes", "0"], marks=pytest.mark.thorough),
    ],
)
def test_a_port_that_is_taken_is_named_and_nothing_stays_behind(
    start: Callable[..., str], home: Path, arguments: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = start(*arguments, PLIMSOLL_PORT=str(port))
    assert f"cannot listen on 127.0.0.1, port {port}" in said
    assert postgres.attach(home / ".plimsoll") is None
    assert (home / ".plimsoll").exists() == (arguments[0] == "up")


def test_an_agent_that_was_started_with_its_parent_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    command = [sys.executable, "-c", START_AN_AGENT, str(tmp_path / "token")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        agent = int(parent.stdout.readline())
        until(lambda: _runs(agent))
        parent.kill()
    until(lambda: not _runs(agent))


def _runs(pid: int) -> bool:
    """Whether the agent still runs; a zombie that was not reaped does not."""
    try:
        os.kill(pid, 0)
        return b"agents.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@contextmanager
def up(home: Path, port: int, name: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A `plimsoll up` that answers; killed at the end."""
    (home / name).mkdir()
    process = plimsoll(
        ["up", "--nodes", "0", "--data-dir", str(home / ".plimsoll")],
        home / name,
        PLIMSOLL_PORT=str(port),
    )

    def answers() -> bool:
        assert process.poll() is None, (home / name / "log").read_text()
        try:
            url = f"http://127.0.0.1:{port}/livez"
            return httpx2.get(url, timeout=5.0).status_code == 200
        except httpx2.TransportError:
            return False

    try:
        until(answers)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.thorough  # test_up ends one by a signal, test_postgres has what a killed user leaves
def test_after_a_kill_the_next_start_takes_over_and_ends_everything_and_a_second_one_at_once_is_refused(
    home: Path,
) -> None:
    port, data_dir = a_free_port(), home / ".plimsoll"
    with up(home, port, "first") as first:
        first.kill()
        first.wait()
    # Here its output is a log, in which the first admin's token must not stand.
    said = (home / "first" / "log").read_text()
    assert "admin token, saved to" in said and "plim_" not in said
    assert postgres.attach(data_dir) is not None
    with up(home, port, "second") as second:
        (home / "third").mkdir()
        words, free = ["up", "--data-dir", str(data_dir)], str(a_free_port())
        third = plimsoll(words, home / "third", PLIMSOLL_PORT=free)
        assert third.wait(PATIENCE_S) == 1
        said = (home / "third" / "log").read_text()
        assert "another `plimsoll up` runs" in said and "Traceback" not in said
        second.send_signal(signal.SIGTERM)
        assert second.wait(PATIENCE_S) == 0, (home / "second" / "log").read_text()
    assert postgres.attach(data_dir) is None
