"""Policy `morak`: GPUs filled with networks up to their knee points, then partitioned by them.

1. Per service the largest batch that runs within half its SLO at the knee of its latency over the SM percent
   (`knee_partition`), and the knee. The batch becomes the limit of the node's governor.
2. As many replicas as the rate needs by what one carries at its knee; each goes to the fullest GPU whose knees leave
   room for its own, widest knees first.
3. A GPU is partitioned by the knees of who shares it, and all of it is given away. Its clock is the highest at which
   that keeps the power cap; batches are the largest that run within half the SLO there.
4. Neighbours and clocks cost capacity: services that fall short get more replicas, and it is done again.
5. Where that leaves something unserved, it is all done for tighter SLOs as well (`LADDER`), with the batch that
   carries most per SM percent at its knee as with the largest, and with each GPU divided for the most that its
   networks serve together (`solvers.sharing.division`) as by knees; what serves most under the true SLOs is taken.
6. Where a governor says that no clock and batch keeps its limits, the services of that GPU count as
   `step_percent` wider from then on, so that fewer of them share a GPU.

Where GPUs are short, all services get the same part of the replicas that they want.

With `governor: power_latency`, which turns clock and batches within this plan, it is the paper's system.

Source: Morak, sections III-C and V-C, algorithm 1, line 18. The paper has a server with four GPUs, as many networks as
fit, and says neither who shares a GPU nor how many replicas there are, nor what a reallocation changes: 2 and 4 to 6
are ours. Capacities are those of the capacity law, so that a plan keeps its promises without a governor, too. Several
GPU types: `type_by_type`.

Good for throughput under a power cap: every SM is given away where it helps most. Limits: a lightly loaded fleet is no
cheaper with knees than with smaller shares; it knows no price of a move, and no priority but in what is unserved.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from solvers.baselines.half_slo import (
    SoloProfile,
    profiles,
)
from solvers.baselines.type_by_type import TypePolicy, TypeStage, plan_type_by_type
from solvers.greedy.routing import ROUNDING, Carrier, route, true_capacities
from solvers.papers.morak.counts import first_count, more_replicas
from solvers.papers.morak.knee_partition import knee_percent
from solvers.papers.morak.packing import (
    MorakTenant,
    Partition,
    divided_by_knees,
    divided_by_worth,
    packed,
)
from solvers.papers.morak.parameters import MorakParameters
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import Json, Observed

NAME = "morak"
MEMORY_VERSION = 1

LADDER = tuple(2.0 ** (-step / 2.0) for step in range(32))
"""Parts of the SLOs that are planned for, until nothing keeps them. A plan for an SLO so has the choice of all that one
for SLO / √2 can do, and a looser SLO never serves less."""
DIVISIONS: Mapping[str, Sequence[Partition]] = {
    "by knees": (divided_by_knees,),
    "by knees, then by worth": (divided_by_knees, divided_by_worth),
}
"""How a GPU is divided where something stays unserved, by the parameter's value."""
ChooseBatch = Callable[[SoloProfile, Sequence[OperatingPoint]], OperatingPoint]
"""Which of the rows at the knees of several batches a service gets."""
_HALVINGS = 10
"""Halvings of the part that everybody gets: they find it to a thousandth."""
_ROUNDS = 6
"""Rounds of adding replicas for what neighbours and clocks cost; each closes most of the shortage."""


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan of knees for the Problem's rates, its report, and which services count as wider."""
    parameters = budget.parameters_as(MorakParameters)
    names = {service.name for service in problem.services}
    wider, heard_at_s = _remembered(memory, names, observed.at_s)
    asked = _asked(observed, heard_at_s, parameters.settling_s)
    for name in asked:
        wider[name] = min(
            wider.get(name, 0) + 1, round(100.0 / parameters.step_percent)
        )
    extra_percent = {
        name: parameters.step_percent * steps for name, steps in wider.items()
    }
    rules = TypePolicy(
        name=NAME,
        fill=partial(_fill, extra_percent, DIVISIONS[parameters.division]),
        capacities=true_capacities,
    )
    # A plan that runs is kept while it serves; one whose governors asked for another is not.
    of = replace(problem, current=None) if asked else problem
    plan, report = plan_type_by_type(of, rules, budget)
    if asked:
        message = f"another partition for {', '.join(sorted(asked))}"
        report = replace(report, messages=(*report.messages, message))
        heard_at_s = observed.at_s
    return plan, report, _memory_of(wider, heard_at_s)


def _asked(
    observed: Observed, heard_at_s: float | None, settling_s: float
) -> tuple[str, ...]:
    """The services whose governors ask for another partition; none while a former request settles."""
    is_settled = heard_at_s is None or observed.at_s >= heard_at_s + settling_s
    # Algorithm 1, line 18: governors ask after three failing periods; the policy decides what becomes of it.
    return observed.repartition if is_settled else ()


def _fill(
    extra_percent: Mapping[str, float],
    divisions: Sequence[Partition],
    problem: Problem,
    stage: TypeStage,
) -> list[Carrier]:
    """The GPUs that serve most of what is asked for, by priority; of equals the first on the ladder."""
    best = _fill_once(extra_percent, problem, stage, _largest_batch, divided_by_knees)
    least = _unserved(problem, best)
    # A looser SLO lets larger batches and more neighbours in, which may pack worse than what a tighter one allows.
    for part, choose, divided in product(
        LADDER, (_densest_batch, _largest_batch), divisions
    ):
        if least == 0.0:
            break
        tighter = _tighter(problem, part)
        carriers = _fill_once(
            extra_percent, tighter, _stage_of(tighter, stage), choose, divided
        )
        if not carriers:
            break
        unserved = _unserved(problem, carriers)
        if unserved < least * (1.0 - ROUNDING):
            best, least = carriers, unserved
    return best


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


def _fill_once(
    extra_percent: Mapping[str, float],
    problem: Problem,
    stage: TypeStage,
    choose: ChooseBatch,
    divided: Partition,
) -> list[Carrier]:
    tenants = _tenants(problem, stage, extra_percent, choose)
    pack = partial(packed, problem, stage, tenants, divided=divided)
    wanted = {
        name: first_count(problem, stage, tenant) for name, tenant in tenants.items()
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
    return _fair(pack, wanted)


Pack = Callable[[Mapping[str, int]], list[Carrier]]
"""GPUs with so many replicas of each service, as far as there is room."""


def _placed(pack: Pack, counts: Mapping[str, int]) -> list[Carrier] | None:
    """GPUs with so many replicas; None where not all of them have a place."""
    carriers = pack(counts)
    return carriers if _are_placed(carriers, counts) else None


def _fair(pack: Pack, wanted: Mapping[str, int]) -> list[Carrier]:
    """The GPUs with the largest part of what everybody wants that has a place, and then with what else fits.

    Widest first, as `packed` goes, would leave the narrow ones nothing.
    """
    place = partial(_placed, pack)
    placed, carriers = _largest_part(wanted, place)
    # A part that is too much for all together may fit for some: those with the smallest part are tried first.
    for name in sorted(
        placed, key=lambda name: (placed[name] / max(1, wanted[name]), name)
    ):
        more = {**placed, name: placed[name] + 1}
        if placed[name] < wanted[name] and (trial := place(more)) is not None:
            placed, carriers = more, trial
    return carriers


def _largest_part(
    wanted: Mapping[str, int],
    place: Callable[[Mapping[str, int]], list[Carrier] | None],
) -> tuple[Mapping[str, int], list[Carrier]]:
    """The counts of the largest part of what everybody wants that has a place, and its GPUs."""
    # Halved instead of tried one by one: every trial packs all GPUs anew.
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
    at_knees = (_nearest(rows, knee_percent(rows)) for rows in by_batch.values())
    able = [row for row in at_knees if profile.rate_rps(row) > 0.0]
    if able:
        return choose(profile, able)
    # No batch keeps it at its knee: the narrowest that keeps it at all.
    narrowest = min(profile.rates_rps, default=None)
    return None if narrowest is None else profile.largest_batch(narrowest)


def _nearest(rows: Sequence[OperatingPoint], percent: float) -> OperatingPoint:
    """The nearest profiled share; of two as near the wider one."""
    return min(rows, key=lambda row: (abs(row.sm_percent - percent), -row.sm_percent))


def _largest_batch(_: SoloProfile, rows: Sequence[OperatingPoint]) -> OperatingPoint:
    return max(rows, key=lambda row: row.batch)


def _densest_batch(
    profile: SoloProfile, rows: Sequence[OperatingPoint]
) -> OperatingPoint:
    """The one that carries most requests per second and SM percent."""
    return max(rows, key=lambda row: (profile.rate_rps(row) / row.sm_percent, row))


def _memory_of(wider: Mapping[str, int], heard_at_s: float | None) -> Json:
    return {
        "version": MEMORY_VERSION,
        "wider": dict(sorted(wider.items())),
        "heard_at_s": heard_at_s,
    }


def _remembered(
    memory: Json,
    services: set[str],
    now_s: float,
) -> tuple[dict[str, int], float | None]:
    """How many steps wider each service counts, and when a request was last heard; None = never."""
    if not isinstance(memory, Mapping) or memory.get("version") != MEMORY_VERSION:
        return {}, None
    wider = memory.get("wider")
    heard_at_s = memory.get("heard_at_s")
    if not isinstance(wider, Mapping):
        return {}, None
    steps = {
        name: count
        for name, count in wider.items()
        if name in services and isinstance(count, int)
    }
    if not isinstance(heard_at_s, int | float):
        return steps, None
    # A clock that was set back must not make the policy deaf for longer than it settles.
    return steps, min(float(heard_at_s), now_s)
