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

from collections.abc import Callable, Iterable, Sequence

import highspy
import numpy as np

from solvers.highs import (
    DUAL_SIMPLEX,
    INFINITE,
    PRIMAL_SIMPLEX,
    make_program,
    solve_program,
    solve_whole,
)
from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.branching_rows import BranchingRow, Limits
from solvers.joint.patterns.columns import Column, power_w
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation import cuts
from solvers.joint.relaxation.master_solution import Duals, Solution, replica_duals

_FIRST_CUTS = 2
"""Each service begins with this number of rounding cuts; others follow where they are violated."""
_NOTHING = 1e-6
"""A cut that falls short by no more than this does so by rounding."""
_W_PER_KW = 1000.0
_NO_ROWS = np.zeros(0, np.int32)
_NO_VALUES = np.zeros(0)
_MAX_NODES = 50
"""The search for whole GPUs ends after this number of nodes of its tree: it is one step of many, and must be short."""


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
        # HiGHS numbers all variables together, so that the place of a column is not its position among the columns.
        self._places: list[int] = []
        self._cuts: dict[int, cuts.ServiceCuts] = {}
        self._limit_rows: dict[BranchingRow, int] = {}
        self._fillers: list[int] = []
        self._idle: list[int] = []
        self._limits: Limits = {}
        # Cuts come one after the other and leave the last basis dual feasible; columns leave it primal feasible.
        self._highs = make_program(DUAL_SIMPLEX if has_cuts else PRIMAL_SIMPLEX)
        self._add_demand()
        self._free_row = self._add_free() if demand.free_shortage > 0.0 else None
        self._watt_row = self._add_watts() if np.isfinite(demand.watts) else None
        if has_cuts:
            self._add_first_cuts()

    def _add_demand(self) -> None:
        """The rows that every program has, and the variables by which demand may fall short."""
        demand = self.demand
        for low, high in self._row_limits():
            self._highs.addRow(low, high, 0, _NO_ROWS, _NO_VALUES)
        for service in range(self._services):
            self._add_shortage(service, demand.shortage_price[service])
            self._add_shortage(self._services + service, demand.missing_price[service])

    def _add_first_cuts(self) -> None:
        wanted = np.flatnonzero(self.demand.rate > 0.0).tolist()
        self._cuts = {service: cuts.ServiceCuts() for service in wanted}
        for service in wanted:
            for multiple in range(1, _FIRST_CUTS + 1):
                self._add_cut(service, cuts.steps(cuts.rounding(multiple)))

    def add(self, columns: Iterable[Column]) -> None:
        """Let the program use these columns too."""
        new = list(columns)
        if not new:
            return

        self._add_variables(new)
        places = range(self._highs.getNumCol() - len(new), self._highs.getNumCol())
        # Cuts that come later must find the columns that they count.
        for place, column in zip(places, new, strict=True):
            for service, level in self._cut_levels(column):
                self._cuts[service].places.append(place)
                self._cuts[service].levels.append(level)
        self._places += places
        self._columns += new

    def _add_variables(self, new: Sequence[Column]) -> None:
        # One call for all columns takes far less time than one for each.
        entries = [self._entries(column) for column in new]
        rows = np.concatenate([rows for rows, _ in entries])
        values = np.concatenate([values for _, values in entries])
        starts = np.cumsum([0, *(len(rows) for rows, _ in entries)])[:-1]
        self._highs.addCols(
            len(new),
            np.array([column.price for column in new]),
            np.zeros(len(new)),
            np.full(len(new), INFINITE),
            len(rows),
            starts.astype(np.int32),
            rows,
            values,
        )

    def limit(self, limits: Limits) -> None:
        """From now on these limits hold, and no others. GPUs that they ask for may stand idle, at their price."""
        if limits and not self._idle:
            self._add_idle()
            # A changed limit leaves the last basis dual feasible, not primal feasible.
            self._highs.setOptionValue("simplex_strategy", DUAL_SIMPLEX)
        # A row is freed rather than deleted: deleting would renumber the rows after it.
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
        counts = dict(zip(self._places, solution.counts, strict=True))
        added = 0
        for service, own in self._cuts.items():
            if solution.cuts_missing[service] > _NOTHING:
                continue
            weights = np.array([counts[place] for place in own.places])
            levels = np.array(own.levels, np.int64)
            replicas = np.bincount(levels, weights, cuts.PARTS + 1).astype(np.float64)
            potential = cuts.separate(replicas)
            if potential is not None:
                self._add_cut(service, cuts.steps(potential))
                added += 1
        return added

    def solve(self) -> Solution:
        """The optimum. Raises SolverFailed when HiGHS does not find one, which a correct program always has."""
        solve_program(self._highs, "master problem")
        return self._solution()

    def solve_whole(self, is_over: Callable[[], bool] | None = None) -> Solution | None:
        """The best found in whole GPUs with the columns at hand and little work, None if none; duals are void."""
        places = np.array(self._places, np.int32)
        has_found = solve_whole(self._highs, places, _MAX_NODES, is_over)
        solution = self._solution() if has_found else None
        # The next relaxation must not be an integer program.
        continuous = [highspy.HighsVarType.kContinuous] * len(places)
        self._highs.changeColsIntegrality(len(places), places, continuous)
        return solution

    def _solution(self) -> Solution:
        solution = self._highs.getSolution()
        values = np.array(solution.col_value)
        # An integer program has no duals.
        prices = np.array(solution.row_dual or np.zeros(self._highs.getNumRow()))
        # The first columns are u and v of each service in turn.
        shortages = values[: 2 * self._services].reshape(self._services, 2)
        return Solution(
            objective=float(self._highs.getInfo().objective_function_value),
            counts=values[self._places],
            shortage_rps=shortages[:, 0],
            replicas_missing=shortages[:, 1],
            # The columns of idle GPUs exist only once there are limits.
            idle=values[self._idle] if self._idle else np.zeros(len(self.tables.modes)),
            cuts_missing=self._cuts_missing(values),
            limits_missing=float(sum(values[at] for at in self._fillers)),
            duals=self._duals(prices),
        )

    def _entries(self, column: Column) -> tuple[Numbers, Reals]:
        """(rows, values) of a column, in the order of the rows."""
        services = self._services
        stock_row = 3 * services + self.tables.modes[column.pattern.mode].gpu_type
        limit_rows = [
            at for row, at in self._limit_rows.items() if row.counts(column.pattern)
        ]
        cut_rows, cut_values = self._cut_entries(column)
        watt_rows, watts = self._watts_of(column)
        rows = (
            column.service,
            services + column.service,
            2 * services + column.service,
            np.array([stock_row, *limit_rows]),
            cut_rows,
            watt_rows,
        )
        # Capacity beyond a service's demand serves no request; without the cut, GPUs for two services would look worse.
        served = np.minimum(column.capacity, self.demand.rate[column.service])
        ones = np.ones(2 * len(served) + 1 + len(limit_rows))
        values = np.concatenate((served, ones, cut_values, watts))
        return np.concatenate(rows).astype(np.int32), values

    def _cut_entries(self, column: Column) -> tuple[Numbers, Reals]:
        """(rows, coefficients) of a column in the cuts."""
        entries = [
            (row, steps[level])
            for service, level in self._cut_levels(column)
            for row, steps in self._cuts[service].rows
        ]
        rows = np.array([row for row, _ in entries], np.int32)
        return rows, np.array([value for _, value in entries])

    def _watts_of(self, column: Column) -> tuple[Numbers, Reals]:
        """A column's entry in the row of watts, if there is such a row."""
        if self._watt_row is None:
            return _NO_ROWS, _NO_VALUES
        return self._watt_entry(power_w(self.tables, column.pattern))

    def _cut_levels(self, column: Column) -> list[tuple[int, int]]:
        """(service, edges that it exceeds) of the replicas that cuts may count."""
        if not self._cuts:
            return []
        wanted = self.demand.rate[column.service]
        exceeded = cuts.levels(column.capacity, wanted).tolist()
        replicas = zip(column.service.tolist(), exceeded, column.capacity, strict=True)
        return [
            (service, level)
            for service, level, capacity in replicas
            if service in self._cuts and capacity > 0.0
        ]

    def _add_cut(self, service: int, steps: Reals) -> None:
        own = self._cuts[service]
        at = int(self._highs.getNumRow())
        places = np.array(own.places, np.int32)
        values = steps[own.levels] if own.levels else np.zeros(0)
        self._highs.addRow(1.0, INFINITE, len(values), places, values)
        own.rows.append((at, steps))
        # The number that the shortage variable below will have.
        own.fillers.append(self._highs.getNumCol())
        # To fall short of a whole cut costs as much as to serve nothing of the service.
        price = self.demand.shortage_price[service] * self.demand.rate[service]
        self._add_shortage(at, price)

    def _add_shortage(self, row: int, price: float) -> None:
        """Let a row fall short at a price."""
        rows = np.array([row], np.int32)
        self._highs.addCol(price, 0.0, INFINITE, 1, rows, np.ones(1))

    def _add_free(self) -> int:
        """Let only what is short beyond the free shortage cost; the row."""
        demand = self.demand
        row = int(self._highs.getNumRow())
        places = 2 * np.arange(self._services, dtype=np.int32)
        self._highs.addRow(
            -INFINITE, demand.free_shortage, len(places), places, demand.shortage_price
        )
        # Shortages then cost nothing by themselves: the variable added below pays for what exceeds the free shortage.
        self._highs.changeColsCost(len(places), places, np.zeros(len(places)))
        rows = np.array([row], np.int32)
        self._highs.addCol(1.0, 0.0, INFINITE, 1, rows, -np.ones(1))
        return row

    def _add_watts(self) -> int:
        """Let all GPUs together draw no more than the budget, in kW for the sake of the numbers; the row."""
        row = int(self._highs.getNumRow())
        budget_kw = self.demand.watts / _W_PER_KW
        self._highs.addRow(-INFINITE, budget_kw, 0, _NO_ROWS, _NO_VALUES)
        return row

    def _watt_entry(self, watts: float) -> tuple[Numbers, Reals]:
        """A GPU's entry in the row of watts."""
        return np.array([self._watt_row], np.int32), np.array([watts / _W_PER_KW])

    def _add_idle(self) -> None:
        """One column per mode that serves nothing: pricing takes no pattern for worth less than nothing either."""
        for mode in self.tables.modes:
            self._idle.append(self._highs.getNumCol())
            watt_rows, watts = _NO_ROWS, _NO_VALUES
            if self._watt_row is not None:
                idle_w = float(self.tables.idle_w[mode.gpu_type])
                watt_rows, watts = self._watt_entry(idle_w)
            stock_row = np.array([3 * self._services + mode.gpu_type], np.int32)
            rows = np.append(stock_row, watt_rows)
            values = np.append(np.ones(1), watts)
            self._highs.addCol(mode.price, 0.0, INFINITE, len(rows), rows, values)

    def _add_row(self, row: BranchingRow) -> None:
        at = int(self._highs.getNumRow())
        self._limit_rows[row] = at
        # The row is made for all columns at hand; later ones bring their own entries.
        inside = [
            place
            for place, column in zip(self._places, self._columns, strict=True)
            if row.counts(column.pattern)
        ]
        if not row.ranges:
            # A row of whole modes counts GPUs whatever they serve, so idle ones too.
            inside += [self._idle[mode] for mode in row.modes]
        places = np.array(inside, np.int32)
        ones = np.ones(len(inside))
        self._highs.addRow(-INFINITE, INFINITE, len(inside), places, ones)
        self._fillers.append(self._highs.getNumCol())
        self._add_shortage(at, self._limit_price)

    def _row_limits(self) -> Iterable[tuple[float, float]]:
        demand = self.demand
        yield from ((float(low), INFINITE) for low in demand.rate)
        yield from ((float(low), INFINITE) for low in demand.fewest)
        yield from ((-INFINITE, float(high)) for high in demand.most)
        yield from ((-INFINITE, float(high)) for high in demand.stock)

    def _duals(self, prices: Reals) -> Duals:
        services = self._services
        demand = self.demand
        min_value, max_value = replica_duals(prices, services)
        stock = prices[3 * services : 3 * services + len(demand.stock)]
        stairs, cuts_value = self._cut_duals(prices)
        free = self._free_dual(prices)
        watt_price = self._watt_dual(prices)
        return Duals(
            # Without the rounding by which a request would be worth more than its shortage costs.
            rps=np.clip(prices[:services], 0.0, -free * demand.shortage_price),
            presence=min_value + max_value,
            stock=np.minimum(stock, 0.0),
            replicas_value=self._replicas_value(min_value, max_value),
            stairs=stairs,
            cuts_value=cuts_value,
            free_value=free * demand.free_shortage,
            limits={row: self._limit_dual(prices, row) for row in self._limits},
            watt_price=watt_price,
            watts_value=self._watts_value(watt_price),
        )

    def _replicas_value(self, min_value: Reals, max_value: Reals) -> float:
        """What the rows of the fewest and most replicas add to the dual objective."""
        demand = self.demand
        # The dual of an infinite limit is 0, but 0 · ∞ is NaN.
        limited = np.isfinite(demand.most)
        of_limits = max_value[limited] @ demand.most[limited]
        return float(min_value @ demand.fewest + of_limits)

    def _free_dual(self, prices: Reals) -> float:
        """τ, the factor of shortage prices; −1, so that they count in full, where no shortage is free."""
        if self._free_row is None:
            return -1.0
        return float(np.clip(prices[self._free_row], -1.0, 0.0))

    def _watt_dual(self, prices: Reals) -> float:
        """ω, per watt where the row is in kW."""
        if self._watt_row is None:
            return 0.0
        return max(-float(prices[self._watt_row]), 0.0) / _W_PER_KW

    def _watts_value(self, watt_price: float) -> float:
        """What the row of watts adds to the dual objective."""
        # An infinite budget at a price of 0 adds nothing, but 0 · ∞ is NaN.
        return -watt_price * self.demand.watts if watt_price > 0.0 else 0.0

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
        shape = (self._services, cuts.PARTS + 1) if self._cuts else (0, 0)
        stairs = np.zeros(shape)
        value = 0.0
        for service, own in self._cuts.items():
            for at, steps in own.rows:
                price = max(float(prices[at]), 0.0)
                stairs[service] += price * steps
                value += price
        return stairs, value
