"""Ruin and recreate: take a few GPUs out of an integer plan and plan again what they carried."""

from collections import Counter

import numpy as np

from solvers.joint.heuristics.diving import DiveContext, DiveEffort, dive, plan_rest
from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.carried import Carried, rest_of
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
    kept = plan - removed
    rest = rest_of(search.demand, tools.tables, tools.carried(kept))
    # What is put in must cost less than what was taken out and what that left unserved, give or take the slack.
    below = _value(rest, tools.carried(removed)) + slack
    if search.rng.random() < _DIVES:
        found = dive(search, rest, _PACE, below=below)
        return None if found is None else kept + found

    costs = tools.pool.reduced_costs(rest, search.duals)
    cheap = tools.pool.cheapest(costs, _PACE.columns)
    last = plan_rest(tools, rest, [*removed, *cheap], below)
    return None if last is None else kept + last.counts


def _value(rest: CoverDemand, gone: Carried) -> float:
    """USD per hour of the removed GPUs, and of what they leave unserved of the rest."""
    short = np.maximum(rest.rate - gone.rps, 0.0)
    missing = np.maximum(rest.fewest - gone.replicas, 0.0)
    return gone.cost + float(short @ rest.shortage_price + missing @ rest.missing_price)


def choose(search: DiveContext, plan: Counter[int], size: int) -> Counter[int]:
    """GPUs to remove: one that earns little for its price, and others that share services with those chosen."""
    return related_gpus(search, plan, search.tools.carried(plan), size)


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
    # Sorted, so that the same plan is ruined in the same way whatever the order in which it was put together.
    numbers = np.array(sorted(plan), dtype=np.int32)
    left = np.array([plan[number] for number in numbers.tolist()])
    wasted = waste(search, numbers, taken)
    runs = _runs(search, numbers)
    shared = np.zeros(runs.shape[1])
    if first is not None:
        shared[first] = 1.0
    chosen: Counter[int] = Counter()
    for _ in range(min(size, int(left.sum()))):
        # With nothing chosen yet, there is nothing to share services with.
        related = _UNRELATED + runs @ shared if shared.any() else 1.0
        weight = left * wasted * related
        at = int(search.rng.choice(len(numbers), p=weight / weight.sum()))
        left[at] -= 1
        chosen[int(numbers[at])] += 1
        shared += runs[at]
    return chosen


def _runs(search: DiveContext, numbers: Numbers) -> Reals:
    """(columns, S + 1) 1 where a column runs a service."""
    runs = np.zeros((len(numbers), len(search.demand.rate) + 1))
    services = search.tools.pool.service[numbers]
    runs[np.arange(len(numbers))[:, None], services] = 1.0
    # Columns of few replicas are padded with the number behind the last service, which relates them to nothing.
    runs[:, -1] = 0.0
    return runs


def waste(search: DiveContext, numbers: Numbers, taken: Carried) -> Reals:
    """(columns,) > 0: what a GPU of each costs beyond what it earns; of every service only what is wanted earns."""
    pool = search.tools.pool
    duals = search.duals
    used = np.minimum(1.0, search.demand.rate / np.maximum(taken.rps, 1e-300))
    # The padding of columns earns nothing.
    used, rps = np.append(used, 0.0), np.append(duals.rps, 0.0)
    service = pool.service[numbers]
    earned = (rps[service] * used[service] * pool.capacity[numbers]).sum(axis=1)
    cost = pool.price[numbers] - duals.stock[pool.gpu_type[numbers]]
    wasted: Reals = np.maximum(cost - earned, 0.0) + _MIN_WASTE * cost + 1e-9
    return wasted


def wasteful(search: DiveContext, plan: Counter[int], chance: float) -> int:
    """The column of a GPU that wastes much. chance: 0 for the one that wastes most, up to 1."""
    numbers = np.array(sorted(plan), dtype=np.int32)
    wasted = waste(search, numbers, search.tools.carried(plan))
    # Random numbers are drawn even where chance has no say, so that the sequence does not depend on it.
    weight = 1.0 - chance * search.rng.random(len(numbers))
    return int(numbers[(wasted * weight).argmax()])
