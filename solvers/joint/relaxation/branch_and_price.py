"""Branch and price: small problems to a proven optimum.

A node is a set of limits on numbers of GPUs (`branching_rows.BranchingRow`); its relaxation is solved by column
generation over all patterns within them, and gives a proven bound. The node of the least bound is split next, on the
coarsest number that is fractional, into "at most" and "at least". Nodes share columns, one linear program and the
pricing multipliers, so a child costs a few pivots and pricing rounds. Relaxations that come out whole are plans.

The bound of the whole is the least of the open nodes, of those that could not be split, and the cost of the incumbent.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.joint.kernels.types import Effort
from solvers.joint.patterns.branching_rows import NO_LIMITS, Limits
from solvers.joint.patterns.carried import carried
from solvers.joint.patterns.columns import Columns
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation.bounds import min_to_reach, whole_gpus
from solvers.joint.relaxation.branching import Split, find_split, is_integer
from solvers.joint.relaxation.column_generation import Generation, Phase, Relaxation
from solvers.joint.relaxation.master import Master
from solvers.joint.relaxation.master_solution import Solution
from solvers.joint.relaxation.pricing import Pricer

_PHASES = (
    Phase(effort=Effort(4, 0, 3, 5e-4), min_gain=2e-3),
    Phase(effort=Effort(8, 3000, 4, 5e-5), min_gain=1e-3),
)
"""A node's columns come from its parent, so that there is little to find and most of the work is proof."""
_LAST_EFFORT = Effort(16, 100_000, 5, 0.0)
_TOLERANCE_OVER_GAP = 0.1
"""The last phase must know bounds well within the gap: to this share of it."""
_SLACK = 0.1
"""A node's relaxation need not be known more exactly than to this share of its distance to the cutoff."""
_NOTHING = 1e-7
"""Relative to a rate, or in GPUs and replicas: rounding."""
_MAX_OPEN = 20_000
"""Open nodes, some hundred bytes each."""
_LIMIT_PRICE_OVER_COST = 2.0
"""A GPU that a limit asks for in vain costs this many times the incumbent."""
_LIMIT_PRICE_UNDER_WATTS = 100.0
"""As many times where it may be a small part of a GPU for which there are no watts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """A plan: GPUs per column, and what they cost with what they do not serve at shortage prices."""

    counts: Mapping[int, int]
    cost_usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchResult:
    """How far the search came."""

    bound: float
    """Proven: no plan costs less."""
    incumbent: Incumbent | None


@dataclass(order=True, slots=True)
class _Node:
    bound: float
    number: int
    limits: Limits = field(compare=False)
    split: Split = field(compare=False)


def branch(
    tables: Tables,
    demand: CoverDemand,
    pricer: Pricer,
    columns: Columns,
    relaxation: Relaxation,
    *,
    incumbent: Incumbent | None = None,
    is_over: Callable[[], bool] = never,
    gap: float = 1e-4,
) -> BranchResult:
    """The best plan and a bound, from the relaxation of the whole; `gap` is relative to the incumbent's cost.

    When the first incumbent serves everything, only plans that do are looked for, and the bound says nothing of others:
    that allows rounding cuts. With these, or with a free shortage, plans that leave more short do not matter, so that
    plans cost whole GPUs where all cost the same.
    """
    # Cuts hold only for plans that serve everything; those that do not may be the best where no such plan is known.
    has_cuts = incumbent is not None and _serves_all(tables, demand, columns, incumbent)
    tree = _Tree(
        tables,
        _finite(tables, demand, incumbent),
        pricer,
        columns,
        gap=gap,
        has_cuts=has_cuts,
    )
    tree.incumbent = incumbent
    tree.begin(relaxation, is_over)
    while tree.open and not is_over() and not tree.is_closed():
        tree.expand(is_over)
    return BranchResult(bound=tree.bound(), incumbent=tree.incumbent)


def _serves_all(
    tables: Tables,
    demand: CoverDemand,
    columns: Columns,
    incumbent: Incumbent,
) -> bool:
    taken = carried(tables, columns, incumbent.counts)
    is_served = (taken.rps >= demand.rate * (1.0 - _NOTHING)).all()
    return bool(is_served and (taken.replicas >= demand.fewest).all())


def _finite(
    tables: Tables,
    demand: CoverDemand,
    incumbent: Incumbent | None,
) -> CoverDemand:
    """The demand, with no more GPUs of a type than a plan cheaper than the incumbent can pay for."""
    if incumbent is None:
        return demand
    affordable = np.floor(incumbent.cost_usd_per_hour / tables.price)
    return replace(demand, stock=np.minimum(demand.stock, affordable))


class _Tree:
    """Open nodes, the incumbent, and the program that all nodes share. With cuts, plans that serve everything."""

    def __init__(
        self,
        tables: Tables,
        demand: CoverDemand,
        pricer: Pricer,
        columns: Columns,
        *,
        gap: float,
        has_cuts: bool,
    ) -> None:
        self._tables, self._columns = tables, columns
        self._gap, self._has_cuts = gap, has_cuts
        # Where shortages have a price, a bound need not be that of an integer number of GPUs.
        self._is_by_gpus = has_cuts or demand.free_shortage > 0.0
        limit_price = _limit_price(tables, demand)
        self._master = Master(
            tables,
            demand,
            limit_price=limit_price,
            has_cuts=has_cuts,
        )
        self._phases = (*_PHASES, _last_phase(gap))
        self._generation = Generation(self._master, pricer, columns)
        self.open: list[_Node] = []
        self._closed_bound = np.inf
        self._nodes = 0
        self.incumbent: Incumbent | None = None

    def begin(self, relaxation: Relaxation, is_over: Callable[[], bool]) -> None:
        """The root, from the relaxation of the whole."""
        self._generation.use(relaxation.columns)
        self._visit(NO_LIMITS, max(0.0, relaxation.bound), is_over)

    def expand(self, is_over: Callable[[], bool]) -> None:
        """Split the node of the least bound."""
        node = heapq.heappop(self.open)
        row, value = node.split
        low, high = node.limits.get(row, (0.0, np.inf))
        if value < low:
            # A power budget leaves no room for what the limits ask for: nothing further is known of such plans.
            self._close(node.bound)
            return
        # Both children have the bound of their parent until their own is known: it holds for all that is within them.
        below = float(np.floor(value))
        above = float(np.ceil(value))
        self._visit({**node.limits, row: (low, below)}, node.bound, is_over)
        self._visit({**node.limits, row: (above, high)}, node.bound, is_over)

    def bound(self) -> float:
        """The least that a plan can cost."""
        bound = min(self._closed_bound, self._cost())
        # The heap has the open node of the lowest bound first.
        return min(bound, self.open[0].bound) if self.open else bound

    def is_closed(self) -> bool:
        """Whether the incumbent is as good as the gap asks."""
        return np.isfinite(self._cost()) and self.bound() >= self._cutoff()

    def _cost(self) -> float:
        return np.inf if self.incumbent is None else self.incumbent.cost_usd_per_hour

    def _cutoff(self) -> float:
        return self._cost() * (1.0 - self._gap)

    def _visit(
        self,
        limits: Limits,
        parent_bound: float,
        is_over: Callable[[], bool],
    ) -> None:
        """Bound a node, and keep it open, or close it."""
        self._nodes += 1
        bound, split = parent_bound, None
        if not is_over():
            found, split = self._relax(limits, is_over)
            own = found.bound
            if self._is_by_gpus:
                own = whole_gpus(self._tables, own)
            # A child's own bound may be worse: its pricing ends as soon as it is known not to reach the cutoff.
            bound = max(bound, own)
        if bound >= self._cutoff():
            return
        if split is None or len(self.open) >= _MAX_OPEN:
            self._close(bound)
        else:
            heapq.heappush(self.open, _Node(bound, self._nodes, limits, split))

    def _close(self, bound: float) -> None:
        """Give a node up: what may be within it bounds the result for good."""
        self._closed_bound = min(self._closed_bound, bound)

    def _relax(
        self,
        limits: Limits,
        is_over: Callable[[], bool],
    ) -> tuple[Relaxation, Split | None]:
        """A node's relaxation, and where to split it; exact where there is nothing to split."""
        for slack in (_SLACK, 0.0):
            # Solved again each time: the solution before may have become the incumbent.
            cutoff = self._cutoff()
            if self._is_by_gpus:
                cutoff = min_to_reach(self._tables, cutoff)
            found = self._generation.relax(
                limits=limits,
                phases=self._phases,
                cutoff=cutoff,
                slack=slack,
                is_over=is_over,
            )
            solution = found.solution
            self._offer(found.columns, solution)
            used = [self._columns[number] for number in found.columns]
            split = find_split(self._tables, used, solution.counts, solution.idle)
            if split is not None or found.bound >= cutoff or is_over():
                return found, split
        # All that can be branched on is whole, but counts may still be fractional: equal plans that are mixed.
        integer = self._master.solve_whole(is_over)
        if integer is not None:
            self._offer(self._generation.columns, integer)
        return found, None

    def _is_plan(self, solution: Solution) -> bool:
        """Whether a solution is integer and within its limits; with cuts, only one that serves everything counts."""
        if solution.limits_missing > _NOTHING or not is_integer(solution.counts):
            return False
        if not self._has_cuts:
            return True
        short = solution.shortage_rps > _NOTHING * self._master.demand.rate
        return not (short.any() or (solution.replicas_missing > _NOTHING).any())

    def _offer(self, numbers: Sequence[int], solution: Solution) -> None:
        """Take a solution for the incumbent if it is a plan and cheaper. Idle GPUs are no part of it."""
        if not self._is_plan(solution):
            return
        idle_price = sum(
            mode.price * idle
            for mode, idle in zip(self._tables.modes, solution.idle, strict=True)
        )
        cost = solution.objective - float(idle_price)
        if cost < self._cost():
            rounded = np.round(solution.counts).astype(int).tolist()
            counted = zip(numbers, rounded, strict=True)
            counts = {number: count for number, count in counted if count > 0}
            self.incumbent = Incumbent(counts=counts, cost_usd_per_hour=cost)


def _last_phase(gap: float) -> Phase:
    effort = _LAST_EFFORT._replace(tolerance=_TOLERANCE_OVER_GAP * gap)
    return Phase(effort=effort, min_gain=0.0)


def _limit_price(tables: Tables, demand: CoverDemand) -> float:
    """USD per hour of a GPU by which a limit falls short: more than any plan worth having pays."""
    nothing_served = float(
        demand.shortage_price @ demand.rate + demand.missing_price @ demand.fewest
    )
    over_cost = _LIMIT_PRICE_OVER_COST * (
        1.0 if np.isinf(demand.watts) else _LIMIT_PRICE_UNDER_WATTS
    )
    return over_cost * (nothing_served + float(tables.price.max()))
