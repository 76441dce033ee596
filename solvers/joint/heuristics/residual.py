"""What a part of a plan leaves over, and column generation for just that.

Columns made for the whole demand fit its last tenth badly. So whatever is fixed, capacities are cut at what is still
wanted, and new columns are priced for that.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.types import Effort
from solvers.joint.patterns.carried import Carried, carried
from solvers.joint.patterns.columns import Columns
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation.column_generation import price
from solvers.joint.relaxation.column_pool import ColumnPool
from solvers.joint.relaxation.master import Master
from solvers.joint.relaxation.master_solution import Duals, Solution
from solvers.joint.relaxation.pricing import Pricer

_POOL_ROUNDS = 4
_POOL_COLUMNS = 40
_MIN_GAIN = 1e-6
"""USD per hour."""
_CHEAP = Effort(2, 0, 0, 2e-3)
_ROUNDING = 1.0 - 1e-9
"""This share of a rate is enough: sums of capacities are rounded."""


class SearchContext(NamedTuple):
    """What every step of the search works with."""

    tables: Tables
    pricer: Pricer
    columns: Columns
    pool: ColumnPool

    def carried(self, plan: Mapping[int, int]) -> Carried:
        """What the plan's GPUs of each column carry together."""
        return carried(self.tables, self.columns, plan)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResidualRelaxation:
    """The relaxation of a residual demand, as far as it was solved."""

    solution: Solution
    columns: tuple[int, ...]
    """Numbers of the master's columns, in its order."""


def relax_rest(
    tools: SearchContext,
    rest: CoverDemand,
    start: Iterable[int],
    rounds: int,
    *,
    min_gain: float = 0.0,
    is_over: Callable[[], bool] = never,
) -> ResidualRelaxation:
    """Column generation for a residual demand: from the pool while it has any to give, then by pricing, in rounds.

    A round that lowers the objective by less than `min_gain` of it is the last one.
    """
    master = _ResidualMaster(tools, rest)
    master.use(start)
    solution = master.solve()
    for _ in range(rounds):
        before = solution.objective
        # Columns at hand take one pass over the pool, which is far less work than pricing.
        solution = master.use_pool(solution)
        if is_over():
            break
        duals = tools.pool.pricing_duals(solution.duals)
        if not master.use(_priced(tools, rest, duals)):
            break
        solution = master.solve()
        if before - solution.objective < min_gain * solution.objective:
            break
    return ResidualRelaxation(solution=solution, columns=tuple(master.used))


class _ResidualMaster(Master):
    """The master problem of a residual demand, which knows its columns by number, at the prices of the pool."""

    def __init__(self, tools: SearchContext, rest: CoverDemand) -> None:
        super().__init__(tools.tables, rest)
        self._tools = tools
        # A dictionary instead of a set: the master's columns are in the order in which they were added.
        self.used: dict[int, None] = {}

    def use(self, numbers: Iterable[int]) -> bool:
        """Add columns; whether any of them is new."""
        new = [number for number in dict.fromkeys(numbers) if number not in self.used]
        self.used.update(dict.fromkeys(new))
        columns = self._tools.columns
        prices = self._tools.pool.price
        self.add(
            columns[number]._replace(price=float(prices[number])) for number in new
        )
        return bool(new)

    def use_pool(self, solution: Solution) -> Solution:
        """The optimum with what the pool has to give; `solution`: the one so far."""
        pool = self._tools.pool
        for _ in range(_POOL_ROUNDS):
            costs = pool.reduced_costs(self.demand, solution.duals)
            if not self.use(pool.cheapest(costs, _POOL_COLUMNS, below=-_MIN_GAIN)):
                break
            solution = self.solve()
        return solution


def _priced(tools: SearchContext, rest: CoverDemand, duals: Duals) -> list[int]:
    """Numbers of the columns that pricing proposes; types without stock are passed over at an infinite price."""
    stock = np.where(rest.stock < 1.0, -np.inf, duals.stock)
    priced = price(
        tools.tables, tools.pricer, rest, replace(duals, stock=stock), _CHEAP
    )
    patterns = list(
        dict.fromkeys(pattern for entry in priced for pattern in entry.patterns)
    )
    tools.columns.add(patterns)
    tools.pool.sync()
    return [tools.columns.number(pattern) for pattern in patterns]


def prune(
    tools: SearchContext, demand: CoverDemand, counts: Mapping[int, int]
) -> dict[int, int]:
    """The counts less what is superfluous, most expensive GPUs first, by number among equals.

    What costs nothing is not superfluous: it is room for more than was foreseen.
    """
    columns, modes = tools.columns, tools.tables.modes
    taken = tools.carried(counts)
    rps, replicas = taken.rps.copy(), taken.replicas.copy()
    min_rps = demand.rate * _ROUNDING
    kept = Counter(counts)
    for number in sorted(counts, key=lambda one: (-columns[one].price, one)):
        service = columns[number].service
        if tools.tables.costs_nothing[modes[columns[number].pattern.mode].gpu_type]:
            continue
        while kept[number] > 0:
            left = rps[service] - columns[number].capacity
            present = replicas[service] - 1.0
            is_short = (left < min_rps[service]).any()
            if is_short or (present < demand.fewest[service]).any():
                break
            rps[service], replicas[service] = left, present
            kept[number] -= 1
    # Unary plus drops what has come to 0.
    return dict(+kept)
