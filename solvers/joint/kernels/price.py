"""Pricing of one mode: cell by cell, halving those that are not fathomed, searching those that cannot be halved."""

import numpy as np

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.laws import candidate_worth
from solvers.joint.kernels.relaxation import limits_price, relax, value_candidates
from solvers.joint.kernels.search import search
from solvers.joint.kernels.types import (
    Numbers,
    PricedPatterns,
    PricingCell,
    PricingCells,
    PricingTask,
    Reals,
    Scratch,
)


@compiled
def price_mode(
    task: PricingTask,
    cells: PricingCells,
    scratch: Scratch,
    found: PricedPatterns,
    first: int,
    last: int,
) -> float:
    """An upper bound on the worth of every pattern in the slots [first, last); good ones go into `found`, one per slot.

    No bound is below the threshold with its tolerance: what is fathomed is not known more exactly.
    """
    bound, wanted = task.threshold * (1.0 + task.effort.tolerance), _wanted(task)
    intervals = cells.capacities.shape[1]
    for slot in range(
        max(first, intervals), min(last, intervals * cells.capacities.shape[0])
    ):
        replicas, number = slot // intervals, slot % intervals
        low, high = cells.edges[replicas, number], cells.edges[replicas, number + 1]
        if high < low or (number > 0 and (replicas == 1 or high == low)):
            continue
        size = _value_root(task, cells.capacities[replicas, number], wanted, scratch)
        cell = PricingCell(replicas, low, high)
        multipliers = cells.multipliers[replicas, number]
        bound = max(
            bound, _price_cell(task, cell, size, multipliers, scratch, found, slot)
        )
    return bound


@compiled
def _wanted(task: PricingTask) -> Numbers:
    """Candidates that can be worth anything: all but those of services that earn nothing."""
    mode, worth = task.mode, task.worth
    earns = worth.rps * worth.rate
    if worth.edges.shape[0] > 0:
        earns += worth.stairs[:, -1]
    wanted, count = np.zeros(mode.service.shape[0], np.int32), 0
    for item in range(mode.service.shape[0]):
        if worth.bonus[item] > 0.0 or earns[mode.service[item]] > 0.0:
            wanted[count] = item
            count += 1
    return wanted[:count]


@compiled
def _value_root(
    task: PricingTask, capacities: Reals, wanted: Numbers, scratch: Scratch
) -> int:
    """Values from the capacities that were tabulated for the root cell; returns how many are worth anything."""
    ids, value, kept = scratch.ids, scratch.value, 0
    for item in wanted:
        if capacities[item] > 0.0 or task.mode.may_idle[item]:
            worth = candidate_worth(task.mode, task.worth, item, capacities[item])
            if worth > 0.0:
                ids[kept], value[kept] = item, worth
                kept += 1
    return kept


@compiled
def _price_cell(
    task: PricingTask,
    cell: PricingCell,
    size: int,
    multipliers: Reals,
    scratch: Scratch,
    found: PricedPatterns,
    slot: int,
) -> float:
    """The bound of one root cell whose values stand in the scratch; its best pattern goes into the slot."""
    goal = task.threshold * (1.0 + task.effort.tolerance)
    bound = best = goal
    # On each level one half waits while the other is at hand.
    max_open = task.effort.halvings + 2
    low, high = np.full(max_open, cell.low), np.full(max_open, cell.high)
    depth, offset, sizes = np.zeros((3, max_open), np.int64)
    theta = np.zeros((max_open, 3))
    theta[0], sizes[0], waiting = multipliers, size, 1
    pattern = np.zeros(cell.replicas, np.int32)
    while waiting > 0:
        waiting -= 1
        here, count, level = (
            PricingCell(cell.replicas, low[waiting], high[waiting]),
            sizes[waiting],
            depth[waiting],
        )
        if level > 0:
            scratch.ids[:count] = scratch.pool[
                offset[waiting] : offset[waiting] + count
            ]
            count = value_candidates(task, here, scratch, count)
        reached, worth, items = relax(
            task, here, scratch, count, theta[waiting], pattern
        )
        best = _keep(found, slot, pattern, items, worth, best)
        if level == 0:
            multipliers[:] = theta[0]
        if reached <= goal:
            continue
        begin = offset[waiting] + sizes[waiting] if level > 0 else 0
        kept = _survivors(task, here, scratch, count, theta[waiting], begin)
        if level < task.effort.halvings and cell.replicas > 1:
            for half in range(2):
                child = waiting + half
                middle = 0.5 * (here.low + here.high)
                low[child] = here.low if half == 0 else middle
                high[child] = middle if half == 0 else here.high
                depth[child], offset[child], sizes[child] = level + 1, begin, kept
                theta[child] = theta[waiting]
            waiting += 2
        elif task.effort.nodes == 0:
            bound = max(bound, reached)
        else:
            scratch.ids[:kept] = scratch.pool[begin : begin + kept]
            searched, worth, items = search(
                task, here, scratch, kept, theta[waiting], pattern, best
            )
            best = _keep(found, slot, pattern, items, worth, best)
            bound = max(bound, min(reached, searched))
    return bound


@compiled
def _keep(
    found: PricedPatterns,
    slot: int,
    pattern: Numbers,
    items: int,
    worth: float,
    best: float,
) -> float:
    """Put a pattern that is better than the best one into the slot; returns the better worth."""
    if items == 0 or worth <= best:
        return best
    found.items[slot, :items] = pattern[:items]
    found.size[slot] = items
    found.worth[slot] = worth
    return worth


@compiled
def _survivors(
    task: PricingTask,
    cell: PricingCell,
    scratch: Scratch,
    size: int,
    multipliers: Reals,
    begin: int,
) -> int:
    """Into the pool from `begin` on: candidates that some pattern of the cell above the threshold may hold."""
    goal = task.threshold * (1.0 + task.effort.tolerance) - limits_price(
        task, cell, multipliers
    )
    kept = 0
    for at in range(size):
        left = task.mode.steps - task.mode.width[scratch.ids[at]]
        if scratch.adjusted[at] + scratch.table[0, cell.replicas - 1, left] > goal:
            scratch.pool[begin + kept] = scratch.ids[at]
            kept += 1
    return kept
