"""The restricted master problem: how many GPUs run each of the columns at hand, as a linear program in HiGHS.

Rows, in this order, with their duals:

    demand  s    Σ_p min(a_sp, wanted_s) x_p + u_s ≥ wanted_s        π_s ≥ 0
    least   s    Σ_{p ∋ s} x_p + v_s ≥ fewest replicas of s          ν_s ≥ 0   (0 for services without)
    most    s    Σ_{p ∋ s} x_p ≤ most replicas of s                  ξ_s ≤ 0   (infinite for services without)
    stock   g    Σ_{p of type g} x_p ≤ N_g                           μ_g ≤ 0
    cuts    s,k  Σ_p F_k(a_sp / wanted_s) x_p + w_sk ≥ 1             σ_sk ≥ 0   (only where everything is to be served)
    limits  r    low_r ≤ Σ_{p of kind r} x_p ≤ high_r                ρ_r       (branching; none at first)
    free         Σ_s P_s u_s − e ≤ shortage that costs nothing       τ ≤ 0     (only where there is such; e costs 1)
    watts        Σ_p kW_p x_p ≤ power budget                         −ω        (only where there is one)

Cuts and limits come in any order. u, v and w are shortages, so that the program always has a solution; their prices say
how much they hurt. A limit may fall short of its low side too, at a price that no plan worth having pays: its columns
may not be made yet.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import highspy
import numpy as np

from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.branching_rows import BranchingRow, Limits
from solvers.joint.patterns.columns import Column, power_w
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation import cuts
from solvers.joint.relaxation.highs import (
    DUAL_SIMPLEX,
    INFINITE,
    PRIMAL_SIMPLEX,
    make_program,
    solve_program,
    solve_whole,
)

_FIRST_CUTS = 2
"""Rounding cuts of each service to begin with; others follow where they are violated."""
_NOTHING = 1e-6
_W_PER_KW = 1000.0
_NO_ENTRY = np.zeros(0, np.int32), np.zeros(0)
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
    stairs: Reals = field(default_factory=lambda: np.zeros((0, 0)))
    """(S, B + 1) USD per hour that the cuts pay for a replica, by how many of their edges it exceeds; empty where there
    are no cuts."""
    cuts_value: float = 0.0
    """Σ σ: what the cuts add to the dual objective."""
    free_value: float = 0.0
    """τ · free shortage, ≤ 0: what that adds."""
    limits: Mapping[BranchingRow, float] = field(default_factory=dict)
    """USD per hour of one more GPU of the kind, for the limits that hold."""
    watt_price: float = 0.0
    """ω ≥ 0, USD per hour that a watt more would save, beside what the energy costs."""
    watts_value: float = 0.0
    """−ω · power budget: what that adds to the dual objective."""


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
    cuts_missing: Reals
    """(S,) by which cuts of the service fall short, all together."""
    limits_missing: float
    """GPUs by which limits fall short of their low sides."""
    duals: Duals


class Master:
    """One linear program that grows by columns and starts each solve from the last basis."""

    def __init__(
        self,
        tables: Tables,
        demand: CoverDemand,
        *,
        limit_price: float = 0.0,
        has_cuts: bool = False,
    ) -> None:
        """`limit_price`: USD per hour of a GPU by which a limit falls short. Cuts: for plans that serve everything."""
        self.tables, self.demand, self._limit_price = tables, demand, limit_price
        self._services = len(demand.rate)
        self._columns: list[Column] = []
        self._places: list[int] = []
        self._cuts = (
            {int(one): _Cuts() for one in np.flatnonzero(demand.rate > 0.0)}
            if has_cuts
            else {}
        )
        self._limit_rows: dict[BranchingRow, int] = {}
        self._fillers: list[int] = []
        self._idle: list[int] = []
        self._limits: Limits = {}
        self._highs = make_program(DUAL_SIMPLEX if has_cuts else PRIMAL_SIMPLEX)
        empty = np.zeros(0, np.int32), np.zeros(0)
        for low, high in self._row_limits():
            self._highs.addRow(low, high, 0, *empty)
        for service in range(self._services):
            for row, price in (
                (service, demand.shortage_price),
                (self._services + service, demand.missing_price),
            ):
                self._highs.addCol(
                    price[service],
                    0.0,
                    INFINITE,
                    1,
                    np.array([row], np.int32),
                    np.ones(1),
                )
        self._free_row = self._add_free() if demand.free_shortage > 0.0 else None
        self._watt_row = self._add_watts() if np.isfinite(demand.watts) else None
        for service in self._cuts:
            for multiple in range(1, _FIRST_CUTS + 1):
                self._add_cut(service, cuts.steps(cuts.rounding(multiple)))

    def add(self, columns: Iterable[Column]) -> None:
        """Let the program use these columns too."""
        new = list(columns)
        if not new:
            return
        entries = [self._entries(column) for column in new]
        starts = np.cumsum([0, *(len(rows) for rows, _ in entries)])[:-1].astype(
            np.int32
        )
        rows = np.concatenate([rows for rows, _ in entries])
        values = np.concatenate([values for _, values in entries])
        prices, zeros = np.array([column.price for column in new]), np.zeros(len(new))
        self._highs.addCols(
            len(new),
            prices,
            zeros,
            np.full(len(new), INFINITE),
            len(rows),
            starts,
            rows,
            values,
        )
        places = range(self._highs.getNumCol() - len(new), self._highs.getNumCol())
        for place, column in zip(places, new, strict=True):
            for service, level in self._cut_levels(column):
                self._cuts[service].places.append(place)
                self._cuts[service].levels.append(level)
        self._places += places
        self._columns += new

    def limit(self, limits: Limits) -> None:
        """From now on these limits hold, and no others. GPUs that they ask for may stand idle, at their price."""
        if limits and not self._idle:
            self._add_idle()
            self._highs.setOptionValue("simplex_strategy", DUAL_SIMPLEX)
        for row in self._limits:
            if row not in limits:
                self._highs.changeRowBounds(self._limit_rows[row], -INFINITE, INFINITE)
        for row, (low, high) in limits.items():
            if row not in self._limit_rows:
                self._add_row(row)
            self._highs.changeRowBounds(self._limit_rows[row], low, high)
        self._limits = dict(limits)

    def strengthen(self, solution: Solution) -> int:
        """Add the most violated cut of every service that has one; returns how many.

        None where cuts fall short as it is: the columns at hand, or the limits, do not serve everything.
        """
        counts, added = dict(zip(self._places, solution.counts, strict=True)), 0
        for service, own in self._cuts.items():
            if solution.cuts_missing[service] > _NOTHING:
                continue
            weights = np.array([counts[place] for place in own.places])
            replicas = np.bincount(
                np.array(own.levels, np.int64), weights, cuts.PARTS + 1
            ).astype(np.float64)
            potential = cuts.separate(replicas)
            if potential is not None:
                self._add_cut(service, cuts.steps(potential))
                added += 1
        return added

    def solve(self) -> Solution:
        """The optimum. Raises RuntimeError when HiGHS does not find one, which a correct program always has."""
        solve_program(self._highs, "master problem")
        return self._solution()

    def solve_whole(self, is_over: Callable[[], bool] | None = None) -> Solution | None:
        """The best found in whole GPUs with the columns at hand and little work, None if none; duals are void."""
        places = np.array(self._places, np.int32)
        solution = (
            self._solution()
            if solve_whole(self._highs, places, _WHOLE_NODES, is_over)
            else None
        )
        self._highs.changeColsIntegrality(
            len(places), places, [highspy.HighsVarType.kContinuous] * len(places)
        )
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
            cuts_missing=self._cuts_missing(values),
            limits_missing=float(sum(values[at] for at in self._fillers)),
            duals=self._duals(prices),
        )

    def _entries(self, column: Column) -> tuple[Numbers, Reals]:
        """(rows, values) of a column, in the order of the rows."""
        rate, services = self.demand.rate, self._services
        stock_row = 3 * services + self.tables.modes[column.pattern.mode].gpu_type
        limited = [
            at for row, at in self._limit_rows.items() if row.counts(column.pattern)
        ]
        others = np.array([stock_row, *limited])
        watt_rows, watts = (
            self._watts_of(power_w(self.tables, column.pattern))
            if self._watt_row is not None
            else _NO_ENTRY
        )
        in_cuts = [
            (row, steps[level])
            for one, level in self._cut_levels(column)
            for row, steps in self._cuts[one].rows
        ]
        cut_rows, cut_values = (
            np.array([row for row, _ in in_cuts]),
            np.array([value for _, value in in_cuts]),
        )
        index = [
            column.service,
            services + column.service,
            2 * services + column.service,
            others,
            cut_rows,
            watt_rows,
        ]
        served = np.minimum(column.capacity, rate[column.service])
        ones = np.ones(2 * len(served) + 1 + len(limited))
        return np.concatenate(index).astype(np.int32), np.concatenate(
            (served, ones, cut_values, watts)
        )

    def _cut_levels(self, column: Column) -> list[tuple[int, int]]:
        """(service, edges that it exceeds) of the replicas that cuts may count."""
        if not self._cuts:
            return []
        exceeded = cuts.levels(
            column.capacity, self.demand.rate[column.service]
        ).tolist()
        pairs = zip(column.service.tolist(), exceeded, column.capacity, strict=True)
        return [
            (service, level)
            for service, level, capacity in pairs
            if service in self._cuts and capacity > 0.0
        ]

    def _add_cut(self, service: int, steps: Reals) -> None:
        own, at = self._cuts[service], self._highs.getNumRow()
        values = steps[own.levels] if own.levels else np.zeros(0)
        self._highs.addRow(
            1.0, INFINITE, len(values), np.array(own.places, np.int32), values
        )
        own.rows.append((at, steps))
        own.fillers.append(self._highs.getNumCol())
        price = self.demand.shortage_price[service] * self.demand.rate[service]
        self._highs.addCol(
            price, 0.0, INFINITE, 1, np.array([at], np.int32), np.ones(1)
        )

    def _add_free(self) -> int:
        """Let only what is short beyond the free shortage cost; the row."""
        demand, row = self.demand, int(self._highs.getNumRow())
        places = 2 * np.arange(self._services, dtype=np.int32)
        self._highs.addRow(
            -INFINITE, demand.free_shortage, len(places), places, demand.shortage_price
        )
        self._highs.changeColsCost(len(places), places, np.zeros(len(places)))
        self._highs.addCol(
            1.0, 0.0, INFINITE, 1, np.array([row], np.int32), -np.ones(1)
        )
        return row

    def _add_watts(self) -> int:
        """Let all GPUs together draw no more than the budget, in kW for the sake of the numbers; the row."""
        row = int(self._highs.getNumRow())
        self._highs.addRow(
            -INFINITE,
            self.demand.watts / _W_PER_KW,
            0,
            np.zeros(0, np.int32),
            np.zeros(0),
        )
        return row

    def _watts_of(self, watts: float) -> tuple[Numbers, Reals]:
        """A GPU's entry in the row of watts."""
        return np.array([self._watt_row], np.int32), np.array([watts / _W_PER_KW])

    def _add_idle(self) -> None:
        """One column per mode that serves nothing: pricing takes no pattern for worth less than nothing either."""
        for mode in self.tables.modes:
            self._idle.append(self._highs.getNumCol())
            idle_w = (
                float(self.tables.idle_w[mode.gpu_type])
                if self._watt_row is not None
                else 0.0
            )
            watt_rows, watts = (
                self._watts_of(idle_w) if self._watt_row is not None else _NO_ENTRY
            )
            rows = np.append(
                np.array([3 * self._services + mode.gpu_type], np.int32), watt_rows
            )
            self._highs.addCol(
                mode.price, 0.0, INFINITE, len(rows), rows, np.append(np.ones(1), watts)
            )

    def _add_row(self, row: BranchingRow) -> None:
        at = self._limit_rows[row] = self._highs.getNumRow()
        inside = [
            place
            for place, column in zip(self._places, self._columns, strict=True)
            if row.counts(column.pattern)
        ]
        if not row.ranges:
            inside += [self._idle[mode] for mode in row.modes]
        self._highs.addRow(
            -INFINITE,
            INFINITE,
            len(inside),
            np.array(inside, np.int32),
            np.ones(len(inside)),
        )
        self._fillers.append(self._highs.getNumCol())
        self._highs.addCol(
            self._limit_price, 0.0, INFINITE, 1, np.array([at], np.int32), np.ones(1)
        )

    def _row_limits(self) -> Iterable[tuple[float, float]]:
        demand = self.demand
        yield from ((float(low), INFINITE) for low in demand.rate)
        yield from ((float(low), INFINITE) for low in demand.fewest)
        yield from ((-INFINITE, float(high)) for high in demand.most)
        yield from ((-INFINITE, float(high)) for high in demand.stock)

    def _duals(self, prices: Reals) -> Duals:
        services, demand = self._services, self.demand
        least = np.maximum(prices[services : 2 * services], 0.0)
        most = np.minimum(prices[2 * services : 3 * services], 0.0)
        limited = np.isfinite(demand.most)
        stairs, cuts_value = self._cut_duals(prices)
        # Without the rounding by which a request would be worth more than its shortage costs.
        free = (
            0.0
            if self._free_row is None
            else float(np.clip(prices[self._free_row], -1.0, 0.0))
        )
        watt_price = (
            max(-float(prices[self._watt_row]), 0.0) / _W_PER_KW
            if self._watt_row is not None
            else 0.0
        )
        dearest = (
            demand.shortage_price
            if self._free_row is None
            else -free * demand.shortage_price
        )
        return Duals(
            rps=np.clip(prices[:services], 0.0, dearest),
            presence=least + most,
            stock=np.minimum(
                prices[3 * services : 3 * services + len(demand.stock)], 0.0
            ),
            replicas_value=float(
                least @ demand.fewest + most[limited] @ demand.most[limited]
            ),
            stairs=stairs,
            cuts_value=cuts_value,
            free_value=free * demand.free_shortage,
            limits={row: self._limit_dual(prices, row) for row in self._limits},
            watt_price=watt_price,
            watts_value=-watt_price * demand.watts if watt_price > 0.0 else 0.0,
        )

    def _limit_dual(self, prices: Reals, row: BranchingRow) -> float:
        """Without the rounding that would give an infinite limit a price."""
        price = float(prices[self._limit_rows[row]])
        return max(price, 0.0) if np.isinf(self._limits[row][1]) else price

    def _cuts_missing(self, values: Reals) -> Reals:
        missing = np.zeros(self._services)
        for service, own in self._cuts.items():
            missing[service] = values[own.fillers].sum()
        return missing

    def _cut_duals(self, prices: Reals) -> tuple[Reals, float]:
        """The stairs of all services, and Σ σ."""
        stairs, value = (
            np.zeros((self._services, cuts.PARTS + 1) if self._cuts else (0, 0)),
            0.0,
        )
        for service, own in self._cuts.items():
            for at, steps in own.rows:
                price = max(float(prices[at]), 0.0)
                stairs[service] += price * steps
                value += price
        return stairs, value


class _Cuts:
    """The cuts of one service."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Reals]] = []
        """(row, steps) of each,"""
        self.fillers: list[int] = []
        """and the column by which it may fall short."""
        self.places: list[int] = []
        """Of the columns with a replica of the service,"""
        self.levels: list[int] = []
        """and how many edges that exceeds."""
