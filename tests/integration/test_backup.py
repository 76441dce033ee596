"""`plimsoll backup` and `plimsoll restore` with the real programs on real databases."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from alembic import command
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.base import migrate
from app.db.base.leader import Leader
from app.db.base.listen import conninfo
from app.db.operations.incarnations import JUMP
from app.db.postgres_store import PostgresStore
from app.postgres import server as postgres
from tests.conftest import copied_database
from tests.integration.fault_harness import (
    SECOND_SERVICE,
    SERVE,
    Crew,
    Served,
    eventually,
    make_busy_fleet,
    python,
    rows,
    scalar,
    served,
    with_store,
    without_the_silent_node,
)
from tests.integration.fleet import START, make_fleet, make_observation, push
from tests.ports import own_environment

pytestmark = pytest.mark.integration
IDENTITY = "SELECT incarnation, target_generation FROM cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A small fleet with a target, and a backup of it."""

    url: str
    file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that has ended."""

    exit_code: int
    output: str


def plimsoll(url: str, *arguments: str) -> Ended:
    """The command as a process, on that database."""
    run = "from app.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", run, *arguments],
        env=own_environment() | {"PLIMSOLL_DATABASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Ended(exit_code=ended.returncode, output=ended.stdout)


def execute(url: str, statement: str) -> None:
    with psycopg.connect(conninfo(url), autocommit=True) as connection:
        connection.execute(statement.encode())


async def _fill(_: PostgresStore, engine: AsyncEngine) -> None:
    store = await make_fleet(engine, {"default": ["chat"]})
    await push(store, START, {"n1/gpu-0": [("chat", 60.0, 2048.0)]})
    await store.ingest((make_observation(1, START),), START)


@pytest.fixture(scope="module")
def saved(
    postgres_server: postgres.Server,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Saved]:
    file = tmp_path_factory.mktemp("backup") / "plimsoll.backup"
    with copied_database(postgres_server, template=migrated_template) as url:
        with_store(url, _fill)
        made = plimsoll(url, "backup", str(file))
        assert made.exit_code == 0, made.output
        yield Saved(url=url, file=file)


def test_a_backup_is_private_complete_and_says_what_it_is(saved: Saved) -> None:
    assert saved.file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in saved.file.parent.iterdir()] == [saved.file.name]
    again = plimsoll(saved.url, "backup", str(saved.file))
    assert again.exit_code == 1 and "exists already" in again.output
    assert (
        scalar(saved.url, "SELECT count(*) FROM event WHERE kind = 'BackupMade'") == 1
    )


def test_what_lies_in_place_of_the_unfinished_file_is_not_written_to(
    saved: Saved, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    file = tmp_path / "new.backup"
    file.with_name("new.backup.unfinished").symlink_to(victim)
    made = plimsoll(saved.url, "backup", str(file))
    assert made.exit_code == 0, made.output
    assert victim.read_text() == "mine"
    assert not file.is_symlink() and file.stat().st_mode & 0o777 == 0o600


def test_a_backup_comes_back_whole_as_a_new_incarnation_with_newer_generations(
    saved: Saved, empty_database: str
) -> None:
    done = plimsoll(empty_database, "restore", str(saved.file))
    assert done.exit_code == 0, done.output
    assert f"generation {2 + JUMP}" in done.output and "plimsoll serve" in done.output
    assert migrate.check(empty_database) is None
    for table in ("service", "node", "plan", "target", "command", "observation"):
        count = f"SELECT count(*) FROM {table}"
        assert scalar(empty_database, count) == scalar(saved.url, count)
    ((before, _),) = rows(saved.url, IDENTITY)
    ((after, generation),) = rows(empty_database, IDENTITY)
    assert after != before and generation == 1 + JUMP
    reason = "SELECT reason FROM event WHERE kind = 'ControlPlaneRestored'"
    assert saved.file.name in scalar(empty_database, reason)
    # Who reads reports may read them.
    may_read = (
        "SELECT has_table_privilege('plimsoll_reader', 'report.node_health', 'SELECT')"
    )
    assert scalar(empty_database, may_read)


def test_a_restored_database_can_be_backed_up_and_restored_again(
    saved: Saved, empty_database: str, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    for arguments in (
        ("restore", str(saved.file)),
        ("backup", str(again)),
        ("restore", "--replace", str(again)),
    ):
        done = plimsoll(empty_database, *arguments)
        assert done.exit_code == 0, done.output
    assert scalar(empty_database, "SELECT target_generation FROM cluster") == (
        1 + 2 * JUMP
    )


def test_what_is_there_is_replaced_only_where_that_is_said_and_its_generations_are_passed(
    saved: Saved, database: str
) -> None:
    execute(database, "UPDATE cluster SET target_generation = 5000")
    execute(database, "CREATE TABLE later (a int)")
    refused = plimsoll(database, "restore", str(saved.file))
    assert refused.exit_code == 1 and "--replace" in refused.output
    assert scalar(database, "SELECT target_generation FROM cluster") == 5000
    done = plimsoll(database, "restore", "--replace", str(saved.file))
    assert done.exit_code == 0, done.output
    assert scalar(database, "SELECT target_generation FROM cluster") == 5000 + JUMP
    assert scalar(database, "SELECT to_regclass('later')") is None


def test_nothing_is_restored_while_a_controller_leads(
    saved: Saved, database: str
) -> None:
    async def work(_: PostgresStore, engine: AsyncEngine) -> Ended:
        leader = Leader(engine, "leading")
        assert await leader.acquire()
        restore = ("restore", "--replace", str(saved.file))
        refused = await asyncio.to_thread(plimsoll, database, *restore)
        await leader.release()
        return refused

    refused = with_store(database, work)
    assert refused.exit_code == 1 and "stop every `plimsoll serve`" in refused.output
    assert scalar(database, "SELECT count(*) FROM service") == 0


def _nothing(file: Path) -> None:
    file.write_text("no backup")


def _cut_off(file: Path) -> None:
    # The tables that say what it is are whole; others are not.
    file.write_bytes(file.read_bytes()[:-64])


@pytest.mark.parametrize(
    ("spoil", "told"),
    [(_nothing, "is not a backup of Plimsoll"), (_cut_off, "nothing was changed")],
    ids=["no backup", "cut off"],
)
def test_a_file_that_is_damaged_or_something_else_changes_nothing(
    saved: Saved,
    database: str,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    told: str,
) -> None:
    file = tmp_path / "spoilt"
    file.write_bytes(saved.file.read_bytes())
    spoil(file)
    execute(database, "UPDATE cluster SET target_generation = 7")
    refused = plimsoll(database, "restore", "--replace", str(file))
    assert refused.exit_code == 1 and told in refused.output
    assert scalar(database, "SELECT target_generation FROM cluster") == 7


def test_a_backup_of_a_newer_program_is_refused(
    postgres_server: postgres.Server,
    migrated_template: str,
    database: str,
    tmp_path: Path,
) -> None:
    file = tmp_path / "newer"
    with copied_database(postgres_server, template=migrated_template) as url:
        execute(url, "UPDATE alembic_version SET version_num = '9999'")
        _pg_dump(url, file)
    refused = plimsoll(database, "restore", "--replace", str(file))
    assert refused.exit_code == 1 and "run a newer version" in refused.output


def test_a_dump_of_an_older_program_is_restored_and_brought_to_this_schema(
    postgres_server: postgres.Server,
    migrated_template: str,
    empty_database: str,
    tmp_path: Path,
) -> None:
    file = tmp_path / "older"
    with copied_database(postgres_server, template=migrated_template) as url:
        command.downgrade(migrate._config(url), "0100")
        _pg_dump(url, file)
    done = plimsoll(empty_database, "restore", str(file))
    assert done.exit_code == 0, done.output
    assert migrate.check(empty_database) is None


def _pg_dump(url: str, file: Path) -> None:
    program = postgres.find_binaries().path("pg_dump")
    subprocess.run(
        [program, "--format=custom", f"--file={file}", conninfo(url)], check=True
    )


def test_a_backup_under_load_is_of_one_moment_and_disturbs_nobody(
    database: str, empty_database: str, tmp_path: Path
) -> None:
    file = tmp_path / "loaded"

    async def work(_: PostgresStore, engine: AsyncEngine) -> int:
        store = await make_fleet(engine, {"default": ["chat"]})
        done, sequence, at = asyncio.Event(), 0, datetime.now(UTC)

        async def load() -> None:
            nonlocal sequence
            while not done.is_set():
                sequence += 1
                now = at + timedelta(seconds=sequence)
                await store.ingest((make_observation(sequence, now),), now)

        loading = asyncio.create_task(load())
        made = await asyncio.to_thread(plimsoll, database, "backup", str(file))
        done.set()
        await loading
        assert made.exit_code == 0, made.output
        return sequence

    sent = with_store(database, work)
    assert sent > 3
    done = plimsoll(empty_database, "restore", str(file))
    assert done.exit_code == 0, done.output
    # All tables are of one moment: what was acknowledged by then, and nothing of what came later.
    ((count, last),) = rows(
        empty_database,
        "SELECT count(*), (SELECT last_sequence FROM agent_boot) FROM observation",
    )
    assert count == last < sent


def test_agents_that_ran_on_follow_what_was_backed_up_under_load_and_restored(
    database: str, tmp_path: Path
) -> None:
    make_busy_fleet(database)
    with_store(database, without_the_silent_node)
    with served(database, tmp_path / "serve") as plane:
        try:
            asyncio.run(_restored_beside_agents(plane, database, tmp_path / "loaded"))
        finally:
            plane.process.kill()
            plane.process.wait()


async def _restored_beside_agents(plane: Served, url: str, file: Path) -> None:
    """The control plane's whole way back, while its agents run."""
    async with Crew(plane, 2) as crew:
        await eventually(lambda: all(agent.command for agent in crew.agents))
        done = await asyncio.to_thread(plimsoll, url, "backup", str(file))
        assert done.exit_code == 0, done.output
        # What the backup has nothing of, the agents follow when the control plane ends.
        saved = _generations(crew)[-1]
        answer = await asyncio.to_thread(
            plane.call, "PUT", "api/v1/services/second", json=SECOND_SERVICE
        )
        assert answer.status_code == 201, answer.text
        # Those whose nodes the plan changes.
        await eventually(lambda: _generations(crew)[-1] > saved)
        plane.process.terminate()
        await asyncio.to_thread(plane.process.wait)
        newest = _generations(crew)[-1]
        done = await asyncio.to_thread(plimsoll, url, "restore", "--replace", str(file))
        assert done.exit_code == 0, done.output
        assert scalar(url, "SELECT count(*) FROM service") == 1
        acknowledged = [each.acknowledged for each in crew.transports]
        # At the same address, and with the tokens of the backup.
        port = plane.address.rpartition(":")[2]
        plane.process = python(
            (*SERVE, "--port", port), plane.log.parent, PLIMSOLL_DATABASE_URL=url
        )
        await eventually(lambda: _generations(crew)[0] > newest)
        await eventually(
            lambda: all(
                transport.acknowledged > before
                for transport, before in zip(crew.transports, acknowledged, strict=True)
            )
        )


def _generations(crew: Crew) -> list[int]:
    return sorted(agent.command.generation for agent in crew.agents if agent.command)
