"""From a fractional plan to a whole one: fix what is whole, price anew for what is left, fix again."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from solvers.joint.heuristics.residual import (
    ResidualRelaxation,
    SearchContext,
    relax_rest,
)
from solvers.joint.heuristics.residual_cover import SmallPlan, solve_small_program
from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.carried import carried, is_met, rest_of
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.relaxation.master_solution import Duals
from solvers.joint.relaxation.pricing import NarrowPricer

_WHOLE = 1e-6
"""A count this near below a whole number is taken for that number."""
_NEARLY_WHOLE = 0.9
"""Beside whole parts, a fraction is rounded up only from here on: the rest is priced anew first."""
_HASTY_ROUNDS = 1
"""Rounds of pricing in each step when time is short."""
_HASTY_STEP = 0.3
"""Share of the fractional GPUs that is rounded up at a time when time is short."""
_MIN_USE = 0.95
"""A column to which those just rounded up leave less than this share of its worth waits for the next step."""
_PROGRAM_COLUMNS = 400
"""A small integer program for what is left over gets so many columns, by reduced cost."""
_MIN_WORTH = 1e-6
"""A request is worth at least this share of its shortage's price, so that services with dual 0 are covered too."""
_NARROW = 0.6
"""When no more than this share of the services is still wanted, pricing looks at them alone."""


class DiveEffort(NamedTuple):
    """How thorough a dive is."""

    rounds: int
    """Each step has at most so many rounds of pricing."""
    min_gain: float
    """Rounds go on while each saves this share of what is left to pay."""
    columns: int
    """Each step begins with so many columns."""
    few_gpus: float
    """When so few are left over, all plans of the columns at hand are looked through too."""
    spread: float
    """0: the largest fractions are fixed; more: chance has a say."""
    step: float = 0.2
    """At most this share of the GPUs that are left is rounded up at a time."""


class DiveContext(NamedTuple):
    """What all steps of one search share."""

    tools: SearchContext
    demand: CoverDemand
    duals: Duals
    """Duals of the whole relaxation."""
    rng: np.random.Generator
    is_over: Callable[[], bool]


def floors(counts: Reals, numbers: Sequence[int]) -> Counter[int]:
    """Column number → whole part of its count."""
    whole = np.floor(counts + _WHOLE).astype(int)
    return Counter(
        {
            number: int(count)
            for number, count in zip(numbers, whole, strict=True)
            if count > 0
        }
    )


def complete_greedily(
    tools: SearchContext, demand: CoverDemand, duals: Duals, counts: Mapping[int, int]
) -> Counter[int]:
    """The counts and, one by one, the GPUs that earn most per USD of what is still wanted."""
    plan = Counter(counts)
    pool = tools.pool
    taken = carried(tools.tables, tools.columns, plan)
    while True:
        rest = rest_of(demand, tools.tables, taken)
        if is_met(rest):
            return plan
        # What the duals value at nothing must be covered too.
        rps = np.maximum(duals.rps, _MIN_WORTH * rest.shortage_price)
        presence = np.where(rest.fewest > 0.0, rest.missing_price, 0.0)
        best = pool.best_value(rest, rps, presence)
        if best < 0:
            return plan
        more = {best: _alike(tools, rest, best)}
        plan.update(more)
        taken = taken.plus(carried(tools.tables, tools.columns, more))


def _alike(tools: SearchContext, rest: CoverDemand, best: int) -> int:
    """GPUs of the column that is worth most of which each earns as much as the first; those of others earn no more."""
    column = tools.columns[best]
    gpu_type = tools.pool.gpu_type[best]
    service, capacity = column.service, column.capacity
    # A first replica is worth more than a second one.
    if rest.fewest[service].any():
        return 1
    earns = (rest.rate[service] > 0.0) & (capacity > 0.0)
    # It is worth something, so that something earns.
    full = (rest.rate[service][earns] / capacity[earns]).min()
    return max(1, int(min(full, rest.most[service].min(), rest.stock[gpu_type])))


def dive(
    search: DiveContext,
    demand: CoverDemand,
    pace: DiveEffort,
    *,
    below: float,
    start: Sequence[int] = (),
    is_late: Callable[[], bool] = never,
) -> Counter[int] | None:
    """A plan for the demand, all of it or a rest, that costs less than `below`; None where the dive met none.

    `start`: columns to begin with, beside the cheapest ones at hand. `is_late`: from when on haste is better than being
    cut short.

    Where any plan will do (`below` infinite) and time is over, what is left is completed greedily.
    """
    tools, duals = search.tools, search.duals
    plan: Counter[int] = Counter()
    best: Counter[int] | None = None
    rest, spent = demand, 0.0
    priced = len(demand.rate)
    is_hasty = False
    while not search.is_over():
        is_wanted = (rest.rate > 0.0) | (rest.fewest > 0.0)
        wanted = np.flatnonzero(is_wanted).astype(np.int32)
        # A narrow pricer has to make its cells anew, so it must save enough to be worth that.
        if len(wanted) <= _NARROW * priced:
            narrow = NarrowPricer(tools.tables, wanted, like=tools.pricer)
            tools = tools._replace(pricer=narrow)
            priced = len(wanted)

        is_hasty = is_hasty or is_late()
        if is_hasty:
            pace = pace._replace(rounds=_HASTY_ROUNDS, step=_HASTY_STEP)

        cheap = tools.pool.cheapest(tools.pool.reduced_costs(rest, duals), pace.columns)
        part = relax_rest(
            tools,
            rest,
            [*start, *cheap],
            pace.rounds,
            min_gain=pace.min_gain,
            is_over=search.is_over if is_hasty else is_late,
        )
        duals = part.solution.duals
        # No way of going on costs less than the relaxation of what is left.
        if spent + part.solution.objective >= below:
            return best

        if part.solution.counts.sum() <= pace.few_gpus:
            last = finish(tools, rest, part, below - spent)
            if last is not None:
                best = plan + last.counts
                below = spent + last.cost
        fixed = _fixed(tools, rest, part, pace, search.rng)
        if not fixed:
            # No GPU is left that would serve more than it costs.
            return plan

        plan.update(fixed)
        taken = carried(tools.tables, tools.columns, plan)
        rest = rest_of(demand, tools.tables, taken)
        spent = taken.cost
        if is_met(rest):
            return plan if spent < below else best
        start = [
            number
            for number, count in zip(part.columns, part.solution.counts, strict=True)
            if count > 0.0
        ]
    return complete_greedily(tools, demand, duals, plan) if np.isinf(below) else best


def finish(
    tools: SearchContext, rest: CoverDemand, part: ResidualRelaxation, below: float
) -> SmallPlan | None:
    """The best of the plans from columns that are cheapest under the duals of the part."""
    duals = part.solution.duals
    # A GPU whose reduced cost is the gap or more is part of no plan that costs less than `below`.
    gap = below - part.solution.objective
    costs = tools.pool.reduced_costs(rest, duals)
    numbers = tools.pool.cheapest(costs, _PROGRAM_COLUMNS, below=gap)
    if np.isinf(below):
        completed = complete_greedily(tools, rest, duals, {})
        greedy = carried(tools.tables, tools.columns, completed)
        if not is_met(rest_of(rest, tools.tables, greedy)):
            return None
        below = greedy.cost
    return solve_small_program(tools.pool, rest, duals, numbers, below=below)


def _fixed(
    tools: SearchContext,
    rest: CoverDemand,
    part: ResidualRelaxation,
    pace: DiveEffort,
    rng: np.random.Generator,
) -> Counter[int]:
    """Whole parts, and the largest fractions as long as each finds enough of its work undone."""
    counts = part.solution.counts
    taking = FixedGpus(tools, rest, part.solution.duals.rps)
    for number, count in floors(counts, part.columns).items():
        taking.take(number, count)

    fractions = counts - np.floor(counts + _WHOLE)
    most = max(1, int(pace.step * fractions.sum()))
    if taking.plan:
        fractions[fractions < _NEARLY_WHOLE] = 0.0
    if pace.spread > 0.0:
        fractions *= 1.0 - pace.spread * rng.random(len(fractions))
    for at in np.argsort(-fractions, kind="stable")[:most]:
        if fractions[at] <= _WHOLE:
            break
        if not taking.plan or taking.use(part.columns[at]) >= _MIN_USE:
            taking.take(part.columns[at], 1)
    return taking.plan


class FixedGpus:
    """GPUs taken one after the other, with what they leave to do."""

    def __init__(self, tools: SearchContext, rest: CoverDemand, rps: Reals) -> None:
        """`rps`: (S,) USD per hour, what a request of each service is worth."""
        self._columns = tools.columns
        self._gpu_type = tools.pool.gpu_type
        self._wanted = rest.rate
        self._rps = rps
        self._rate = rest.rate.copy()
        self._stock = rest.stock.copy()
        self._most = rest.most.copy()
        self.plan: Counter[int] = Counter()

    def take(self, number: int, count: int) -> None:
        """Take so many GPUs of a column."""
        column = self._columns[number]
        left = self._rate[column.service] - count * column.capacity
        self._rate[column.service] = np.maximum(left, 0.0)
        self._stock[self._gpu_type[number]] -= count
        self._most[column.service] -= count
        self.plan[number] += count

    def use(self, number: int) -> float:
        """Part of a column's worth that is left to do; 0 where it is not possible any more."""
        column = self._columns[number]
        has_gpu = self._stock[self._gpu_type[number]] >= 1.0
        if not has_gpu or (self._most[column.service] < 1.0).any():
            return 0.0
        prices = self._rps[column.service]
        served = np.minimum(column.capacity, self._wanted[column.service])
        served_now = np.minimum(column.capacity, self._rate[column.service])
        whole = float(prices @ served)
        now = float(prices @ served_now)
        return now / whole if whole > 0.0 else 1.0
