"""Plans of few GPUs fleet by fleet: GPUs of each type first, then how to use them.

The price of a fleet is most of what a plan costs, and only a few fleets lie between the relaxation and a good plan once
rounding cuts (`cuts`) say what whole replicas need. So these are listed first, by the relaxation with cuts over the
columns at hand. That proves nothing, columns that only another fleet needs may be missing; the proof is
`relaxation.branch_and_price`.

How a fleet is best used is a question of combinations on which the relaxation, all of fractions, says little. On a
fixed fleet a shortage has a mild price, so that the way to a plan that serves everything may lead through plans that do
not: annealing (`annealing`) finds ones that are short of a little; ruin and recreate, with exact answers for a few
GPUs, closes the rest. Both go on from what they left, so that time is spent by successive halving: on all fleets a
little, on the better half of them as much again, and so on down to one, then from the start with all that are left.
Each plan found rules out fleets.

Source of successive halving: Karnin, Koren and Somekh 2013.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
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
from solvers.joint.patterns.carried import carried, is_met, left_of
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
"""Of relaxations that are to give prices and columns, not bounds."""
_NOTHING = 1e-6
"""GPUs."""
_LIMIT_PRICE_OVER_COST = 2.0
"""A GPU that a fleet lacks costs this many times the cost that a plan must be below."""
_SHORTAGE_OVER_DUAL = 3.0
_MIN_SHARE = 0.3
"""Of the mean worth of a service: what the whole rate of one counts at least."""
_CHAINS = 2
"""Of each fleet, on two threads where there are two."""
_FIRST_MOVES, _MOVES = 8_000, 12_000
"""Moves of a chain for each GPU of the fleet: to compare fleets, and in each try."""
_PRICES = (1.0, 4.0, 16.0)
"""Of shortages, in mild prices, one after the other."""
_MAX_TRIES = 16
"""Of a fleet."""
_SIZES = (2, 5)
"""GPUs that are taken out at a time, least and most."""
_WALK = 0.004
"""Of the cost: plans so much dearer than the best are walked through."""
_MIN_GAIN = 1e-6
"""USD per hour."""
_PATIENCE = 4
"""For each GPU of the fleet: so many ruined plans in a row without a better one, and the next price has its turn."""


class FleetCounts(NamedTuple):
    """GPUs of each type, and what they promise."""

    value: float
    """USD per hour of the relaxation with cuts, over the columns at hand."""
    gpus: tuple[int, ...]
    """Of each type."""


@dataclass(slots=True, eq=False)
class _Attempt:
    """How far the search on one fleet came."""

    fleet: FleetCounts
    plans: list[Counter[int]] = field(default_factory=list)
    """Of each chain, the better ones first; none before the first annealing."""
    reached: float = np.inf
    """The least cost met, with shortages at mild prices."""
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

    relaxation: of the whole. below: USD per hour, finite.
    """
    listed = list_fleets(tools, demand, relaxation, below=below, is_over=is_over)
    if not listed or is_over():
        return None
    search = _FleetSearch(
        tools,
        demand,
        relaxation.solution.duals,
        below,
        _Means(seed, tools.pricer.executor, is_over),
    )
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
    """The fleets of least value below the cost, ascending, without the empty one; the dearest types are fixed first."""
    tables, rows = tools.tables, type_rows(tools.tables)
    master = _master(tools, demand, relaxation, below, is_over)
    order = sorted(rows, key=lambda gpu_type: -tables.price[gpu_type])
    waiting: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    found: list[FleetCounts] = []
    programs = 0
    while (
        waiting
        and len(found) < _MAX_FLEETS
        and programs < _MAX_PROGRAMS
        and not is_over()
    ):
        value, fixed = heapq.heappop(waiting)
        if len(fixed) == len(order):
            found.append(FleetCounts(value, _by_type(tables, order, fixed)))
            continue
        for count in range(_most(tables, demand, order, fixed, below) + 1):
            fleet = (*fixed, count)
            master.limit(
                {
                    rows[at]: (float(n), float(n))
                    for at, n in zip(order, fleet, strict=False)
                }
            )
            solution, programs = master.solve(), programs + 1
            if solution.limits_missing <= _NOTHING and solution.objective < below:
                heapq.heappush(waiting, (solution.objective, fleet))
    return [fleet for fleet in found if any(fleet.gpus)]


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


def _by_type(
    tables: Tables, order: Sequence[int], counts: Sequence[int]
) -> tuple[int, ...]:
    gpus = dict(zip(order, counts, strict=True))
    return tuple(gpus.get(at, 0) for at in range(len(tables.stock)))


def _most(
    tables: Tables,
    demand: CoverDemand,
    order: Sequence[int],
    fixed: Sequence[int],
    below: float,
) -> int:
    """GPUs of the next type that there are and that the cost leaves money for."""
    spent = sum(
        count * float(tables.price[at]) for at, count in zip(order, fixed, strict=False)
    )
    gpu_type = order[len(fixed)]
    affordable = (below - spent) / max(float(tables.price[gpu_type]), _NOTHING)
    return int(min(demand.stock[gpu_type], affordable, _MAX_PROGRAMS))


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
        """All fleets, then the better half of them again, and so on down to one; from the start with what that left."""
        attempts = [_Attempt(fleet) for fleet in fleets]
        self._anneal(attempts, _FIRST_MOVES)
        left = attempts
        while left and not self._means.is_over():
            left = sorted(left, key=lambda one: (one.reached, one.fleet))[
                : (len(left) + 1) // 2
            ]
            for attempt in left:
                if self._is_open(attempt):
                    self._try(attempt)
            left = [
                one
                for one in (left if len(left) > 1 else attempts)
                if self._is_open(one)
            ]

    def _is_open(self, attempt: _Attempt) -> bool:
        """Whether its fleet may hold a better plan, and there is time to look for it."""
        is_spent = attempt.tries >= _MAX_TRIES or self._means.is_over()
        return attempt.fleet.value < self._cost and not is_spent

    def _anneal(self, attempts: Sequence[_Attempt], moves: int) -> None:
        """All of them side by side, from their plans; so many moves for each GPU."""
        chains = []
        for one in attempts:
            gpus, first = one.fleet.gpus, self._means.seed + _CHAINS * one.tries
            for at in range(_CHAINS):
                start = (
                    [self._tools.columns[number] for number in one.plans[at].elements()]
                    if one.plans
                    else ()
                )
                chains.append(
                    self._annealer.chain(
                        gpus, moves=moves * sum(gpus), seed=first + at, start=start
                    )
                )
        advance(chains, self._means.executor, self._means.is_over)
        plans = self._plans(chains)
        for at, one in enumerate(attempts):
            one.plans = sorted(plans[_CHAINS * at : _CHAINS * (at + 1)], key=self._look)
            one.reached = min(one.reached, self._look(one.plans[0]))

    def _try(self, attempt: _Attempt) -> None:
        """Go on annealing, then ruin and recreate; at rising prices while that may give a better plan."""
        gpus = attempt.fleet.gpus
        attempt.tries += 1
        self._anneal([attempt], _MOVES)
        if attempt.search is None:
            attempt.search = self._search(gpus)
        plan = attempt.plans[0]
        for price in _PRICES:
            plan, reached = self._improve(
                attempt.search, plan, _PATIENCE * sum(gpus), price
            )
            if reached < attempt.reached:
                attempt.reached, attempt.plans[0] = reached, plan
            if attempt.reached >= self._cost:
                break

    def _search(self, gpus: tuple[int, ...]) -> DiveContext:
        """Ruin and recreate with just these GPUs, at their relaxation's duals."""
        tools, demand, is_over = (
            self._tools,
            replace(self._demand, stock=np.array(gpus, np.float64)),
            self._means.is_over,
        )
        found = generate(
            tools.tables,
            demand,
            tools.pricer,
            tools.columns,
            phases=_PHASES,
            is_over=is_over,
        )
        tools.pool.sync()
        return DiveContext(
            tools,
            demand,
            found.solution.duals,
            np.random.default_rng((self._means.seed, *gpus)),
            is_over,
        )

    def _improve(
        self, search: DiveContext, current: Counter[int], patience: int, price: float
    ) -> tuple[Counter[int], float]:
        """The plan of least cost met, with shortages at `price` times mild prices, and its cost at mild ones."""
        demand = replace(
            search.demand, shortage_price=price * search.demand.shortage_price
        )
        search = search._replace(demand=demand)
        cost = least = self._look(current, price)
        best, failures = current, 0
        while current and failures < patience and not search.is_over():
            removed = choose(
                search, current, int(search.rng.integers(_SIZES[0], _SIZES[1] + 1))
            )
            other = recreate(search, current, removed, least * (1.0 + _WALK) - cost)
            failures += 1
            if other is None:
                continue
            current, cost = other, self._look(other, price)
            if cost < least - _MIN_GAIN:
                best, least, failures = current, cost, 0
        return best, self._look(best)

    def _look(self, plan: Counter[int], price: float = 1.0) -> float:
        """The plan's cost, with shortages at `price` times mild prices. It is kept if it serves everything, by no more
        replicas than may be, for less than any before.
        """
        taken = carried(self._tools.tables, self._tools.columns, plan)
        left = left_of(self._demand, taken)
        if (
            is_met(left)
            and taken.cost < self._cost
            and (taken.replicas <= self._demand.most).all()
        ):
            self.best, self._cost = plan, taken.cost
        short = float(
            left.rate @ left.shortage_price + left.fewest @ left.missing_price
        )
        return taken.cost + price * short

    def _plans(self, chains: Sequence[Chain]) -> list[Counter[int]]:
        """What the chains came to, as GPUs by column."""
        columns, plans = self._tools.columns, []
        for patterns in (chain.plan() for chain in chains):
            columns.add(patterns)
            plans.append(
                Counter(
                    {
                        columns.number(pattern): count
                        for pattern, count in patterns.items()
                    }
                )
            )
        self._tools.pool.sync()
        return plans


def mild_prices(demand: CoverDemand, duals: Duals) -> Reals:
    """(S,) USD per hour of one rps short: some times what the relaxation pays for one."""
    worth, wanted = duals.rps * demand.rate, demand.rate > 0.0
    least = _MIN_SHARE * float(worth[wanted].mean()) if wanted.any() else 0.0
    price: Reals = np.divide(
        np.maximum(worth, least), demand.rate, out=np.zeros_like(worth), where=wanted
    )
    return _SHORTAGE_OVER_DUAL * price
