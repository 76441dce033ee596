"""Patterns in which every replica carries all that is wanted of its service, in compiled form.

Such a replica has one question left to answer: how much pressure it bears. A candidate i whose execution may last t_i
before it falls below the rate can stand among n replicas whose summed pressure, its own included, is at most

    Λ_i(n) = p_i + (t_i − alone_i − launch_i · factor(n)) / growth_i

So the patterns of n replicas are, for every ceiling T, the sets of candidates with Λ_i(n) ≥ T and Σ p_i ≤ T within SM
steps, memory and watts: a *cell* (n, T) is a multiple-choice knapsack with values by service, and needs of every
service only those candidates that no other one undercuts in steps, memory, watts and pressure together.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.laws import (
    capacity_rps,
    execution_ms,
    pattern_worth,
)
from solvers.joint.kernels.relaxation import fill_use, relax
from solvers.joint.kernels.types import (
    MEMORY,
    POWER,
    PRESSURE,
    GpuMode,
    Law,
    Numbers,
    PricedPatterns,
    PricingCell,
    PricingTask,
    Reals,
    Scratch,
)

_HALVINGS = 48
"""The interval in which a candidate's longest execution lies is halved so often: to the last digits."""
_LONGEST = 1.0e3
"""A candidate's execution is looked at up to so many times that of the candidate alone."""
_FIT = 1.0 + 1e-9
_MAX_SWAPS = 20
"""Each makes the pattern worth more."""


class PackingCells(NamedTuple):
    """The cells of one mode with their candidates: a ladder of L ceilings for every number of replicas."""

    ceiling: Reals
    """(N + 1, L) greatest summed pressure, ascending."""
    first: Numbers
    """(N + 1, L + 1) where each cell's candidates begin in `item`; none for no replicas."""
    item: Numbers


class PackingMemory(NamedTuple):
    """Where pricing of one mode begins the next time, improved in place; and its working memory."""

    start: Numbers
    """(N + 1,) the ceilings that were best the last time."""
    multipliers: Reals
    """(N + 1, L, 3)"""
    scratch: Scratch


class HeldPattern(NamedTuple):
    """The pattern at hand."""

    items: Numbers
    """(n,) candidates."""
    value: Reals
    """(n,) USD per hour, their watts paid."""
    use: Reals
    """(3,) memory, watts and pressure of all of them."""
    steps_left: int
    max_pressure: float


@compiled
def longest_ms(mode: GpuMode, law: Law, rate: Reals) -> Reals:
    """(C,) execution time up to which each candidate carries its service's rate; −1 where it does not even alone."""
    longest = np.full(mode.service.shape[0], -1.0)
    for item in range(mode.service.shape[0]):
        wanted, low = rate[mode.service[item]], execution_ms(mode, item, 1, 0.0)
        # Capacity falls as execution grows, so that what is too slow alone is too slow beside anyone.
        if wanted <= 0.0 or capacity_rps(mode, law, item, low) < wanted:
            continue
        high = low * _LONGEST
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if capacity_rps(mode, law, item, middle) >= wanted:
                low = middle
            else:
                high = middle
        longest[item] = low
    return longest


@compiled
def find_parts(
    mode: GpuMode, longest: Reals, replicas: Numbers, ceiling: Reals
) -> npt.NDArray[np.bool_]:
    """(K, C) candidates of each cell: those that bear its ceiling and that no other of their service undercuts.

    A cell of no replicas, and one whose ceiling is below 0, has none.
    """
    found = np.zeros((replicas.shape[0], longest.shape[0]), np.bool_)
    for cell in range(replicas.shape[0]):
        if replicas[cell] == 0 or ceiling[cell] < 0.0:
            continue
        begin = 0
        for item in range(longest.shape[0]):
            if item > 0 and mode.service[item] != mode.service[item - 1]:
                begin = item
            # Beside others that fill the ceiling up; what bears less is part of a cell with a lower ceiling.
            others = 0.0
            if replicas[cell] > 1:
                others = max(0.0, ceiling[cell] - mode.pressure[item])
            if execution_ms(mode, item, replicas[cell], others) <= longest[item]:
                found[cell, item] = not _is_undercut(mode, found[cell], begin, item)
    return found


@compiled
def _is_undercut(
    mode: GpuMode, found: npt.NDArray[np.bool_], begin: int, item: int
) -> bool:
    # Candidates of a service ascend in width, so that only earlier ones can be as narrow. The narrowest come first,
    # since they undercut most.
    for other in range(begin, item):
        if (
            found[other]
            and mode.memory[other] <= mode.memory[item]
            and mode.power[other] <= mode.power[item]
            and mode.pressure[other] <= mode.pressure[item]
        ):
            return True
    return False


@compiled
def price_parts(
    task: PricingTask,
    parts: PackingCells,
    memory: PackingMemory,
    found: PricedPatterns,
) -> None:
    """The best pattern that is found for every number of replicas, into its slot.

    Where nothing is above the threshold the slot has size 0 and a worth that is none the less no less than the best.
    """
    for replicas in range(1, parts.ceiling.shape[0]):
        _climb(task, parts, memory, found, replicas)


@compiled
def next_pattern(
    task: PricingTask,
    parts: PackingCells,
    memory: PackingMemory,
    found: PricedPatterns,
) -> int:
    """The slot of the best pattern that is left when some services are worth nothing any more; −1 when none is.

    Slots hold what was found when more was worth something, so that none is worth more now than it says.
    """
    while True:
        best, stale = _best_slots(task, found)
        sure = found.worth[best] if best >= 0 else task.threshold
        possible = found.worth[stale] if stale >= 0 else 0.0
        if possible <= sure * (1.0 + task.effort.tolerance):
            return best
        # Only the slot that may hold more is priced anew, with what is sure already as its threshold.
        better = PricingTask(task.mode, task.law, task.worth, sure, task.effort)
        _climb(better, parts, memory, found, stale)


@compiled
def _best_slots(task: PricingTask, found: PricedPatterns) -> tuple[int, int]:
    """(best slot whose pattern is worth what it says, best of the others); −1 where none is worth anything."""
    sure, best, possible, stale = task.threshold, -1, 0.0, -1
    for slot in range(found.worth.shape[0]):
        worth = found.worth[slot]
        if found.size[slot] > 0 and _is_intact(task, found, slot):
            if worth > sure:
                sure, best = worth, slot
        elif worth > possible:
            possible, stale = worth, slot
    return best, stale


@compiled
def _is_intact(task: PricingTask, found: PricedPatterns, slot: int) -> bool:
    for at in range(found.size[slot]):  # noqa: SIM110 (numba compiles no generator)
        if task.worth.stairs[task.mode.service[found.items[slot, at]], 1] <= 0.0:
            return False
    return True


@compiled
def _climb(
    task: PricingTask,
    parts: PackingCells,
    memory: PackingMemory,
    found: PricedPatterns,
    replicas: int,
) -> None:
    """Down the ladder while pressure does not bind, else up until it no longer does: the best is where it turns.

    Below, candidates ask less but have no room; above, they have more than they use.
    """
    levels, at = parts.ceiling.shape[1], memory.start[replicas]
    worth_bound, worth, size, level, step = 0.0, 0.0, 0, at, 0
    while 0 <= at < levels:
        bound, other, count = _price(task, parts, memory, replicas, at)
        worth_bound = max(worth_bound, bound)
        if other > worth:
            worth, size, level = other, count, at
            found.items[replicas, :size] = memory.scratch.pattern[:size]
        # Replicas that had to be given up hint at it as well: the relaxed optimum took too much of something.
        is_cut = other > 0.0 and count < replicas
        binds = is_cut or memory.multipliers[replicas, at, PRESSURE] > 0.0
        if step == 0:
            step = 1 if binds else -1
        elif binds == (step < 0):
            break
        at += step
    if size == 0:
        # Nothing was found: the next search begins where this one ended, which may be beyond the ladder.
        level = min(max(at, 0), levels - 1)
        worth = min(worth_bound, task.threshold * (1.0 + task.effort.tolerance))
    memory.start[replicas] = level
    found.size[replicas] = size
    found.worth[replicas] = worth


@compiled
def _price(
    task: PricingTask,
    parts: PackingCells,
    memory: PackingMemory,
    replicas: int,
    level: int,
) -> tuple[float, float, int]:
    """(bound, worth of the best pattern found, its size) of one cell; 0 where nothing is above the threshold."""
    scratch, pattern = memory.scratch, memory.scratch.pattern
    begin, end = parts.first[replicas, level], parts.first[replicas, level + 1]
    size, services = _value_parts(task, parts.item[begin:end], scratch)
    if services < replicas:
        return 0.0, 0.0, 0
    cell = PricingCell(
        replicas,
        0.0,
        parts.ceiling[replicas, level],
        memory.multipliers[replicas, level],
    )
    bound, _, count = relax(task, cell, scratch, size)
    if bound <= task.threshold * (1.0 + task.effort.tolerance):
        return max(0.0, bound), 0.0, 0
    if count == 0:
        # The last relaxed optimum takes too much of something: what is left of it fits.
        pattern[:replicas] = scratch.solution[:replicas]
        count = _fitting(task, cell, pattern)
    if count == 0:
        return bound, 0.0, 0
    _swap(task, cell, scratch, size, count)
    worth = pattern_worth(task.mode, task.law, task.worth, pattern, count)
    return bound, max(0.0, worth), count


@compiled
def _value_parts(
    task: PricingTask, items: Numbers, scratch: Scratch
) -> tuple[int, int]:
    """(parts that are worth something, which are put on the scratch with their values; services that they are of)."""
    mode, stairs, size, services, last = task.mode, task.worth.stairs, 0, 0, -1
    service = mode.service
    for item in items:
        # A part carries everything, which is the upper one of the two stairs.
        value = stairs[service[item], 1] - mode.watt_price * mode.power[item]
        if value > 0.0:
            scratch.ids[size], scratch.value[size] = item, value
            size += 1
            services += service[item] != last
            last = service[item]
    return size, services


@compiled
def _fitting(task: PricingTask, cell: PricingCell, pattern: Numbers) -> int:
    """Drop the replicas of least value until the rest fits; returns how many are left."""
    mode, use, count = task.mode, np.zeros(3), cell.replicas
    while count > 0:
        fill_use(task, pattern, count, use)
        if (
            use[MEMORY] <= mode.memory_mib * _FIT
            and use[POWER] <= mode.power_w * _FIT
            and use[PRESSURE] <= cell.high * _FIT
        ):
            return count
        count -= 1
        pattern[_worst_place(task, pattern[: count + 1])] = pattern[count]
    return count


@compiled
def _worst_place(task: PricingTask, pattern: Numbers) -> int:
    """The place of the replica whose service is worth least, the first of equals."""
    worst = 0
    for at in range(1, pattern.shape[0]):
        value = task.worth.stairs[task.mode.service[pattern[at]], 1]
        if value < task.worth.stairs[task.mode.service[pattern[worst]], 1]:
            worst = at
    return worst


@compiled
def _swap(
    task: PricingTask, cell: PricingCell, scratch: Scratch, size: int, count: int
) -> None:
    """Put candidates of greater value in the place of others as long as any fits."""
    pattern, value, use = scratch.pattern[:count], np.zeros(count), np.zeros(3)
    stairs, mode = task.worth.stairs, task.mode
    for at in range(count):
        item = pattern[at]
        value[at] = stairs[mode.service[item], 1] - mode.watt_price * mode.power[item]
    max_pressure = cell.high * _FIT if cell.replicas > 1 else np.inf
    for _ in range(_MAX_SWAPS):
        # Summed anew after each swap: differences would add up rounding, and limits are kept to the last digits.
        fill_use(task, pattern, count, use)
        steps_left = task.mode.steps - task.mode.width[pattern].sum()
        held = HeldPattern(pattern, value, use, steps_left, max_pressure)
        out, into = _best_swap(task.mode, scratch, size, held)
        if out < 0:
            return
        pattern[out], value[out] = scratch.ids[into], scratch.value[into]


@compiled
def _best_swap(
    mode: GpuMode, scratch: Scratch, size: int, held: HeldPattern
) -> tuple[int, int]:
    """(place in the pattern, entry on the scratch) of the swap that gains most; −1 where none gains anything."""
    gain, out, into = 0.0, -1, -1
    for entry in range(size):
        item = scratch.ids[entry]
        same = _place_of_service(mode.service, held.items, item)
        for at in range(held.items.shape[0]):
            more = scratch.value[entry] - held.value[at]
            # A pattern holds a service once: a candidate of one that is there can only take its place.
            if more <= gain or (same >= 0 and same != at):
                continue
            if _fits_instead(mode, held, held.items[at], item):
                gain, out, into = more, at, entry
    return out, into


@compiled
def _place_of_service(service: Numbers, items: Numbers, item: int) -> int:
    """The place of the candidate that is of the same service; −1 where none is."""
    for at in range(items.shape[0]):
        if service[items[at]] == service[item]:
            return at
    return -1


@compiled
def _fits_instead(mode: GpuMode, held: HeldPattern, old: int, new: int) -> bool:
    """Whether the GPU can hold a candidate in the place of another one."""
    use = held.use
    return (
        mode.width[new] - mode.width[old] <= held.steps_left
        and use[POWER] - mode.power[old] + mode.power[new] <= mode.power_w * _FIT
        and use[PRESSURE] - mode.pressure[old] + mode.pressure[new] <= held.max_pressure
        and use[MEMORY] - mode.memory[old] + mode.memory[new] <= mode.memory_mib * _FIT
    )
