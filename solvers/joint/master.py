"""The restricted master problem: how many GPUs run each of the columns at hand, as a linear program in HiGHS.

Rows, in this order, with their duals:

    demand  s    Σ_p min(a_sp, wanted_s) x_p + u_s ≥ wanted_s        π_s ≥ 0
    least   s    Σ_{p ∋ s} x_p + v_s ≥ fewest replicas of s          ν_s ≥ 0   (0 for services without)
    most    s    Σ_{p ∋ s} x_p ≤ most replicas of s                  ξ_s ≤ 0   (infinite for services without)
    stock   g    Σ_{p of type g} x_p ≤ N_g                           μ_g ≤ 0

u and v are shortages, so that the program always has a solution; their prices say how much they hurt.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import highspy
import numpy as np

from solvers.joint.columns import Column
from solvers.joint.tables import Reals, Tables

INFINITE = highspy.kHighsInf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Duals:
    """Prices of the rows."""

    rps: Reals
    """(S,) USD per hour of one more rps wanted, ≥ 0."""
    presence: Reals
    """(S,) USD per hour of one more replica: duals of `least` and `most` together."""
    stock: Reals
    """(G,) ≤ 0"""
    replicas_value: float
    """Σ ν_s · fewest_s + Σ ξ_s · most_s: what the replica rows add to the dual objective."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """An optimum of the restricted master."""

    objective: float
    counts: Reals
    """(columns,) GPUs of each column, in the order of their adding."""
    shortage_rps: Reals
    """(S,)"""
    replicas_missing: Reals
    """(S,)"""
    duals: Duals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """What a master problem asks for: the whole problem, or what a part of a plan leaves over."""

    rate: Reals
    """(S,) rps."""
    fewest: Reals
    """(S,) replicas."""
    most: Reals
    """(S,) replicas; infinite where there is no limit."""
    stock: Reals
    """(G,) GPUs; infinite where as many as wanted."""
    shortage_price: Reals
    """(S,) USD per hour of one rps that nobody serves."""
    missing_price: Reals
    """(S,) USD per hour of a replica that is missing."""


class Master:
    """One linear program that grows by columns and starts each solve from the last basis."""

    def __init__(self, tables: Tables, demand: Demand) -> None:
        self._tables, self._demand = tables, demand
        self._services = len(demand.rate)
        self._columns = 0
        self._highs = highspy.Highs()
        self._highs.setOptionValue("output_flag", False)
        self._highs.setOptionValue("threads", 1)
        empty = np.zeros(0, np.int32), np.zeros(0)
        for low, high in self._row_limits():
            self._highs.addRow(low, high, 0, *empty)
        for service in range(self._services):
            for row, price in ((service, demand.shortage_price), (self._services + service, demand.missing_price)):
                self._highs.addCol(price[service], 0.0, INFINITE, 1, np.array([row], np.int32), np.ones(1))

    def add(self, columns: Iterable[Column]) -> None:
        """Let the program use these columns too."""
        rate, services = self._demand.rate, self._services
        for column in columns:
            count = len(column.service)
            index = np.concatenate((column.service, services + column.service, 2 * services + column.service))
            stock_row = 3 * services + self._tables.modes[column.pattern.mode].gpu_type
            values = np.concatenate((np.minimum(column.capacity, rate[column.service]), np.ones(2 * count + 1)))
            rows = np.append(index, stock_row).astype(np.int32)
            self._highs.addCol(column.price, 0.0, INFINITE, len(rows), rows, values)
            self._columns += 1

    def solve(self) -> Solution:
        """The optimum. Raises RuntimeError when HiGHS does not find one, which a correct program always has."""
        status = self._highs.run()
        found = self._highs.getModelStatus()
        if status == highspy.HighsStatus.kError or found != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"HiGHS ended the master problem with {found.name}")
        solution = self._highs.getSolution()
        values, prices = np.array(solution.col_value), np.array(solution.row_dual)
        shortages = values[: 2 * self._services].reshape(self._services, 2)
        return Solution(
            objective=float(self._highs.getInfo().objective_function_value),
            counts=values[2 * self._services :],
            shortage_rps=shortages[:, 0],
            replicas_missing=shortages[:, 1],
            duals=self._duals(prices),
        )

    def _row_limits(self) -> Iterable[tuple[float, float]]:
        demand = self._demand
        yield from ((float(low), INFINITE) for low in demand.rate)
        yield from ((float(low), INFINITE) for low in demand.fewest)
        yield from ((-INFINITE, float(high)) for high in demand.most)
        yield from ((-INFINITE, float(high)) for high in demand.stock)

    def _duals(self, prices: Reals) -> Duals:
        services, demand = self._services, self._demand
        least = np.maximum(prices[services : 2 * services], 0.0)
        most = np.minimum(prices[2 * services : 3 * services], 0.0)
        limited = np.isfinite(demand.most)
        return Duals(
            rps=np.maximum(prices[:services], 0.0),
            presence=least + most,
            stock=np.minimum(prices[3 * services :], 0.0),
            replicas_value=float(least @ demand.fewest + most[limited] @ demand.most[limited]),
        )
