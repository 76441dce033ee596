"""Packing: plans in which one replica carries all that is wanted of its service.

Where most services need but a part of a GPU, a plan that splits none of them is hardly dearer than any other, and is
found by far faster: capacities drop out, and what is left is bin packing.

Sets         services s; patterns p of type g(p): sets of replicas that fit a GPU, each of which carries
             with the others all that is wanted of its service (a *part*)
Parameters   C_p price of a GPU with the watts of p; d_s replicas wanted: one, or the fewest of the service; N_g stock
Variables    x_p whole number of GPUs that run p
Objective    min Σ_p C_p x_p
Constraints  Σ_{p ∋ s} x_p ≥ d_s           every service has its part                           dual v_s ≥ 0
             Σ_{p of type g} x_p ≤ N_g     no more GPUs than there are                          dual −r_g ≤ 0

A pattern is worth Σ_{s ∈ p} v_s and must beat C_p + r_g. What makes a part does not depend on the duals, so the cells
of `kernels.packing` are listed once, with few candidates each.

Each round packs everything greedily under the duals, best pattern first, services that are packed worth nothing from
then on. That gives a whole plan, and columns of which each service has one: the relaxation needs far fewer rounds
than with the best pattern of every cell alone. A second packing, at duals half way to those of the best bound,
keeps the columns of consecutive rounds from swinging (dual smoothing: Wentges 1997). When rounds stop to pay, dives
follow: fix some of the largest fractions, solve for the rest with fresh columns, and so on; or keep most GPUs of the
best plan and dive for what the others carried. As soon as the relaxation of the rest, rounded up to whole GPUs where
one price holds, cannot be cheaper than the best plan, the dive ends.

The relaxation is that of packing, not of the problem: it bounds no other plans.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from solvers.joint.heuristics.packing_parts import (
    GreedyPacking,
    Packer,
    PackingDemand,
    PartTables,
)
from solvers.joint.heuristics.packing_program import (
    FractionalCover,
    PackingProgram,
    cost_of,
)
from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.columns import Pattern, price_of
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation.bounds import whole_gpus

_MIN_RATE = 1e-9
"""rps asked of a replica that is wanted for its presence only."""
_PROMISING = 0.9
"""This share of the GPUs that all services need must be for parts of at most half a GPU."""
_MAX_PART = 0.5
_GAIN = 2e-4
_GAIN_ROUNDS = 4
"""Dives begin when the relaxation falls by less than _GAIN of it in this number of rounds."""
_FIXED = 0.2
"""At most this share of the GPUs that are left is fixed in one step of a dive."""
_REST_ROUNDS = 6
"""Each step has at most this number of rounds of pricing."""
_SPREAD = 0.5
"""How much chance moves the order of the fractions from the second dive on."""
_RUINED = (4, 12)
"""Smallest and largest number of GPUs that are taken out of the best plan at a time."""
_NEAR = 0.1
"""A pattern with which the relaxation of the problem begins may cost this share of its price more than it is worth."""
_FRUITLESS = 40
"""Dives in a row without a better plan, after which packing ends."""
_DIVES = 0.2
"""This share of the later dives begins without any GPU of the best plan."""
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingPlan:
    """The best packing found."""

    plan: Counter[Pattern]
    """GPUs that run each pattern."""
    start: tuple[Pattern, ...]
    """Patterns that are worth nearly what they cost: where the relaxation of the problem may begin."""


def is_promising(tables: Tables, demand: CoverDemand) -> bool:
    """Whether nearly all demand is of services of which one replica, on part of a GPU, carries everything."""
    if not tables.modes or tables.price.max() <= 0.0:
        return False
    size = PartTables(tables, _part_rates(demand)).size
    is_wanted = (demand.rate > 0.0) | (demand.fewest > 0.0)
    # What no part carries takes a GPU at least.
    gpus = np.where(is_wanted, np.minimum(size, 1.0), 0.0)
    small = gpus[size <= _MAX_PART].sum()
    return bool(is_wanted.any() and small >= _PROMISING * gpus.sum())


def _part_rates(demand: CoverDemand) -> Reals:
    # A rate of 0 would mean that nothing is a part, but a replica may be wanted for its presence.
    rates = np.maximum(demand.rate, _MIN_RATE)
    return np.where(demand.fewest > 0.0, rates, demand.rate)


def pack(
    tables: Tables,
    demand: CoverDemand,
    *,
    seed: int,
    is_over: Callable[[], bool],
    is_late: Callable[[], bool] = never,
    pool: Executor | None = None,
    on_better: Callable[[Counter[Pattern]], None],
) -> PackingPlan:
    """The best packing found until `is_over`, or until none can be cheaper; each better one is reported at once.

    As soon as it is late, also the packing at hand ends, with what it has.

    Services of which no replica carries everything are left out.
    """
    parts = PartTables(tables, _part_rates(demand))
    search = _Search(
        parts,
        demand,
        rng=np.random.default_rng(seed),
        pool=pool,
        is_over=is_over,
        is_late=is_late,
        on_better=on_better,
    )
    search.relax()
    start = search.near()
    search.dive([])
    while not is_over() and not search.is_done():
        search.dive(search.kept())
    return PackingPlan(plan=Counter(search.best), start=start)


class _Search:
    """The program, the best plan, and how far the relaxation is known."""

    def __init__(
        self,
        parts: PartTables,
        demand: CoverDemand,
        *,
        rng: np.random.Generator,
        pool: Executor | None,
        is_over: Callable[[], bool],
        is_late: Callable[[], bool],
        on_better: Callable[[Counter[Pattern]], None],
    ) -> None:
        self._tables, self._rng, self._pool = parts.tables, rng, pool
        self._is_over, self._is_late, self._on_better = is_over, is_late, on_better
        # One for each demand of a round, since their working memory must not be shared by threads.
        self._packers = (Packer(parts), Packer(parts))
        self._wanted = _wanted(parts, demand)
        self._stock = demand.stock
        self._sizes = np.where(parts.is_part, parts.size, 0.0)
        self._program = PackingProgram(self._tables, self._wanted, self._stock)
        self._cover: FractionalCover | None = None
        self._bound = 0.0
        self._dives = 0
        self._fruitless = 0
        self.best: list[Pattern] = []
        self._best_key = (np.inf, np.inf)

    def relax(self) -> None:
        """Rounds for all that is wanted until they stop to pay."""
        # There are no duals yet: at first a part is worth its share of a GPU.
        price = float(self._tables.price.max())
        none = np.zeros(len(self._stock))
        first = PackingDemand(self._wanted, self._stock, price * self._sizes, none)
        self._add([], [self._packers[0].pack(first, self._is_late)])
        self._cover, self._bound = self._rounds([], self._wanted, self._stock)

    def near(self) -> tuple[Pattern, ...]:
        """The patterns that cost little beyond their worth in the relaxation."""
        assert self._cover is not None, "relaxed first"
        near = []
        for pattern in self._program.patterns:
            rent = self._cover.rents[self._tables.modes[pattern.mode].gpu_type]
            worth = self._cover.values[self._services(pattern)].sum() - rent
            price = price_of(self._tables, pattern)
            if price - worth <= _NEAR * price:
                near.append(pattern)
        return tuple(near)

    def is_done(self) -> bool:
        """Whether no packing is cheaper than the best, or too many dives in a row found none."""
        return self._fruitless >= _FRUITLESS or not self._may_win(0.0, self._bound)

    def kept(self) -> list[Pattern]:
        """What of the best plan the next dive begins with: all but some GPUs, or nothing."""
        assert self._cover is not None, "relaxed first"
        if self._rng.random() < _DIVES or not self.best:
            return []
        count = int(self._rng.integers(*_RUINED, endpoint=True))
        size = min(count, len(self.best))
        waste = self._waste(self._cover.values)
        chances = waste / waste.sum()
        out = self._rng.choice(len(self.best), size, replace=False, p=chances).tolist()
        return [one for at, one in enumerate(self.best) if at not in out]

    def _waste(self, values: Reals) -> Reals:
        """USD per hour that each GPU of the best plan costs beyond its replicas' values, and a little for all."""
        # GPUs that hold little of value leave room unused.
        held = np.array([values[self._services(one)].sum() for one in self.best])
        prices = np.array([self._tables.modes[one.mode].price for one in self.best])
        waste: Reals = np.maximum(prices - held, 0.0) + 0.05 * prices + _TOLERANCE
        return waste

    def dive(self, fixed: list[Pattern]) -> None:
        """From these GPUs to an integer plan, a few more fixed at a time."""
        # The first dive follows the relaxation; the others would only repeat it without chance.
        spread = _SPREAD if self._dives > 0 else 0.0
        before, fixed = self._best_key, list(fixed)
        while not self._is_over() and self._may_win(0.0, self._bound):
            left, stock = self._left(fixed)
            if not left.any():
                break
            self._program.want(left, stock)
            cover, _ = self._rounds(fixed, left, stock, max_rounds=_REST_ROUNDS)
            more = self._largest(cover, left, stock, spread)
            if not more or not self._may_win(cost_of(self._tables, fixed), cover.cost):
                break
            fixed += more
        self._dives += 1
        self._fruitless = 0 if self._best_key < before else self._fruitless + 1

    def _rounds(
        self,
        fixed: Sequence[Pattern],
        left: Numbers,
        stock: Reals,
        *,
        max_rounds: int | None = None,
    ) -> tuple[FractionalCover, float]:
        """The relaxation of what is left, and about what it cannot fall below, after rounds of pricing.

        Without a limit, until they stop to pay; with one, or as soon as it is plain whether a better plan may follow.
        """
        cover = self._program.solve()
        bound = 0.0
        center = None
        spent = cost_of(self._tables, fixed)
        history = [cover.cost]
        while not self._is_over() and (
            max_rounds is None or len(history) <= max_rounds
        ):
            demands = [PackingDemand(left, stock, cover.values, cover.rents)]
            if center is not None:
                smoothed = 0.5 * (cover.values + center)
                demands.append(demands[0]._replace(values=smoothed))
            packed = self._pack(demands)
            for demand, found in zip(demands, packed, strict=True):
                reached = _bound(demand, found)
                if reached > bound:
                    bound = reached
                    center = demand.values / max(1.0, found.excess)

            is_new = self._add(fixed, packed)
            cover = self._program.solve()
            history.append(cover.cost)
            # A dive asks only whether it may win: it may where the relaxation at hand is cheap enough already.
            has_limit = max_rounds is not None
            is_plain = has_limit and self._may_win(spent, cover.cost)
            is_slow = not has_limit and _is_slow(history)
            if not is_new or is_plain or is_slow or not self._may_win(spent, bound):
                break
        return cover, bound

    def _pack(self, demands: Sequence[PackingDemand]) -> list[GreedyPacking]:
        run = map if self._pool is None else self._pool.map
        packers = self._packers[: len(demands)]
        return list(run(Packer.pack, packers, demands, repeat(self._is_late)))

    def _add(self, fixed: Sequence[Pattern], packed: Sequence[GreedyPacking]) -> bool:
        """Take in columns and plans; whether any column is new."""
        new = 0
        for found in packed:
            new += self._program.add([*found.better, *found.plan])
            self._offer([*fixed, *found.plan], float(found.missing))
        return new > 0

    def _offer(self, plan: list[Pattern], missing: float) -> None:
        """Keep and report a plan if it is better: if less is missing first, then by cost."""
        best_missing, best_cost = self._best_key
        cost = cost_of(self._tables, plan)
        is_cheaper = missing == best_missing and cost < best_cost - _TOLERANCE
        if missing < best_missing or is_cheaper:
            self.best, self._best_key = plan, (missing, cost)
            self._on_better(Counter(plan))

    def _may_win(self, cost: float, rest: float) -> bool:
        """Whether GPUs of that cost with a rest that costs no less than that may be cheaper than the best plan."""
        missing, best_cost = self._best_key
        if missing > 0:
            return True
        # Integer plans cost entire GPUs: a bound between two such costs is as good as the upper one.
        min_cost = whole_gpus(self._tables, cost + rest - _TOLERANCE)
        return min_cost < best_cost - _TOLERANCE

    def _left(self, fixed: Sequence[Pattern]) -> tuple[Numbers, Reals]:
        left = self._wanted.copy()
        stock = self._stock.copy()
        for pattern in fixed:
            left[self._services(pattern)] -= 1
            stock[self._tables.modes[pattern.mode].gpu_type] -= 1.0
        # A plan may hold a service more often than it is wanted.
        return np.maximum(left, 0).astype(np.int32), stock

    def _largest(
        self, cover: FractionalCover, left: Numbers, stock: Reals, spread: float
    ) -> list[Pattern]:
        """Patterns of the largest fractions that have nothing in common, one GPU of each."""
        counts = cover.counts
        if spread:
            counts = counts * (1.0 - spread * self._rng.random(len(counts)))
        left, stock = left.copy(), stock.copy()
        limit = max(1, int(_FIXED * float(cover.counts.sum())))
        chosen: list[Pattern] = []
        for at in np.argsort(-counts, kind="stable").tolist():
            if counts[at] <= _TOLERANCE or len(chosen) >= limit:
                break
            pattern = self._program.patterns[at]
            services = self._services(pattern)
            gpu_type = self._tables.modes[pattern.mode].gpu_type
            if (left[services] > 0).all() and stock[gpu_type] >= 1.0:
                chosen.append(pattern)
                left[services] -= 1
                stock[gpu_type] -= 1.0
        return chosen

    def _services(self, pattern: Pattern) -> Numbers:
        return self._tables.modes[pattern.mode].service[list(pattern.items)]


def _wanted(parts: PartTables, demand: CoverDemand) -> Numbers:
    """(S,) replicas that packing places: one carries a service; services without parts are left out."""
    for_rate = np.where(demand.rate > 0.0, 1.0, 0.0)
    replicas = np.maximum(np.ceil(demand.fewest), for_rate).astype(np.int32)
    return np.where(parts.is_part, replicas, 0).astype(np.int32)


def _is_slow(history: Sequence[float]) -> bool:
    """Whether the relaxation has hardly fallen in the last rounds."""
    if len(history) <= _GAIN_ROUNDS:
        return False
    return history[-1 - _GAIN_ROUNDS] - history[-1] < _GAIN * history[-1]


def _bound(demand: PackingDemand, found: GreedyPacking) -> float:
    """Farley's bound, as far as pricing found the greatest worth: USD per hour."""
    worth = float(demand.values @ demand.replicas) / max(1.0, found.excess)
    # Endless stock has no rent; 0 times infinity is no number.
    finite = np.isfinite(demand.stock)
    return worth - float(demand.rents[finite] @ demand.stock[finite])
