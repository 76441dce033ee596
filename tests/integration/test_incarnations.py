"""A database that was restored to an older state: nodes hold newer commands than it knows, and must follow again."""

import asyncio
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.digests import digest_of
from agents.base.protocol import DIGEST_LENGTH
from agents.daemon.loop import NodeAgent
from app.base.clock import WallClock
from app.db.base.engine import recreate
from app.db.base.listen import conninfo
from app.db.fleet import nodes
from app.db.operations.incarnations import FARTHEST, JUMP
from app.db.postgres_store import PostgresStore
from app.loop.tick import Loop, TickOutcome, tick
from app.postgres import server as postgres
from app.solver.inline import InlineSolver
from tests.integration.api_harness import Prepared, node, reading, service
from tests.integration.fault_harness import (
    API_ALONE,
    SECOND_SERVICE,
    Crew,
    Served,
    controller,
    eventually,
    make_busy_fleet,
    rows,
    scalar,
    served,
    with_store,
    without_the_silent_node,
)
from tests.integration.fleet import make_observation, on_fleet, with_fleet
from tests.integration.fleet import scalar as the_only

pytestmark = pytest.mark.integration
RESTORED = "SELECT subject, actor, before, after FROM event WHERE kind = 'ControlPlaneRestored'"


async def say(
    store: PostgresStore, sequence: int, generation: int, **more: str
) -> None:
    """The node's newest window says that it follows that generation."""
    now = datetime.now(UTC) + timedelta(seconds=sequence)
    seen = make_observation(sequence, now, boot="test")
    seen = msgspec.structs.replace(seen, generation=generation, **more)
    await store.ingest((seen,), now)


async def counter(engine: AsyncEngine) -> int:
    return int(await the_only(engine, "SELECT target_generation FROM cluster"))


async def is_renumbered(engine: AsyncEngine) -> bool:
    """As the node's condition has it."""
    async with engine.connect() as connection:
        return (await nodes.get(connection, "n1", datetime.now(UTC))).is_renumbered


def test_a_node_from_the_future_makes_generations_jump_and_follows_though_nothing_would_change(
    database: str,
) -> None:
    make_busy_fleet(database)
    before = scalar(database, "SELECT incarnation FROM cluster")

    async def work(
        store: PostgresStore, engine: AsyncEngine
    ) -> tuple[list[TickOutcome], object]:
        loop = Loop(store=store, solver=InlineSolver(), clock=WallClock())
        outcomes = [await tick(loop), await tick(loop)]
        await say(store, 2, generation=150)
        assert await counter(engine) == 150 + JUMP
        assert await store.command_for("n1", 150) is None
        outcomes += [await tick(loop), await tick(loop)]
        return outcomes, await store.command_for("n1", 150)

    outcomes, command = with_store(database, work)
    assert [outcome.state for outcome in outcomes] == ["target", "kept"] * 2
    assert outcomes[-1].generation == 151 + JUMP
    assert command is not None and command.generation == 151 + JUMP
    assert command.gpus
    after = scalar(database, "SELECT incarnation FROM cluster")
    assert after != before
    assert rows(database, RESTORED) == [
        (
            "cluster",
            "node/n1",
            {"generation": 1, "incarnation": str(before)},
            {"generation": 150 + JUMP, "incarnation": str(after)},
        )
    ]


def test_what_nodes_hold_of_a_future_is_ended_also_where_nothing_was_in_force_yet(
    database: str,
) -> None:
    async def work(store: PostgresStore, _: AsyncEngine) -> TickOutcome:
        await say(store, 1, generation=150)
        return await tick(Loop(store=store, solver=InlineSolver(), clock=WallClock()))

    assert with_fleet(database, work).generation == 151 + JUMP


@pytest.mark.parametrize("claimed", [10**12, FARTHEST + 1])
@on_fleet()
async def test_a_node_that_claims_an_impossible_generation_moves_nothing(
    store: PostgresStore, engine: AsyncEngine, database: str, claimed: int
) -> None:
    await say(store, 1, claimed)
    assert await counter(engine) == 0
    assert rows(database, RESTORED) == []


@on_fleet()
async def test_a_node_that_lies_again_and_again_moves_the_counter_once_an_hour(
    store: PostgresStore, engine: AsyncEngine, database: str
) -> None:
    await say(store, 1, FARTHEST)
    first = FARTHEST + JUMP
    assert await counter(engine) == first
    for sequence in range(2, 5):
        await say(store, sequence, first + FARTHEST)
    assert await counter(engine) == first
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE cluster SET renumbered_at = now() - interval '61 minutes'")
        )
    await say(store, 5, first + FARTHEST)
    assert await counter(engine) == first + FARTHEST + JUMP
    assert len(rows(database, RESTORED)) == 2


@on_fleet()
async def test_a_jump_and_a_change_of_the_catalogue_at_once_do_not_block_each_other(
    store: PostgresStore, engine: AsyncEngine, database: str
) -> None:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    # As in the removal of a node: the row of `cluster` first, then nodes.
    async with engine.begin() as change:
        await change.execute(text("SELECT FROM cluster FOR UPDATE"))
        report = asyncio.create_task(say(store, 1, generation=150))
        await eventually(lambda: scalar(database, waits) > 0)
        await change.execute(text("UPDATE node SET labels = '{}' WHERE id = 'n1'"))
    await report
    assert await counter(engine) == 150 + JUMP


def test_an_older_generation_is_no_sign_of_a_restore(database: str) -> None:
    make_busy_fleet(database)

    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        loop = Loop(store=store, solver=InlineSolver(), clock=WallClock())
        assert (await tick(loop)).generation == 1
        await say(store, 2, generation=0)
        await say(store, 3, generation=1)
        assert await counter(engine) == 1

    with_store(database, work)


def test_a_node_that_follows_another_command_of_the_newest_generation_makes_generations_jump(
    database: str,
) -> None:
    """After a restore by hand the controller may use a number again before it hears of any node."""
    make_busy_fleet(database)

    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        loop = Loop(store=store, solver=InlineSolver(), clock=WallClock())
        assert (await tick(loop)).generation == 1
        command = await store.command_for("n1", 0)
        assert command is not None
        other = digest_of(msgspec.structs.replace(command, routes=()))
        await say(store, 2, 1, command_digest=digest_of(command))
        # Another release may know more fields, and write the same command otherwise.
        await say(store, 3, 1, command_digest="0" * DIGEST_LENGTH)
        # Of a generation that is replaced nothing matters any more.
        await say(store, 4, 0, command_digest=other)
        assert await counter(engine) == 1
        assert not await is_renumbered(engine)
        await say(store, 5, 1, command_digest=other)
        assert await counter(engine) == 1 + JUMP
        assert await is_renumbered(engine)
        assert (await tick(loop)).generation == 2 + JUMP
        assert not await is_renumbered(engine)
        newest = await store.command_for("n1", 1)
        assert newest is not None and newest.generation == 2 + JUMP

    with_store(database, work)
    ((reason,),) = rows(
        database, "SELECT reason FROM event WHERE kind = 'ControlPlaneRestored'"
    )
    assert (
        "n1 follows generation 1, but with a command that this database did not make for it"
        in reason
    )


def test_a_node_that_follows_a_number_which_changed_nothing_for_it_here_gets_a_command(
    database: str,
) -> None:
    """After a restore by hand the controller may give the lost number to a target without a command for this node."""
    make_busy_fleet(database)

    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        loop = Loop(store=store, solver=InlineSolver(), clock=WallClock())
        assert (await tick(loop)).generation == 1
        command = await store.command_for("n1", 0)
        assert command is not None
        await say(store, 2, 1, command_digest=digest_of(command))
        # A target that changes nothing for n1, though the number counts on.
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE cluster SET target_generation = 2"))
            await connection.execute(
                text("UPDATE target SET generation = 2 WHERE generation = 1")
            )
        assert await store.command_for("n1", 1) is None
        lost = digest_of(msgspec.structs.replace(command, generation=2, routes=()))
        await say(store, 3, 2, command_digest=lost)
        assert await counter(engine) == 2 + JUMP
        assert (await tick(loop)).generation == 3 + JUMP
        newest = await store.command_for("n1", 2)
        assert newest is not None and newest.generation == 3 + JUMP

    with_store(database, work)


def test_a_node_that_was_registered_again_is_no_sign_of_a_restore(
    small_fleet: Prepared,
) -> None:
    """What it was commanded went with it, and its agent reports on."""
    with small_fleet.running_api() as api:
        api.put("services/chat", service())
        api.sync(sequence=1, services=[reading()])
        held = api.tick().generation
        assert held is not None
        api.sync(sequence=2, generation=held)
        assert api.call("DELETE", "nodes/n1", If_Match="*").status_code in (200, 204)
        api.put("nodes/n1", node())
        api.add_token("agent", "agent")
        api.sync(sequence=3, generation=held)
        assert api.get("events?kind=ControlPlaneRestored")["items"] == []


def test_a_number_that_was_used_twice_is_noticed_by_the_process_that_knew_the_first_one(
    database: str,
) -> None:
    make_busy_fleet(database)

    async def work(store: PostgresStore, engine: AsyncEngine) -> None:
        loop = Loop(store=store, solver=InlineSolver(), clock=WallClock())
        await tick(loop)
        first = await store.command_for("n1", 0)
        assert first is not None
        await say(store, 2, 1, command_digest=digest_of(first))
        # What a restore by hand and the next decision leave: the number is the same, the rest is not.
        second = digest_of(msgspec.structs.replace(first, routes=()))
        async with engine.begin() as connection:
            await connection.execute(
                text("UPDATE command SET digest = :digest WHERE node = 'n1'"),
                {"digest": second},
            )
            await connection.execute(
                text(
                    "UPDATE target SET valid = tstzrange(lower(valid) + interval '1 s', NULL)"
                )
            )
        await say(store, 3, 1, command_digest=digest_of(first))
        assert await counter(engine) == 1 + JUMP

    with_store(database, work)


def test_a_node_with_commands_that_were_never_made_here_is_shown_as_ahead(
    small_fleet: Prepared,
) -> None:
    with small_fleet.running_api() as api:
        api.sync(sequence=1, generation=7)
        status = api.get("nodes/n1")["status"]
        assert (status["observed_generation"], status["wanted_generation"]) == (7, 0)
        page = api.call("GET", "metrics", token="viewer").text
        assert 'plimsoll_node_observed_generation{node="n1"} 7' in page
        assert 'plimsoll_node_wanted_generation{node="n1"} 0' in page
        (applied,) = status["conditions"]
        assert (applied["type"], applied["reason"]) == ("Applied", "NodesAhead")
        assert "\nplimsoll_renumbered_timestamp_seconds 1" in page


# The real thing: processes, agents over HTTP, pg_dump and pg_restore.


def program(name: str) -> str:
    return postgres.find_binaries().path(name)


@pytest.mark.thorough
def test_a_fleet_follows_a_control_plane_whose_database_was_restored_by_hand(
    postgres_server: postgres.Server, database: str, tmp_path: Path
) -> None:
    make_busy_fleet(database)
    with_store(database, without_the_silent_node)
    with (
        served(database, tmp_path / "api", API_ALONE) as plane,
        controller(database, "leader", "", tmp_path / "never"),
    ):
        asyncio.run(_live_through_a_restore(postgres_server, database, plane))
    ((_, _, before, after),) = rows(database, RESTORED)
    # Equal where the controller had used the nodes' number again before it heard of them.
    assert after["generation"] >= before["generation"] + JUMP
    # Plans are made and followed by numbers that no node has seen.
    assert scalar(database, "SELECT target_generation FROM cluster") > JUMP


async def _live_through_a_restore(
    server: postgres.Server, url: str, plane: Served
) -> None:
    dump = plane.log.parent / "older.dump"
    async with Crew(plane, 3) as crew:

        def followed() -> list[int]:
            return [
                agent.command.generation if agent.command else 0
                for agent in crew.agents
            ]

        def known(agent: NodeAgent) -> set[str]:
            command = agent.command
            return {each.service for each in command.routes} if command else set()

        await eventually(lambda: min(followed()) >= 1)
        await asyncio.to_thread(_dump, url, dump)
        # What the dump holds, or one more: the controller decides on as the nodes report.
        held = scalar(url, "SELECT target_generation FROM cluster")
        await asyncio.to_thread(
            plane.call, "PUT", "api/v1/services/second", json=SECOND_SERVICE
        )
        # A plan that the restored database does not know: of earlier ones, both may have made the same under a number.
        await eventually(lambda: any("second" in known(agent) for agent in crew.agents))
        await recreate(server.url, str(make_url(url).database))
        await asyncio.to_thread(_restore, url, dump)
        await eventually(lambda: min(followed()) >= held + JUMP)


def _dump(url: str, file: Path) -> None:
    subprocess.run(
        [program("pg_dump"), "--format=custom", f"--file={file}", conninfo(url)],
        check=True,
    )


def _restore(url: str, file: Path) -> None:
    command = [
        program("pg_restore"),
        "--single-transaction",
        f"--dbname={conninfo(url)}",
    ]
    subprocess.run([*command, str(file)], check=True)
