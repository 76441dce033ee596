"""GPU elimination: everything served with a GPU less.

The cost of integer plans moves in steps of a GPU, so a search that looks at cost alone is on a plateau nearly
everywhere. Here GPUs are taken out first, and what the others then leave short is the measure, valued at a few times
the relaxation's duals π, together with what the GPUs lose:

    Σ_s β π_s short_s + Σ_p loss_p x_p        loss_p = reduced cost of column p at the relaxation's duals

Without the losses the search soon stands still: the less GPUs lose, the more capacity there is beyond what is wanted,
and that can be moved to where it is short. Two kinds of steps lower it, with as many GPUs of each type as there are:
exchanges of one or two GPUs by the columns at hand, by the thousand (`kernels.exchange`), while losses weigh much at
first and less later; then small neighbourhoods with new columns for just what they leave over.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solvers.joint.heuristics.annealing import Annealer, Chain, advance
from solvers.joint.heuristics.diving import DiveContext, plan_rest
from solvers.joint.heuristics.residual import SearchContext
from solvers.joint.heuristics.ruin_and_recreate import related_gpus, wasteful
from solvers.joint.kernels.exchange import ExchangeState, exchange
from solvers.joint.kernels.scan import Stack
from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.carried import Carried, left_of
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.relaxation.column_pool import LossPool

_SHORTAGE_OVER_DUAL = 4.0
"""What is short costs this multiple of its dual, β."""
_MIN_WORTH = 1e-2
"""The rate of a service is worth at least this share of the cheapest GPU's price, whatever its dual."""
_SPENT = 0.8
"""For the most expensive GPU that is saved, cheaper ones may be bought for this share of its price."""
_SURPLUS = 0.12
"""One more GPU goes while the others could carry this share of a GPU's mean price more than is wanted, per service."""
_LOSSES = (36.0, 16.0, 9.0, 6.0, 4.0, 2.5, 1.7)
"""Weights of losses in the exchanges, one after the other."""
_EXCHANGES = 300
"""Steps under each weight."""
_COLUMNS_TO_EXCHANGE = 6000
_SIZES = (3, 6)
"""Smallest and largest number of GPUs that are planned again at a time."""
_PATIENCE = 60
_MAX_STEPS = 250
"""Neighbourhoods in a row in which nothing was gained, or in all: other GPUs' turn."""
_STUCK = 6
_RAISE = 2.0
"""After _STUCK in a row, what is short grows dearer by that factor: something else is short instead, and losses count
for less and less."""
_SHORT = 0.7
"""This share of the neighbourhoods begins with a service that is short, the others with any wasteful GPU."""
_COLUMNS = 60
"""The relaxation of a neighbourhood begins with this number."""


class _Target(NamedTuple):
    """What is tried."""

    tools: SearchContext
    """Columns at their losses."""
    demand: CoverDemand
    """With what is short priced by the duals."""
    limit: float
    """USD per hour that the GPUs may cost."""

    def short(self, taken: Carried) -> Reals:
        """(S,) USD per hour of what is not there of each service."""
        return _short(self.demand, taken)

    def raised(self, short: Reals) -> "_Target":
        """The same with what is short at higher prices."""
        price = np.where(short > 0.0, _RAISE, 1.0) * self.demand.shortage_price
        return self._replace(demand=replace(self.demand, shortage_price=price))


def eliminate_gpus(
    search: DiveContext, plan: Counter[int], *, is_first: bool = True
) -> Counter[int] | None:
    """A plan that serves as much with fewer GPUs, or with cheaper ones; None where none was found.

    plan: serves everything. At first the most wasteful GPU is taken out, later any wasteful one.
    """
    tools = search.tools
    tools.pool.sync()
    losses = tools._replace(pool=LossPool(tools.tables, tools.columns, search.duals))
    soft = soft_demand(search)
    current = _less(search, losses, soft, plan, 0.0 if is_first else 1.0)
    target = _Target(losses, soft, _limit(tools, plan, current))
    failures = 0
    for _ in range(_MAX_STEPS):
        if not current or failures == _PATIENCE or search.is_over():
            break
        taken = tools.carried(current)
        short = target.short(taken)
        if not short.any():
            return current
        out = _choose(search, current, taken, short)
        other = _rearranged(search, target, current, out)
        if other is None:
            failures += 1
        else:
            current, failures = other, 0
        # What stays short whatever is planned again gets dearer, so that something else is short instead.
        if failures % _STUCK == _STUCK - 1:
            target = target.raised(short)
    return None


def _limit(tools: SearchContext, plan: Counter[int], current: Counter[int]) -> float:
    """USD per hour that a plan may cost: of what the current one saves, most must remain saved."""
    cost = tools.carried(plan).cost
    saved = cost - tools.carried(current).cost
    prices = [tools.columns[number].price for number in plan - current]
    # The most expensive GPU that went pays for cheaper ones, but for no more than was saved in all.
    return cost - saved + _SPENT * min(saved, max(prices, default=0.0))


def soft_demand(search: DiveContext) -> CoverDemand:
    """The demand with what is short at a few times its dual, or at little where it has none."""
    demand = search.demand
    min_worth = _MIN_WORTH * float(search.tools.tables.price.min())
    wanted = np.where(demand.rate > 0.0, demand.rate, np.inf)
    price = _SHORTAGE_OVER_DUAL * np.maximum(search.duals.rps, min_worth / wanted)
    return replace(demand, shortage_price=price)


def _short(demand: CoverDemand, taken: Carried) -> Reals:
    """(S,) USD per hour of what is not there of each service."""
    rest = left_of(demand, taken)
    short: Reals = rest.rate * rest.shortage_price + rest.fewest * rest.missing_price
    return short


def _less(
    search: DiveContext,
    losses: SearchContext,
    soft: CoverDemand,
    plan: Counter[int],
    chance: float,
) -> Counter[int]:
    """The plan without as many GPUs as it seems that it could do without; at least one is taken out."""
    tools = search.tools
    price = tools.carried(plan).cost / sum(plan.values())
    min_surplus = _SURPLUS * price * np.count_nonzero(search.demand.rate)
    while True:
        plan = plan - Counter([wasteful(search, plan, chance)])
        plan = _exchanged(search, losses, soft, plan)
        if not plan:
            return plan
        # One more GPU goes only while the surplus is worth more than it costs, by the margin.
        next_price = tools.columns[wasteful(search, plan, chance)].price
        if _surplus(search, plan) < min_surplus + next_price or search.is_over():
            return plan


def _surplus(search: DiveContext, plan: Counter[int]) -> float:
    """USD per hour of what the GPUs could carry beyond what is wanted, less what is short."""
    taken = search.tools.carried(plan)
    return float(search.duals.rps @ (taken.rps - search.demand.rate))


def _exchanged(
    search: DiveContext, losses: SearchContext, soft: CoverDemand, plan: Counter[int]
) -> Counter[int]:
    """The plan after exchanges of single GPUs and pairs, under falling weights of losses."""
    pool = losses.pool
    cheap = pool.cheapest(pool.price, _COLUMNS_TO_EXCHANGE)
    numbers = np.unique([*cheap, *plan]).astype(np.int32)
    gpus = np.searchsorted(numbers, sorted(plan.elements())).astype(np.int32)
    fleet = _fleet(soft, losses.carried(plan), gpus)
    for weight in _LOSSES:
        stack = _weighted(pool.stack(), numbers, weight)
        # The compiled kernel draws random numbers of its own, from a state seeded by the search's generator.
        state = search.rng.integers(1, 2**63, 1, dtype=np.uint64)
        exchange(stack, fleet, _EXCHANGES, state)
        if search.is_over():
            break
    return Counter(numbers[fleet.gpus].tolist())


def _weighted(columns: Stack, numbers: Numbers, weight: float) -> Stack:
    """Some of the columns, at `weight` times their losses."""
    return Stack(
        service=columns.service[numbers],
        capacity=columns.capacity[numbers],
        price=weight * columns.price[numbers],
        gpu_type=columns.gpu_type[numbers],
    )


def _fleet(soft: CoverDemand, taken: Carried, gpus: Numbers) -> ExchangeState:
    return ExchangeState(
        gpus=gpus,
        need=soft.rate - taken.rps,
        missing=soft.fewest - taken.replicas,
        room=soft.most - taken.replicas,
        worth=soft.shortage_price,
        missing_price=soft.missing_price,
        types=len(soft.stock),
    )


def _choose(
    search: DiveContext, plan: Counter[int], taken: Carried, short: Reals
) -> Counter[int]:
    """GPUs to plan again: wasteful ones that share services with each other and, mostly, with one that is short."""
    size = int(search.rng.integers(*_SIZES, endpoint=True))
    first = None
    if search.rng.random() < _SHORT:
        first = int(search.rng.choice(len(short), p=short / short.sum()))
    return related_gpus(search, plan, taken, size, first=first)


def _rearranged(
    search: DiveContext, target: _Target, plan: Counter[int], out: Counter[int]
) -> Counter[int] | None:
    """The plan with these GPUs planned again so that less is short or lost; None where that was not found."""
    tools, base = target.tools, plan - out
    gone = tools.carried(out)
    rest = _affordable_rest(target, tools.carried(base), gone)
    prices = tools.pool.price
    lost = sum(count * float(prices[number]) for number, count in out.items())
    below = lost + float(_short(rest, gone).sum())

    # The prices of this pool are losses, which contain the duals already.
    free = replace(
        search.duals, rps=np.zeros(len(rest.rate)), stock=np.zeros(len(rest.stock))
    )
    cheap = tools.pool.cheapest(tools.pool.reduced_costs(rest, free), _COLUMNS)
    last = plan_rest(tools, rest, [*out, *cheap], below)
    # Pricing made columns that the pool of true prices does not hold yet.
    search.tools.pool.sync()
    if last is None:
        return None
    other = base + last.counts
    return other if tools.carried(other).cost <= target.limit else None


def _affordable_rest(target: _Target, taken: Carried, gone: Carried) -> CoverDemand:
    """What is left to plan besides what is taken, in place of the GPUs that are gone."""
    rest = left_of(target.demand, taken)
    # As many GPUs of each type as were taken out, and as many more as the cost limit alone leaves money for.
    money = target.limit - taken.cost - gone.cost
    more = _affordable(target.tools, money)
    return replace(rest, stock=np.minimum(rest.stock, gone.gpus + more))


def _affordable(tools: SearchContext, money: float) -> Reals:
    """(G,) GPUs of each type that `money` USD per hour pays for."""
    price = tools.tables.price
    endless = np.full(len(price), np.inf)
    gpus: Reals = np.floor(
        np.divide(max(0.0, money), price, out=endless, where=price > 0.0)
    )
    return gpus


_CHAINS = 2
_LOSES = 0.002
"""A GPU that is open to change with all of its kind loses at least this share of its price."""
_MOVES = 1_500
"""Annealing makes this number for each GPU that is open to change."""
_TEMPERATURES = 0.012, 0.0006
"""At the beginning and at the end, in mean prices of a GPU: low, since the plan is good but for little."""


def eliminate_by_annealing(
    search: DiveContext,
    annealer: Annealer,
    soft: CoverDemand,
    plan: Counter[int],
    *,
    gpus: int,
    is_first: bool,
) -> Counter[int] | None:
    """A plan that serves as much with `gpus` GPUs less; None where none was found.

    plan: serves everything. soft: the demand with mild prices of shortages. At first the most wasteful GPUs are taken
    out too, later any wasteful ones.
    """
    tools, losing = search.tools, _losing(search, plan)
    attempts: list[_Attempt] = []
    for number in range(_CHAINS):
        chance = 0.0 if is_first and number == 0 else 1.0
        left = _without(search, plan, gpus, chance)
        fixed = _fixed(left, losing)
        if left - fixed:
            rest = left_of(soft, tools.carried(fixed))
            chain = _chain(search, annealer.for_demand(rest), left - fixed)
            attempts.append(_Attempt(fixed, chain))
    found = [
        attempt.fixed + _numbered(search, attempt.chain)
        for attempt in _met(search, attempts)
    ]
    return min(found, key=lambda one: tools.carried(one).cost, default=None)


class _Attempt(NamedTuple):
    """A plan whose open GPUs are annealed next to those that stay."""

    fixed: Counter[int]
    chain: Chain


def _met(search: DiveContext, attempts: Sequence[_Attempt]) -> list[_Attempt]:
    """Those of which annealing found a plan that serves as much."""
    chains = [attempt.chain for attempt in attempts]
    # One plan is enough: the caller goes on from it with fewer GPUs still.
    advance(
        chains,
        search.tools.pricer.executor,
        lambda: search.is_over() or any(chain.is_met() for chain in chains),
    )
    return [attempt for attempt in attempts if attempt.chain.is_met()]


def _fixed(plan: Counter[int], losing: set[int]) -> Counter[int]:
    """The GPUs that stay as they are: of each column that loses little all but one, which is open to change."""
    return Counter(
        {
            number: count - 1
            for number, count in plan.items()
            if count > 1 and number not in losing
        }
    )


def _without(
    search: DiveContext, plan: Counter[int], gpus: int, chance: float
) -> Counter[int]:
    """The plan less a number of GPUs that waste much."""
    left = plan
    for _ in range(min(gpus, plan.total())):
        left = left - Counter([wasteful(search, left, chance)])
    return left


def _losing(search: DiveContext, plan: Counter[int]) -> set[int]:
    """The columns whose GPUs lose so much that all of them are open to change."""
    # The search that found the plan may have made columns that the pool does not hold yet.
    search.tools.pool.sync()
    losses = LossPool(search.tools.tables, search.tools.columns, search.duals)
    return {
        number
        for number in plan
        if losses.price[number] >= _LOSES * search.tools.columns[number].price
    }


def _chain(search: DiveContext, annealer: Annealer, plan: Counter[int]) -> Chain:
    tools = search.tools
    start = [tools.columns[number] for number in sorted(plan.elements())]
    fleet = np.bincount(
        [tools.pool.gpu_type[number] for number in plan.elements()],
        minlength=len(tools.tables.stock),
    )
    return annealer.chain(
        fleet.tolist(),
        moves=_MOVES * len(start),
        seed=int(search.rng.integers(2**32)),
        start=start,
        temperatures=_TEMPERATURES,
    )


def _numbered(search: DiveContext, chain: Chain) -> Counter[int]:
    plan = search.tools.columns.numbered(chain.plan())
    search.tools.pool.sync()
    return plan
