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
_HASTY_ROUNDS, _HASTY_STEP = 1, 0.3
"""Of pricing in each step, and what is rounded up, when time is short."""
_MIN_USE = 0.95
"""Of its worth: a column that the others just rounded up leave less to do waits for the next step."""
_PROGRAM_COLUMNS = 400
_NARROW = 0.6
"""Of the services: when no more than so many are still wanted, pricing looks at them alone."""


class DiveEffort(NamedTuple):
    """How thorough a dive is."""

    rounds: int
    """Of pricing in each step, at most."""
    min_gain: float
    """Of what is left to pay: rounds go on while each saves as much."""
    columns: int
    """To begin each step with."""
    few_gpus: float
    """Left over: from here on all plans of the columns at hand are looked through too."""
    spread: float
    """0: the largest fractions are fixed; more: chance has a say."""
    step: float = 0.2
    """Of the GPUs that are left, at most so many are rounded up at a time."""


class DiveContext(NamedTuple):
    """What all steps of one search share."""

    tools: SearchContext
    demand: CoverDemand
    duals: Duals
    """Of the whole relaxation."""
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
    plan, pool = Counter(counts), tools.pool
    taken = carried(tools.tables, tools.columns, plan)
    while True:
        rest = rest_of(demand, tools.tables, taken)
        if is_met(rest):
            return plan
        # What the duals value at nothing must be covered too.
        rps = np.maximum(duals.rps, 1e-6 * rest.shortage_price)
        best = pool.best_value(
            rest, rps, np.where(rest.fewest > 0.0, rest.missing_price, 0.0)
        )
        if best < 0:
            return plan
        more = {best: _alike(tools, rest, best)}
        plan.update(more)
        taken = taken.plus(carried(tools.tables, tools.columns, more))


def _alike(tools: SearchContext, rest: CoverDemand, best: int) -> int:
    """GPUs of the column that is worth most of which each earns as much as the first; those of others earn no more."""
    column, gpus = tools.columns[best], tools.pool.gpu_type[best]
    service, capacity = column.service, column.capacity
    if rest.fewest[service].any():
        return 1
    earns = (rest.rate[service] > 0.0) & (capacity > 0.0)
    # It is worth something, so that something earns.
    full = (rest.rate[service][earns] / capacity[earns]).min()
    return max(1, int(min(full, rest.most[service].min(), rest.stock[gpus])))


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
    rest, spent, priced, is_hasty = demand, 0.0, len(demand.rate), False
    while not search.is_over():
        wanted = np.flatnonzero((rest.rate > 0.0) | (rest.fewest > 0.0)).astype(
            np.int32
        )
        if len(wanted) <= _NARROW * priced:
            tools, priced = (
                tools._replace(
                    pricer=NarrowPricer(tools.tables, wanted, like=tools.pricer)
                ),
                len(wanted),
            )
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
        if spent + part.solution.objective >= below:
            return best
        if part.solution.counts.sum() <= pace.few_gpus:
            last = finish(tools, rest, part, below - spent)
            if last is not None:
                best, below = plan + last.counts, spent + last.cost
        fixed = _fixed(tools, rest, part, pace, search.rng)
        if not fixed:
            # No GPU is left that would serve more than it costs.
            return plan
        plan.update(fixed)
        taken = carried(tools.tables, tools.columns, plan)
        rest, spent = rest_of(demand, tools.tables, taken), taken.cost
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
    gap = below - part.solution.objective
    numbers = tools.pool.cheapest(
        tools.pool.reduced_costs(rest, duals), _PROGRAM_COLUMNS, below=gap
    )
    if np.isinf(below):
        greedy = carried(
            tools.tables, tools.columns, complete_greedily(tools, rest, duals, {})
        )
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
        self._columns, self._gpu_type = tools.columns, tools.pool.gpu_type
        self._wanted, self._rps = rest.rate, rps
        self._rate, self._stock, self._most = (
            rest.rate.copy(),
            rest.stock.copy(),
            rest.most.copy(),
        )
        self.plan: Counter[int] = Counter()

    def take(self, number: int, count: int) -> None:
        """Take so many GPUs of a column."""
        column = self._columns[number]
        self._rate[column.service] = np.maximum(
            self._rate[column.service] - count * column.capacity, 0.0
        )
        self._stock[self._gpu_type[number]] -= count
        self._most[column.service] -= count
        self.plan[number] += count

    def use(self, number: int) -> float:
        """Part of a column's worth that is left to do; 0 where it is not possible any more."""
        column = self._columns[number]
        if (
            self._stock[self._gpu_type[number]] < 1.0
            or (self._most[column.service] < 1.0).any()
        ):
            return 0.0
        prices = self._rps[column.service]
        whole = float(
            prices @ np.minimum(column.capacity, self._wanted[column.service])
        )
        now = float(prices @ np.minimum(column.capacity, self._rate[column.service]))
        return now / whole if whole > 0.0 else 1.0
