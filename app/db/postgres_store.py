"""The Store on PostgreSQL."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from uuid import UUID

from psycopg.errors import CheckViolation
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agents.base.protocol import NodeCommand, Observation
from app.db.base.leader import holds_lead
from app.db.base.observation_rows import WindowedObservation, place
from app.db.base.unkeepable import refused_where_unkeepable
from app.db.decisions import commands, plans, policies, targets
from app.db.decisions.problem_archive import PartCache, pack, save_parts
from app.db.fleet import nodes
from app.db.fleet.ingest import ensure_days, ingest
from app.db.fleet.overuses import lose_overuses
from app.db.fleet.reportable import LoadedReportable, refresh
from app.db.operations import events
from app.db.operations.incarnations import MadeCommands, note_diverged
from app.db.predictions import health, samples
from app.db.snapshots import SnapshotReader
from app.store.event_limits import EventLimits, LimitedEvents
from app.store.reportable import Ingested
from app.store.store import (
    AuditEvent,
    Execution,
    FitHealth,
    PlanRecord,
    SampleRow,
    Snapshot,
)
from solvers.types.plan import BoundPlan
from solvers.types.state import GpuId


class PostgresStore:
    """The loop's memory in PostgreSQL. Any number of processes may have one; only hints are kept in memory."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        epoch: Callable[[], int] = lambda: 0,
        event_limits: EventLimits | None = None,
    ) -> None:
        """`epoch`: of the leadership under which this process decides; 0 = it does not lead."""
        self._engine = engine
        self._epoch = epoch
        self._parts = PartCache()
        self._days: set[date] = set()
        self._made = MadeCommands()
        self._reportable = LoadedReportable()
        self._event_limits = event_limits or EventLimits()
        self._snapshots = SnapshotReader()
        self._incarnation: UUID | None = None

    async def load_snapshot(self, now: datetime) -> Snapshot:
        """Everything for one tick, read in one repeatable-read transaction."""
        async with self._reading() as connection:
            return await self.read_snapshot(connection, now)

    async def read_snapshot(
        self, connection: AsyncConnection, now: datetime
    ) -> Snapshot:
        """The same as a transaction sees it. Of one that has written something, only by a store that is then given up:
        what it remembers by its revision may never come to be."""
        snapshot = await self._snapshots.read(connection, now)
        if self._snapshots.incarnation != self._incarnation:
            # Parts of another history may have the same ids.
            self._incarnation = self._snapshots.incarnation
            self._parts = PartCache()
        return snapshot

    async def record_plan(self, record: PlanRecord) -> int:
        """Write a decision down; returns its plan id."""
        # Packed before the transaction, which should not stay open while the problem is compressed.
        packed = None if record.problem is None else pack(record.problem, self._parts)
        async with self._engine.begin() as connection:
            if record.waits or record.memory:
                # Before everything else, as a restored plan does: the two never wait for each other.
                await plans.lock_target(connection)
            if packed is not None:
                await save_parts(connection, packed.parts)
            plan_id = await plans.record(
                connection, record, packed, known=self._snapshots.target
            )
            await self._keep_memory(connection, record)
        if packed is not None:
            # Only after the commit: parts of a transaction that failed are not stored.
            self._parts.stored.update(packed.parts)
        return plan_id

    async def _keep_memory(
        self, connection: AsyncConnection, record: PlanRecord
    ) -> None:
        """Memory, while the target is locked as by a push: none comes after a pause that was confirmed."""
        if not record.memory:
            return
        settings = await policies.load_current(connection)
        is_of_now = record.policy_version == settings.version and not settings.holds
        if is_of_now and await holds_lead(connection, self._epoch()):
            for policy, memory in record.memory.items():
                await policies.save_memory(connection, policy, memory)

    async def push_target(
        self,
        plan_id: int,
        bound: BoundPlan,
        commands: tuple[NodeCommand, ...],
        at: datetime,
        *,
        line: AuditEvent | None = None,
    ) -> bool:
        """Make the plan the target if its parent still is and the catalogue revision is unchanged."""
        async with self._engine.begin() as connection:
            is_pushed = await targets.push(
                connection,
                plan_id,
                bound,
                commands,
                at,
                epoch=self._epoch(),
                known=self._snapshots.target,
            )
            if is_pushed and line is not None:
                await events.add(connection, line)
        return is_pushed

    async def withdraw_proposals(self, *, keep: int | None, at: datetime) -> None:
        """After a restart: proposals but this one can no longer come into force."""
        async with self._engine.begin() as connection:
            await targets.withdraw_proposals(
                connection, keep=keep, at=at, epoch=self._epoch()
            )

    async def ingest(
        self, observations: tuple[Observation, ...], received: datetime
    ) -> Ingested:
        """Make observations durable; one that came before (same node, boot, sequence) changes nothing."""
        if not observations:
            return Ingested()
        placed = [place(observation, received) for observation in observations]
        # Eight at most, however wrong the agents' clocks are: `place` moves windows into the last week.
        days = {entry.start.astimezone(UTC).date() for entry in placed}
        await self._ensure(days - self._days)
        try:
            return await self._ingest(placed, received)
        except CheckViolation as error:
            # PostgreSQL says so, without the name of a constraint, where a row has no partition: somebody dropped it.
            if error.diag.constraint_name is not None:
                raise
            await self._ensure(days)
            return await self._ingest(placed, received)

    async def _ensure(self, days: set[date]) -> None:
        if not days:
            return
        # In a transaction of their own: the lock of partitions must not be held while rows are written.
        async with self._engine.begin() as connection:
            await ensure_days(connection, days)
        # Remembered, so that the database is asked once per day and process.
        self._days |= days

    async def _ingest(
        self, placed: list[WindowedObservation], received: datetime
    ) -> Ingested:
        # Lines count once they are committed: a group that is rolled back is tried again in halves, and its lines would
        # count many times.
        with (
            self._event_limits.transaction(received) as limited,
            refused_where_unkeepable(),
        ):
            known, taken, diverged = await self._write(placed, received, limited)
        self._reportable = known
        if diverged:
            # In a transaction of its own: who changes the catalogue locks `cluster` first and then nodes, which the
            # transaction of the reports had locked.
            async with self._engine.begin() as connection:
                await note_diverged(connection, diverged, received)
        return taken

    async def _write(
        self,
        placed: list[WindowedObservation],
        received: datetime,
        limited: LimitedEvents,
    ) -> tuple[LoadedReportable, Ingested, list[Observation]]:
        """All in one transaction; what nodes may report of now, what became of the observations, and those of nodes
        that follow another history of this database."""
        async with self._engine.begin() as connection:
            known = await refresh(connection, self._reportable, received)
            taken = await ingest(
                connection, placed, received, known.reportable, limited
            )
            for line in limited.summary:
                await events.add(connection, line)
            diverged = await self._made.diverged(
                connection,
                [entry.observation for entry in placed],
                known.target_generation,
                known.target_since,
            )
        return known, taken, diverged

    async def command_for(self, node: str, after_generation: int) -> NodeCommand | None:
        """The newest command for a node if its generation is newer than the one given."""
        async with self._engine.connect() as connection:
            return await commands.newest_command(connection, node, after_generation)

    async def has_given(self, wanted: Sequence[NodeCommand]) -> bool:
        """Whether each of these nodes, where it is registered, was last given such a command, its number aside."""
        async with self._engine.connect() as connection:
            newest = await commands.load_newest(connection)
        return all(
            newest[each.node].says(each) for each in wanted if each.node in newest
        )

    async def commands_of(self, generation: int) -> tuple[NodeCommand, ...]:
        """The commands of one generation, in no order."""
        async with self._engine.connect() as connection:
            return await commands.load_commands(connection, generation)

    async def add_events(self, *lines: AuditEvent) -> None:
        """Append lines to the audit, all or none."""
        async with self._engine.begin() as connection:
            for event in lines:
                await events.add(connection, event)

    async def note_drained(self, lines: Mapping[str, AuditEvent]) -> None:
        """Append the lines of nodes that are drained, by node, where that was not yet noted of this draining."""
        at = max(line.at for line in lines.values())
        async with self._engine.begin() as connection:
            for name in await nodes.note_drained(connection, lines, at):
                await events.add(connection, lines[name])

    async def lose_sight(self, nodes: Sequence[str], at: datetime) -> None:
        """End what goes on at nodes that have fallen silent and are not heard of any more: overuse."""
        async with self._engine.begin() as connection:
            await lose_overuses(connection, nodes, at, why="since its node fell silent")

    async def load_executions(
        self, since: datetime, until: datetime, gpus: Sequence[GpuId]
    ) -> tuple[Execution, ...]:
        """What every replica of these GPUs executed in windows that start in [since, until), by GPU and replica."""
        async with self._engine.connect() as connection:
            return await health.load_executions(connection, since, until, gpus)

    async def load_fit_health(self) -> tuple[FitHealth, ...]:
        """The health of the operating points in force, by network and GPU type; of those that were ever served."""
        async with self._engine.connect() as connection:
            return await health.load_all(connection)

    async def save_fit_health(
        self, rows: tuple[FitHealth, ...], catalogue_revision: int
    ) -> bool:
        """Keep these, in place of those of the same groups. False, and nothing kept: the catalogue changed."""
        async with self._engine.begin() as connection:
            return await health.save(connection, rows, catalogue_revision)

    async def add_samples(self, rows: tuple[SampleRow, ...], at: datetime) -> int:
        """Keep measurements; returns how many were not there yet."""
        async with self._engine.begin() as connection:
            return await samples.add(connection, rows, at=at)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        async with self._engine.connect() as connection:
            # One view of all tables: a tick must not see a new service with an old policy.
            await connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            async with connection.begin():
                yield connection
