"""The restricted master problem: how many GPUs run each of the columns at hand, as a linear program in HiGHS.

Rows, in this order, with their duals:

    demand  s    Σ_p min(a_sp, wanted_s) x_p + u_s ≥ wanted_s        π_s ≥ 0
    least   s    Σ_{p ∋ s} x_p + v_s ≥ fewest replicas of s          ν_s ≥ 0   (0 for services without)
    most    s    Σ_{p ∋ s} x_p ≤ most replicas of s                  ξ_s ≤ 0   (infinite for services without)
    stock   g    Σ_{p of type g} x_p ≤ N_g                           μ_g ≤ 0
    cuts    s,k  Σ_p ⌈k(1+ε) a_sp / wanted_s⌉ x_p + w_sk ≥ k + 1     σ_sk ≥ 0   (only where everything is to be served)
    limits  r    low_r ≤ Σ_{p of kind r} x_p ≤ high_r                ρ_r       (branching; none at first)

u, v and w are shortages, so that the program always has a solution; their prices say how much they hurt. A limit may
fall short of its low side too, at a price that no plan worth having pays: its columns may not be made yet.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import highspy
import numpy as np

from solvers.joint import cuts
from solvers.joint.columns import Column
from solvers.joint.limits import Limits, Row
from solvers.joint.tables import Numbers, Reals, Tables

INFINITE = highspy.kHighsInf
_WHOLE_NODES = 50
"""Of the search for whole GPUs."""


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
    cuts: Reals
    """(S, K) USD per hour of one more on the right side of a rounding cut, ≥ 0; K = 0 where there are none."""
    limits: Mapping[Row, float] = field(default_factory=dict)
    """USD per hour of one more GPU of the kind, for the limits that hold."""


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
    idle: Reals
    """(M,) GPUs of each mode that stand idle only because limits ask for them."""
    limits_missing: float
    """GPUs by which limits fall short of their low sides."""
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

    def __init__(self, tables: Tables, demand: Demand, *, limit_price: float = 0.0, has_cuts: bool = False) -> None:
        """`limit_price`: USD per hour of a GPU by which a limit falls short. Cuts: for plans that serve everything."""
        self.tables, self.demand, self._limit_price = tables, demand, limit_price
        self._services = len(demand.rate)
        self._cut = np.flatnonzero(demand.rate > 0.0) if has_cuts else np.zeros(0, np.int64)
        self._first_cut = 3 * self._services + len(demand.stock)
        self._first_limit = self._first_cut + len(self._cut) * cuts.MOST
        self._columns: list[Column] = []
        self._places: list[int] = []
        self._limit_rows: dict[Row, int] = {}
        self._fillers: list[int] = []
        self._idle: list[int] = []
        self._limits: Limits = {}
        self._highs = highspy.Highs()
        self._highs.setOptionValue("output_flag", False)
        self._highs.setOptionValue("threads", 1)
        empty = np.zeros(0, np.int32), np.zeros(0)
        for low, high in self._row_limits():
            self._highs.addRow(low, high, 0, *empty)
        for service in range(self._services):
            for row, price in ((service, demand.shortage_price), (self._services + service, demand.missing_price)):
                self._highs.addCol(price[service], 0.0, INFINITE, 1, np.array([row], np.int32), np.ones(1))
        for at in range(self._first_cut, self._first_limit):
            service = self._cut[(at - self._first_cut) // cuts.MOST]
            price = demand.shortage_price[service] * demand.rate[service]
            self._highs.addCol(price, 0.0, INFINITE, 1, np.array([at], np.int32), np.ones(1))

    def add(self, columns: Iterable[Column]) -> None:
        """Let the program use these columns too."""
        new = list(columns)
        if not new:
            return
        entries = [self._entries(column) for column in new]
        starts = np.cumsum([0, *(len(rows) for rows, _ in entries)])[:-1].astype(np.int32)
        rows = np.concatenate([rows for rows, _ in entries])
        values = np.concatenate([values for _, values in entries])
        prices, zeros = np.array([column.price for column in new]), np.zeros(len(new))
        self._highs.addCols(len(new), prices, zeros, np.full(len(new), INFINITE), len(rows), starts, rows, values)
        self._places += range(self._highs.getNumCol() - len(new), self._highs.getNumCol())
        self._columns += new

    def limit(self, limits: Limits) -> None:
        """From now on these limits hold, and no others. GPUs that they ask for may stand idle, at their price."""
        if limits and not self._idle:
            self._add_idle()
        for row in self._limits:
            if row not in limits:
                self._highs.changeRowBounds(self._limit_rows[row], -INFINITE, INFINITE)
        for row, (low, high) in limits.items():
            if row not in self._limit_rows:
                self._add_row(row)
            self._highs.changeRowBounds(self._limit_rows[row], low, high)
        self._limits = dict(limits)

    def solve(self) -> Solution:
        """The optimum. Raises RuntimeError when HiGHS does not find one, which a correct program always has."""
        if not self._is_optimal():
            # A basis that many changes of rows and columns left behind may be singular: begin without one.
            self._highs.clearSolver()
            if not self._is_optimal():
                raise RuntimeError(f"HiGHS ended the master problem with {self._highs.getModelStatus().name}")
        return self._solution()

    def _is_optimal(self) -> bool:
        status = self._highs.run()
        found = self._highs.getModelStatus()
        return bool(status != highspy.HighsStatus.kError and found == highspy.HighsModelStatus.kOptimal)

    def solve_whole(self) -> Solution | None:
        """The best found in whole GPUs with the columns at hand and little work, None if none; duals are void."""
        places = np.array(self._places, np.int32)
        self._highs.changeColsIntegrality(len(places), places, [highspy.HighsVarType.kInteger] * len(places))
        self._highs.setOptionValue("mip_max_nodes", _WHOLE_NODES)
        self._highs.run()
        has_one = self._highs.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        solution = self._solution() if has_one else None
        self._highs.changeColsIntegrality(len(places), places, [highspy.HighsVarType.kContinuous] * len(places))
        return solution

    def _solution(self) -> Solution:
        solution = self._highs.getSolution()
        values, prices = np.array(solution.col_value), np.array(solution.row_dual)
        if not len(prices):
            prices = np.zeros(self._highs.getNumRow())
        shortages = values[: 2 * self._services].reshape(self._services, 2)
        return Solution(
            objective=float(self._highs.getInfo().objective_function_value),
            counts=values[self._places],
            shortage_rps=shortages[:, 0],
            replicas_missing=shortages[:, 1],
            idle=values[self._idle] if self._idle else np.zeros(len(self.tables.modes)),
            limits_missing=float(sum(values[at] for at in self._fillers)),
            duals=self._duals(prices),
        )

    def _entries(self, column: Column) -> tuple[Numbers, Reals]:
        """(rows, values) of a column, in the order of the rows."""
        rate, services = self.demand.rate, self._services
        stock_row = 3 * services + self.tables.modes[column.pattern.mode].gpu_type
        limited = [at for row, at in self._limit_rows.items() if row.counts(column.pattern)]
        others = np.array([stock_row, *limited])
        cut_rows, cut_values = self._cut_entries(column)
        index = [column.service, services + column.service, 2 * services + column.service, others, cut_rows]
        served = np.minimum(column.capacity, rate[column.service])
        ones = np.ones(2 * len(served) + 1 + len(limited))
        return np.concatenate(index).astype(np.int32), np.concatenate((served, ones, cut_values))

    def _cut_entries(self, column: Column) -> tuple[Numbers, Reals]:
        inside = np.isin(column.service, self._cut)
        first = self._first_cut + np.searchsorted(self._cut, column.service[inside]) * cuts.MOST
        values = cuts.coefficients(column.capacity[inside], self.demand.rate[column.service[inside]])
        return (first[:, None] + np.arange(cuts.MOST)).ravel().astype(np.int32), values.ravel()

    def _add_idle(self) -> None:
        """One column per mode that serves nothing: pricing takes no pattern for worth less than nothing either."""
        for mode in self.tables.modes:
            self._idle.append(self._highs.getNumCol())
            row = np.array([3 * self._services + mode.gpu_type], np.int32)
            self._highs.addCol(mode.price, 0.0, INFINITE, 1, row, np.ones(1))

    def _add_row(self, row: Row) -> None:
        at = self._limit_rows[row] = self._first_limit + len(self._limit_rows)
        inside = [
            place for place, column in zip(self._places, self._columns, strict=True) if row.counts(column.pattern)
        ]
        if not row.ranges:
            inside += [self._idle[mode] for mode in row.modes]
        self._highs.addRow(-INFINITE, INFINITE, len(inside), np.array(inside, np.int32), np.ones(len(inside)))
        self._fillers.append(self._highs.getNumCol())
        self._highs.addCol(self._limit_price, 0.0, INFINITE, 1, np.array([at], np.int32), np.ones(1))

    def _row_limits(self) -> Iterable[tuple[float, float]]:
        demand = self.demand
        yield from ((float(low), INFINITE) for low in demand.rate)
        yield from ((float(low), INFINITE) for low in demand.fewest)
        yield from ((-INFINITE, float(high)) for high in demand.most)
        yield from ((-INFINITE, float(high)) for high in demand.stock)
        yield from ((float(low), INFINITE) for _ in self._cut for low in cuts.WANTED)

    def _duals(self, prices: Reals) -> Duals:
        services, demand = self._services, self.demand
        least = np.maximum(prices[services : 2 * services], 0.0)
        most = np.minimum(prices[2 * services : 3 * services], 0.0)
        limited = np.isfinite(demand.most)
        return Duals(
            rps=np.maximum(prices[:services], 0.0),
            presence=least + most,
            stock=np.minimum(prices[3 * services : self._first_cut], 0.0),
            replicas_value=float(least @ demand.fewest + most[limited] @ demand.most[limited]),
            cuts=self._cut_duals(prices),
            limits={row: self._limit_dual(prices, row) for row in self._limits},
        )

    def _limit_dual(self, prices: Reals, row: Row) -> float:
        """Without the rounding that would give an infinite limit a price."""
        price = float(prices[self._limit_rows[row]])
        return max(price, 0.0) if np.isinf(self._limits[row][1]) else price

    def _cut_duals(self, prices: Reals) -> Reals:
        if not len(self._cut):
            return np.zeros((self._services, 0))
        duals = np.zeros((self._services, cuts.MOST))
        own = prices[self._first_cut : self._first_limit].reshape(-1, cuts.MOST)
        duals[self._cut] = np.maximum(own, 0.0)
        return duals
