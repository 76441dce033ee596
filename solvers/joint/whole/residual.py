"""What a part of a plan leaves over, and column generation for just that.

Columns made for the whole demand fit its last tenth badly. So whatever is fixed, capacities are cut at what is still
wanted, and new columns are priced for that.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solvers.joint.columns import Columns
from solvers.joint.deadline import never
from solvers.joint.generate import price
from solvers.joint.kernels.nouns import Effort
from solvers.joint.master import Duals, Master, Solution
from solvers.joint.pricing import Pricer
from solvers.joint.problem import Demand
from solvers.joint.tables import Numbers, Reals, Tables
from solvers.joint.whole.pool import Pool

_NOTHING = 1e-9
"""Of a rate: less than this is not wanted any more."""
_SHORTAGE_OVER_GPU = 8.0
"""A shortage of all that is wanted of a service costs at least so many of the dearest GPU; without that, the linear
program leaves small rests unserved."""
_HIGHEST_RAISE = 1e6
"""Limit to the raise of shortage prices, for the sake of the linear program's numbers."""
_POOL_ROUNDS = 4
_POOL_COLUMNS = 40
_LEAST_GAIN = 1e-6
"""USD per hour."""
_CHEAP = Effort(2, 0, 0, 2e-3)


class Kit(NamedTuple):
    """What every step of the search works with."""

    tables: Tables
    pricer: Pricer
    columns: Columns
    pool: Pool


class Carried(NamedTuple):
    """What GPUs carry and take."""

    rps: Reals
    """(S,)"""
    replicas: Reals
    """(S,)"""
    gpus: Reals
    """(G,)"""
    cost: float
    """USD per hour."""

    def plus(self, other: "Carried") -> "Carried":
        """Both together."""
        return Carried(
            rps=self.rps + other.rps,
            replicas=self.replicas + other.replicas,
            gpus=self.gpus + other.gpus,
            cost=self.cost + other.cost,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """The relaxation of a residual demand, as far as it was solved."""

    solution: Solution
    columns: tuple[int, ...]
    """Numbers of the master's columns, in its order."""


def carried(tables: Tables, columns: Columns, counts: Mapping[int, int]) -> Carried:
    """What so many GPUs of each column carry together."""
    used = [(columns[number], count) for number, count in sorted(counts.items())]
    services, types = len(tables.rate), len(tables.stock)
    if not used:
        return Carried(rps=np.zeros(services), replicas=np.zeros(services), gpus=np.zeros(types), cost=0.0)
    gpus = np.array([count for _, count in used], dtype=np.float64)
    service = np.concatenate([column.service for column, _ in used])
    replicas = np.repeat(gpus, [len(column.service) for column, _ in used])
    rps = replicas * np.concatenate([column.capacity for column, _ in used])
    gpu_type = [tables.modes[column.pattern.mode].gpu_type for column, _ in used]
    return Carried(
        rps=_summed(service, rps, services),
        replicas=_summed(service, replicas, services),
        gpus=_summed(np.array(gpu_type, np.int32), gpus, types),
        cost=float(gpus @ np.array([column.price for column, _ in used])),
    )


def _summed(places: Numbers, values: Reals, size: int) -> Reals:
    return np.bincount(places, values, size).astype(np.float64)


def left_of(demand: Demand, taken: Carried) -> Demand:
    """What is still wanted, and what may still be used, once so much is taken."""
    rate = np.maximum(demand.rate - taken.rps, 0.0)
    rate[rate <= _NOTHING * demand.rate] = 0.0
    return replace(
        demand,
        rate=rate,
        fewest=np.maximum(demand.fewest - taken.replicas, 0.0),
        most=np.maximum(demand.most - taken.replicas, 0.0),
        stock=np.maximum(demand.stock - taken.gpus, 0.0),
    )


def rest_of(demand: Demand, tables: Tables, taken: Carried) -> Demand:
    """The same with shortages so dear that none of it pays."""
    left = left_of(demand, taken)
    raised = _raise(demand, tables, left.rate)
    return replace(left, shortage_price=raised * demand.shortage_price, missing_price=raised * demand.missing_price)


def _raise(demand: Demand, tables: Tables, rate: Reals) -> float:
    """One factor for all services, so that their priorities stay."""
    wanted = rate > 0.0
    if not wanted.any():
        return 1.0
    least = float((rate[wanted] * demand.shortage_price[wanted]).min())
    return float(np.clip(_SHORTAGE_OVER_GPU * tables.price.max() / max(least, 1e-300), 1.0, _HIGHEST_RAISE))


def is_met(demand: Demand) -> bool:
    """Whether nothing is wanted any more."""
    return not demand.rate.any() and not demand.fewest.any()


def relax_rest(
    kit: Kit,
    rest: Demand,
    start: Iterable[int],
    rounds: int,
    *,
    least_gain: float = 0.0,
    is_over: Callable[[], bool] = never,
) -> Part:
    """Column generation for a residual demand: from the pool while it has any to give, then by pricing, in rounds.

    A round that lowers the objective by less than `least_gain` of it is the last one.
    """
    master = Master(kit.tables, rest)
    used: dict[int, None] = {}

    def use(numbers: Iterable[int]) -> bool:
        new = [number for number in dict.fromkeys(numbers) if number not in used]
        used.update(dict.fromkeys(new))
        master.add(kit.columns[number]._replace(price=float(kit.pool.price[number])) for number in new)
        return bool(new)

    use(start)
    solution = master.solve()
    for _ in range(rounds):
        before = solution.objective
        for _ in range(_POOL_ROUNDS):
            costs = kit.pool.reduced_costs(rest, solution.duals)
            if not use(kit.pool.cheapest(costs, _POOL_COLUMNS, below=-_LEAST_GAIN)):
                break
            solution = master.solve()
        if is_over() or not use(_priced(kit, rest, kit.pool.pricing_duals(solution.duals))):
            break
        solution = master.solve()
        if before - solution.objective < least_gain * solution.objective:
            break
    return Part(solution=solution, columns=tuple(used))


def _priced(kit: Kit, rest: Demand, duals: Duals) -> list[int]:
    """Numbers of the columns that pricing proposes; types without stock are passed over at an infinite price."""
    stock = np.where(rest.stock < 1.0, -np.inf, duals.stock)
    priced = price(kit.tables, kit.pricer, rest, replace(duals, stock=stock), _CHEAP)
    patterns = list(dict.fromkeys(pattern for entry in priced for pattern in entry.patterns))
    kit.columns.add(patterns)
    kit.pool.sync()
    return [kit.columns.number(pattern) for pattern in patterns]
