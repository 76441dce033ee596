"""Exact search in a cell of final width: depth first over candidates, bounded by a knapsack of those that remain.

A node has taken some candidates of the services before group g. It is cut when

    adjusted values so far + table[g, places left, steps left, levels left] + θ · limits  ≤  the best known

The table runs over all survivors here, not over a shortlist, since a child takes services one after the other; and it
has a dimension for memory and watts together, rounded down to levels, which bounds from above. Where the power cap
binds (at a type's highest clock) multipliers alone leave bounds 5 to 10 % above what whole patterns reach, and a search
without that dimension visits hundreds of thousands of nodes. Real memory, watts and pressure are checked on the way,
and a full set is judged by its true pressure. When the nodes run out, the greatest bound on the open branch still
bounds the cell.
"""

from typing import NamedTuple

import numba
import numpy as np

from solvers.joint.kernels.knapsack import NONE, find_groups
from solvers.joint.kernels.laws import pattern_worth
from solvers.joint.kernels.nouns import MEMORY, POWER, Cell, Scratch, Task
from solvers.joint.kernels.relaxation import charge, limits_price, value_candidates
from solvers.joint.tables import Numbers, Reals

LEVELS = 48
"""Of memory and watts in the table."""
_FIT = 1.0 + 1e-9


class Branch(NamedTuple):
    """The path from the root to the node at hand, by level: so many candidates were taken."""

    at: Numbers
    """(N + 1,) position that is tried next."""
    item: Numbers
    """(N + 1,) candidate that was taken last."""
    gained: Reals
    memory: Reals
    power: Reals
    pressure: Reals
    steps_left: Numbers
    levels_left: Numbers


@numba.njit(cache=True, nogil=True)
def search(
    task: Task, cell: Cell, scratch: Scratch, size: int, multipliers: Reals, pattern: Numbers, best: float
) -> tuple[float, float, int]:
    """(bound of the cell, worth of the best pattern, its size): of exactly `cell.replicas` of the first `size` ids.

    `best` is the worth to beat, at least the threshold with its tolerance; size 0 when nothing beats it.
    """
    value_candidates(task, cell, scratch, size)
    charge(task, scratch, size, multipliers)
    level_of = _levels_of(task, scratch, size, multipliers)
    table = _fill_table(task, scratch, size, level_of, cell.replicas)
    priced = limits_price(task, cell, multipliers)
    if table[0, cell.replicas, task.mode.steps, LEVELS] + priced <= best:
        return best, best, 0
    group = _groups_of(scratch, size)
    branch = _root(task, cell)
    level, nodes, found = 0, 0, 0
    while level >= 0:
        at, places = branch.at[level], cell.replicas - level
        is_open = at < size and _bound(table, branch, level, group[at], places) + priced > best
        if not is_open:
            level -= 1
            continue
        branch.at[level] = at + 1
        if not _may_take(task, cell, scratch, branch, level, at) or (
            _bound_with(task, scratch, table, branch, level, at, group[at], places, level_of[at]) + priced <= best
        ):
            continue
        nodes += 1
        if nodes > task.effort.nodes:
            branch.at[level] = at
            bound = _open_bound(table, branch, level, group, cell.replicas)
            return max(best, bound + priced), best, found
        _take(task, scratch, branch, level, at, level_of[at])
        if places > 1:
            branch.at[level + 1] = scratch.first[group[at] + 1]
            level += 1
            continue
        worth = pattern_worth(task.mode, task.law, task.worth, branch.item, cell.replicas)
        if worth > best:
            best, found = worth, cell.replicas
            pattern[: cell.replicas] = branch.item[: cell.replicas]
    return best, best, found


@numba.njit(cache=True, nogil=True)
def _root(task: Task, cell: Cell) -> Branch:
    levels = cell.replicas + 1
    branch = Branch(
        np.zeros(levels, np.int32),
        np.zeros(levels, np.int32),
        np.zeros(levels),
        np.zeros(levels),
        np.zeros(levels),
        np.zeros(levels),
        np.zeros(levels, np.int32),
        np.zeros(levels, np.int32),
    )
    branch.steps_left[0] = task.mode.steps
    branch.levels_left[0] = LEVELS
    return branch


@numba.njit(cache=True, nogil=True)
def _groups_of(scratch: Scratch, size: int) -> Numbers:
    """(size,) which service, counted, each position belongs to."""
    group = np.zeros(size, np.int32)
    number = 0
    for at in range(size):
        if at == scratch.first[number + 1]:
            number += 1
        group[at] = number
    return group


@numba.njit(cache=True, nogil=True)
def _levels_of(task: Task, scratch: Scratch, size: int, multipliers: Reals) -> Numbers:
    """(size,) use of memory and watts in whole levels, rounded down; the multipliers weigh the two."""
    mode = task.mode
    of_memory, of_power = multipliers[MEMORY] * mode.memory_mib, multipliers[POWER] * mode.power_w
    if of_memory + of_power <= 0.0:
        of_memory = of_power = 1.0
    memory_part = of_memory / (of_memory + of_power) / (mode.memory_mib * _FIT)
    power_part = of_power / (of_memory + of_power) / (mode.power_w * _FIT)
    levels = np.zeros(size, np.int32)
    for at in range(size):
        item = scratch.ids[at]
        share = memory_part * mode.memory[item] + power_part * mode.power[item]
        levels[at] = np.int32(np.floor(share * LEVELS))
    return levels


@numba.njit(cache=True, nogil=True)
def _fill_table(task: Task, scratch: Scratch, size: int, level_of: Numbers, replicas: int) -> Reals:
    """table[g, n, u, l]: the most that n candidates of the services from the g-th on reach in u steps and l levels."""
    mode = task.mode
    groups = find_groups(task, scratch, np.arange(size).astype(np.int32))
    table = np.empty((groups + 1, replicas + 1, mode.steps + 1, LEVELS + 1))
    table[groups] = NONE
    table[groups, 0] = 0.0
    for group in range(groups - 1, -1, -1):
        before, after = table[group], table[group + 1]
        before[:] = after
        for at in range(scratch.first[group], scratch.first[group + 1]):
            gain, width, level = scratch.adjusted[at], mode.width[scratch.ids[at]], level_of[at]
            if scratch.value[at] <= 0.0:
                continue
            for places in range(1, replicas + 1):
                for room in range(width, mode.steps + 1):
                    for left in range(level, LEVELS + 1):
                        total = after[places - 1, room - width, left - level] + gain
                        if total > before[places, room, left]:
                            before[places, room, left] = total
    return table


@numba.njit(cache=True, nogil=True, inline="always")
def _bound(table: Reals, branch: Branch, level: int, group: int, places: int) -> float:
    return branch.gained[level] + table[group, places, branch.steps_left[level], branch.levels_left[level]]


@numba.njit(cache=True, nogil=True, inline="always")
def _bound_with(
    task: Task, scratch: Scratch, table: Reals, branch: Branch, level: int, at: int, group: int, places: int, use: int
) -> float:
    """With the candidate taken."""
    steps = branch.steps_left[level] - task.mode.width[scratch.ids[at]]
    rest = table[group + 1, places - 1, steps, branch.levels_left[level] - use]
    return branch.gained[level] + scratch.adjusted[at] + rest


@numba.njit(cache=True, nogil=True, inline="always")
def _may_take(task: Task, cell: Cell, scratch: Scratch, branch: Branch, level: int, at: int) -> bool:
    mode, item = task.mode, scratch.ids[at]
    if scratch.value[at] <= 0.0 or mode.width[item] > branch.steps_left[level]:
        return False
    if branch.memory[level] + mode.memory[item] > mode.memory_mib * _FIT:
        return False
    if branch.power[level] + mode.power[item] > mode.power_w * _FIT:
        return False
    return cell.replicas == 1 or branch.pressure[level] + mode.pressure[item] <= cell.high * _FIT


@numba.njit(cache=True, nogil=True, inline="always")
def _take(task: Task, scratch: Scratch, branch: Branch, level: int, at: int, use: int) -> None:
    mode, item = task.mode, scratch.ids[at]
    branch.item[level] = item
    branch.gained[level + 1] = branch.gained[level] + scratch.adjusted[at]
    branch.memory[level + 1] = branch.memory[level] + mode.memory[item]
    branch.power[level + 1] = branch.power[level] + mode.power[item]
    branch.pressure[level + 1] = branch.pressure[level] + mode.pressure[item]
    branch.steps_left[level + 1] = branch.steps_left[level] - mode.width[item]
    branch.levels_left[level + 1] = branch.levels_left[level] - use


@numba.njit(cache=True, nogil=True)
def _open_bound(table: Reals, branch: Branch, level: int, group: Numbers, replicas: int) -> float:
    """The greatest bound of what was not looked at: on each level, from the next position on."""
    bound = 0.0
    for upper in range(level + 1):
        at = branch.at[upper]
        if at < group.shape[0]:
            bound = max(bound, _bound(table, branch, upper, group[at], replicas - upper))
    return bound
