"""The running plan under new rates: kept as it is where that serves everything, else changed with few starts."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solvers.joint.decode import decode
from solvers.joint.problem import Demand
from solvers.joint.replanning.moves import MovePrices, Moves
from solvers.joint.replanning.replan import Wish, replan
from solvers.joint.replanning.warm import Warm
from solvers.joint.whole.integer import shortage_cost, state_plan
from solvers.joint.whole.pool import Pool
from solvers.joint.whole.prune import prune
from solvers.joint.whole.residual import Kit, carried, rest_of
from solvers.plan import Plan
from solvers.problem import Problem

_NAME = "joint"
_START_OVER_REPLICA = 1.5
"""A start counts as at least so many times what a running replica costs on average: fewer GPUs are left to round, so
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

    kept: Plan | None
    """The running GPUs less what is superfluous: nothing starts. None where they fall short and `changed` does not."""
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
    is_short = (rest.rate > 0.0) | (rest.fewest > 0.0)
    is_near = not may_rearrange and bool(is_short.sum() <= _few(demand))
    changed = None
    if is_short.any() or may_rearrange:
        price = _start_price(problem, kit, allowed) if start_usd_per_hour is None else start_usd_per_hour
        task = _Task(warm, kit, demand, MovePrices(start=price, company=_COMPANY * price), is_over)
        changed = _changed_near(problem, task, allowed, rest) if is_near else _changed(problem, task, allowed)
    # Why a plan falls short takes long to say: not of one that the other makes good.
    is_mended = changed is not None and _short_cost(kit, demand, changed) < _short_cost(kit, demand, kept)
    plans = [
        decode(problem, kit.tables, kit.columns, counts, policy=_NAME) if counts is not None else None
        for counts in (None if is_mended else kept, changed)
    ]
    gpus = sum(gpu.count for gpu in problem.current.gpus) if problem.current is not None else 0
    return Changed(kept=plans[0], changed=plans[1], is_whole=sum(running.values()) == gpus, is_near=is_near)


class _Task(NamedTuple):
    """What one change works with."""

    warm: Warm
    kit: Kit
    demand: Demand
    prices: MovePrices
    is_over: Callable[[], bool]


def _changed(problem: Problem, task: _Task, allowed: Mapping[int, int]) -> dict[int, int]:
    """The GPUs by column, where every running one may be given up."""
    warm, kit = task.warm, task.kit
    moves = Moves(kit, warm.candidates, warm.column_kinds, warm.candidates.running(problem.current), task.prices)
    start = warm.cheapest(task.demand) or range(len(kit.columns))
    return replan(moves, Wish(demand=task.demand, keeps=allowed, fixed={}, start=start), task.is_over)


def _changed_near(problem: Problem, task: _Task, allowed: Mapping[int, int], rest: Demand) -> dict[int, int]:
    """The GPUs by column, where only a few running ones may be given up, and only good columns are looked at."""
    warm, kit = task.warm, task.kit
    near = _near(kit, rest, allowed)
    numbers = list(dict.fromkeys([*allowed, *(warm.cheapest(rest) or range(len(kit.columns)))]))
    place = {number: at for at, number in enumerate(numbers)}
    warm.column_kinds.of(kit.columns)
    columns = kit.columns.taken(numbers)
    small = kit._replace(columns=columns, pool=Pool(kit.tables, columns))
    running = warm.candidates.running(problem.current)
    moves = Moves(small, warm.candidates, warm.column_kinds.taken(numbers), running, task.prices)
    wish = Wish(
        demand=task.demand,
        keeps={place[number]: count for number, count in near.items()},
        fixed={place[number]: count - near[number] for number, count in allowed.items() if count > near[number]},
        start=range(len(numbers)),
    )
    found = replan(moves, wish, task.is_over)
    kit.columns.add(columns[number].pattern for number in found)
    kit.pool.sync()
    return {kit.columns.number(columns[number].pattern): count for number, count in found.items()}


def _short_cost(kit: Kit, demand: Demand, counts: Mapping[int, int]) -> float:
    return shortage_cost(demand, state_plan(kit.tables, kit.columns, demand, counts))


def _few(demand: Demand) -> float:
    return max(1.0, _FEW_SHORT * len(demand.rate))


def _dear(demand: Demand) -> Demand:
    return replace(demand, shortage_price=_SHORTAGE * demand.shortage_price)


def _start_price(problem: Problem, kit: Kit, allowed: Mapping[int, int]) -> float:
    """What keeps starts few."""
    taken = carried(kit.tables, kit.columns, allowed)
    replicas = max(1.0, float(taken.replicas.sum()))
    return max(problem.migration_cost_usd_per_hour, _START_OVER_REPLICA * taken.cost / replicas)


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
