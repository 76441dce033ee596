"""What a part of a plan leaves over, and column generation for just that.

Columns made for the whole demand fit its last tenth badly. So whatever is fixed, capacities are cut at what is still
wanted, and new columns are priced for that.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.types import Effort
from solvers.joint.patterns.carried import carried
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


class SearchContext(NamedTuple):
    """What every step of the search works with."""

    tables: Tables
    pricer: Pricer
    columns: Columns
    pool: ColumnPool


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
    master = Master(tools.tables, rest)
    used: dict[int, None] = {}

    def use(numbers: Iterable[int]) -> bool:
        new = [number for number in dict.fromkeys(numbers) if number not in used]
        used.update(dict.fromkeys(new))
        master.add(
            tools.columns[number]._replace(price=float(tools.pool.price[number]))
            for number in new
        )
        return bool(new)

    use(start)
    solution = master.solve()
    for _ in range(rounds):
        before = solution.objective
        for _ in range(_POOL_ROUNDS):
            costs = tools.pool.reduced_costs(rest, solution.duals)
            if not use(tools.pool.cheapest(costs, _POOL_COLUMNS, below=-_MIN_GAIN)):
                break
            solution = master.solve()
        if is_over() or not use(
            _priced(tools, rest, tools.pool.pricing_duals(solution.duals))
        ):
            break
        solution = master.solve()
        if before - solution.objective < min_gain * solution.objective:
            break
    return ResidualRelaxation(solution=solution, columns=tuple(used))


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


_ROUNDING = 1.0 - 1e-9


def prune(
    tables: Tables, columns: Columns, demand: CoverDemand, counts: Mapping[int, int]
) -> dict[int, int]:
    """The counts less what is superfluous, dearest GPUs first, by number among equals."""
    taken = carried(tables, columns, counts)
    rps, replicas = taken.rps.copy(), taken.replicas.copy()
    kept = dict(counts)
    for number in sorted(counts, key=lambda one: (-columns[one].price, one)):
        service, capacity = columns[number].service, columns[number].capacity
        while kept[number] > 0:
            left, present = rps[service] - capacity, replicas[service] - 1.0
            if (left < demand.rate[service] * _ROUNDING).any() or (
                present < demand.fewest[service]
            ).any():
                break
            rps[service], replicas[service] = left, present
            kept[number] -= 1
    return {number: count for number, count in kept.items() if count > 0}
