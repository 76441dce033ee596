"""Plans of few GPUs fleet by fleet: GPUs of each type first, then how to use them.

The price of a fleet is most of what a plan costs, and only a few fleets lie between the relaxation and a good plan once
rounding cuts (`cuts`) say what whole replicas need. So these are listed first, by the relaxation with cuts over the
columns at hand. That proves nothing, columns that only another fleet needs may be missing; the proof is `branch`.

How a fleet is best used is a question of combinations on which the relaxation, all of fractions, says little. On a
fixed fleet a shortage has a mild price, so that the way to a plan that serves everything may lead through plans that do
not: annealing (`annealing`) finds one that is short of a little, ruin and recreate, with exact answers for a few GPUs,
closes the rest. Every fleet is annealed shortly; the one whose relaxation and annealed plan promise most comes first,
and each plan found rules out fleets.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from solvers.joint.generate import PHASES, Generation, Relaxation, generate
from solvers.joint.limits import Row
from solvers.joint.master import Duals, Master
from solvers.joint.problem import Demand
from solvers.joint.tables import Reals, Tables
from solvers.joint.whole.annealing import Annealer, Chain, advance
from solvers.joint.whole.dive import Search
from solvers.joint.whole.integer import shortage_cost, state_plan
from solvers.joint.whole.residual import Kit, carried
from solvers.joint.whole.ruin import choose, recreate

_MOST_FLEETS = 12
_MOST_PROGRAMS = 2_000
"""Linear programs, a millisecond or two each, to list them with."""
_PHASES = PHASES[:2]
"""Of relaxations that are to give prices and columns, not bounds."""
_NOTHING = 1e-6
"""GPUs."""
_LIMIT_PRICE_OVER_COST = 2.0
"""A GPU that a fleet lacks costs this many times the cost that a plan must be below."""
_SHORTAGE_OVER_DUAL = 3.0
_LEAST_SHARE = 0.3
"""Of the mean worth of a service: what the whole rate of one counts at least."""
_CHAINS = 2
"""Annealed at a time, on two threads where there are two."""
_GLANCE, _MOVES = 6_000, 16_000
"""Moves of a chain for each GPU of the fleet: to compare fleets, and in the first try of one."""
_PRICES = (1.0, 4.0, 16.0)
"""Of shortages, in mild prices, one after the other."""
_MOST_DOUBLINGS = 3
_MOST_TRIES = 6
_OF_MET = 0.25
"""Of the way from a fleet's relaxation to what was met on it: the more tries, the nearer they come to the relaxation,
whether or not a plan that serves everything is to be found."""
_VAIN = 0.06
"""Of the cost that a fleet promises: what every try adds to it."""
_SIZES = (2, 5)
"""GPUs that are taken out at a time, least and most."""
_WALK = 0.004
"""Of the cost: plans so much dearer than the best are walked through."""
_LEAST_GAIN = 1e-6
"""USD per hour."""
_PATIENCE = 3
"""For each GPU of the fleet: so many ruined plans in a row without a better one end a try."""


class Fleet(NamedTuple):
    """GPUs of each type, and what they promise."""

    value: float
    """USD per hour of the relaxation with cuts, over the columns at hand."""
    gpus: tuple[int, ...]
    """Of each type."""


@dataclass(slots=True, eq=False)
class _Attempt:
    """How far the search on one fleet came."""

    fleet: Fleet
    reached: float
    """The least cost met, with shortages at mild prices."""
    tries: int = 0
    search: Search | None = None
    plan: Counter[int] = field(default_factory=Counter)
    """What was met at that cost."""

    def promise(self) -> float:
        """What a plan may cost: between the relaxation and what was met; vain tries make it less likely."""
        met = self.reached - self.fleet.value
        return (self.fleet.value + _OF_MET * met) * (1.0 + _VAIN * self.tries)


def plan_on_fleets(
    kit: Kit,
    demand: Demand,
    relaxation: Relaxation,
    *,
    below: float,
    seed: int,
    is_over: Callable[[], bool],
) -> Counter[int] | None:
    """The best plan found, as GPUs by column, that serves everything and costs less than `below`; None for none.

    relaxation: of the whole. below: USD per hour, finite.
    """
    if any(kit.tables.slicing):
        return None
    listed = list_fleets(kit, demand, relaxation, below=below, is_over=is_over)
    if not listed or is_over():
        return None
    search = _FleetSearch(kit, demand, relaxation.solution.duals, below, _Means(seed, kit.pricer.executor, is_over))
    search.run(listed)
    return search.best


def list_fleets(
    kit: Kit, demand: Demand, relaxation: Relaxation, *, below: float, is_over: Callable[[], bool]
) -> list[Fleet]:
    """The fleets of least value below the cost, ascending, without the empty one; the dearest types are fixed first."""
    tables, rows = kit.tables, _rows(kit.tables)
    master = _master(kit, demand, relaxation, below, is_over)
    order = sorted(rows, key=lambda gpu_type: -tables.price[gpu_type])
    waiting: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    found: list[Fleet] = []
    programs = 0
    while waiting and len(found) < _MOST_FLEETS and programs < _MOST_PROGRAMS and not is_over():
        value, fixed = heapq.heappop(waiting)
        if len(fixed) == len(order):
            found.append(Fleet(value, _by_type(tables, order, fixed)))
            continue
        for count in range(_most(tables, demand, order, fixed, below) + 1):
            fleet = (*fixed, count)
            master.limit({rows[at]: (float(n), float(n)) for at, n in zip(order, fleet, strict=False)})
            solution, programs = master.solve(), programs + 1
            if solution.limits_missing <= _NOTHING and solution.objective < below:
                heapq.heappush(waiting, (solution.objective, fleet))
    return [fleet for fleet in found if any(fleet.gpus)]


def _master(kit: Kit, demand: Demand, relaxation: Relaxation, below: float, is_over: Callable[[], bool]) -> Master:
    """The relaxation with cuts, and columns for it."""
    master = Master(kit.tables, demand, limit_price=_LIMIT_PRICE_OVER_COST * below, has_cuts=True)
    generation = Generation(master, kit.pricer, kit.columns)
    generation.use(relaxation.columns)
    generation.relax(phases=_PHASES, is_over=is_over)
    kit.pool.sync()
    return master


def _rows(tables: Tables) -> dict[int, Row]:
    """GPU type → GPUs of the type, for types that can run anything."""
    kinds = [mode.gpu_type for mode in tables.modes]
    return {one: Row(tuple(at for at, kind in enumerate(kinds) if kind == one)) for one in sorted(set(kinds))}


def _by_type(tables: Tables, order: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    gpus = dict(zip(order, counts, strict=True))
    return tuple(gpus.get(at, 0) for at in range(len(tables.stock)))


def _most(tables: Tables, demand: Demand, order: Sequence[int], fixed: Sequence[int], below: float) -> int:
    """GPUs of the next type that there are and that the cost leaves money for."""
    spent = sum(count * float(tables.price[at]) for at, count in zip(order, fixed, strict=False))
    gpu_type = order[len(fixed)]
    affordable = (below - spent) / max(float(tables.price[gpu_type]), _NOTHING)
    return int(min(demand.stock[gpu_type], affordable, _MOST_PROGRAMS))


class _Means(NamedTuple):
    """What a search may use."""

    seed: int
    executor: Executor | None
    is_over: Callable[[], bool]


class _FleetSearch:
    """The search for plans that serve everything, on several fleets in turn."""

    def __init__(self, kit: Kit, demand: Demand, duals: Duals, below: float, means: _Means) -> None:
        self._kit, self._means = kit, means
        self._demand = replace(demand, shortage_price=mild_prices(demand, duals))
        self._annealer = Annealer(kit.tables, self._demand)
        self.best: Counter[int] | None = None
        self._cost = below

    def run(self, fleets: Sequence[Fleet]) -> None:
        """Every fleet by turns, the one that promises most first, as long as it may hold a better plan."""
        attempts = self._glance(fleets)
        while not self._means.is_over():
            open_ones = [one for one in attempts if one.fleet.value < self._cost and one.tries < _MOST_TRIES]
            if not open_ones:
                return
            self._try(min(open_ones, key=lambda one: (one.promise(), one.fleet)))

    def _glance(self, fleets: Sequence[Fleet]) -> list[_Attempt]:
        """All of them, annealed shortly."""
        chains = [
            self._annealer.chain(fleet.gpus, moves=_GLANCE * sum(fleet.gpus), seed=self._means.seed) for fleet in fleets
        ]
        advance(chains, self._means.executor, self._means.is_over)
        reached = [self._judge(plan)[0] for plan in self._plans(chains)]
        return [_Attempt(fleet, cost) for fleet, cost in zip(fleets, reached, strict=True)]

    def _try(self, attempt: _Attempt) -> None:
        """Anneal, then ruin and recreate until that gains nothing any more."""
        gpus = attempt.fleet.gpus
        if attempt.search is None:
            attempt.search = self._search(gpus)
        effort = sum(gpus) << min(attempt.tries, _MOST_DOUBLINGS)
        first = self._means.seed + 1 + _CHAINS * attempt.tries
        chains = [self._annealer.chain(gpus, moves=_MOVES * effort, seed=first + at) for at in range(_CHAINS)]
        attempt.tries += 1
        advance(chains, self._means.executor, self._means.is_over)
        start = min(self._plans(chains), key=lambda plan: self._judge(plan)[0])
        for price in _PRICES:
            start, reached = self._improve(attempt.search, start, _PATIENCE * effort, price)
            if reached < attempt.reached:
                attempt.plan, attempt.reached = start, reached

    def _search(self, gpus: tuple[int, ...]) -> Search:
        """Ruin and recreate with just these GPUs, at their relaxation's duals."""
        kit, demand, is_over = self._kit, replace(self._demand, stock=np.array(gpus, np.float64)), self._means.is_over
        found = generate(kit.tables, demand, kit.pricer, kit.columns, phases=_PHASES, is_over=is_over)
        kit.pool.sync()
        return Search(kit, demand, found.solution.duals, np.random.default_rng((self._means.seed, *gpus)), is_over)

    def _improve(
        self, search: Search, current: Counter[int], patience: int, price: float
    ) -> tuple[Counter[int], float]:
        """The plan of least cost met, and that cost, with shortages at mild prices; plans that serve everything are
        offered. `price`: of a shortage, in mild prices, while plans are sought.
        """
        demand = replace(search.demand, shortage_price=price * search.demand.shortage_price)
        search = search._replace(demand=demand)
        self._offer(current)
        cost = least = self._cost_of(current, demand)
        best, failures = current, 0
        while current and failures < patience and not search.is_over():
            removed = choose(search, current, int(search.rng.integers(_SIZES[0], _SIZES[1] + 1)))
            other = recreate(search, current, removed, least * (1.0 + _WALK) - cost)
            failures += 1
            if other is None:
                continue
            self._offer(other)
            current, cost = other, self._cost_of(other, demand)
            if cost < least - _LEAST_GAIN:
                best, least, failures = current, cost, 0
        return best, self._judge(best)[0]

    def _cost_of(self, plan: Counter[int], demand: Demand) -> float:
        """With shortages at a demand's prices."""
        stated = state_plan(self._kit.tables, self._kit.columns, demand, plan)
        return stated.cost_usd_per_hour + shortage_cost(demand, stated)

    def _offer(self, plan: Counter[int]) -> float:
        """The plan's cost with shortages; it is kept if it serves everything for less than any before."""
        cost, is_met = self._judge(plan)
        if is_met and cost < self._cost:
            self.best, self._cost = plan, cost
        return cost

    def _judge(self, plan: Counter[int]) -> tuple[float, bool]:
        """(cost with shortages, whether everything is served by no more replicas than may be)."""
        stated = state_plan(self._kit.tables, self._kit.columns, self._demand, plan)
        replicas = carried(self._kit.tables, self._kit.columns, plan).replicas
        is_short = stated.shortage_rps.any() or stated.replicas_missing.any()
        is_met = not is_short and bool((replicas <= self._demand.most).all())
        return stated.cost_usd_per_hour + shortage_cost(self._demand, stated), is_met

    def _plans(self, chains: Sequence[Chain]) -> list[Counter[int]]:
        """What the chains came to, as GPUs by column."""
        columns, plans = self._kit.columns, []
        for patterns in (chain.plan() for chain in chains):
            columns.add(patterns)
            plans.append(Counter({columns.number(pattern): count for pattern, count in patterns.items()}))
        self._kit.pool.sync()
        return plans


def mild_prices(demand: Demand, duals: Duals) -> Reals:
    """(S,) USD per hour of one rps short: some times what the relaxation pays for one."""
    worth, wanted = duals.rps * demand.rate, demand.rate > 0.0
    least = _LEAST_SHARE * float(worth[wanted].mean()) if wanted.any() else 0.0
    price: Reals = np.divide(np.maximum(worth, least), demand.rate, out=np.zeros_like(worth), where=wanted)
    return _SHORTAGE_OVER_DUAL * price
