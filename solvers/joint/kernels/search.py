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
"""The table counts memory and watts in this number of levels."""
_FIT = 1.0 + 1e-9
_UPDATES_PER_NODE = 20_000
"""The largest table: a cell whose table alone would take far longer than its nodes is not searched."""


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
    """The path from the root to the node at hand, by level: the number of candidates taken."""

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
    task: PricingTask,
    cell: PricingCell,
    scratch: Scratch,
    size: int,
    multipliers: Reals,
    pattern: Numbers,
    best: float,
) -> tuple[float, float, int]:
    """(bound of the cell, worth of the best pattern, its size): of exactly `cell.replicas` of the first `size` ids.

    `best` is the worth to beat, at least the threshold with its tolerance; size 0 when nothing beats it. The bound is
    infinite where there are too many candidates for a search.
    """
    mode, replicas = task.mode, cell.replicas
    if (
        size * replicas * (mode.steps + 1) * (LEVELS + 1)
        > task.effort.nodes * _UPDATES_PER_NODE
    ):
        return np.inf, best, 0
    size = value_candidates(task, cell, scratch, size)
    charge(task, scratch, size, multipliers)
    items = _items(mode, scratch, size, multipliers)
    table = _fill_table(items, replicas, mode.steps)
    priced = limits_price(task, cell, multipliers)
    branch = _root(mode, cell)
    depth, nodes, found = 0, 0, 0
    while depth >= 0:
        at = _next(items, table, branch, depth, replicas - depth, best - priced)
        if at == size:
            depth -= 1
            continue
        nodes += 1
        if nodes > task.effort.nodes:
            branch.at[depth] = at
            return (
                max(best, _open_bound(items, table, branch, depth, replicas) + priced),
                best,
                found,
            )
        _take(items, branch, depth, at)
        if depth + 1 < replicas:
            depth += 1
            continue
        worth = pattern_worth(mode, task.law, task.worth, branch.candidate, replicas)
        if worth > best:
            best, found = worth, replicas
            pattern[:replicas] = branch.candidate[:replicas]
    return best, best, found


@compiled
def _items(mode: GpuMode, scratch: Scratch, size: int, multipliers: Reals) -> Items:
    candidate = scratch.ids[:size].copy()
    group, begin, count = np.zeros(size, np.int32), np.zeros(size + 1, np.int32), 0
    for at in range(size):
        if at > 0 and mode.service[candidate[at]] != mode.service[candidate[at - 1]]:
            count += 1
            begin[count] = at
        group[at] = count
    begin[count + 1 if size > 0 else 0] = size
    return Items(
        candidate,
        group,
        begin[: count + 2 if size > 0 else 1],
        mode.width[candidate],
        _levels(mode, candidate, multipliers),
        scratch.adjusted[:size].copy(),
        mode.memory[candidate],
        mode.power[candidate],
        mode.pressure[candidate],
    )


@compiled
def _levels(mode: GpuMode, candidate: Numbers, multipliers: Reals) -> Numbers:
    """The multipliers weigh memory against watts. A GPU without watts to give weighs none: its candidates draw none."""
    of_memory, of_power = (
        multipliers[MEMORY] * mode.memory_mib,
        multipliers[POWER] * mode.power_w,
    )
    if of_memory + of_power <= 0.0:
        of_memory, of_power = 1.0, 1.0 if mode.power_w > 0.0 else 0.0
    memory_part = of_memory / (of_memory + of_power) / (mode.memory_mib * _FIT)
    power_part = (
        of_power / (of_memory + of_power) / (mode.power_w * _FIT)
        if of_power > 0.0
        else 0.0
    )
    levels = np.zeros(candidate.shape[0], np.int32)
    for at in range(candidate.shape[0]):
        share = (
            memory_part * mode.memory[candidate[at]]
            + power_part * mode.power[candidate[at]]
        )
        levels[at] = np.int32(np.floor(share * LEVELS))
    return levels


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
            if not _is_beaten(items, at, items.begin[group], items.begin[group + 1]):
                _improve(
                    table[group],
                    table[group + 1],
                    items.gain[at],
                    items.width[at],
                    items.level[at],
                )
    return table


@compiled
def _is_beaten(items: Items, at: int, begin: int, end: int) -> bool:
    """Whether another of its service leaves it nothing to add to the table; of equals the first stays."""
    for other in range(begin, end):
        if items.width[other] > items.width[at]:
            return False
        if (
            items.gain[other] >= items.gain[at]
            and items.level[other] <= items.level[at]
            and other != at
        ):
            is_equal = (
                items.gain[other] == items.gain[at]
                and items.level[other] == items.level[at]
            )
            if other < at or not (is_equal and items.width[other] == items.width[at]):
                return True
    return False


@compiled
def _improve(before: Reals, after: Reals, gain: float, width: int, level: int) -> None:
    """The candidate added to every set of `after` that leaves it room."""
    for places in range(1, before.shape[0]):
        for room in range(before.shape[1] - width):
            # Slices from zero, so that the loop runs on vectors.
            rest, total = after[places - 1, room], before[places, room + width, level:]
            for left in range(total.shape[0]):
                total[left] = max(total[left], rest[left] + gain)


@compiled
def _root(mode: GpuMode, cell: PricingCell) -> SearchPath:
    counts, amounts = (
        np.zeros((4, cell.replicas + 1), np.int32),
        np.zeros((4, cell.replicas + 1)),
    )
    branch = SearchPath(
        counts[0],
        counts[1],
        counts[2],
        counts[3],
        amounts[0],
        amounts[1],
        amounts[2],
        amounts[3],
    )
    branch.steps_left[0], branch.levels_left[0] = mode.steps, LEVELS
    branch.memory_left[0], branch.power_left[0] = (
        mode.memory_mib * _FIT,
        mode.power_w * _FIT,
    )
    branch.pressure_left[0] = cell.high * _FIT if cell.replicas > 1 else np.inf
    return branch


@compiled
def _next(
    items: Items, table: Reals, branch: SearchPath, depth: int, places: int, goal: float
) -> int:
    """The first position from the branch's on whose candidate fits and may lead above the goal; their number if none.

    What the rest reaches behind a candidate is first bounded by what it reaches from here on: one number for all.
    """
    size, at, steps, levels = (
        items.gain.shape[0],
        branch.at[depth],
        branch.steps_left[depth],
        branch.levels_left[depth],
    )
    needed = goal - branch.gained[depth]
    if at >= size or table[items.group[at], places, steps, levels] <= needed:
        return size
    least = needed - table[items.group[at], places - 1, steps, levels]
    memory, power, pressure = (
        branch.memory_left[depth],
        branch.power_left[depth],
        branch.pressure_left[depth],
    )
    for position in range(at, size):
        if items.gain[position] <= least or items.width[position] > steps:
            continue
        if (
            items.memory[position] > memory
            or items.power[position] > power
            or items.pressure[position] > pressure
        ):
            continue
        left = levels - items.level[position]
        rest = table[
            items.group[position] + 1, places - 1, steps - items.width[position], left
        ]
        if items.gain[position] + rest > needed:
            return position
    return size


@compiled
def _take(items: Items, branch: SearchPath, depth: int, at: int) -> None:
    branch.at[depth] = at + 1
    branch.candidate[depth] = items.candidate[at]
    branch.at[depth + 1] = items.begin[items.group[at] + 1]
    branch.steps_left[depth + 1] = branch.steps_left[depth] - items.width[at]
    branch.levels_left[depth + 1] = branch.levels_left[depth] - items.level[at]
    branch.gained[depth + 1] = branch.gained[depth] + items.gain[at]
    branch.memory_left[depth + 1] = branch.memory_left[depth] - items.memory[at]
    branch.power_left[depth + 1] = branch.power_left[depth] - items.power[at]
    branch.pressure_left[depth + 1] = branch.pressure_left[depth] - items.pressure[at]


@compiled
def _open_bound(
    items: Items, table: Reals, branch: SearchPath, depth: int, replicas: int
) -> float:
    """The greatest bound of what was not looked at: on each level, from the next position on."""
    bound = NONE
    for upper in range(depth + 1):
        at = branch.at[upper]
        if at < items.gain.shape[0]:
            rest = table[
                items.group[at],
                replicas - upper,
                branch.steps_left[upper],
                branch.levels_left[upper],
            ]
            bound = max(bound, branch.gained[upper] + rest)
    return bound
