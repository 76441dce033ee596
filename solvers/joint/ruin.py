"""Ruin and recreate: take a few GPUs out of a whole plan and plan anew what they carried."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from solvers.joint.master import Demand, Duals
from solvers.joint.residual import Carried, Kit, carried, relax_rest, rest_of
from solvers.joint.small_program import solve_small_program
from solvers.joint.tables import Reals

_ROUNDS = 6
_START_COLUMNS = 200
_PROGRAM_COLUMNS = 400
_PROGRAM_NODES = 5000
_PROGRAM_WIDTH = 6
_LEAST_GAIN = 2e-4
"""Of the removed GPUs' cost."""


class Neighbourhood(NamedTuple):
    """What is taken out of a plan, and what is to be planned anew."""

    removed: Counter[int]
    rest: Demand
    value: float
    """USD per hour of the removed GPUs, and of what the plan leaves unserved."""


def recreate(kit: Kit, demand: Demand, duals: Duals, plan: Counter[int], removed: Counter[int]) -> Counter[int] | None:
    """A better plan with these GPUs replaced; None when there is none to be found."""
    here = _neighbourhood(kit, demand, plan, removed)
    cheap = kit.pool.cheapest(kit.pool.reduced_costs(here.rest, duals), _START_COLUMNS)
    part = relax_rest(kit, here.rest, [*removed, *cheap], _ROUNDS)
    goal = here.value * (1.0 - _LEAST_GAIN)
    gap = goal - part.solution.objective
    if gap <= 0.0:
        return None
    costs = kit.pool.reduced_costs(here.rest, part.solution.duals)
    numbers = kit.pool.cheapest(costs, _PROGRAM_COLUMNS, below=gap)
    found = solve_small_program(
        kit.pool, here.rest, part.solution.duals, numbers, below=goal, nodes=_PROGRAM_NODES, width=_PROGRAM_WIDTH
    )
    return None if found is None else plan - removed + found


def _neighbourhood(kit: Kit, demand: Demand, plan: Counter[int], removed: Counter[int]) -> Neighbourhood:
    kept = carried(kit.tables, kit.columns, plan - removed)
    rest = rest_of(demand, kit.tables, kept)
    gone = carried(kit.tables, kit.columns, removed)
    short = np.maximum(rest.rate - gone.rps, 0.0)
    missing = np.maximum(rest.fewest - gone.replicas, 0.0)
    value = gone.cost + float(short @ rest.shortage_price + missing @ rest.missing_price)
    return Neighbourhood(removed=removed, rest=rest, value=value)


def choose(
    kit: Kit, demand: Demand, duals: Duals, plan: Counter[int], size: int, rng: np.random.Generator
) -> Counter[int]:
    """GPUs to remove: one that earns little for its price, and others that share services with those chosen."""
    numbers = np.array(sorted(plan.elements()))
    waste = _waste(kit, demand, duals, numbers, carried(kit.tables, kit.columns, plan))
    runs = np.zeros((len(numbers), len(demand.rate) + 1))
    runs[np.arange(len(numbers))[:, None], kit.pool.service[numbers]] = 1.0
    runs[:, -1] = 0.0
    left = np.ones(len(numbers), dtype=bool)
    shared = np.ones(len(numbers))
    chosen: list[int] = []
    for _ in range(min(size, len(numbers))):
        weight = np.where(left, waste * shared, 0.0)
        at = int(rng.choice(len(numbers), p=weight / weight.sum()))
        left[at] = False
        chosen.append(int(numbers[at]))
        shared = 0.1 + runs @ runs[~left].sum(axis=0)
    return Counter(chosen)


def _waste(kit: Kit, demand: Demand, duals: Duals, numbers: np.ndarray, taken: Carried) -> Reals:
    """(GPUs,) > 0: what each costs beyond what it earns, where of every service only what is wanted earns."""
    used = np.append(np.minimum(1.0, demand.rate / np.maximum(taken.rps, 1e-300)), 0.0)
    rps = np.append(duals.rps, 0.0)
    service = kit.pool.service[numbers]
    earned = (rps[service] * used[service] * kit.pool.capacity[numbers]).sum(axis=1)
    cost = kit.pool.price[numbers] - duals.stock[kit.pool.gpu_type[numbers]]
    wasted: Reals = np.maximum(cost - earned, 0.0) + 0.02 * cost + 1e-9
    return wasted
