"""Ruin and recreate: take a few GPUs out of a whole plan and plan anew what they carried."""

from collections import Counter

import numpy as np

from solvers.joint.heuristics.diving import DiveContext, DiveEffort, dive, finish
from solvers.joint.heuristics.residual import relax_rest
from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.carried import Carried, carried, rest_of
from solvers.joint.patterns.formulation import CoverDemand

_PACE = DiveEffort(rounds=4, min_gain=0.0, columns=60, few_gpus=4.0, spread=0.5)
_DIVES = 0.3
"""In this share of the neighbourhoods new columns are priced at every step; in the others, which take far less time,
only at the root. Either alone finds less."""
_MIN_WASTE = 0.02
"""Every GPU counts as wasting at least this share of its price, so that each may be chosen."""
_UNRELATED = 0.1
"""Weight of a GPU that shares no service with those chosen, in shared services."""


def recreate(
    search: DiveContext, plan: Counter[int], removed: Counter[int], slack: float
) -> Counter[int] | None:
    """A plan with these GPUs replaced that costs less than the plan and the slack, which may be negative.

    None where there is none to be found.
    """
    tools = search.tools
    rest = rest_of(
        search.demand,
        tools.tables,
        carried(tools.tables, tools.columns, plan - removed),
    )
    below = _value(rest, carried(tools.tables, tools.columns, removed)) + slack
    if search.rng.random() < _DIVES:
        found = dive(search, rest, _PACE, below=below)
        return None if found is None else plan - removed + found
    cheap = tools.pool.cheapest(
        tools.pool.reduced_costs(rest, search.duals), _PACE.columns
    )
    part = relax_rest(tools, rest, [*removed, *cheap], 1)
    if part.solution.objective >= below:
        return None
    last = finish(tools, rest, part, below)
    return None if last is None else plan - removed + last.counts


def _value(rest: CoverDemand, gone: Carried) -> float:
    """USD per hour of the removed GPUs, and of what they leave unserved of the rest."""
    short, missing = (
        np.maximum(rest.rate - gone.rps, 0.0),
        np.maximum(rest.fewest - gone.replicas, 0.0),
    )
    return gone.cost + float(short @ rest.shortage_price + missing @ rest.missing_price)


def choose(search: DiveContext, plan: Counter[int], size: int) -> Counter[int]:
    """GPUs to remove: one that earns little for its price, and others that share services with those chosen."""
    return related_gpus(
        search, plan, carried(search.tools.tables, search.tools.columns, plan), size
    )


def related_gpus(
    search: DiveContext,
    plan: Counter[int],
    taken: Carried,
    size: int,
    *,
    first: int | None = None,
) -> Counter[int]:
    """GPUs of the plan that waste much and share services with each other, and with the first one if it is given.

    taken: what the plan carries.
    """
    tools, numbers = search.tools, np.array(sorted(plan), dtype=np.int32)
    left = np.array([plan[number] for number in numbers.tolist()])
    wasted = waste(search, numbers, taken)
    runs = np.zeros((len(numbers), len(search.demand.rate) + 1))
    runs[np.arange(len(numbers))[:, None], tools.pool.service[numbers]] = 1.0
    runs[:, -1] = 0.0
    shared = np.zeros(runs.shape[1])
    if first is not None:
        shared[first] = 1.0
    chosen: Counter[int] = Counter()
    for _ in range(min(size, int(left.sum()))):
        related = _UNRELATED + runs @ shared if shared.any() else 1.0
        weight = left * wasted * related
        at = int(search.rng.choice(len(numbers), p=weight / weight.sum()))
        left[at] -= 1
        chosen[int(numbers[at])] += 1
        shared += runs[at]
    return chosen


def waste(search: DiveContext, numbers: Numbers, taken: Carried) -> Reals:
    """(columns,) > 0: what a GPU of each costs beyond what it earns; of every service only what is wanted earns."""
    pool, duals = search.tools.pool, search.duals
    used = np.append(
        np.minimum(1.0, search.demand.rate / np.maximum(taken.rps, 1e-300)), 0.0
    )
    service = pool.service[numbers]
    earned = (
        np.append(duals.rps, 0.0)[service] * used[service] * pool.capacity[numbers]
    ).sum(axis=1)
    cost = pool.price[numbers] - duals.stock[pool.gpu_type[numbers]]
    wasted: Reals = np.maximum(cost - earned, 0.0) + _MIN_WASTE * cost + 1e-9
    return wasted


def wasteful(search: DiveContext, plan: Counter[int], chance: float) -> int:
    """The column of a GPU that wastes much. chance: 0 for the one that wastes most, up to 1."""
    numbers = np.array(sorted(plan), dtype=np.int32)
    wasted = waste(
        search, numbers, carried(search.tools.tables, search.tools.columns, plan)
    )
    return int(
        numbers[(wasted * (1.0 - chance * search.rng.random(len(numbers)))).argmax()]
    )
