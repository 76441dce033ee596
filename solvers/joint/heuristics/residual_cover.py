"""The last few GPUs: an integer cover of a residual demand out of the columns that are cheapest under its duals."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.cover import MAX_DEPTH, CoverProblem, cover
from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.relaxation.column_pool import ColumnPool
from solvers.joint.relaxation.master_solution import Duals

_NODES = 1000
"""One search visits this many nodes at most: there are many searches, so each is to take a few milliseconds."""
_DISCREPANCIES = 6
"""Places down the lists of choices that one branch may go in all; without that limit the nodes are spent on the last
choices below the very first."""


class SmallPlan(NamedTuple):
    """An integer plan for a residual demand."""

    counts: Counter[int]
    """Column number → GPUs."""
    cost: float
    """USD per hour, with what is left short at its prices."""


def solve_small_program(
    pool: ColumnPool,
    demand: CoverDemand,
    duals: Duals,
    numbers: Sequence[int],
    *,
    below: float,
) -> SmallPlan | None:
    """A plan that costs less than `below`; None where none was found.

    numbers: the columns to use, ascending by reduced cost. The limit is a number of nodes, so that the same question
    has the same answer on every machine.
    """
    best = np.zeros(MAX_DEPTH + 1, np.int32)
    task = _task(pool, demand, duals, np.array(numbers, np.int32))
    cost, size = cover(task, below, _NODES, _DISCREPANCIES, best)
    if size < 0:
        return None
    return SmallPlan(Counter(numbers[at] for at in best[:size].tolist()), cost)


def _task(
    pool: ColumnPool, demand: CoverDemand, duals: Duals, numbers: Numbers
) -> CoverProblem:
    service = pool.service[numbers]
    first, of_service = _columns_of(service, len(demand.rate))
    return CoverProblem(
        service=service,
        capacity=pool.capacity[numbers],
        price=pool.price[numbers],
        gpu_type=pool.gpu_type[numbers],
        first=first,
        of_service=of_service,
        need=_padded(demand.rate, demand.fewest),
        shortage_price=_padded(demand.shortage_price, demand.missing_price),
        max_replicas=np.append(demand.most, np.inf),
        stock=demand.stock.copy(),
        # One dual stands for both limits to the number of replicas: positive for the lower one, negative for the upper.
        worth=_padded(duals.rps, np.maximum(duals.presence, 0.0)),
        max_price=_max_price(demand, duals),
        stock_price=np.where(np.isfinite(demand.stock), duals.stock, 0.0),
    )


def _columns_of(service: Numbers, services: int) -> tuple[Numbers, Numbers]:
    """(S + 1,) where each service begins in the list of columns by service, and that list."""
    flat = service.ravel()
    # Stable, so that the columns of a service stay in the order of their reduced costs.
    order = np.argsort(flat, kind="stable")
    first = np.searchsorted(flat[order], np.arange(services + 1))
    return first.astype(np.int32), (order // service.shape[1]).astype(np.int32)


def _max_price(demand: CoverDemand, duals: Duals) -> Reals:
    """(S + 1,) duals of the most replicas, ≤ 0, and 0 for the padding."""
    # An infinite limit has no dual; its rounding times infinity would spoil the bound.
    is_limited = np.isfinite(demand.most)
    prices = np.where(is_limited, np.minimum(duals.presence, 0.0), 0.0)
    return np.append(prices, 0.0)


def _padded(rps: Reals, replicas: Reals) -> Reals:
    # The number behind the last service pads columns of few replicas: nothing of it is wanted or paid.
    return np.vstack((np.append(rps, 0.0), np.append(replicas, 0.0)))
