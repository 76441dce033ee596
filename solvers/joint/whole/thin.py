"""Thinning: GPUs are taken out of a plan that serves everything, and annealing puts right what that leaves short.

A rounded plan loses most on its last GPUs, which carry small rests of many services. A little more capacity on each of
a hundred others does the same work; which others, and by what shapes, annealing (`annealing`) finds, since nothing but
shapes changes: every step of it is far cheaper than a linear program. GPUs that lose nothing stay as they are, but for
one of each pattern. Two chains, side by side where there are threads, each take out GPUs of their own.
"""

from collections import Counter

import numpy as np

from solvers.joint.problem import Demand
from solvers.joint.whole.annealing import Annealer, Chain, advance
from solvers.joint.whole.dive import Search
from solvers.joint.whole.pool import LossPool
from solvers.joint.whole.residual import carried, left_of
from solvers.joint.whole.ruin import wasteful

_CHAINS = 2
_LOSES = 0.002
"""Of its price: what a GPU loses at least that is open to change with all of its kind."""
_MOVES = 1_500
"""For each GPU that is open to change."""
_TEMPERATURES = 0.012, 0.0006
"""At the beginning and at the end, in mean prices of a GPU: low, since the plan is good but for little."""


def thin(
    search: Search, annealer: Annealer, soft: Demand, plan: Counter[int], *, gpus: int, is_first: bool
) -> Counter[int] | None:
    """A plan that serves as much with so many GPUs less; None where none was found.

    plan: serves everything. soft: the demand with mild prices of shortages. At first the most wasteful GPUs are taken
    out too, later any wasteful ones.
    """
    columns, losing = search.kit.columns, _losing(search, plan)
    chains, stills = [], []
    for number in range(_CHAINS):
        left = _without(search, plan, gpus, 0.0 if is_first and number == 0 else 1.0)
        still = Counter({number: count - 1 for number, count in left.items() if count > 1 and number not in losing})
        if left - still:
            rest = left_of(soft, carried(search.kit.tables, columns, still))
            chains.append(_chain(search, annealer.asked(rest), left - still))
            stills.append(still)
    advance(chains, search.kit.pricer.executor, lambda: search.is_over() or any(chain.is_met() for chain in chains))
    found = [still + _numbered(search, chain) for still, chain in zip(stills, chains, strict=True) if chain.is_met()]
    return min(found, key=lambda one: carried(search.kit.tables, columns, one).cost, default=None)


def _without(search: Search, plan: Counter[int], gpus: int, chance: float) -> Counter[int]:
    """The plan less so many GPUs that waste much."""
    left = plan
    for _ in range(min(gpus, plan.total())):
        left = left - Counter([wasteful(search, left, chance)])
    return left


def _losing(search: Search, plan: Counter[int]) -> set[int]:
    """The columns whose GPUs lose so much that all of them are open to change."""
    search.kit.pool.sync()
    losses = LossPool(search.kit.tables, search.kit.columns, search.duals)
    return {number for number in plan if losses.price[number] >= _LOSES * search.kit.columns[number].price}


def _chain(search: Search, annealer: Annealer, plan: Counter[int]) -> Chain:
    kit = search.kit
    start = [kit.columns[number] for number in sorted(plan.elements())]
    fleet = np.bincount([kit.pool.gpu_type[number] for number in plan.elements()], minlength=len(kit.tables.stock))
    return annealer.chain(
        fleet.tolist(),
        moves=_MOVES * len(start),
        seed=int(search.rng.integers(2**32)),
        start=start,
        temperatures=_TEMPERATURES,
    )


def _numbered(search: Search, chain: Chain) -> Counter[int]:
    patterns = chain.plan()
    search.kit.columns.add(patterns)
    search.kit.pool.sync()
    return Counter({search.kit.columns.number(pattern): count for pattern, count in patterns.items()})
