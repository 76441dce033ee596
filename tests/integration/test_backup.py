"""`plimsoll backup` and `plimsoll restore` with the real programs on real databases."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.base import migrate
from app.db.base.leader import Leader
from app.db.base.listen import conninfo
from app.db.operations.incarnations import JUMP
from app.db.postgres_store import PostgresStore
from app.postgres import server as postgres
from tests.app.runner import Result, cli
from tests.conftest import copied_database
from tests.integration.fault_harness import (
    SECOND_SERVICE,
    SERVE,
    Crew,
    Served,
    execute,
    make_busy_fleet,
    python,
    rows,
    scalar,
    served,
    with_store,
    without_the_silent_node,
)
from tests.integration.fleet import START, make_fleet, make_observation, push
from tests.waiting import eventually

pytestmark = pytest.mark.integration
IDENTITY = "SELECT incarnation, target_generation FROM cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A small fleet with a target, and a backup of it."""

    url: str
    file: Path


def plimsoll(url: str, *arguments: str | Path) -> Result:
    """The command on that database, in this process: importing it takes most of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLIMSOLL_DATABASE_URL", url)
        return cli(*arguments)


def done(url: str, *arguments: str | Path) -> str:
    """What a command prints that succeeds."""
    ended = plimsoll(url, *arguments)
    assert ended.code == 0, ended.out + ended.err
    return ended.out


def refusal(url: str, *arguments: str | Path) -> str:
    """What it says where it fails."""
    ended = plimsoll(url, *arguments)
    assert ended.code == 1, ended.out
    return ended.err


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
        done(url, "backup", file)
        yield Saved(url=url, file=file)


def test_a_backup_is_private_complete_and_says_what_it_is(
    saved: Saved, tmp_path: Path
) -> None:
    assert saved.file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in saved.file.parent.iterdir()] == [saved.file.name]
    assert "exists already" in refusal(saved.url, "backup", saved.file)
    made = "SELECT count(*) FROM event WHERE kind = 'BackupMade'"
    assert scalar(saved.url, made) == 1
    # What lies in place of the unfinished file is not written to.
    victim = tmp_path / "victim"
    victim.write_text("mine")
    file = tmp_path / "new.backup"
    file.with_name("new.backup.unfinished").symlink_to(victim)
    done(saved.url, "backup", file)
    assert victim.read_text() == "mine"
    assert not file.is_symlink() and file.stat().st_mode & 0o777 == 0o600


def test_a_backup_comes_back_whole_as_a_new_incarnation_with_newer_generations(
    saved: Saved, empty_database: str, tmp_path: Path
) -> None:
    said = done(empty_database, "restore", saved.file)
    assert f"generation {2 + JUMP}" in said and "plimsoll serve" in said
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
    # What was restored can be backed up and restored again.
    again = tmp_path / "again"
    done(empty_database, "backup", again)
    done(empty_database, "restore", "--replace", again)
    ((_, generation),) = rows(empty_database, IDENTITY)
    assert generation == 1 + 2 * JUMP


def test_what_is_there_is_replaced_only_where_that_is_said_and_its_generations_are_passed(
    saved: Saved, database: str
) -> None:
    execute(database, "UPDATE cluster SET target_generation = 5000")
    execute(database, "CREATE TABLE later (a int)")
    assert "--replace" in refusal(database, "restore", saved.file)
    assert scalar(database, "SELECT target_generation FROM cluster") == 5000
    done(database, "restore", "--replace", saved.file)
    assert scalar(database, "SELECT target_generation FROM cluster") == 5000 + JUMP
    assert scalar(database, "SELECT to_regclass('later')") is None


def test_nothing_is_restored_while_a_controller_leads(
    saved: Saved, database: str
) -> None:
    async def work(_: PostgresStore, engine: AsyncEngine) -> str:
        leader = Leader(engine, "leading")
        assert await leader.acquire()
        restore = ("restore", "--replace", saved.file)
        said = await asyncio.to_thread(refusal, database, *restore)
        await leader.release()
        return said

    assert "stop every `plimsoll serve`" in with_store(database, work)
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
    assert told in refusal(database, "restore", "--replace", file)
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
    assert "run a newer version" in refusal(database, "restore", "--replace", file)


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
    done(empty_database, "restore", file)
    assert migrate.check(empty_database) is None


def _pg_dump(url: str, file: Path) -> None:
    program = postgres.find_binaries().path("pg_dump")
    subprocess.run(
        [program, "--format=custom", f"--file={file}", conninfo(url)], check=True
    )


def test_a_backup_under_load_is_of_one_moment(
    database: str, empty_database: str, tmp_path: Path
) -> None:
    file = tmp_path / "loaded"

    async def work(_: PostgresStore, engine: AsyncEngine) -> int:
        store = await make_fleet(engine, {"default": ["chat"]})
        over, sequence, at = asyncio.Event(), 0, datetime.now(UTC)

        async def load() -> None:
            nonlocal sequence
            while not over.is_set():
                sequence += 1
                now = at + timedelta(seconds=sequence)
                await store.ingest((make_observation(sequence, now),), now)

        loading = asyncio.create_task(load())
        await eventually(lambda: sequence > 3)
        await asyncio.to_thread(done, database, "backup", file)
        saved = sequence
        await eventually(lambda: sequence > saved)
        over.set()
        await loading
        return sequence

    sent = with_store(database, work)
    done(empty_database, "restore", file)
    # All tables are of one moment: what was acknowledged by then, and nothing of what came later.
    ((count, last),) = rows(
        empty_database,
        "SELECT count(*), (SELECT last_sequence FROM agent_boot) FROM observation",
    )
    assert count == last < sent


@pytest.mark.thorough
def test_agents_that_ran_on_follow_what_was_backed_up_under_load_and_restored(
    database: str, tmp_path: Path
) -> None:
    make_busy_fleet(database)
    with_store(database, without_the_silent_node)
    with served(database, tmp_path / "serve") as plane:
        try:
            asyncio.run(
                _restored_while_agents_run(plane, database, tmp_path / "loaded")
            )
        finally:
            plane.process.kill()
            plane.process.wait()


async def _restored_while_agents_run(plane: Served, url: str, file: Path) -> None:
    """The control plane's whole way back, while its agents run."""
    async with Crew(plane, 2) as crew:
        await eventually(lambda: all(agent.command for agent in crew.agents))
        await asyncio.to_thread(done, url, "backup", file)
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
        await asyncio.to_thread(done, url, "restore", "--replace", file)
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
