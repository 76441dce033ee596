"""Morak's GPUs of one type: filled by knees, then for ever tighter SLOs where something stays unserved."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import product

from solvers.baselines.half_slo import SoloProfile, profiles
from solvers.baselines.type_by_type import TypeStage
from solvers.greedy.routing import ROUNDING, Carrier, route, true_capacities
from solvers.papers.morak.counts import first_count, more_replicas
from solvers.papers.morak.knee_partition import knee_percent
from solvers.papers.morak.packing import (
    MorakTenant,
    NeighbourSet,
    Partition,
    divided_by_knees,
    divided_by_worth,
    packed,
)
from solvers.types.outcome import Budget
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand

NAME = "morak"

LADDER = tuple(2.0 ** (-step / 2.0) for step in range(32))
"""Parts of the SLOs that are planned for, until nothing keeps them. A plan for an SLO so has the choice of all that one
for SLO / √2 can do, and a looser SLO never serves less."""
DIVISIONS: Mapping[str, Sequence[Partition]] = {
    "by knees": (divided_by_knees,),
    "by worth": (divided_by_knees, divided_by_worth),
}
"""How a GPU is divided where something stays unserved, by the parameter's value."""
DIVISIONS_PER_WORK_UNIT = 700
"""Divisions by worth that take about a second."""
ChooseBatch = Callable[[SoloProfile, Sequence[OperatingPoint]], OperatingPoint]
"""Which of the rows at the knees of several batches a service gets."""
_HALVINGS = 10
"""Halvings of the part that everybody gets: they find it to a thousandth."""
_ROUNDS = 6
"""Rounds of adding replicas for what neighbours and clocks cost; each closes most of the shortage."""


class FillEffort:
    """What one plan may still cost: divisions by worth, counted, and seconds as the last resort."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._left = budget.work * DIVISIONS_PER_WORK_UNIT

    @property
    def is_out_of_time(self) -> bool:
        """Whether the ladder has to end where it stands."""
        return self._budget.remaining_s() <= 0.0

    @property
    def is_spent(self) -> bool:
        """Whether too many GPUs were divided by worth."""
        return self._left <= 0.0

    def affordable(self, division: Partition) -> Partition:
        """That way to divide one GPU, or by knees where too many were divided by worth."""
        self._left -= division is divided_by_worth
        return divided_by_knees if self.is_spent else division


@dataclass(frozen=True, slots=True, kw_only=True)
class MorakFilling:
    """How one plan fills GPUs."""

    extra_percent: Mapping[str, float]
    """By which services count as wider than their knees, since their governors asked for it."""
    division: str
    """One of DIVISIONS."""
    effort: FillEffort

    def fill(self, problem: Problem, stage: TypeStage) -> list[Carrier]:
        """The GPUs that serve most of what is asked for, by priority; of equals the first on the ladder."""
        best = self._fill_once(problem, stage, _largest_batch, divided_by_knees)
        least = _unserved(problem, best)
        rungs = self._rungs(problem, stage)
        while least > 0.0 and (carriers := next(rungs, None)):
            unserved = _unserved(problem, carriers)
            if unserved < least * (1.0 - ROUNDING):
                best, least = carriers, unserved
        return best

    def _rungs(self, problem: Problem, stage: TypeStage) -> Iterator[list[Carrier]]:
        """The GPUs for ever tighter SLOs, while there is time; none once nothing keeps them."""
        # A looser SLO lets larger batches and more neighbours in, which may pack worse than what a tighter one allows.
        for part, choose, divided in product(
            LADDER, (_densest_batch, _largest_batch), DIVISIONS[self.division]
        ):
            if self.effort.is_out_of_time:
                return
            # Divided by knees it would be the plan of the step before.
            if divided is divided_by_worth and self.effort.is_spent:
                continue
            tighter = _tighter(problem, part)
            yield self._fill_once(tighter, _stage_of(tighter, stage), choose, divided)

    def _fill_once(
        self,
        problem: Problem,
        stage: TypeStage,
        choose: ChooseBatch,
        division: Partition,
    ) -> list[Carrier]:
        tenants = _tenants(problem, stage, self.extra_percent, choose)

        @cache
        def carrier_of(neighbours: NeighbourSet) -> Carrier | None:
            divided = self.effort.affordable(division)
            return divided(problem, stage, [tenants[name] for name in neighbours])

        pack = partial(packed, stage, tenants, carrier_of)
        wanted = {
            name: first_count(problem, stage, one) for name, one in tenants.items()
        }
        carriers: list[Carrier] = []
        for _ in range(_ROUNDS):
            carriers = pack(wanted)
            more = more_replicas(problem, stage, tenants, carriers)
            # Never fewer than before: more replicas change who shares a GPU, and counts could swing for ever.
            grown = {name: max(more[name], count) for name, count in wanted.items()}
            if grown == wanted:
                break
            wanted = grown
        if _are_placed(carriers, wanted):
            return carriers
        return _fair(pack, wanted, lambda: self.effort.is_out_of_time)


def _tighter(problem: Problem, part: float) -> Problem:
    services = (
        replace(service, slo_ms=part * service.slo_ms) for service in problem.services
    )
    return replace(problem, services=tuple(services))


def _stage_of(problem: Problem, stage: TypeStage) -> TypeStage:
    return replace(stage, profiles=profiles(problem, stage.gpu_type))


def _unserved(problem: Problem, carriers: Sequence[Carrier]) -> float:
    """Rate that these GPUs leave unserved, by priority."""
    plan = route(problem, NAME, carriers, {}, capacities=true_capacities)
    return sum(
        problem.service(entry.service).priority * entry.rate_rps
        for entry in plan.unserved
    )


Pack = Callable[[Mapping[str, int]], list[Carrier]]
"""GPUs with the counted replicas of each service, as far as there is room."""


def _placed(pack: Pack, counts: Mapping[str, int]) -> list[Carrier] | None:
    """GPUs with these replicas; None where not all of them have a place."""
    carriers = pack(counts)
    return carriers if _are_placed(carriers, counts) else None


def _fair(
    pack: Pack, wanted: Mapping[str, int], is_over: Callable[[], bool]
) -> list[Carrier]:
    """The GPUs with the largest part of what everybody wants that has a place, and then, until it is over, with what
    else fits.

    Widest first, as `packed` goes, would leave the narrow ones nothing.
    """
    place = partial(_placed, pack)
    placed, carriers = _largest_part(wanted, place)
    # A part that is too much for all together may fit for some: those with the smallest part are tried first.
    for name in sorted(
        placed, key=lambda name: (placed[name] / max(1, wanted[name]), name)
    ):
        if is_over():
            break
        more = {**placed, name: placed[name] + 1}
        if placed[name] < wanted[name] and (trial := place(more)) is not None:
            placed, carriers = more, trial
    return carriers


def _largest_part(
    wanted: Mapping[str, int],
    place: Callable[[Mapping[str, int]], list[Carrier] | None],
) -> tuple[Mapping[str, int], list[Carrier]]:
    """The counts of the largest part of what everybody wants that has a place, and its GPUs."""
    # Halved instead of tried one by one: every trial packs all GPUs again.
    low, high = 0.0, 1.0
    placed: Mapping[str, int] = dict.fromkeys(wanted, 0)
    carriers: list[Carrier] = []
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        counts = {name: math.ceil(middle * count) for name, count in wanted.items()}
        trial = place(counts)
        if trial is None:
            high = middle
        else:
            low, placed, carriers = middle, counts, trial
    return placed, carriers


def _are_placed(carriers: Sequence[Carrier], counts: Mapping[str, int]) -> bool:
    return sum(len(carrier.seats) for carrier in carriers) >= sum(counts.values())


def _tenants(
    problem: Problem,
    stage: TypeStage,
    extra_percent: Mapping[str, float],
    choose: ChooseBatch,
) -> dict[str, MorakTenant]:
    """By name, the services that the GPU type can serve."""
    tenants = {}
    for service in problem.services:
        if service.name in stage.profiles:
            extra = extra_percent.get(service.name, 0.0)
            row = _knee_row(stage.profiles[service.name], choose)
            tenant = _tenant(problem, stage, service, row, extra)
            if tenant is not None:
                tenants[service.name] = tenant
    return tenants


def _tenant(
    problem: Problem,
    stage: TypeStage,
    service: ServiceDemand,
    row: OperatingPoint | None,
    extra_percent: float,
) -> MorakTenant | None:
    points = problem.points_of(service.network, stage.gpu_type.name)
    if row is None or points is None:
        return None
    # The knee's batch is the limit of the node's governor, so that the plan counts with no larger one.
    able = (
        each
        for each in points.rows
        if each.batch <= row.batch and each.memory_mib <= stage.gpu_type.memory_mib
    )
    return MorakTenant(
        service=service,
        knee_percent=min(100.0, row.sm_percent + extra_percent),
        row=row,
        rows=_by_share_and_clock(able),
    )


def _by_share_and_clock(
    rows: Iterable[OperatingPoint],
) -> dict[tuple[float, float], tuple[OperatingPoint, ...]]:
    """By (SM percent, clock), each by falling batch."""
    found: defaultdict[tuple[float, float], list[OperatingPoint]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: -row.batch):
        found[row.sm_percent, row.clock_mhz].append(row)
    return {key: tuple(same) for key, same in found.items()}


def _knee_row(profile: SoloProfile, choose: ChooseBatch) -> OperatingPoint | None:
    """The chosen one of the rows at the knee of each batch that run within half the SLO there."""
    by_batch: defaultdict[int, list[OperatingPoint]] = defaultdict(list)
    for rows in profile.rows.values():
        for row in rows:
            by_batch[row.batch].append(row)
    at_knees = (_at_knee(tuple(rows)) for rows in by_batch.values())
    able = [row for row in at_knees if profile.rate_rps(row) > 0.0]
    if able:
        return choose(profile, able)
    # No batch keeps it at its knee: the narrowest that keeps it at all.
    narrowest = min(profile.rates_rps, default=None)
    return None if narrowest is None else profile.largest_batch(narrowest)


@lru_cache(maxsize=4096)
def _at_knee(rows: tuple[OperatingPoint, ...]) -> OperatingPoint:
    """The profiled share nearest to the knee of rows of one batch; of two as near the wider one."""
    # No SLO moves a knee, so that the whole ladder asks for the same ones.
    percent = knee_percent(rows)
    return min(rows, key=lambda row: (abs(row.sm_percent - percent), -row.sm_percent))


def _largest_batch(_: SoloProfile, rows: Sequence[OperatingPoint]) -> OperatingPoint:
    return max(rows, key=lambda row: row.batch)


def _densest_batch(
    profile: SoloProfile, rows: Sequence[OperatingPoint]
) -> OperatingPoint:
    """The one that carries most requests per second and SM percent."""
    return max(rows, key=lambda row: (profile.rate_rps(row) / row.sm_percent, row))
