"""The Store on PostgreSQL."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from uuid import UUID

from psycopg.errors import CheckViolation
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agents.base.protocol import NodeCommand, Observation
from app.db.base.leader import holds_lead
from app.db.base.observation_rows import WindowedObservation, place
from app.db.base.tables import cluster
from app.db.base.unkeepable import refused_where_unkeepable
from app.db.decisions import actors, commands, plans, policies, targets
from app.db.decisions.problem_archive import PartCache, pack, save_parts
from app.db.fleet import gpu_types, nodes
from app.db.fleet.ingest import ensure_days, ingest
from app.db.fleet.launches import load_avoided, load_launch_s
from app.db.fleet.overuses import lose_overuses
from app.db.fleet.reportable import LoadedReportable, refresh
from app.db.fleet.windows import load_windows
from app.db.operations import events
from app.db.operations.incarnations import MadeCommands, note_diverged
from app.db.predictions import forecasts, health, profiles, samples
from app.db.workloads import budgets, services, tasks
from app.store.event_limits import EventLimits, LimitedEvents
from app.store.reportable import Ingested
from app.store.store import (
    AuditEvent,
    Correction,
    Execution,
    FitHealth,
    PlanRecord,
    Proposal,
    SampleRow,
    Snapshot,
)
from app.store.trained_actors import fleet_fingerprint, wants_actor
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.predict.data.samples import Group
from solvers.types.plan import BoundPlan
from solvers.types.problem import OperatingPoints
from solvers.types.state import ClusterState, GpuId, Json


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
        self._known = _Known()
        self._incarnation: UUID | None = None
        self._proposal: Proposal | None = None
        self._choices: Mapping[str, TechniqueChoice] = {}
        self._choices_revision: forecasts.Revision | None = None

    async def load_snapshot(self, now: datetime) -> Snapshot:
        """Everything for one tick, read in one repeatable-read transaction."""
        async with self._reading() as connection:
            return await self.read_snapshot(connection, now)

    async def read_snapshot(
        self, connection: AsyncConnection, now: datetime
    ) -> Snapshot:
        """The same as a transaction sees it. Of one that has written something, only by a store that is then given up:
        what it remembers by its revision may never come to be."""
        revisions = (await connection.execute(select(cluster))).one()
        self._forget_other_incarnations(revisions.incarnation)
        settings = await policies.load_current(connection)
        all_nodes, statuses = await nodes.load_all(connection, now)
        state = ClusterState(
            gpu_types=await gpu_types.load_all(connection, now),
            nodes=all_nodes,
            gpus=await nodes.load_gpus(connection),
            services=await services.load_all(connection),
            tasks=await tasks.load_open(connection, now),
            catalogue_revision=revisions.catalogue_revision,
        )
        target = await self._load_target(connection, revisions.target_generation)
        approved = await plans.load_bound(connection, "approved")
        self._proposal = await plans.newest_proposed(
            connection,
            parent=revisions.target_generation,
            catalogue_revision=state.catalogue_revision,
            known=self._proposal,
        )
        known = await self._load_known(
            connection, revisions.profile_revision, revisions.fit_revision
        )
        return Snapshot(
            at=now,
            state=state,
            points=known.points,
            target=target.bound,
            must_renew=target.must_renew,
            settings=settings,
            windows=await load_windows(
                connection, now, settings.window_s, state.services
            ),
            statuses=statuses,
            approved=None if approved is None else approved[1],
            approved_id=None if approved is None else approved[0],
            proposal=self._proposal,
            memory=await policies.load_memory(connection, settings.policy),
            group_memory=await policies.load_group_memory(connection, settings),
            latency_sigma=known.latency_sigma,
            corrections=known.corrections,
            choices=await self._load_choices(connection),
            avoided=await load_avoided(connection, now),
            launch_s=await load_launch_s(connection),
            degradations=await budgets.load_degradations(connection),
            actor=await actors.load_newest(connection, fleet_fingerprint(state))
            if wants_actor(settings)
            else None,
        )

    async def record_plan(self, record: PlanRecord) -> int:
        """Write a decision down; returns its plan id."""
        # Packed before the transaction, which should not stay open while the problem is compressed.
        packed = None if record.problem is None else pack(record.problem, self._parts)
        async with self._engine.begin() as connection:
            if record.waits:
                # Before everything else, as a restored plan does: the two never wait for each other.
                await plans.lock_target(connection)
            if packed is not None:
                await save_parts(connection, packed.parts)
            plan_id = await plans.record(connection, record, packed)
        if packed is not None:
            # Only after the commit: parts of a transaction that failed are not stored.
            self._parts.stored.update(packed.parts)
        return plan_id

    async def push_target(
        self,
        plan_id: int,
        bound: BoundPlan,
        commands: tuple[NodeCommand, ...],
        at: datetime,
    ) -> bool:
        """Make the plan the target if its parent still is and the catalogue revision is unchanged."""
        async with self._engine.begin() as connection:
            return await targets.push(
                connection, plan_id, bound, commands, at, epoch=self._epoch()
            )

    async def withdraw_proposals(self, *, keep: int | None, at: datetime) -> None:
        """After a restart: proposals but this one can no longer come into force."""
        async with self._engine.begin() as connection:
            await targets.withdraw_proposals(
                connection, keep=keep, at=at, epoch=self._epoch()
            )

    async def save_memory(
        self, policy: str, memory: Json, *, policy_version: int
    ) -> None:
        """Keep what the policy wrote down, until the next tick."""
        async with self._engine.begin() as connection:
            # The lock of a push, for the same reason: a pause that was confirmed ends what was under way.
            await plans.lock_target(connection)
            settings = await policies.load_current(connection)
            is_of_now = policy_version == settings.version and not settings.holds
            if is_of_now and await holds_lead(connection, self._epoch()):
                await policies.save_memory(connection, policy, memory)

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
        """End what goes on at nodes that have fallen silent and of which nobody can tell any more: overuse."""
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

    def _forget_other_incarnations(self, incarnation: UUID) -> None:
        """Revisions and ids of another history may be the same and mean something else."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._parts, self._known = PartCache(), _Known()
            self._proposal = self._choices_revision = None

    async def _load_target(
        self, connection: AsyncConnection, generation: int
    ) -> "_Target":
        """The target under the counter's number, which is higher than its own after a restore."""
        found = await plans.load_bound(connection, "target")
        if found is not None and found[1].generation == generation:
            return _Target(bound=found[1])
        if found is None and generation == 0:
            return _Target()
        # Where nothing was in force yet, nodes still hold what the other history sent them: an empty target ends that.
        bound = (
            BoundPlan(generation=0, parent=0, policy="") if found is None else found[1]
        )
        return _Target(bound=replace(bound, generation=generation), must_renew=True)

    async def _load_choices(
        self, connection: AsyncConnection
    ) -> Mapping[str, TechniqueChoice]:
        """How services are forecast; read again only when a choice changed."""
        revision = await forecasts.load_revision(connection)
        # Choices change rarely, while snapshots are read at every tick.
        if revision != self._choices_revision:
            self._choices = await forecasts.load_special(connection)
            self._choices_revision = revision
        return self._choices

    async def _load_known(
        self, connection: AsyncConnection, profile_revision: int, fit_revision: int
    ) -> "_Known":
        """Profiles and what corrects them change rarely and are long; they are read again when their revision moved.

        Snapshots are read by the tick and beside it, some of them older than others: each gets what is of its revision.
        """
        known = self._known
        if (profile_revision, fit_revision) == (
            known.profile_revision,
            known.fit_revision,
        ):
            return known
        if profile_revision != known.profile_revision:
            loaded = await profiles.load_profiles(connection)
            points = tuple(entry.points for entry in loaded)
            latency_sigma = {
                entry.group: entry.performance.latency_sigma for entry in loaded
            }
            known = replace(known, points=points, latency_sigma=latency_sigma)
        # The same object where nothing changed: planned times are computed anew for every other one.
        same = {correction.group: correction for correction in self._known.corrections}
        read = [row.planned for row in await health.load_all(connection)]
        corrections = tuple(
            same[each.group] if same.get(each.group) == each else each for each in read
        )
        known = replace(
            known,
            corrections=corrections,
            profile_revision=profile_revision,
            fit_revision=fit_revision,
        )
        self._known = known
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The plan in force, as a snapshot has it."""

    bound: BoundPlan | None = None
    must_renew: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The profiles in force and what corrects them, as of one revision of each."""

    points: tuple[OperatingPoints, ...] = ()
    latency_sigma: Mapping[Group, tuple[float, ...]] = field(default_factory=dict)
    corrections: tuple[Correction, ...] = ()
    profile_revision: int = 0
    fit_revision: int = 0
    """0 = never read."""
