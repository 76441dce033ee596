"""A target makes commands for the nodes that it changes; the others follow it by what they have."""

from datetime import timedelta

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.digests import digest_of
from agents.base.protocol import NodeCommand
from app.db.base.listen import RECONNECT, Listener
from app.db.decisions.commands import COMMAND_CHANNEL, NODE_GONE
from app.db.fleet import nodes
from app.db.postgres_store import PostgresStore
from app.loop.make_commands import make_commands
from tests.integration.fault_harness import rows
from tests.integration.fleet import (
    START,
    Share,
    make_bound,
    make_observation,
    make_record,
    on_fleet,
)

pytestmark = pytest.mark.integration
CHAT: Share = ("chat", 60.0, 2048.0)
MADE = "SELECT node, generation FROM command ORDER BY generation, node"


class Fleet:
    """Nodes n1, n2 and n3, whose agents take up what they are given when the test says so."""

    def __init__(self, store: PostgresStore, engine: AsyncEngine) -> None:
        self.store, self.engine = store, engine
        self.now = START
        self.sequence = 0

    async def begin(self) -> None:
        async with self.engine.begin() as connection:
            for name in ("n2", "n3"):
                await nodes.save(connection, name, {0: "T4"}, at=START)

    async def push(self, *gpus: str) -> int:
        """A replica on each of these GPUs is the target; its generation."""
        snapshot = await self.store.load_snapshot(self.now)
        parent = snapshot.target.generation if snapshot.target else 0
        bound = make_bound(parent, dict.fromkeys(gpus, (CHAT,)))
        # The same to every node, as a plan that changes no replica of a service leaves it.
        commands = [
            msgspec.structs.replace(each, routes=())
            for each in make_commands(bound, snapshot.state)
        ]
        record = make_record(self.now, bound, snapshot.state.catalogue_revision)
        plan_id = await self.store.record_plan(record)
        assert await self.store.push_target(plan_id, bound, tuple(commands), self.now)
        return bound.generation

    async def follow(self, *names: str, digest: str | None = None) -> None:
        """These nodes' agents take up their newest commands, and report."""
        self.now += timedelta(seconds=2.0)
        self.sequence += 1
        for name in names:
            command = await self.store.command_for(name, 0)
            seen = make_observation(self.sequence, self.now, node=name)
            seen = msgspec.structs.replace(
                seen,
                generation=0 if command is None else command.generation,
                command_digest=digest or digest_of(command),
            )
            await self.store.ingest((seen,), self.now)

    async def followed(self) -> dict[str, int]:
        snapshot = await self.store.load_snapshot(self.now)
        return {each.node: each.generation for each in snapshot.statuses}


@on_fleet()
async def test_only_nodes_that_a_target_changes_get_a_command(
    store: PostgresStore, engine: AsyncEngine, database: str
) -> None:
    fleet = Fleet(store, engine)
    await fleet.begin()
    await fleet.push("n1/gpu-0")
    await fleet.follow("n1", "n2", "n3")
    await fleet.push("n1/gpu-0", "n2/gpu-0")
    # What is the same for n1 and n3 they have in force.
    assert await fleet.followed() == {"n1": 2, "n2": 1, "n3": 2}
    assert await store.command_for("n1", 1) is None
    assert {each.node for each in await store.commands_of(2)} == {"n2"}
    await fleet.follow("n2")
    assert await fleet.followed() == {"n1": 2, "n2": 2, "n3": 2}
    await fleet.push("n2/gpu-0")
    assert await fleet.followed() == {"n1": 1, "n2": 3, "n3": 3}
    first = [(name, 1) for name in ("n1", "n2", "n3")]
    assert rows(database, MADE) == [*first, ("n2", 2), ("n1", 3)]


@on_fleet()
async def test_a_node_that_has_not_said_so_is_told_again(
    store: PostgresStore, engine: AsyncEngine, database: str
) -> None:
    fleet = Fleet(store, engine)
    await fleet.begin()
    await fleet.push("n1/gpu-0")
    await fleet.follow("n1")
    await fleet.push("n1/gpu-0")
    assert await fleet.followed() == {"n1": 2, "n2": 0, "n3": 0}
    assert rows(database, MADE)[3:] == [("n2", 2), ("n3", 2)]


@on_fleet()
async def test_after_a_restore_every_node_is_told_anew(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    fleet = Fleet(store, engine)
    await fleet.begin()
    await fleet.push("n1/gpu-0")
    await fleet.follow("n1", "n2", "n3")
    await ahead(fleet, "n3", generation=9)
    generation = await fleet.push("n1/gpu-0")
    told = {each.node for each in await store.commands_of(generation)}
    assert told == {"n1", "n2", "n3"}


@on_fleet()
async def test_a_node_that_follows_what_was_never_made_here_is_told_at_the_next_target(
    store: PostgresStore, engine: AsyncEngine
) -> None:
    fleet = Fleet(store, engine)
    await fleet.begin()
    # Generations are renumbered once an hour at most.
    await ahead(fleet, "n3", generation=9)
    await fleet.push("n1/gpu-0")
    await fleet.follow("n1", "n2", "n3")
    await fleet.push("n1/gpu-0", "n2/gpu-0")
    other = digest_of(NodeCommand(node="n1", generation=77))
    await fleet.follow("n1", digest=other)
    generation = await fleet.push("n1/gpu-0", "n2/gpu-0")
    told = {each.node for each in await store.commands_of(generation)}
    # n2 has not taken up the last one.
    assert told == {"n1", "n2"}


async def ahead(fleet: Fleet, node: str, *, generation: int) -> None:
    """The node follows a generation that this database never made."""
    fleet.sequence += 1
    fleet.now += timedelta(seconds=2.0)
    seen = make_observation(fleet.sequence, fleet.now, node=node)
    seen = msgspec.structs.replace(seen, generation=generation)
    await fleet.store.ingest((seen,), fleet.now)


@on_fleet()
async def test_every_process_hears_that_a_node_s_commands_are_gone(
    engine: AsyncEngine, database: str
) -> None:
    heard = Listener(database, COMMAND_CHANNEL).listen()
    assert await anext(heard) == RECONNECT
    async with engine.begin() as connection:
        await nodes.remove(connection, "n1", at=START)
    assert await anext(heard) == NODE_GONE
    await heard.aclose()  # type: ignore[attr-defined]
