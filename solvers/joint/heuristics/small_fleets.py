"""Plans of few GPUs fleet by fleet: GPUs of each type first, then how to use them.

The price of a fleet is most of what a plan costs, and only a few fleets lie between the relaxation and a good plan once
rounding cuts (`cuts`) say what whole replicas need. So these are listed first, by the relaxation with cuts over the
columns at hand. That proves nothing, columns that only another fleet needs may be missing; the proof is
`relaxation.branch_and_price`.

How a fleet is best used is a question of combinations on which the relaxation, all of fractions, says little. On a
fixed fleet a shortage has a mild price, so that the way to a plan that serves everything may lead through plans that do
not: annealing (`annealing`) finds ones that are short of a little; ruin and recreate, with exact answers for a few
GPUs, closes the rest. Both go on from what they left. All fleets are annealed a little, then tried shortly, then
longer: always the one whose plans may save most for what its best plan lacks, less likely the more often it was tried.
A try ends with the first plan that serves everything: it rules out fleets, and a cheaper one saves more than a better
plan on this one.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from solvers.joint.heuristics.annealing import Annealer, Chain, advance
from solvers.joint.heuristics.diving import DiveContext
from solvers.joint.heuristics.residual import SearchContext
from solvers.joint.heuristics.ruin_and_recreate import choose, recreate
from solvers.joint.kernels.types import Effort, Reals
from solvers.joint.patterns.branching_rows import type_rows
from solvers.joint.patterns.carried import is_met, left_of
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation.column_generation import (
    PHASES,
    Generation,
    Phase,
    Relaxation,
    generate,
)
from solvers.joint.relaxation.master import Master
from solvers.joint.relaxation.master_solution import Duals

_MAX_FLEETS = 12
_MAX_PROGRAMS = 2_000
"""Linear programs, a millisecond or two each, to list them with."""
_PHASES = (PHASES[0], Phase(effort=Effort(4, 0, 3, 5e-4), min_gain=1e-3))
"""Efforts of relaxations that are to give prices and columns, not bounds."""
_NOTHING = 1e-6
"""A difference of this number of GPUs, or of USD per hour, is rounding."""
_LIMIT_PRICE_OVER_COST = 2.0
"""A GPU that a fleet lacks costs this many times the cost that a plan must be below."""
_SHORTAGE_OVER_DUAL = 3.0
_MIN_SHARE = 0.3
"""The entire rate of a service counts at least this share of the mean worth of one."""
_CHAINS = 2
"""Each fleet has this number, on two threads where there are two."""
_FIRST_MOVES, _MOVES = 6_000, 12_000
"""Moves of a chain for each GPU of the fleet: to compare fleets, and in each try."""
_PRICES = (1.0, 4.0, 16.0)
"""Prices of shortages, in mild prices, one after the other; in the first try of a fleet only the first."""
_MAX_TRIES = 16
"""A fleet is tried so often at most."""
_SIZES = (2, 5)
"""Smallest and largest number of GPUs that are taken out at a time."""
_WALK = 0.004
"""Plans that cost more than the best one by this share are walked through."""
_MIN_GAIN = 1e-6
"""USD per hour."""
_PATIENCE = (1, 1, 2, 2, 4)
"""For each GPU of the fleet: this many ruined plans in a row without a better one, and the next price has its turn. In
the first try, the second and so on; then as in the last."""


class FleetCounts(NamedTuple):
    """GPUs of each type, and what they promise."""

    value: float
    """USD per hour of the relaxation with cuts, over the columns at hand."""
    gpus: tuple[int, ...]
    """GPUs of each type."""


@dataclass(slots=True, eq=False)
class _Attempt:
    """How far the search on one fleet came."""

    fleet: FleetCounts
    plans: list[Counter[int]] = field(default_factory=list)
    """One of each chain, the better ones first; none before the first annealing."""
    reached: float = np.inf
    """The lowest cost met, with shortages at mild prices."""
    tries: int = 0
    search: DiveContext | None = None


def plan_on_fleets(
    tools: SearchContext,
    demand: CoverDemand,
    relaxation: Relaxation,
    *,
    below: float,
    seed: int,
    is_over: Callable[[], bool],
) -> Counter[int] | None:
    """The best plan found, as GPUs by column, that serves everything and costs less than `below`; None for none.

    relaxation: of the entire demand. below: USD per hour, finite.
    """
    listed = list_fleets(tools, demand, relaxation, below=below, is_over=is_over)
    if not listed or is_over():
        return None
    means = _Means(seed, tools.pricer.executor, is_over)
    search = _FleetSearch(tools, demand, relaxation.solution.duals, below, means)
    search.run(listed)
    return search.best


def list_fleets(
    tools: SearchContext,
    demand: CoverDemand,
    relaxation: Relaxation,
    *,
    below: float,
    is_over: Callable[[], bool],
) -> list[FleetCounts]:
    """The fleets of lowest value below the cost, ascending, without the empty one.

    The most expensive types are fixed first.
    """
    listing = _FleetListing(
        demand, tools.tables, _master(tools, demand, relaxation, below, is_over), below
    )
    # Best first: fleets are completed in the order of their values.
    waiting: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    found: list[FleetCounts] = []
    # Whether it is over is asked last, and only where there is more to do: each call may count as a round of work.
    while (
        waiting
        and len(found) < _MAX_FLEETS
        and listing.programs < _MAX_PROGRAMS
        and not is_over()
    ):
        value, fixed = heapq.heappop(waiting)
        if len(fixed) == len(listing.order):
            found.append(FleetCounts(value, listing.by_type(fixed)))
            continue
        for child in listing.children(fixed):
            heapq.heappush(waiting, child)
    return [fleet for fleet in found if any(fleet.gpus)]


class _FleetListing:
    """The tree of fleets: each level fixes the number of GPUs of one more type."""

    def __init__(
        self, demand: CoverDemand, tables: Tables, master: Master, below: float
    ) -> None:
        self._demand, self._tables = demand, tables
        self._master, self._below = master, below
        self._rows = type_rows(tables)
        # The most expensive types decide most of the cost, so that bad branches end early.
        self.order = sorted(self._rows, key=lambda at: -tables.price[at])
        self.programs = 0

    def children(
        self, fixed: tuple[int, ...]
    ) -> Iterator[tuple[float, tuple[int, ...]]]:
        """(value, counts) with one more type fixed, where that may stay below the cost."""
        for count in range(self._max_count(fixed) + 1):
            counts = (*fixed, count)
            self._master.limit(
                {
                    self._rows[at]: (float(gpus), float(gpus))
                    for at, gpus in zip(self.order, counts, strict=False)
                }
            )
            solution = self._master.solve()
            self.programs += 1
            has_room = solution.limits_missing <= _NOTHING
            if has_room and solution.objective < self._below:
                yield solution.objective, counts

    def _max_count(self, fixed: Sequence[int]) -> int:
        """GPUs of the next type that there are and that the cost leaves money for."""
        price = self._tables.price
        gpu_type = self.order[len(fixed)]
        spent = sum(
            count * float(price[at])
            for at, count in zip(self.order, fixed, strict=False)
        )
        affordable = (self._below - spent) / max(float(price[gpu_type]), _NOTHING)
        return int(min(self._demand.stock[gpu_type], affordable, _MAX_PROGRAMS))

    def by_type(self, counts: Sequence[int]) -> tuple[int, ...]:
        """GPUs of every type; types without rows have none."""
        gpus = dict(zip(self.order, counts, strict=True))
        return tuple(gpus.get(at, 0) for at in range(len(self._tables.stock)))


def _master(
    tools: SearchContext,
    demand: CoverDemand,
    relaxation: Relaxation,
    below: float,
    is_over: Callable[[], bool],
) -> Master:
    """The relaxation with cuts, and columns for it."""
    master = Master(
        tools.tables, demand, limit_price=_LIMIT_PRICE_OVER_COST * below, has_cuts=True
    )
    generation = Generation(master, tools.pricer, tools.columns)
    generation.use(relaxation.columns)
    generation.relax(phases=_PHASES, is_over=is_over)
    tools.pool.sync()
    return master


class _Means(NamedTuple):
    """What a search may use."""

    seed: int
    executor: Executor | None
    is_over: Callable[[], bool]


class _FleetSearch:
    """The search for plans that serve everything, on several fleets in turn."""

    def __init__(
        self,
        tools: SearchContext,
        demand: CoverDemand,
        duals: Duals,
        below: float,
        means: _Means,
    ) -> None:
        self._tools, self._means = tools, means
        self._demand = replace(demand, shortage_price=mild_prices(demand, duals))
        self._annealer = Annealer(tools.tables, self._demand)
        self.best: Counter[int] | None = None
        self._cost = below

    def run(self, fleets: Sequence[FleetCounts]) -> None:
        """A little on all fleets, then try after try on the one that promises most."""
        attempts = [_Attempt(fleet) for fleet in fleets]
        self._anneal(attempts, _FIRST_MOVES)
        while waiting := [one for one in attempts if self._is_open(one)]:
            self._try(max(waiting, key=self._promise))

    def _promise(self, attempt: _Attempt) -> tuple[bool, float, FleetCounts]:
        """What its plans may save for each USD per hour that its best one lacks, less with each try."""
        value = attempt.fleet.value
        lacks = max(attempt.reached - value, _NOTHING)
        score = (self._cost - value) / lacks / (1 + attempt.tries)
        # What annealing alone reached says little, so each fleet is tried once first. Ties are broken by the fleets
        # themselves, so that the order does not depend on how they were listed.
        return attempt.tries == 0, score, attempt.fleet

    def _is_open(self, attempt: _Attempt) -> bool:
        """Whether its fleet may hold a better plan, and there is time to look for it."""
        is_spent = attempt.tries >= _MAX_TRIES or self._means.is_over()
        return attempt.fleet.value < self._cost and not is_spent

    def _anneal(self, attempts: Sequence[_Attempt], moves: int) -> None:
        """All of them side by side, from their plans; `moves` for each GPU."""
        chains = [
            self._chain(one, at, moves) for one in attempts for at in range(_CHAINS)
        ]
        advance(chains, self._means.executor, self._means.is_over)
        plans = self._plans(chains)
        for at, one in enumerate(attempts):
            one.plans = sorted(
                plans[_CHAINS * at : _CHAINS * (at + 1)], key=self._cost_of
            )
            one.reached = min(one.reached, self._cost_of(one.plans[0]))

    def _chain(self, attempt: _Attempt, number: int, moves: int) -> Chain:
        gpus = attempt.fleet.gpus
        plan = attempt.plans[number] if attempt.plans else Counter[int]()
        return self._annealer.chain(
            gpus,
            moves=moves * sum(gpus),
            # A new seed in each try: the same one would repeat the walk.
            seed=self._means.seed + _CHAINS * attempt.tries + number,
            start=[self._tools.columns[one] for one in plan.elements()],
        )

    def _try(self, attempt: _Attempt) -> None:
        """Go on annealing, then ruin and recreate; at rising prices while that may give a better plan."""
        gpus = attempt.fleet.gpus
        patience = _PATIENCE[min(attempt.tries, len(_PATIENCE) - 1)] * sum(gpus)
        prices = _PRICES if attempt.tries else _PRICES[:1]
        attempt.tries += 1
        self._anneal([attempt], _MOVES)
        if attempt.search is None:
            attempt.search = self._search(gpus)
        plan = attempt.plans[0]
        for price in prices:
            plan, reached = self._improve(attempt.search, plan, patience, price)
            if reached < attempt.reached:
                attempt.reached, attempt.plans[0] = reached, plan
            if attempt.reached >= self._cost:
                break

    def _search(self, gpus: tuple[int, ...]) -> DiveContext:
        """Ruin and recreate with just these GPUs, at their relaxation's duals."""
        tools = self._tools
        is_over = self._means.is_over
        demand = replace(self._demand, stock=np.array(gpus, np.float64))
        found = generate(
            tools.tables,
            demand,
            tools.pricer,
            tools.columns,
            phases=_PHASES,
            is_over=is_over,
        )
        tools.pool.sync()
        # Seeded by the fleet, so that its plans do not depend on which fleets were tried before.
        rng = np.random.default_rng((self._means.seed, *gpus))
        return DiveContext(tools, demand, found.solution.duals, rng, is_over)

    def _improve(
        self, search: DiveContext, current: Counter[int], patience: int, price: float
    ) -> tuple[Counter[int], float]:
        """The plan of lowest cost met, with shortages at `price` times mild prices, and its cost at mild ones; until
        one serves everything for less than any before.
        """
        search, below = _with_shortage_price(search, price), self._cost
        cost = best_cost = self._cost_of(current, price)
        best, failures = current, 0
        while current and failures < patience and not search.is_over():
            if self._cost < below:
                break
            size = int(search.rng.integers(*_SIZES, endpoint=True))
            removed = choose(search, current, size)
            slack = best_cost * (1.0 + _WALK) - cost
            other = recreate(search, current, removed, slack)
            failures += 1
            if other is None:
                continue
            current = other
            cost = self._cost_of(other, price)
            if cost < best_cost - _MIN_GAIN:
                best = current
                best_cost = cost
                failures = 0
        return best, self._cost_of(best)

    def _cost_of(self, plan: Counter[int], price: float = 1.0) -> float:
        """The plan's cost, with shortages at `price` times mild prices. It is kept if it serves everything, by no more
        replicas than may be, for less than any before.
        """
        taken = self._tools.carried(plan)
        left = left_of(self._demand, taken)
        is_allowed = is_met(left) and (taken.replicas <= self._demand.most).all()
        if is_allowed and taken.cost < self._cost:
            self.best, self._cost = plan, taken.cost
        short = float(
            left.rate @ left.shortage_price + left.fewest @ left.missing_price
        )
        return taken.cost + price * short

    def _plans(self, chains: Sequence[Chain]) -> list[Counter[int]]:
        """What the chains came to, as GPUs by column."""
        plans = [self._tools.columns.numbered(chain.plan()) for chain in chains]
        self._tools.pool.sync()
        return plans


def mild_prices(demand: CoverDemand, duals: Duals) -> Reals:
    """(S,) USD per hour of one rps short: some times what the relaxation pays for one."""
    worth = duals.rps * demand.rate
    wanted = demand.rate > 0.0
    # A service with dual 0 must not be free to leave out.
    min_worth = _MIN_SHARE * float(worth[wanted].mean()) if wanted.any() else 0.0
    worth = np.maximum(worth, min_worth)
    price: Reals = np.divide(worth, demand.rate, out=np.zeros_like(worth), where=wanted)
    return _SHORTAGE_OVER_DUAL * price


def _with_shortage_price(search: DiveContext, factor: float) -> DiveContext:
    """The same with shortages at `factor` times their prices."""
    shortage_price = factor * search.demand.shortage_price
    demand = replace(search.demand, shortage_price=shortage_price)
    return search._replace(demand=demand)
