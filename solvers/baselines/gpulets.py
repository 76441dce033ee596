"""Policy `gpulets`: elastic partitioning, which splits a GPU into at most two shares ("gpu-lets").

Services in falling order of rate; each gets gpu-lets until its rate is served:

1. The ideal size is the smaller of the most efficient one (the knee of the rate over the size) and the smallest one
   that serves what is left of the rate.
2. The best fit is the smallest free gpu-let of that size or more: the free half of a split GPU, taken whole; else a
   whole GPU, which is SPLIT at the ideal size.
3. Interference decides whether two may share a GPU: next to each other both must keep half their SLO at some batch, and
   still serve what they were given. The batch is the largest one that does.
4. MERGE: where the best fit lies next to a gpu-let of the same service, both become one as large as the GPU.

Source: Choi et al., "Serving Heterogeneous Machine Learning Models on Multi-GPU Servers with Spatio-Temporal Sharing",
USENIX ATC 2022, section 4; batch and two shares per GPU also in InSS, section 6.1. Changed: interference is not the
paper's linear regression over the L2 and DRAM use of both, for which a Problem has no counters, but the contract's,
which is as linear: sensitivity · pressure on the run term, a constant on the launch term (of each neighbour the batch
with the most pressure is assumed). The paper merges two services that take turns on one gpu-let; a Plan gives every
replica its own share and no GPU two replicas of a service, so that only two gpu-lets of one service can become one.
Sizes are those that were profiled, not the paper's six. Several GPU types: `type_by_type`.

Good as a baseline that shares in space and knows that neighbours hurt. Limits: rates are those of a gpu-let alone; it
knows no queue (see `half_slo`), no priority, no price of a move, and never puts three services on a GPU.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from solvers.backfill.problem import FillProblem
from solvers.baselines.half_slo import SoloProfile, half_slo_rps, max_replicas
from solvers.baselines.leftover_fill import best_fit, fill_left_over
from solvers.baselines.type_by_type import (
    TypePolicy,
    TypeStage,
    plan_type_by_type,
    replace_one,
)
from solvers.greedy.arrange import obeys
from solvers.greedy.routing import ROUNDING, ArrangedReplica, Carrier
from solvers.laws.colocation import ALONE, Neighbours, beside
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import BoundGpu, Plan
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import Json, Observed

NAME = "gpulets"


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan of elastic partitioning for the Problem's rates, and its report; it remembers nothing."""
    del observed, memory
    plan, report = plan_type_by_type(
        problem, TypePolicy(name=NAME, fill=_fill, capacities=_capacities), budget
    )
    return plan, report, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpuLet:
    """A share of a GPU that a service was given."""

    service: str
    sm_percent: float
    rate_rps: float
    """What the service counts on."""


Gpu = tuple[_GpuLet, ...]
"""One or two."""


def _capacities(problem: Problem, carrier: Carrier) -> list[float]:
    """What each replica serves alone, if its batch runs within half the SLO next to its neighbours."""
    gpu_type = problem.gpu_type(carrier.gpu_type)
    slos_ms = (problem.service(seat.service).slo_ms for seat in carrier.seats)
    return [
        half_slo_rps(seat.row, seat.row.solo_ms, slo_ms=slo_ms)
        if 2.0 * beside(problem, gpu_type, carrier.seats, at).execution_ms <= slo_ms
        else 0.0
        for at, (seat, slo_ms) in enumerate(zip(carrier.seats, slos_ms, strict=True))
    ]


def _fill(problem: Problem, stage: TypeStage) -> list[Carrier]:
    partitioning = _Partitioning(problem, stage)
    for service in sorted(
        problem.services, key=lambda service: (-service.arrival_rate_rps, service.name)
    ):
        if service.name in stage.profiles:
            partitioning.serve(service)
    return partitioning.carriers()


class _Partitioning:
    """The GPUs of one type while they are split among services."""

    def __init__(self, problem: Problem, stage: TypeStage) -> None:
        self._problem = problem
        self._stage = stage
        self._room = stage.room
        # Equal GPUs are one entry: they are equally good for the next gpu-let.
        self._gpus: Counter[Gpu] = Counter()

    def serve(self, service: ServiceDemand) -> None:
        """Give the service gpu-lets until its rate is served or none is left."""
        profile = self._stage.profiles[service.name]
        left_rps = service.arrival_rate_rps
        replicas = 0
        limit = max_replicas(service, self._room)
        while replicas < limit and (
            left_rps > ROUNDING * service.arrival_rate_rps
            or replicas < service.min_replicas
        ):
            ideal = _ideal_percent(profile, left_rps, limit - replicas)
            found = self._best_fit(service.name, ideal, left_rps)
            if found is None:
                break
            old, new = found
            replace_one(self._gpus, old, new)
            left_rps -= _gain_rps(old, new, service.name)
            # A merge widens the gpu-let that is there: then there is no replica more.
            replicas += len(new) - len(old)
        self._room -= replicas

    def carriers(self) -> list[Carrier]:
        """The GPUs with their rows."""
        carriers = []
        for gpu, count in self._gpus.items():
            rows = self._rows(gpu)
            assert rows is not None, "a gpu-let was given away that has no batch"
            carrier = self._carrier(gpu, rows)
            carriers.extend([carrier] * count)
        return carriers

    def _best_fit(
        self,
        service: str,
        ideal: float,
        left_rps: float,
    ) -> tuple[Gpu, Gpu] | None:
        """The GPU that changes (empty: a new one) and what it becomes; None where nothing fits."""
        min_rps = min(left_rps, self._stage.profiles[service].rates_rps[ideal])
        # The smallest free half first, as in the paper's best fit.
        halves = sorted((gpu for gpu in self._gpus if len(gpu) == 1), key=_free_percent)
        for gpu in halves:
            if _free_percent(gpu) < ideal:
                continue
            grown = self._beside(gpu, service, left_rps)
            enough_rps = min_rps * (1.0 - ROUNDING)
            if grown is not None and _gain_rps(gpu, grown, service) >= enough_rps:
                return gpu, grown
        if self._stage.gpu_type.has_more_than(self._gpus.total()):
            return (), (_GpuLet(service=service, sm_percent=ideal, rate_rps=min_rps),)
        return self._best_gain(halves, service, left_rps)

    def _best_gain(
        self,
        halves: Sequence[Gpu],
        service: str,
        left_rps: float,
    ) -> tuple[Gpu, Gpu] | None:
        """The half GPU on which the service gains most, and what it becomes; None where it gains on none."""
        changes = [
            (gpu, grown)
            for gpu in halves
            if (grown := self._beside(gpu, service, left_rps)) is not None
        ]
        gains_rps = [_gain_rps(gpu, grown, service) for gpu, grown in changes]
        max_rps = max(gains_rps, default=0.0)
        return changes[gains_rps.index(max_rps)] if max_rps > 0.0 else None

    def _beside(self, gpu: Gpu, service: str, left_rps: float) -> Gpu | None:
        """The GPU with its free half given to the service; None where they may not share, or nothing is won."""
        profile, (tenant,) = self._stage.profiles[service], gpu
        if tenant.service == service:
            return _merged(profile, tenant, left_rps)
        sm_percent = max(
            (percent for percent in profile.rates_rps if percent <= _free_percent(gpu)),
            default=None,
        )
        if sm_percent is None:
            return None
        new = _GpuLet(service=service, sm_percent=sm_percent, rate_rps=0.0)
        rows = self._rows((tenant, new))
        if rows is None or not obeys(self._problem, self._carrier((tenant, new), rows)):
            return None
        # The one that is there may be slowed down, but not below what it was given.
        tenant_rps = self._stage.profiles[tenant.service].rate_rps(rows[0])
        if tenant_rps < tenant.rate_rps * (1.0 - ROUNDING):
            return None
        return tenant, replace(new, rate_rps=min(left_rps, profile.rate_rps(rows[1])))

    def _rows(self, gpu: Gpu) -> list[OperatingPoint] | None:
        """The largest batches that keep half the SLO next to each other; None where one has none."""
        rows = []
        for let in gpu:
            neighbours = [
                self._stage.profiles[other.service].rows[other.sm_percent]
                for other in gpu
                if other is not let
            ]
            row = self._stage.profiles[let.service].largest_batch(
                let.sm_percent, _worst(neighbours)
            )
            if row is None:
                return None
            rows.append(row)
        return rows

    def _carrier(self, gpu: Gpu, rows: Sequence[OperatingPoint]) -> Carrier:
        seats = tuple(
            ArrangedReplica(service=let.service, row=row)
            for let, row in zip(gpu, rows, strict=True)
        )
        return Carrier(gpu_type=self._stage.gpu_type.name, seats=seats)


def _merged(profile: SoloProfile, tenant: _GpuLet, left_rps: float) -> Gpu | None:
    """One gpu-let as large as the GPU; None where nothing is asked of it any more."""
    if left_rps <= 0.0:
        return None
    widest = max(profile.rates_rps)
    rate_rps = min(tenant.rate_rps + left_rps, profile.rates_rps[widest])
    return (replace(tenant, sm_percent=widest, rate_rps=rate_rps),)


def _free_percent(gpu: Gpu) -> float:
    return 100.0 - sum(let.sm_percent for let in gpu) + SM_PERCENT_TOLERANCE


def _gain_rps(old: Gpu, new: Gpu, service: str) -> float:
    """What the service gains where a GPU changes."""
    before, after = (
        sum(let.rate_rps for let in gpu if let.service == service) for gpu in (old, new)
    )
    return after - before


def _ideal_percent(profile: SoloProfile, left_rps: float, replicas: int) -> float:
    """The paper's ideal size; larger where `replicas` could not carry what is left at the most efficient one."""
    required = profile.min_percent(left_rps)
    if required is not None and required <= profile.knee_percent:
        return required
    spread = profile.min_percent(left_rps / replicas)
    return max(
        profile.knee_percent, spread if spread is not None else max(profile.rates_rps)
    )


def _worst(neighbours: Sequence[Sequence[OperatingPoint]]) -> Neighbours:
    """The neighbours at the batches that press most."""
    if not neighbours:
        return ALONE
    return Neighbours(
        count=len(neighbours),
        pressure=sum(max(row.pressure for row in rows) for rows in neighbours),
    )


def fill(wanted: FillProblem) -> tuple[BoundGpu, ...]:
    """The bound plan's GPUs, with a task where only one gpu-let is taken.

    Raises InvalidInput for a replica without a service or row.
    """
    # A task is the second gpu-let: a GPU that is split already has no third.
    halves = tuple(gpu for gpu in wanted.bound.gpus if len(gpu.replicas) == 1)
    full = [gpu for gpu in wanted.bound.gpus if len(gpu.replicas) > 1]
    taken = {gpu.id for gpu in full}
    free = [gpu for gpu in wanted.gpus if gpu.id not in taken]
    filled = fill_left_over(
        replace(wanted, bound=replace(wanted.bound, gpus=halves), gpus=free), best_fit
    )
    without_tasks = (replace(gpu, tasks=()) for gpu in full)
    return tuple(sorted((*filled, *without_tasks), key=lambda gpu: gpu.id))
