"""One pass over all columns at hand: what each costs beyond what it is worth for a demand under its duals.

c_p − μ_g(p) − Σ_{s ∈ p} (π_s · min(a_sp, wanted_s) + ν_s + ξ_s)

Infinite where stock or most replicas forbid p.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.types import Numbers, Reals

_ONE = 1.0 - 1e-9
"""Stock and limits may come from subtractions: this much counts as one GPU or replica."""


class Stack(NamedTuple):
    """C columns of at most N replicas."""

    service: Numbers
    """(C, N) S where there are no more replicas."""
    capacity: Reals
    """(C, N) rps."""
    price: Reals
    gpu_type: Numbers
    """(C,)"""


class ScanPrices(NamedTuple):
    """What S services want and pay, and what G types charge."""

    rate: Reals
    """(S,) rps that are wanted."""
    rps: Reals
    """(S,) USD per hour of one rps."""
    presence: Reals
    """(S,) USD per hour of one replica."""
    max_replicas: Reals
    """(S,) replicas that may be."""
    stock: Reals
    """(G,) GPUs."""
    gpu: Reals
    """(G,) ≤ 0, duals of the stock."""


@compiled
def reduced_costs(stack: Stack, prices: ScanPrices) -> Reals:
    """(C,) USD per hour."""
    services, costs = prices.rate.shape[0], np.empty(stack.price.shape[0])
    for column in range(costs.shape[0]):
        gpu_type = stack.gpu_type[column]
        cost = np.inf
        if prices.stock[gpu_type] >= _ONE:
            cost = stack.price[column] - prices.gpu[gpu_type]
        # Replica by replica, not their sum at once: the order of sums is part of what makes plans reproducible.
        for at in range(stack.service.shape[1]):
            if stack.service[column, at] == services:
                break
            cost -= _replica_worth(stack, prices, column, at)
        costs[column] = cost
    return costs


@compiled
def _replica_worth(stack: Stack, prices: ScanPrices, column: int, at: int) -> float:
    """USD per hour that one replica of a column earns; −∞ where its service may have no more replicas."""
    service = stack.service[column, at]
    if prices.max_replicas[service] < _ONE:
        return -np.inf
    # Capacity beyond what is wanted earns nothing.
    useful = min(stack.capacity[column, at], prices.rate[service])
    return prices.rps[service] * useful + prices.presence[service]


@compiled
def best_value(stack: Stack, prices: ScanPrices) -> int:
    """The possible column that is worth most per USD of its price, first of equals; −1 where none is worth anything."""
    services, best, top = prices.rate.shape[0], -1, 0.0
    for column in range(stack.price.shape[0]):
        worth = 0.0
        for at in range(stack.service.shape[1]):
            if stack.service[column, at] == services:
                break
            worth += _replica_worth(stack, prices, column, at)
        # A column that costs nothing is the best of all as long as it earns something.
        worth /= max(stack.price[column], 1e-9)
        if worth > top and prices.stock[stack.gpu_type[column]] >= _ONE:
            best, top = column, worth
    return best


Kinds = npt.NDArray[np.int64]


@compiled
def move_costs(
    stack: Stack,
    start_prices: Reals,
    kinds: Kinds,
    prices: ScanPrices,
    kind_prices: Reals,
) -> Reals:
    """(C,) USD per hour.

    start_prices: (C,) κ f_p + ρ n_p. kinds: (C, N) position of each replica's kind among those that run, negative for
    others. kind_prices: (K,) σ_r.
    """
    costs = reduced_costs(stack, prices)
    for column in range(costs.shape[0]):
        costs[column] += start_prices[column]
        for at in range(kinds.shape[1]):
            # Only a replica that runs already saves a start; others have no kind.
            if kinds[column, at] >= 0:
                costs[column] -= kind_prices[kinds[column, at]]
    return costs
