"""The master problem of re-planning: what runs may go on, what is new costs its start.

Sets: columns p (patterns of one GPU), services s, GPU types g, kinds r of replicas (`candidates`) that run now.
Parameters: what a replica carries a_sp, cost C_p, replicas n_p, wanted rate w_s, stock N_g, GPUs that run the pattern
k_p, replicas that run of each kind h_r, m_rp of them in a column, price of a start κ, price of a change of neighbours
ρ. Variables: GPUs that keep their pattern x_p, GPUs with a new one y_p, starts t_r, shortages u_s, missing replicas
v_s.

    min  Σ C_p x_p + Σ (C_p + κ f_p + ρ n_p) y_p + κ Σ t_r + shortages at their prices
    s.t. Σ min(a_sp, w_s) (x_p + y_p) + u_s ≥ w_s          demand                          π_s ≥ 0
         replicas of s + v_s ≥ fewest, replicas of s ≤ most                                 ν_s ≥ 0, ξ_s ≤ 0
         Σ_{p of type g} (x_p + y_p) ≤ N_g                 stock                           μ_g ≤ 0
         Σ m_rp (x_p + y_p) − t_r ≤ h_r                    what exceeds the running is started    −κ ≤ σ_r ≤ 0
         0 ≤ x_p ≤ k_p,  y, t, u, v ≥ 0

f_p counts the replicas of kinds of which none runs. So the starts are those that the contract charges for: a batch, a
clock or a neighbour changes for nothing. Because a replica that moves to another GPU does start there, ρ makes a GPU
that goes on as it is a little cheaper than the same replicas next to other neighbours.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.highs import (
    INFINITE,
    PRIMAL_SIMPLEX,
    make_program,
    solve_program,
    solve_whole,
)
from solvers.joint.heuristics.residual import SearchContext
from solvers.joint.kernels.scan import move_costs
from solvers.joint.kernels.types import Effort, Reals, Worth
from solvers.joint.patterns.columns import Priced
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.running import (
    NO_KIND,
    Candidates,
    ColumnKinds,
    RunningKinds,
    positions,
)
from solvers.joint.relaxation.column_pool import scan_prices
from solvers.joint.relaxation.master_solution import Duals, replica_duals

_MIN_THRESHOLD = 1e-9
"""A pattern must be worth at least this share of a GPU's price, so that worthless ones are passed over."""

_MAX_NODES = 20
"""The search for integer counts visits this number of nodes at most; more have not found anything better,"""
_LEAN = {
    "mip_allow_restart": False,
    "mip_heuristic_effort": 0.0,
    "mip_heuristic_run_feasibility_jump": False,
}
"""nor have these methods of HiGHS, which take a third of its time on programs this small."""

Positions = npt.NDArray[np.int64]


class MovePrices(NamedTuple):
    """What changes cost, in USD per hour."""

    start: float
    """κ, of a replica beyond those that run of its kind."""
    neighbours: float
    """ρ, of a replica on a GPU that does not go on as it is."""


class MoveMaster:
    """What every step of one re-planning works with: columns, and which of their replicas run already."""

    def __init__(
        self,
        tools: SearchContext,
        candidates: Candidates,
        column_kinds: ColumnKinds,
        running: RunningKinds,
        prices: MovePrices,
    ):
        self.tools, self.running, self.prices = tools, running, prices
        self.candidate_kinds = tuple(
            positions(running, kinds) for kinds in candidates.kinds
        )
        """By mode (C,) position of each candidate's kind among those that run; NO_KIND for the others."""
        self._column_kinds = column_kinds
        self.kinds = positions(running, column_kinds.of(tools.columns))
        """(columns, N) the same of the columns' replicas; NO_KIND where there are no more, too."""
        self.start_prices = self._start_prices(0)
        """(columns,) what a new GPU of each costs beyond its price, starts of kinds that run left out."""

    def used(self, counts: Mapping[int, int]) -> Reals:
        """(K + 1,) replicas of each kind that runs, and of all others at the end."""
        numbers = np.array(list(counts), np.int64)
        kinds = self.kinds[numbers]
        is_there = self.tools.pool.service[numbers] < len(self.tools.tables.rate)
        gpus = np.array([float(count) for count in counts.values()])
        each = np.broadcast_to(gpus[:, None], kinds.shape)
        used: Reals = np.zeros(len(self.running.kinds) + 1)
        # NO_KIND is −1, so replicas of other kinds are added to the last entry.
        np.add.at(used, kinds[is_there], each[is_there])
        return used

    def sync(self) -> None:
        """Take in the columns that were made since."""
        known = len(self.kinds)
        columns = self.tools.columns
        self.tools.pool.sync()
        if known < len(columns):
            new = positions(self.running, self._column_kinds.of(columns)[known:])
            self.kinds = np.concatenate((self.kinds, new))
            # After the kinds, which they are computed from.
            prices = self._start_prices(known)
            self.start_prices = np.concatenate((self.start_prices, prices))

    def _start_prices(self, first: int) -> Reals:
        is_there = self.tools.pool.service[first:] < len(self.tools.tables.rate)
        fresh = (is_there & (self.kinds[first:] == NO_KIND)).sum(axis=1)
        prices: Reals = (
            self.prices.start * fresh + self.prices.neighbours * is_there.sum(axis=1)
        )
        return prices


class Left(NamedTuple):
    """What is still to be decided once a part of the plan is fixed."""

    demand: CoverDemand
    kinds: Reals
    """(K,) running replicas of each kind that the fixed part does not use."""
    keeps: Mapping[int, int]
    """Column number → running GPUs that may still keep their pattern."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MoveSolution:
    """An optimum of the linear program."""

    numbers: Positions
    """(C,) columns: first those that may be kept, then the new ones."""
    counts: Reals
    """(C,) GPUs."""
    kept: int
    """How many of them, from the first, count GPUs that go on."""
    rps: Reals
    """(S,) duals of the demand, ≥ 0."""
    presence: Reals
    """(S,) duals of the fewest and most replicas."""
    stock: Reals
    """(G,) duals, ≤ 0."""
    kinds: Reals
    """(K,) duals, ≤ 0."""

    def duals(self) -> Duals:
        """Those of the rows that any master problem has."""
        return Duals(
            rps=self.rps,
            presence=self.presence,
            stock=self.stock,
            replicas_value=0.0,
        )


class MoveProgram:
    """The linear program of what is left, which grows by columns."""

    def __init__(self, moves: MoveMaster, left: Left) -> None:
        self._moves, self._left = moves, left
        demand = left.demand
        self._services = len(demand.rate)
        self._kinds_at = 3 * self._services + len(demand.stock)
        self._numbers: list[int] = list(left.keeps)
        self._kept = len(self._numbers)
        self._used: set[int] = set()
        # Only columns come later, which leave the basis primal feasible.
        self._highs = make_program(PRIMAL_SIMPLEX)
        self._add_rows()
        self._add_shortages()
        self._first = int(self._highs.getNumCol())
        upper = np.array([float(count) for count in left.keeps.values()])
        self._add(np.array(self._numbers, np.int64), upper, is_new=False)

    def use(self, numbers: Iterable[int]) -> bool:
        """Let the program plan new GPUs with these columns; whether it could not before."""
        new = [number for number in dict.fromkeys(numbers) if number not in self._used]
        self._used.update(new)
        self._numbers += new
        if new:
            self._add(np.array(new, np.int64), np.full(len(new), INFINITE), is_new=True)
        return bool(new)

    def solve(self) -> MoveSolution:
        """The optimum. Raises SolverFailed when HiGHS finds none: a correct program always has one."""
        solve_program(self._highs, "moves")
        solution = self._highs.getSolution()
        values = np.array(solution.col_value)
        duals = np.array(solution.row_dual)
        services = self._services
        numbers = np.array(self._numbers, np.int64)
        min_value, max_value = replica_duals(duals, services)
        return MoveSolution(
            numbers=numbers,
            counts=values[self._first :],
            kept=self._kept,
            # Duals are cut to the signs that their rows allow: what is beyond is rounding.
            rps=np.maximum(duals[:services], 0.0),
            presence=min_value + max_value,
            stock=np.minimum(duals[3 * services : self._kinds_at], 0.0),
            kinds=np.minimum(duals[self._kinds_at :], 0.0),
        )

    def solve_whole(self, is_over: Callable[[], bool]) -> Counter[int]:
        """Whole GPUs by column, the best found with little work, before it is over; empty where none was."""
        for name, setting in _LEAN.items():
            self._highs.setOptionValue(name, setting)
        places = np.arange(self._first, self._highs.getNumCol(), dtype=np.int32)
        if not solve_whole(self._highs, places, _MAX_NODES, is_over):
            return Counter()
        values = np.array(self._highs.getSolution().col_value)[self._first :]
        # A column may be there twice, for GPUs that go on and for new ones.
        plan: Counter[int] = Counter()
        rounded = np.rint(values).astype(int).tolist()
        for number, count in zip(self._numbers, rounded, strict=True):
            plan[number] += count
        return +plan

    def reduced_costs(self, found: MoveSolution) -> Reals:
        """(all columns,) USD per hour that a new GPU of each costs beyond its worth; infinite where impossible."""
        moves = self._moves
        demand = self._left.demand
        prices = scan_prices(demand, found.duals())
        return move_costs(
            moves.tools.pool.stack(),
            moves.start_prices,
            moves.kinds,
            prices,
            found.kinds,
        )

    def _add_rows(self) -> None:
        """Demand, replicas at least and at most, stock, and kinds that run, in this order."""
        demand = self._left.demand
        kinds = self._left.kinds
        no_low = np.full(self._services, -INFINITE)
        no_high = np.full(self._services, INFINITE)
        others = np.full(len(demand.stock) + len(kinds), -INFINITE)
        lower = np.concatenate((demand.rate, demand.fewest, no_low, others))
        high = (no_high, no_high, demand.most, demand.stock, kinds)
        # HiGHS has an infinity of its own.
        upper = np.minimum(np.concatenate(high), INFINITE)
        none = np.zeros(0, np.int32)
        self._highs.addRows(len(lower), lower, upper, 0, none, none, np.zeros(0))

    def _add_shortages(self) -> None:
        """Shortages, missing replicas and starts: one entry each."""
        demand = self._left.demand
        kinds = len(self._left.kinds)
        start_prices = np.full(kinds, self._moves.prices.start)
        costs = np.concatenate(
            (demand.shortage_price, demand.missing_price, start_prices),
        )
        short_rows = np.arange(2 * self._services)
        rows = np.concatenate((short_rows, self._kinds_at + np.arange(kinds)))
        values = np.concatenate((np.ones(len(short_rows)), -np.ones(kinds)))
        upper = np.full(len(costs), INFINITE)
        self._add_columns(costs, upper, rows[:, None], values[:, None])

    def _add(self, numbers: Positions, upper: Reals, *, is_new: bool) -> None:
        """One variable for each of these columns of the pool; new GPUs pay for what they start."""
        if not len(numbers):
            return
        moves = self._moves
        prices = moves.tools.pool.price[numbers]
        costs = prices + (moves.start_prices[numbers] if is_new else 0.0)
        self._add_columns(costs, upper, *self._entries(numbers))

    def _entries(self, numbers: Positions) -> tuple[Positions, Reals]:
        """(V, E) rows and values of these columns; values of 0 are no entries."""
        demand = self._left.demand
        pool = self._moves.tools.pool
        service = pool.service[numbers].astype(np.int64)
        kinds = self._moves.kinds[numbers]
        # Padding is sent to the first service with values of 0, which make no entry.
        is_there = service < self._services
        own = np.where(is_there, service, 0)
        served = np.minimum(pool.capacity[numbers], demand.rate[own])
        stock_row = 3 * self._services + pool.gpu_type[numbers, None].astype(np.int64)
        rows = (own, own + self._services, own + 2 * self._services, stock_row)
        values = (
            np.where(is_there, served, 0.0),
            is_there * (demand.fewest[own] > 0.0),
            is_there * np.isfinite(demand.most[own]),
            np.ones_like(stock_row, np.float64),
            kinds != NO_KIND,
        )
        return np.hstack((*rows, self._kinds_at + kinds)), np.hstack(values)

    def _add_columns(
        self,
        costs: Reals,
        upper: Reals,
        rows: Positions,
        values: Reals,
    ) -> None:
        """One variable per row of the (V, E) arrays; values of 0 are no entries."""
        entries = values != 0.0
        starts = np.concatenate(([0], np.cumsum(entries.sum(axis=1))[:-1]))
        self._highs.addCols(
            len(costs),
            costs,
            np.zeros(len(costs)),
            upper,
            int(entries.sum()),
            starts.astype(np.int32),
            rows[entries].astype(np.int32),
            values[entries],
        )


def price_moves(
    moves: MoveMaster,
    demand: CoverDemand,
    found: MoveSolution,
    effort: Effort,
) -> list[Priced]:
    """Price all modes for new GPUs; types without stock are passed over at an infinite price."""
    modes = moves.tools.tables.modes
    stock = np.where(demand.stock < 1.0, -np.inf, found.stock)
    thresholds = [
        max(mode.price - stock[mode.gpu_type], _MIN_THRESHOLD * mode.price)
        for mode in modes
    ]
    return moves.tools.pricer.price(_worths(moves, demand, found), thresholds, effort)


def _worths(moves: MoveMaster, demand: CoverDemand, found: MoveSolution) -> list[Worth]:
    """What replicas on new GPUs earn in each mode, less what they start and disturb."""
    # NO_KIND is −1, so the last entry is the price of a start of any other kind.
    starts = np.append(found.kinds, -moves.prices.start)
    return [
        Worth(
            demand.rate,
            found.rps,
            found.presence[mode.service] + starts[kinds] - moves.prices.neighbours,
        )
        for mode, kinds in zip(
            moves.tools.tables.modes,
            moves.candidate_kinds,
            strict=True,
        )
    ]
