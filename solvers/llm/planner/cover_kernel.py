"""The cheapest whole replicas that carry a rate, by dynamic programming over steps of the rate, in compiled code."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from solvers.compiled import compiler
from solvers.llm.lengths import Counts
from solvers.llm.step_law import Reals

compiled = compiler([Path(__file__)])

Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class CoverItems(NamedTuple):
    """What a cover is made of."""

    steps: Counts
    """(I,) steps of the rate that one carries, ≥ 1."""
    price: Reals
    """(I,) ≥ 0."""


class CoverTable(NamedTuple):
    """The cheapest covers of all rates."""

    new_price: Reals
    """(N + 1,) of carrying n steps or more with new replicas alone."""
    price: Reals
    """(N + 1,) the same with running replicas, too."""
    is_taken: Flags
    """(J, N + 1) whether the cheapest of the new and of the first running replicas takes this running one."""


@compiled
def lowest_price(new: CoverItems, steps: int) -> Reals:
    """(N + 1,) what carrying n steps or more costs, where every item can be taken as often as wanted."""
    best = np.full(steps + 1, np.inf)
    best[0] = 0.0
    for step in range(1, steps + 1):
        for item in range(new.steps.shape[0]):
            rest = max(0, step - new.steps[item])
            best[step] = min(best[step], best[rest] + new.price[item])
    return best


@compiled
def cover(new: CoverItems, running: CoverItems, steps: int) -> CoverTable:
    """The table for up to `steps` steps; each running replica can be taken once."""
    new_price = lowest_price(new, steps)
    best = new_price.copy()
    is_taken = np.zeros((running.steps.shape[0], steps + 1), dtype=np.bool_)
    for item in range(running.steps.shape[0]):
        size, price = running.steps[item], running.price[item]
        # Downwards, so that what one step takes no other one takes again.
        for step in range(steps, 0, -1):
            rest = max(0, step - size)
            # Of equals the running one: it need not be started.
            if best[rest] + price <= best[step]:
                best[step] = best[rest] + price
                is_taken[item, step] = True
    return CoverTable(new_price, best, is_taken)


@compiled
def read_cover(
    new: CoverItems, running: CoverItems, table: CoverTable, step: int
) -> tuple[Counts, Counts]:
    """How often the cheapest cover of that number of steps takes each new (I,) and each running replica (J,)."""
    kept = np.zeros(running.steps.shape[0], dtype=np.int64)
    for item in range(running.steps.shape[0] - 1, -1, -1):
        if table.is_taken[item, step]:
            kept[item] = 1
            step = max(0, step - running.steps[item])
    started = np.zeros(new.steps.shape[0], dtype=np.int64)
    while step > 0 and np.isfinite(table.new_price[step]):
        # The same sums as in the table, so that one of them is the minimum to the last digit.
        for item in range(new.steps.shape[0]):
            rest = max(0, step - new.steps[item])
            if table.new_price[rest] + new.price[item] == table.new_price[step]:
                started[item] += 1
                step = rest
                break
    return started, kept
