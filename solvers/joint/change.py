"""The running plan under new rates: kept as it is where that serves everything, else changed with few starts."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

from solvers.joint.decode import decode
from solvers.joint.master import Demand
from solvers.joint.moves import MovePrices, Moves
from solvers.joint.prune import prune
from solvers.joint.replan import Wish, replan
from solvers.joint.residual import Kit, carried, is_met, rest_of
from solvers.joint.warm import Warm
from solvers.plan import Plan
from solvers.problem import Problem

_NAME = "joint"
_START_OVER_REPLICA = 1.0
"""A start counts as at least so many hours of what a running replica costs on average: fewer GPUs are left to round, so
that a plan with few starts is found sooner and is often cheaper too."""
_COMPANY = 0.1
"""Of the price of a start: what a replica costs on a GPU that does not go on as it is."""
_SHORTAGE = 20.0
"""Shortage prices rise by that factor: to serve comes before to save starts."""
_FEW_SHORT = 0.04
"""Of the services: when no more are short, only GPUs near them are looked at."""
_NEAR_GPUS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What can become of the running plan. Both follow every rule; what they leave out is unserved."""

    kept: Plan
    """The running GPUs less what is superfluous: nothing starts."""
    changed: Plan | None
    """With starts, where the kept ones fall short or where the running plan may be rearranged."""
    is_whole: bool
    """Whether all running GPUs are candidates; otherwise some are missing in both."""
    is_near: bool
    """Whether nothing or only GPUs near a few services changed."""


def change(
    problem: Problem,
    warm: Warm,
    executor: Executor | None,
    *,
    may_rearrange: bool = False,
    start_usd_per_hour: float | None = None,
    is_over: Callable[[], bool],
) -> Changed:
    """The running plan with what it takes to serve the problem's rates.

    may_rearrange: look for cheaper GPUs too where the running ones serve everything. start_usd_per_hour: price of a
    start; None = what keeps starts few.
    """
    running = warm.running(problem)
    kit, demand = warm.kit(problem, executor), _dear(warm.demand(problem))
    allowed = _allowed(kit, demand, running)
    kept = prune(kit.tables, kit.columns, demand, allowed)
    rest = rest_of(demand, kit.tables, carried(kit.tables, kit.columns, kept))
    plan = decode(problem, kit.tables, kit.columns, kept, policy=_NAME)
    is_whole = problem.current is None or sum(running.values()) == sum(gpu.count for gpu in problem.current.gpus)
    if is_met(rest) and not may_rearrange:
        return Changed(kept=plan, changed=None, is_whole=is_whole, is_near=True)
    is_small = not may_rearrange and ((rest.rate > 0.0) | (rest.fewest > 0.0)).sum() <= _few(demand)
    keeps = _near(kit, rest, allowed) if is_small else Counter(allowed)
    running_kinds = warm.candidates.running(problem.current)
    prices = _prices(problem, kit, allowed, start_usd_per_hour)
    moves = Moves(kit, warm.candidates, warm.column_kinds, running_kinds, prices)
    start = warm.cheapest(rest if is_small else demand) or range(len(kit.columns))
    wish = Wish(demand=demand, keeps=keeps, fixed=Counter(allowed) - keeps, start=start)
    return Changed(
        kept=plan,
        changed=decode(problem, kit.tables, kit.columns, replan(moves, wish, is_over), policy=_NAME),
        is_whole=is_whole,
        is_near=is_small,
    )


def _few(demand: Demand) -> float:
    return max(1.0, _FEW_SHORT * len(demand.rate))


def _dear(demand: Demand) -> Demand:
    return replace(demand, shortage_price=_SHORTAGE * demand.shortage_price)


def _prices(problem: Problem, kit: Kit, allowed: Mapping[int, int], start: float | None) -> MovePrices:
    if start is None:
        taken = carried(kit.tables, kit.columns, allowed)
        replicas = max(1.0, float(taken.replicas.sum()))
        start = max(problem.migration_cost_usd_per_hour, _START_OVER_REPLICA * taken.cost / replicas)
    return MovePrices(start=start, company=_COMPANY * start)


def _near(kit: Kit, rest: Demand, allowed: Mapping[int, int]) -> Counter[int]:
    """A few running GPUs that may change for the sake of the services that are short: those that run them, the ones
    with the fewest SM steps in use first, one of each pattern before a second.
    """
    short = np.append((rest.rate > 0.0) | (rest.fewest > 0.0), False)
    numbers = [number for number in allowed if short[kit.pool.service[number]].any()]
    numbers.sort(key=lambda number: (len(kit.columns[number].service), number))
    near: Counter[int] = Counter()
    for _ in range(_NEAR_GPUS):
        for number in numbers:
            if near.total() < _NEAR_GPUS and near[number] < allowed[number]:
                near[number] += 1
    return near


def _allowed(kit: Kit, demand: Demand, running: Mapping[int, int]) -> dict[int, int]:
    """Less GPUs beyond the stock or a service's most replicas, those of the fewest replicas before others."""
    counts = Counter(running)
    taken = carried(kit.tables, kit.columns, counts)
    gpus, replicas = taken.gpus.copy(), taken.replicas.copy()
    if (gpus <= demand.stock).all() and (replicas <= demand.most).all():
        return dict(counts)
    for number in sorted(counts, key=lambda one: (len(kit.columns[one].service), one)):
        service = kit.columns[number].service
        gpu_type = kit.tables.modes[kit.columns[number].pattern.mode].gpu_type
        while counts[number] > 0 and (
            gpus[gpu_type] > demand.stock[gpu_type] or (replicas[service] > demand.most[service]).any()
        ):
            counts[number] -= 1
            gpus[gpu_type] -= 1
            replicas[service] -= 1
    return dict(+counts)
