"""The running plan under new rates: kept as it is where that serves everything, else changed with few starts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solvers.joint.heuristics.integer_plans import shortage_cost, state_plan
from solvers.joint.heuristics.residual import SearchContext, prune
from solvers.joint.kernels.types import Numbers
from solvers.joint.patterns.carried import Carried, is_met, rest_of
from solvers.joint.patterns.columns import Columns
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.decode import decode
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.running import NO_KIND, positions
from solvers.joint.replan.moves import MoveMaster, MovePrices
from solvers.joint.replan.replan import ReplanRequest, replan
from solvers.joint.replan.warm_start import WarmStart
from solvers.types.plan import Plan
from solvers.types.problem import Problem

_NAME = "joint"
_START_OVER_REPLICA = 1.5
"""A start counts as at least this multiple of what a running replica costs on average: fewer GPUs are left to round, so
that a plan with few starts is found sooner and is often cheaper too."""
MOVE_SHARES = 0.1, 1.0
"""On a GPU that does not go on as it is, a replica costs this share of the price of a start: so few GPUs change,
or no replica moves for less than a start."""
_SHORTAGE = 20.0
"""Shortage prices rise by that factor: serving comes before saving starts."""
_FEW_SHORT = 0.04
"""When no more than this share of the services is short, only GPUs near them are looked at."""
_NEAR_GPUS = 24
"""The maximum number of them."""
_COLUMNS = 4000
"""Looked at where every GPU may change: to scan all that were ever made takes longer than new ones do."""
_START_COLUMNS = 600
"""The search begins with this number of them, besides those that run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What can become of the running plan. Both follow every rule; what they leave out is unserved."""

    kept: Plan | None
    """The running GPUs less what is superfluous: nothing starts. None where they are paid for by the
    hour and fall short of what `changed` serves."""
    changed: Plan | None
    """With starts, where the kept ones fall short or where the running plan may be rearranged."""
    is_complete: bool
    """Whether all running GPUs are candidates; otherwise some are missing in both."""


def change(
    problem: Problem,
    warm: WarmStart,
    executor: Executor | None,
    *,
    may_rearrange: bool = False,
    start_usd_per_hour: float | None = None,
    move_share: float = MOVE_SHARES[0],
    is_over: Callable[[], bool],
    is_late: Callable[[], bool] = never,
) -> Changed:
    """The running plan with what it takes to serve the problem's rates.

    may_rearrange: look for cheaper GPUs too where the running ones serve everything. start_usd_per_hour: price of a
    start; None = what keeps starts few. move_share: the share of it that a replica costs whose GPU changes. is_late:
    from when on haste is better than being cut short.
    """
    running = warm.running(problem)
    tools = warm.tools(problem, executor)
    demand = _dear(warm.demand(problem))
    allowed = _allowed(tools, demand, running)
    kept = prune(tools, demand, allowed)
    rest = rest_of(demand, tools.tables, tools.carried(kept))
    changed = None
    if not is_met(rest) or may_rearrange:
        start = start_usd_per_hour
        if start is None:
            start = _few_starts(problem, tools.carried(allowed))
        prices = MovePrices(start=start, neighbours=move_share * start)
        task = _Task(problem, warm, tools, demand, prices, is_over, is_late)
        changed = _changed(task, allowed, rest, may_rearrange=may_rearrange)
    # Why a plan falls short takes long to say: not of one that the other makes good.
    # On GPUs that are paid for anyway it is said: there what runs may stay although it falls short.
    is_mended = changed is not None and _serves_more(tools, demand, changed, kept)
    is_needed = not is_mended or bool(tools.tables.costs_nothing.all())
    return Changed(
        kept=_decoded(problem, tools, kept if is_needed else None),
        changed=_decoded(problem, tools, changed),
        is_complete=_is_complete(problem, running),
    )


def _is_complete(problem: Problem, running: Mapping[int, int]) -> bool:
    """Whether every running GPU is one of these columns."""
    gpus = problem.current.gpus if problem.current is not None else ()
    return sum(running.values()) == sum(gpu.count for gpu in gpus)


def _decoded(
    problem: Problem,
    tools: SearchContext,
    counts: Mapping[int, int] | None,
) -> Plan | None:
    if counts is None:
        return None
    return decode(problem, tools.tables, tools.columns, counts, policy=_NAME)


class _Task(NamedTuple):
    """What one change works with."""

    problem: Problem
    warm: WarmStart
    tools: SearchContext
    demand: CoverDemand
    prices: MovePrices
    is_over: Callable[[], bool]
    is_late: Callable[[], bool]


def _changed(
    task: _Task,
    allowed: Mapping[int, int],
    rest: CoverDemand,
    *,
    may_rearrange: bool,
) -> dict[int, int]:
    """The GPUs by column with what `rest` asks for, where the running ones that are allowed may be given up."""
    is_short = (rest.rate > 0.0) | (rest.fewest > 0.0)
    # A program over the GPUs near a few short services takes far less time than one over a large fleet.
    if not may_rearrange and bool(is_short.sum() <= _few(task.demand)):
        keeps: Mapping[int, int] = _near(task.tools, rest, allowed)
        return _replanned(task, allowed, keeps, task.warm.cheapest(rest))
    return _replanned(task, allowed, allowed, _cheapest(task))


def _replanned(
    task: _Task,
    allowed: Mapping[int, int],
    keeps: Mapping[int, int],
    cheap: Sequence[int],
) -> dict[int, int]:
    """The GPUs by column, where those of `keeps` may be given up.

    cheap: the columns to look at, the cheapest first; none where all are.
    """
    tools = task.tools
    numbers = list(range(len(tools.columns)))
    start = range(len(numbers))
    if cheap:
        numbers = list(dict.fromkeys([*allowed, *cheap, *task.warm.singles]))
        start = range(len(numbers))[: len(allowed) + _START_COLUMNS]
    moves = _moves(task, numbers)
    # The program knows only these columns, under numbers of its own.
    place = {number: at for at, number in enumerate(numbers)}
    fixed = Counter(allowed) - Counter(keeps)
    request = ReplanRequest(
        demand=task.demand,
        keeps={place[number]: count for number, count in keeps.items()},
        fixed={place[number]: count for number, count in fixed.items()},
        start=start,
    )
    found = replan(moves, request, is_over=task.is_over, is_late=task.is_late)
    return _renumbered(tools, moves.tools.columns, found)


def _renumbered(
    tools: SearchContext,
    columns: Columns,
    counts: Mapping[int, int],
) -> dict[int, int]:
    """The same counts under the numbers of all columns, to which those that were made on the way are added."""
    patterns = {columns[number].pattern: count for number, count in counts.items()}
    tools.columns.add(patterns)
    tools.pool.sync()
    return {tools.columns.number(pattern): count for pattern, count in patterns.items()}


def _moves(task: _Task, numbers: Sequence[int]) -> MoveMaster:
    """The master problem over some of the columns, to which new ones are added apart from the others."""
    warm, tools = task.warm, task.tools
    # The kinds of every column that is taken over must be known.
    warm.column_kinds.of(tools.columns)
    columns = tools.columns.taken(numbers)
    small = tools._replace(columns=columns, pool=tools.pool.taken(columns, numbers))
    running = warm.candidates.running(task.problem.current)
    kinds = warm.column_kinds.taken(numbers)
    return MoveMaster(small, warm.candidates, kinds, running, task.prices)


def _cheapest(task: _Task) -> list[int]:
    """Columns that may be good for new GPUs, by the duals of the last relaxation and what they would start."""
    warm, tools = task.warm, task.tools
    if warm.duals is None:
        return []
    running = warm.candidates.running(task.problem.current)
    is_started = positions(running, warm.column_kinds.of(tools.columns)) == NO_KIND
    # Padding has no kind either, but starts nothing.
    is_there = tools.pool.service < len(tools.tables.rate)
    starts = (is_started & is_there).sum(axis=1)
    costs = tools.pool.reduced_costs(task.demand, warm.duals)
    return tools.pool.cheapest(costs + task.prices.start * starts, _COLUMNS)


def _serves_more(
    tools: SearchContext,
    demand: CoverDemand,
    counts: Mapping[int, int],
    others: Mapping[int, int],
) -> bool:
    """Whether these GPUs leave less short than the others, at the demand's prices."""
    short, short_of_others = (
        shortage_cost(demand, state_plan(tools, demand, one))
        for one in (counts, others)
    )
    return short < short_of_others


def _few(demand: CoverDemand) -> float:
    return max(1.0, _FEW_SHORT * len(demand.rate))


def _dear(demand: CoverDemand) -> CoverDemand:
    # The caller sees to a power budget: moves know none.
    return replace(
        demand,
        shortage_price=_SHORTAGE * demand.shortage_price,
        watts=np.inf,
    )


def _few_starts(problem: Problem, taken: Carried) -> float:
    """A price of a start, in USD per hour, at which there are few; taken: what runs."""
    replicas = max(1.0, float(taken.replicas.sum()))
    mean = taken.cost / replicas
    return max(problem.migration_cost_usd_per_hour, _START_OVER_REPLICA * mean)


def _near(
    tools: SearchContext,
    rest: CoverDemand,
    allowed: Mapping[int, int],
) -> Counter[int]:
    """A few running GPUs that may change for the sake of the services that are short: those that run them, the ones
    with the fewest SM steps in use first, one of each pattern before a second.
    """
    # The last entry is for the padding of the pool, whose service is one past the last.
    short = np.append((rest.rate > 0.0) | (rest.fewest > 0.0), False)
    numbers = [number for number in allowed if short[tools.pool.service[number]].any()]
    small_first = _by_replicas(tools, numbers)
    near: Counter[int] = Counter()
    for _ in range(_NEAR_GPUS):
        for number in small_first:
            if near.total() < _NEAR_GPUS and near[number] < allowed[number]:
                near[number] += 1
    return near


def _by_replicas(tools: SearchContext, numbers: Iterable[int]) -> list[int]:
    """The columns of the fewest replicas first, by number among equals."""
    return sorted(numbers, key=lambda one: (len(tools.columns[one].service), one))


def _allowed(
    tools: SearchContext,
    demand: CoverDemand,
    running: Mapping[int, int],
) -> dict[int, int]:
    """Less GPUs beyond the stock or a service's most replicas, those of the fewest replicas before others."""
    counts = Counter(running)
    taken = tools.carried(counts)
    gpus, replicas = taken.gpus.copy(), taken.replicas.copy()
    if (gpus <= demand.stock).all() and (replicas <= demand.most).all():
        return dict(counts)

    def exceeds(gpu_type: int, service: Numbers) -> bool:
        has_too_many = (replicas[service] > demand.most[service]).any()
        return bool(gpus[gpu_type] > demand.stock[gpu_type] or has_too_many)

    for number in _by_replicas(tools, counts):
        service = tools.columns[number].service
        gpu_type = tools.tables.modes[tools.columns[number].pattern.mode].gpu_type
        while counts[number] > 0 and exceeds(gpu_type, service):
            counts[number] -= 1
            gpus[gpu_type] -= 1
            replicas[service] -= 1
    return dict(+counts)
