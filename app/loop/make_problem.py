"""Predict: state + demand → Problem. The operating points are the current profiles, with their times at the quantile
that the policy asks for of what they may be; the capacity law is computed."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import NormalDist, fmean
from typing import NamedTuple

import numpy as np

from app.loop.planning.language_models import (
    llm_demands,
    usable_points,
    with_slots,
    without_broken_models,
)
from app.loop.planning.limits import allowed_types, min_replicas
from app.loop.planning.networks import networks_of, with_choices
from app.loop.planning.survival import Limited, with_survival
from app.store.store import PolicySettings, Snapshot
from solvers.laws.capacity_law import make_capacity_law
from solvers.predict.data.samples import Group, Reals
from solvers.predict.learn.online import FitState, RowKey, log_factors, new_fit_state
from solvers.types.llm import LlmPoints
from solvers.types.plan import BoundPlan, anonymous
from solvers.types.problem import OperatingPoints, Problem, ServiceDemand
from solvers.types.state import (
    ClusterState,
    Demand,
    Gpu,
    GpuId,
    GpuType,
    Mode,
    Service,
)

Sigma = tuple[float, ...]

PLAN_LIFE_S = 600.0
"""So long what starts is expected to serve: what it costs meanwhile must be saved within that time."""


class PointInputs(NamedTuple):
    """What the planned times of one network on one GPU type follow from."""

    points: OperatingPoints
    sigma: Sigma | None
    """Stated uncertainty of every row; None = exact."""
    health: FitState | None
    """What was learned; None = nothing."""
    z: float
    """Normal deviate of the quantile."""

    def is_same(self, other: "PointInputs") -> bool:
        """Whether the planned times are the same, seen by identity alone."""
        parts = zip(self[:3], other[:3], strict=True)
        return self.z == other.z and all(one is another for one, another in parts)


@dataclass(slots=True)
class PlannedPoints:
    """Operating points as they were last planned with; the same ones are given again while nothing changed.

    The storage of problems knows shared parts by identity, and a tick should not compute what the last one did.
    """

    _kept: dict[Group, tuple[PointInputs, OperatingPoints]] = field(
        default_factory=dict
    )

    def of(
        self, snapshot: Snapshot, networks: Collection[str] | None = None
    ) -> tuple[OperatingPoints, ...]:
        """The snapshot's points, with planned times for these networks: None = those that may serve some service."""
        wanted = networks_of(snapshot.state.services) if networks is None else networks
        learned = snapshot.corrections if snapshot.settings.learning else ()
        healths = {correction.group: correction.health for correction in learned}
        z = normal_deviate(snapshot.settings)

        def planned(points: OperatingPoints) -> OperatingPoints:
            group = Group(points.network, points.gpu_type)
            return self._planned(
                PointInputs(
                    points, snapshot.latency_sigma.get(group), healths.get(group), z
                )
            )

        return tuple(
            planned(entry) if entry.network in wanted else entry
            for entry in snapshot.points
        )

    def _planned(self, made_from: PointInputs) -> OperatingPoints:
        group = Group(made_from.points.network, made_from.points.gpu_type)
        kept = self._kept.get(group)
        if kept is None or not kept[0].is_same(made_from):
            kept = self._kept[group] = (made_from, planned_points(made_from))
        return kept[1]


def planned_points(made_from: PointInputs) -> OperatingPoints:
    """The points with times at the quantile that is asked for; the points themselves where nothing changes."""
    points, sigma, health, z = made_from
    if health is None and not (sigma and any(sigma)):
        return points
    stated: Reals = np.array(sigma or (0.0,) * len(points.rows))
    factors = np.exp(
        log_factors(health or new_fit_state(stated, 0.0), row_keys(points), stated, z)
    )
    # Every row by its own factor: samples at one batch say little of another.
    rows = tuple(
        row.slower(factor)
        for row, factor in zip(points.rows, factors.tolist(), strict=True)
    )
    return replace(points, rows=rows)


def sigma_of(snapshot: Snapshot, points: OperatingPoints) -> Sigma:
    """The stated uncertainty of every row."""
    return snapshot.latency_sigma.get(Group(points.network, points.gpu_type)) or (
        0.0,
    ) * len(points.rows)


def row_keys(points: OperatingPoints) -> list[RowKey]:
    """What its rows are known by."""
    return [RowKey(row.sm_percent, row.batch, row.clock_mhz) for row in points.rows]


def normal_deviate(settings: PolicySettings) -> float:
    """How many standard deviations above the median times are planned."""
    return NormalDist().inv_cdf(settings.fit_quantile)


def make_problem(
    state: ClusterState,
    points: Sequence[OperatingPoints],
    demands: Sequence[Demand],
    settings: PolicySettings,
    *,
    target: BoundPlan | None,
    without_cordoned: bool = False,
    limited: Limited = "all",
    at: datetime | None = None,
    also: Collection[str] = (),
    llm_points: Sequence[LlmPoints] = (),
) -> Problem:
    """The one input of every policy. GPUs that are not healthy do not count as stock.

    at: when, for the carbon that the grid emits then; None: the mean over the day. also: GPU types that are there with
    no GPU to use, where the fleet has none of them. llm_points: how services of language models may run.

    A cordoned GPU counts while replicas of the target run on it, since they may stay; `bind` starts nothing there.
    `without_cordoned`: count none of them, for when a plan with them found no place. `limited`: whose replicas are
    made so that services can survive losses, which serves less where GPUs are short.
    """
    usable = _usable(state, set() if without_cordoned else _carrying(target))
    gpu_types = _stocked(state, usable, also)
    active = [each for each in state.services if each.mode is not Mode.OFF]
    services = _service_demands(active, demands, gpu_types)
    models = llm_demands(active, demands, gpu_types)
    # Nothing else asks how GPUs lie on nodes: problems without language models stay as they were.
    if models:
        gpu_types = tuple(with_slots(each, usable) for each in gpu_types)
    known = {gpu_type.name for gpu_type in gpu_types}
    planned = {service.name for service in services}
    # Points of all variants: the record of a problem must tell what each would have cost.
    networks = networks_of(
        [service for service in state.services if service.name in planned]
    )
    used = _points_in_use(points, networks, known)
    problem = Problem(
        objective=settings.objective,
        energy_price_usd_per_kwh=price_usd_per_kwh(settings, at),
        max_replicas_per_gpu=settings.max_replicas_per_gpu,
        # A law needs some percentile and batch, also where there is nothing to serve.
        capacity_law=make_capacity_law(
            sorted({service.percentile for service in services}) or [0.99],
            sorted({row.batch for entry in used for row in entry.rows}) or [1],
        ),
        gpu_types=gpu_types,
        services=services,
        points=used,
        llm_services=models,
        llm_points=usable_points(llm_points, models, known),
        current=None if target is None else anonymous(_alive(target, state)),
        migration_cost_usd_per_hour=settings.migration_cost_usd_per_hour,
        start_usd_per_second_and_gpu=_start_usd(gpu_types) if models else 0.0,
        power_budget_w=settings.power_budget_w,
    )
    chosen = with_choices(problem, state.services, settings, target)
    return with_survival(chosen, state, demands, settings, limited=limited)


def _carrying(target: BoundPlan | None) -> Set[GpuId]:
    """The GPUs on which something runs that may stay."""
    gpus = () if target is None else target.gpus
    return {gpu.id for gpu in gpus if gpu.replicas or gpu.held_by}


def _start_usd(gpu_types: Sequence[GpuType]) -> float:
    """What a second costs in which a GPU loads a language model and serves nothing, spread over a plan's life."""
    # One figure for all types, as the contract has it.
    prices = [each.price_usd_per_hour for each in gpu_types]
    return fmean(prices) / PLAN_LIFE_S if prices else 0.0


def _points_in_use(
    points: Sequence[OperatingPoints], networks: Set[str], gpu_types: Set[str]
) -> tuple[OperatingPoints, ...]:
    used = (
        entry
        for entry in points
        if entry.network in networks and entry.gpu_type in gpu_types
    )
    # Sorted, so that equal snapshots make equal problems, byte for byte.
    return tuple(sorted(used, key=lambda entry: (entry.network, entry.gpu_type)))


def _alive(target: BoundPlan, state: ClusterState) -> BoundPlan:
    """The target without the GPUs that left or that do not answer: nothing runs there that could be kept."""
    alive = {gpu.id for gpu in state.gpus if gpu.healthy}
    left = tuple(gpu for gpu in target.gpus if gpu.id in alive)
    # A replica that has lost one of its GPUs is lost as a whole.
    return without_broken_models(replace(target, gpus=left))


def _usable(
    state: ClusterState,
    carrying: Collection[str],
) -> list[Gpu]:
    """GPUs that may be used; cordoned ones only where they carry replicas."""
    cordoned = cordoned_gpus(state)
    return [
        gpu
        for gpu in state.gpus
        if gpu.healthy and (gpu.id not in cordoned or gpu.id in carrying)
    ]


def _stocked(
    state: ClusterState,
    usable: Sequence[Gpu],
    also: Collection[str],
) -> tuple[GpuType, ...]:
    """GPU types of the fleet with the number of GPUs that may be used."""
    counts = Counter(gpu.gpu_type for gpu in usable)
    # A type whose GPUs are all unhealthy stays, with none to use: the target may still name it.
    fleet = {gpu.gpu_type for gpu in state.gpus}.union(also)
    return tuple(
        replace(gpu_type, count=counts[gpu_type.name])
        for gpu_type in sorted(state.gpu_types, key=lambda gpu_type: gpu_type.name)
        if gpu_type.name in fleet
    )


def cordoned_gpus(state: ClusterState) -> set[GpuId]:
    """Ids of the GPUs that are cordoned, by themselves or with their node."""
    nodes = {node.id for node in state.nodes if node.cordoned}
    return {gpu.id for gpu in state.gpus if gpu.cordoned or gpu.node in nodes}


def _service_demands(
    services: Sequence[Service], demands: Sequence[Demand], gpu_types: Sequence[GpuType]
) -> tuple[ServiceDemand, ...]:
    rates: Mapping[str, float] = {
        demand.service: demand.arrival_rate_rps for demand in demands
    }
    return tuple(
        ServiceDemand(
            name=service.name,
            network=service.network,
            slo_ms=service.slo.latency_ms,
            percentile=service.slo.percentile,
            arrival_rate_rps=rates.get(service.name, 0.0),
            priority=service.priority,
            min_replicas=min_replicas(service.scaling),
            max_replicas=service.scaling.max_replicas,
            allowed_gpu_types=allowed_types(service, gpu_types),
            # A project's labels are its own: no other project's services are kept apart by them.
            anti_affinity=frozenset(
                f"{service.project}/{label}" for label in service.anti_affinity
            ),
        )
        for service in sorted(services, key=lambda service: service.name)
        if service.llm is None
    )


GRAMS_PER_TONNE = 1_000_000.0
HOURS = 24


def carbon_g_per_kwh(settings: PolicySettings, at: datetime | None) -> float:
    """The grid's intensity at that hour of the day in UTC; the mean over the hours where no time is given.

    0 where nothing is stated.
    """
    series = settings.carbon_g_per_kwh
    if not series:
        return 0.0
    if at is None or len(series) < HOURS:
        return fmean(series)
    return series[at.hour]


def price_usd_per_kwh(settings: PolicySettings, at: datetime | None) -> float:
    """What plans made at that time reckon with."""
    carbon_usd = (
        carbon_g_per_kwh(settings, at)
        * settings.carbon_price_usd_per_t
        / GRAMS_PER_TONNE
    )
    return settings.energy_price_usd_per_kwh + carbon_usd
