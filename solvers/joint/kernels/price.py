"""Pricing of one mode: cell by cell, halving those that are not fathomed, searching those that cannot be halved."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
    SlotRange,
)

Places = npt.NDArray[np.int64]


class OpenCells(NamedTuple):
    """A stack of cells that are still to be priced, all of one root cell; the last one has its turn first."""

    low: Reals
    high: Reals
    """(W,) pressure."""
    level: Places
    """(W,) how often the root cell was halved."""
    begin: Places
    size: Places
    """(W,) candidates: where they stand in the scratch's pool, and how many; the root's are not in the pool."""
    multipliers: Reals
    """(W, 3)"""


@compiled
def price_mode(
    task: PricingTask,
    cells: PricingCells,
    scratch: Scratch,
    found: PricedPatterns,
    slots: SlotRange,
) -> float:
    """An upper bound on the worth of every pattern in these slots; good ones go into `found`, one per slot.

    No bound is below the threshold with its tolerance: what is fathomed is not known more exactly.
    """
    bound, wanted = _goal(task), _wanted(task)
    numbers, intervals = cells.capacities.shape[:2]
    # The first slots would be those of patterns without any replica.
    first, last = max(slots.first, intervals), min(slots.last, intervals * numbers)
    for slot in range(first, last):
        replicas, number = slot // intervals, slot % intervals
        low, high = cells.edges[replicas, number], cells.edges[replicas, number + 1]
        # One interval is enough where all patterns have the same pressure.
        if high < low or (number > 0 and (replicas == 1 or high == low)):
            continue
        size = _value_root(task, cells.capacities[replicas, number], wanted, scratch)
        cell = PricingCell(replicas, low, high, cells.multipliers[replicas, number])
        own = _only_slot(found, slot)
        bound = max(bound, _price_root(task, cell, scratch, size, own))
    return bound


@compiled
def _only_slot(found: PricedPatterns, slot: int) -> PricedPatterns:
    end = slot + 1
    return PricedPatterns(
        found.items[slot:end], found.size[slot:end], found.worth[slot:end]
    )


@compiled
def _goal(task: PricingTask) -> float:
    """What a pattern must be worth more than."""
    return task.threshold * (1.0 + task.effort.tolerance)


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
def _price_root(
    task: PricingTask,
    root: PricingCell,
    scratch: Scratch,
    size: int,
    found: PricedPatterns,
) -> float:
    """The bound of a root cell whose values are in the scratch; its best pattern goes into the only slot of `found`."""
    goal = _goal(task)
    bound = found.worth[0] = goal
    cells, waiting = _open_root(task, root), 1
    while waiting > 0:
        waiting -= 1
        level = cells.level[waiting]
        cell = PricingCell(
            root.replicas,
            cells.low[waiting],
            cells.high[waiting],
            cells.multipliers[waiting],
        )
        # The root's values were tabulated; those of a half are nearer to the truth.
        if level > 0:
            begin, count = cells.begin[waiting], cells.size[waiting]
            scratch.ids[:count] = scratch.pool[begin : begin + count]
            size = value_candidates(task, cell, scratch, count)
        reached, worth, items = relax(task, cell, scratch, size)
        _keep(scratch, found, items, worth)
        if level == 0:
            # The next round of pricing begins with them; halves have no next round.
            root.multipliers[:] = cell.multipliers
        if reached <= goal:
            continue

        # Halves of this cell lie behind it in the pool, where nobody needs what stands there any more.
        begin = cells.begin[waiting] + cells.size[waiting]
        kept = _survivors(task, cell, scratch, size, begin)
        if level < task.effort.halvings and cell.replicas > 1:
            _halve(cells, waiting, begin, kept)
            waiting += 2
        elif task.effort.nodes == 0:
            bound = max(bound, reached)
        else:
            scratch.ids[:kept] = scratch.pool[begin : begin + kept]
            searched, worth, items = search(task, cell, scratch, kept, found.worth[0])
            _keep(scratch, found, items, worth)
            bound = max(bound, min(reached, searched))
    return bound


@compiled
def _open_root(task: PricingTask, root: PricingCell) -> OpenCells:
    # On each level one half waits while the other is at hand.
    max_open = task.effort.halvings + 2
    level, begin, size = np.zeros((3, max_open), np.int64)
    multipliers = np.zeros((max_open, 3))
    multipliers[0] = root.multipliers
    low, high = np.full(max_open, root.low), np.full(max_open, root.high)
    return OpenCells(low, high, level, begin, size, multipliers)


@compiled
def _halve(cells: OpenCells, at: int, begin: int, size: int) -> None:
    """In place of a cell, its halves by pressure, with the candidates that survived in it."""
    low, high = cells.low[at], cells.high[at]
    cells.high[at] = cells.low[at + 1] = 0.5 * (low + high)
    cells.high[at + 1] = high
    cells.multipliers[at + 1] = cells.multipliers[at]
    cells.level[at : at + 2] = cells.level[at] + 1
    cells.begin[at : at + 2] = begin
    cells.size[at : at + 2] = size


@compiled
def _keep(scratch: Scratch, found: PricedPatterns, size: int, worth: float) -> None:
    """Put the scratch's pattern into the slot if it is better than what is there."""
    if size > 0 and worth > found.worth[0]:
        found.items[0, :size] = scratch.pattern[:size]
        found.size[0] = size
        found.worth[0] = worth


@compiled
def _survivors(
    task: PricingTask, cell: PricingCell, scratch: Scratch, size: int, begin: int
) -> int:
    """Into the pool from `begin` on: candidates that some pattern of the cell above the threshold may hold."""
    goal = _goal(task) - limits_price(task, cell)
    kept = 0
    for at in range(size):
        left = task.mode.steps - task.mode.width[scratch.ids[at]]
        # The rest may hold the same service again in this bound, which is weaker for it but takes one look-up.
        if scratch.adjusted[at] + scratch.table[0, cell.replicas - 1, left] > goal:
            scratch.pool[begin + kept] = scratch.ids[at]
            kept += 1
    return kept
