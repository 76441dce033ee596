"""Exact search in a cell of final width: depth first over candidates, bounded by a knapsack of those that remain.

A node has taken some candidates of the services before group g. It is cut when

    adjusted values so far + table[g, places left, steps left, levels left] + θ · limits  ≤  the best known

The table runs over all survivors here, not over a shortlist, since a child takes services one after the other; and it
has a dimension for memory and watts together, rounded down to levels, which bounds from above. Where the power cap
binds (at a type's highest clock) multipliers alone leave bounds far above what whole patterns reach, and the search
without that dimension visits many times the nodes. Real memory, watts and pressure are checked on the way, and a full
set is judged by its true pressure. When the nodes run out, the greatest bound on the open branch still bounds the cell.
"""

from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.knapsack import NONE
from solvers.joint.kernels.laws import pattern_worth
from solvers.joint.kernels.relaxation import charge, limits_price, value_candidates
from solvers.joint.kernels.types import (
    MEMORY,
    POWER,
    GpuMode,
    Numbers,
    PricingCell,
    PricingTask,
    Reals,
    Scratch,
)

LEVELS = 48
"""Memory and watts have so many levels in the table."""
_FIT = 1.0 + 1e-9
_UPDATES_PER_NODE = 20_000
"""Updates of the table that a node pays for: a cell whose table alone would take far longer is not searched."""


class Items(NamedTuple):
    """The survivors of the cell by position, sorted by service: what the search reads, side by side in memory."""

    candidate: Numbers
    group: Numbers
    """(M,) which service, counted."""
    begin: Numbers
    """(G + 1,) where each service begins."""
    width: Numbers
    level: Numbers
    """(M,) use of memory and watts in whole levels, rounded down."""
    gain: Reals
    """(M,) adjusted value."""
    memory: Reals
    power: Reals
    pressure: Reals


class SearchPath(NamedTuple):
    """The path from the root to the node at hand, by level: so many candidates were taken."""

    at: Numbers
    """(N + 1,) position that is tried next."""
    candidate: Numbers
    """(N + 1,) candidate that was taken last."""
    steps_left: Numbers
    levels_left: Numbers
    gained: Reals
    memory_left: Reals
    power_left: Reals
    pressure_left: Reals


@compiled
def search(
    task: PricingTask, cell: PricingCell, scratch: Scratch, size: int, best: float
) -> tuple[float, float, int]:
    """(bound of the cell, worth of the best pattern, its size): of exactly `cell.replicas` of the first `size` ids.

    `best` is the worth to beat, at least the threshold with its tolerance; size 0 when nothing beats it. The bound is
    infinite where there are so many candidates that the search is not begun.
    """
    mode, replicas = task.mode, cell.replicas
    updates = size * replicas * (mode.steps + 1) * (LEVELS + 1)
    if updates > task.effort.nodes * _UPDATES_PER_NODE:
        return np.inf, best, 0
    size = value_candidates(task, cell, scratch, size)
    charge(task, cell, scratch, size)
    items = _items(mode, cell, scratch, size)
    table = _fill_table(items, replicas, mode.steps)
    priced = limits_price(task, cell)
    branch = _root(mode, cell)
    depth, nodes, found = 0, 0, 0
    while depth >= 0:
        at = _next(items, table, branch, depth, best - priced)
        if at == size:
            depth -= 1
            continue

        nodes += 1
        if nodes > task.effort.nodes:
            # The node that is not visited any more is open as well.
            branch.at[depth] = at
            reached = _open_bound(items, table, branch, depth) + priced
            return max(best, reached), best, found

        _take(items, branch, depth, at)
        if depth + 1 < replicas:
            depth += 1
            continue
        # Adjusted values bound from above: what the set truly earns depends on its own pressure.
        worth = pattern_worth(mode, task.law, task.worth, branch.candidate, replicas)
        if worth > best:
            best, found = worth, replicas
            scratch.pattern[:replicas] = branch.candidate[:replicas]
    return best, best, found


@compiled
def _items(mode: GpuMode, cell: PricingCell, scratch: Scratch, size: int) -> Items:
    # Copies, side by side: the search reads them far more often than it takes to make them.
    candidate = scratch.ids[:size].copy()
    group, begin = _groups(mode.service[candidate])
    return Items(
        candidate,
        group,
        begin,
        mode.width[candidate],
        _levels(mode, candidate, cell.multipliers),
        scratch.adjusted[:size].copy(),
        mode.memory[candidate],
        mode.power[candidate],
        mode.pressure[candidate],
    )


@compiled
def _groups(service: Numbers) -> tuple[Numbers, Numbers]:
    """(M,) the number of each candidate's service, counted; (G + 1,) where each of them begins."""
    size, count = service.shape[0], 0
    group, begin = np.zeros(size, np.int32), np.zeros(size + 1, np.int32)
    for at in range(size):
        if at > 0 and service[at] != service[at - 1]:
            count += 1
            begin[count] = at
        group[at] = count
    groups = count + 1 if size > 0 else 0
    begin[groups] = size
    return group, begin[: groups + 1]


@compiled
def _levels(mode: GpuMode, candidate: Numbers, multipliers: Reals) -> Numbers:
    memory_part, power_part = _level_parts(mode, multipliers)
    levels = np.zeros(candidate.shape[0], np.int32)
    for at in range(candidate.shape[0]):
        item = candidate[at]
        share = memory_part * mode.memory[item] + power_part * mode.power[item]
        # Rounded down: the levels of a set never exceed what it truly uses, so that the table stays a bound.
        levels[at] = np.int32(np.floor(share * LEVELS))
    return levels


@compiled
def _level_parts(mode: GpuMode, multipliers: Reals) -> tuple[float, float]:
    """Parts of all levels that 1 MiB and 1 W take: the multipliers weigh memory against watts."""
    of_memory = multipliers[MEMORY] * mode.memory_mib
    of_power = multipliers[POWER] * mode.power_w
    if of_memory + of_power <= 0.0:
        # A GPU without watts to give weighs none: its candidates draw none.
        of_memory, of_power = 1.0, 1.0 if mode.power_w > 0.0 else 0.0
    memory_part = of_memory / (of_memory + of_power) / (mode.memory_mib * _FIT)
    power_part = 0.0
    if of_power > 0.0:
        power_part = of_power / (of_memory + of_power) / (mode.power_w * _FIT)
    return memory_part, power_part


@compiled
def _fill_table(items: Items, replicas: int, steps: int) -> Reals:
    """table[g, n, u, l]: the most that n candidates of the services from the g-th on reach in u steps and l levels."""
    groups = items.begin.shape[0] - 1
    table = np.empty((groups + 1, replicas + 1, steps + 1, LEVELS + 1))
    table[groups] = NONE
    table[groups, 0] = 0.0
    for group in range(groups - 1, -1, -1):
        table[group] = table[group + 1]
        for at in range(items.begin[group], items.begin[group + 1]):
            if not _is_beaten(items, at):
                _add(items, at, table[group], table[group + 1])
    return table


@compiled
def _is_beaten(items: Items, at: int) -> bool:
    """Whether another of its service leaves it nothing to add to the table; of equals the first stays."""
    gain, width, level = items.gain[at], items.width[at], items.level[at]
    group = items.group[at]
    for other in range(items.begin[group], items.begin[group + 1]):
        # Candidates of a service ascend in width: all that follow need more steps.
        if items.width[other] > width:
            return False
        if items.gain[other] >= gain and items.level[other] <= level and other != at:
            is_better = items.gain[other] > gain or items.level[other] < level
            if other < at or is_better or items.width[other] < width:
                return True
    return False


@compiled
def _add(items: Items, at: int, reached: Reals, others: Reals) -> None:
    """The candidate added to every set of `others` that leaves it room."""
    gain, width, level = items.gain[at], items.width[at], items.level[at]
    for places in range(1, reached.shape[0]):
        for room in range(reached.shape[1] - width):
            # Slices from zero, so that the loop runs on vectors.
            rest = others[places - 1, room]
            total = reached[places, room + width, level:]
            for left in range(total.shape[0]):
                total[left] = max(total[left], rest[left] + gain)


@compiled
def _root(mode: GpuMode, cell: PricingCell) -> SearchPath:
    at, candidate, steps, levels = np.zeros((4, cell.replicas + 1), np.int32)
    gained, memory, power, pressure = np.zeros((4, cell.replicas + 1))
    steps[0], levels[0] = mode.steps, LEVELS
    memory[0], power[0] = mode.memory_mib * _FIT, mode.power_w * _FIT
    pressure[0] = cell.high * _FIT if cell.replicas > 1 else np.inf
    return SearchPath(at, candidate, steps, levels, gained, memory, power, pressure)


@compiled
def _next(
    items: Items, table: Reals, branch: SearchPath, depth: int, goal: float
) -> int:
    """The first position from the branch's on whose candidate fits and may lead above the goal; their number if none.

    What the rest reaches behind a candidate is first bounded by what it reaches from here on: one number for all.
    """
    size, at = items.gain.shape[0], branch.at[depth]
    steps, levels = branch.steps_left[depth], branch.levels_left[depth]
    places = branch.at.shape[0] - 1 - depth
    needed = goal - branch.gained[depth]
    if at >= size or table[items.group[at], places, steps, levels] <= needed:
        return size
    memory, power = branch.memory_left[depth], branch.power_left[depth]
    pressure = branch.pressure_left[depth]
    min_gain = needed - table[items.group[at], places - 1, steps, levels]
    for position in range(at, size):
        if items.gain[position] <= min_gain or items.width[position] > steps:
            continue
        if (
            items.memory[position] > memory
            or items.power[position] > power
            or items.pressure[position] > pressure
        ):
            continue
        # Whoever fits by memory and watts fits by levels too, so that the position in the table is never negative.
        left = levels - items.level[position]
        room = steps - items.width[position]
        rest = table[items.group[position] + 1, places - 1, room, left]
        if items.gain[position] + rest > needed:
            return position
    return size


@compiled
def _take(items: Items, branch: SearchPath, depth: int, at: int) -> None:
    below = depth + 1
    branch.at[depth] = at + 1
    branch.candidate[depth] = items.candidate[at]
    # The child goes on behind the whole service, since a GPU runs one replica of a service at most.
    branch.at[below] = items.begin[items.group[at] + 1]
    branch.steps_left[below] = branch.steps_left[depth] - items.width[at]
    branch.levels_left[below] = branch.levels_left[depth] - items.level[at]
    branch.gained[below] = branch.gained[depth] + items.gain[at]
    branch.memory_left[below] = branch.memory_left[depth] - items.memory[at]
    branch.power_left[below] = branch.power_left[depth] - items.power[at]
    branch.pressure_left[below] = branch.pressure_left[depth] - items.pressure[at]


@compiled
def _open_bound(items: Items, table: Reals, branch: SearchPath, depth: int) -> float:
    """The greatest bound of what was not looked at: on each level, from the next position on."""
    bound, replicas = NONE, branch.at.shape[0] - 1
    for upper in range(depth + 1):
        at = branch.at[upper]
        if at < items.gain.shape[0]:
            steps, levels = branch.steps_left[upper], branch.levels_left[upper]
            rest = table[items.group[at], replicas - upper, steps, levels]
            bound = max(bound, branch.gained[upper] + rest)
    return bound
