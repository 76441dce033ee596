"""Snapshots of everything for one tick; what is long and changes rarely is read again only when its revision moved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.tables import cluster
from app.db.decisions import actors, plans, policies
from app.db.decisions.bindings import StoredBinding, load_bound
from app.db.decisions.plan_parts import load_decided_rps
from app.db.fleet import gpu_types, nodes
from app.db.fleet.launches import load_avoided, load_launch_s, load_launch_times
from app.db.fleet.tokens import load_token_steps
from app.db.fleet.windows import load_windows
from app.db.predictions import forecasts, health, profiles
from app.db.workloads import budgets, services, tasks
from app.store.launch_times import served_starts
from app.store.observation_book import (
    model_gpus,
    oldest_step,
    served_lengths,
    served_speeds,
    stretch,
)
from app.store.plan_rules import unpushed
from app.store.store import Correction, PolicySettings, Proposal, Snapshot
from app.store.trained_actors import fleet_fingerprint, wants_actor
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.predict.data.samples import Group
from solvers.types.llm import ServedModels
from solvers.types.plan import BoundPlan
from solvers.types.problem import OperatingPoints
from solvers.types.state import ClusterState, Gpu, Node, Service


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The plan in force, as a snapshot has it."""

    bound: BoundPlan | None = None
    must_renew: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Catalogue:
    """Services and GPUs, as of one revision of the catalogue, which moves with each change of any of them."""

    services: tuple[Service, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    revision: int = 0
    """0 = never read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The profiles in force and what corrects them, as of one revision of each."""

    points: tuple[OperatingPoints, ...] = ()
    latency_sigma: Mapping[Group, tuple[float, ...]] = field(default_factory=dict)
    corrections: tuple[Correction, ...] = ()
    profile_revision: int = 0
    fit_revision: int = 0
    """0 = never read."""


@dataclass(slots=True)
class _Memory:
    """What is remembered of one incarnation of the database."""

    incarnation: UUID | None = None
    catalogue: _Catalogue = field(default_factory=_Catalogue)
    known: _Known = field(default_factory=_Known)
    target: StoredBinding | None = None
    proposal: Proposal | None = None
    choices: Mapping[str, TechniqueChoice] = field(default_factory=dict)
    choices_revision: forecasts.Revision | None = None

    async def read_catalogue(
        self, connection: AsyncConnection, revision: int
    ) -> _Catalogue:
        catalogue = self.catalogue
        if catalogue.revision != revision:
            catalogue = _Catalogue(
                services=await services.load_all(connection),
                gpus=await nodes.load_gpus(connection),
                revision=revision,
            )
            self.catalogue = catalogue
        return catalogue

    async def read_target(
        self, connection: AsyncConnection, generation: int
    ) -> _Target:
        """The target under the counter's number, which is higher than its own after a restore."""
        found = await load_bound(connection, "target", known=self.target)
        self.target = found
        if found is not None and found.plan.generation == generation:
            return _Target(bound=found.plan)
        if found is None and generation == 0:
            return _Target()
        # Where nothing was in force yet, nodes still hold what the other history sent them: an empty target ends that.
        bound = (
            BoundPlan(generation=0, parent=0, policy="")
            if found is None
            else found.plan
        )
        return _Target(bound=replace(bound, generation=generation), must_renew=True)

    async def read_choices(
        self, connection: AsyncConnection
    ) -> Mapping[str, TechniqueChoice]:
        """How services are forecast; read again only when a choice changed."""
        revision = await forecasts.load_revision(connection)
        # Choices change rarely, while snapshots are read at every tick.
        if revision != self.choices_revision:
            self.choices = await forecasts.load_all(connection)
            self.choices_revision = revision
        return self.choices

    async def read_known(
        self, connection: AsyncConnection, profile_revision: int, fit_revision: int
    ) -> _Known:
        known = self.known
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
        # The same object where nothing changed: planned times are computed again for every other one.
        same = {correction.group: correction for correction in self.known.corrections}
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
        self.known = known
        return known


async def _load_actor(
    connection: AsyncConnection, settings: PolicySettings, state: ClusterState
) -> bytes | None:
    """The newest one for the fleet, where the policy asks for one."""
    if not wants_actor(settings):
        return None
    return await actors.load_newest(connection, fleet_fingerprint(state))


async def _load_state(
    connection: AsyncConnection,
    catalogue: _Catalogue,
    all_nodes: tuple[Node, ...],
    now: datetime,
) -> ClusterState:
    return ClusterState(
        # Not remembered: a price may begin to hold without a change.
        gpu_types=await gpu_types.load_all(connection, now),
        nodes=all_nodes,
        gpus=catalogue.gpus,
        services=catalogue.services,
        tasks=await tasks.load_open(connection, now),
        catalogue_revision=catalogue.revision,
    )


async def _load_served(
    connection: AsyncConnection,
    target: BoundPlan | None,
    services: Sequence[Service],
    now: datetime,
) -> ServedModels:
    """What language models' replicas said of themselves lately."""
    models = [each.name for each in services if each.llm is not None]
    # Most fleets have none, and need not be asked.
    if not models:
        return ServedModels()
    starts = served_starts(await load_launch_times(connection, models))
    gpus = model_gpus(target)
    if not gpus:
        return ServedModels(starts=starts)
    executions = await health.load_executions(connection, *stretch(now), gpus)
    counted = await load_token_steps(connection, oldest_step(now))
    return ServedModels(
        speeds=served_speeds(target, executions),
        lengths=served_lengths(counted),
        starts=starts,
    )


class SnapshotReader:
    """Reads snapshots, each with what is of its own revisions: some are older than others, as the tick is not alone."""

    def __init__(self) -> None:
        self._memory = _Memory()

    @property
    def target(self) -> StoredBinding | None:
        """The target that was read last; it may have been replaced since."""
        return self._memory.target

    @property
    def incarnation(self) -> UUID | None:
        """The database's that was read last; None: none was."""
        return self._memory.incarnation

    async def read(self, connection: AsyncConnection, now: datetime) -> Snapshot:
        """What the connection's transaction sees, which must see one moment."""
        revisions = (await connection.execute(select(cluster))).one()
        memory = self._memory_of(revisions.incarnation)
        settings = await policies.load_current(connection)
        all_nodes, statuses = await nodes.load_all(connection, now)
        catalogue = await memory.read_catalogue(
            connection, revisions.catalogue_revision
        )
        state = await _load_state(connection, catalogue, all_nodes, now)
        target = await memory.read_target(connection, revisions.target_generation)
        approved = await load_bound(connection, "approved", known=memory.target)
        memory.proposal = await plans.newest_proposed(
            connection,
            parent=revisions.target_generation,
            catalogue_revision=state.catalogue_revision,
            known=memory.proposal,
            base=memory.target,
        )
        known = await memory.read_known(
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
            decided_rps=await load_decided_rps(
                connection, unpushed(settings, state.services)
            ),
            statuses=statuses,
            approved=None if approved is None else approved.plan,
            approved_id=None if approved is None else approved.plan_id,
            proposal=memory.proposal,
            memory=await policies.load_memory(connection, settings.policy),
            group_memory=await policies.load_group_memory(connection, settings),
            latency_sigma=known.latency_sigma,
            corrections=known.corrections,
            choices=await memory.read_choices(connection),
            avoided=await load_avoided(connection, now),
            launch_s=await load_launch_s(connection),
            llm_networks=await profiles.load_llm_networks(connection),
            served=await _load_served(connection, target.bound, state.services, now),
            degradations=await budgets.load_degradations(connection),
            actor=await _load_actor(connection, settings, state),
        )

    def _memory_of(self, incarnation: UUID) -> _Memory:
        # Revisions and ids of another history may be the same and mean something else.
        if incarnation != self.incarnation:
            self._memory = _Memory(incarnation=incarnation)
        return self._memory
