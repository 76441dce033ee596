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
from solvers.joint.kernels.laws import capacity_rps, execution_ms, pattern_worth
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
"""The interval that holds a candidate's longest execution is halved so often: to the last digits."""
_LONGEST = 1.0e3
"""Times its execution alone: no candidate is looked at beyond."""
_FIT = 1.0 + 1e-9
_SWAPS = 20
"""At most; each makes the pattern worth more."""


class PackingCells(NamedTuple):
    """The cells of one mode with their candidates: a ladder of L ceilings for every number of replicas."""

    ceiling: Reals
    """(N + 1, L) greatest summed pressure, ascending."""
    first: Numbers
    """(N + 1, L + 1) where each cell's candidates begin in `item`; none for no replicas."""
    item: Numbers


@compiled
def longest_ms(mode: GpuMode, law: Law, rate: Reals) -> Reals:
    """(C,) execution time up to which each candidate carries its service's rate; −1 where it does not even alone."""
    longest = np.full(mode.service.shape[0], -1.0)
    for item in range(mode.service.shape[0]):
        wanted, low = rate[mode.service[item]], execution_ms(mode, item, 1, 0.0)
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
            # One that presses more than the ceiling by itself shows that the ceiling is too low.
            others = (
                max(0.0, ceiling[cell] - mode.pressure[item])
                if replicas[cell] > 1
                else 0.0
            )
            if execution_ms(mode, item, replicas[cell], others) <= longest[item]:
                found[cell, item] = not _is_undercut(mode, found[cell], begin, item)
    return found


@compiled
def _is_undercut(
    mode: GpuMode, found: npt.NDArray[np.bool_], begin: int, item: int
) -> bool:
    for other in range(begin, item):
        if (
            found[other]
            and mode.memory[other] <= mode.memory[item]
            and mode.power[other] <= mode.power[item]
            and mode.pressure[other] <= mode.pressure[item]
        ):
            # Candidates of a service ascend in width.
            return True
    return False


@compiled
def price_parts(
    task: PricingTask,
    parts: PackingCells,
    start: Numbers,
    multipliers: Reals,
    scratch: Scratch,
    found: PricedPatterns,
) -> None:
    """The best pattern that is found for every number of replicas, into its slot.

    start: (N + 1,) the ceilings that were best the last time; multipliers: (N + 1, L, 3); both are improved in place.
    Where nothing is above the threshold the slot has size 0 and a worth that is none the less no less than the best.
    """
    for replicas in range(1, parts.ceiling.shape[0]):
        _climb(task, parts, replicas, start, multipliers, scratch, found)


@compiled
def next_pattern(
    task: PricingTask,
    parts: PackingCells,
    start: Numbers,
    multipliers: Reals,
    scratch: Scratch,
    found: PricedPatterns,
) -> int:
    """The slot of the best pattern that is left when some services are worth nothing any more; −1 when none is.

    Slots hold what was found when more was worth something, so that none is worth more now than it says.
    """
    while True:
        sure, best, most, stale = task.threshold, -1, 0.0, -1
        for slot in range(found.worth.shape[0]):
            is_sure = found.size[slot] > 0 and _is_intact(task, found, slot)
            if is_sure and found.worth[slot] > sure:
                sure, best = found.worth[slot], slot
            elif not is_sure and found.worth[slot] > most:
                most, stale = found.worth[slot], slot
        if most <= sure * (1.0 + task.effort.tolerance):
            return best
        better = PricingTask(task.mode, task.law, task.worth, sure, task.effort)
        _climb(better, parts, stale, start, multipliers, scratch, found)


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
    replicas: int,
    start: Numbers,
    multipliers: Reals,
    scratch: Scratch,
    found: PricedPatterns,
) -> None:
    """Down the ladder while pressure does not bind, else up until it no longer does: the best is where it turns.

    Below, candidates ask less but have no room; above, they have more than they use.
    """
    levels, at = parts.ceiling.shape[1], start[replicas]
    pattern, trial = np.zeros(replicas, np.int32), np.zeros(replicas, np.int32)
    most, worth, size, level, step = 0.0, 0.0, 0, at, 0
    while 0 <= at < levels:
        bound, other, count = _price(
            task, parts, replicas, at, multipliers, scratch, trial
        )
        most = max(most, bound)
        if other > worth:
            worth, size, level = other, count, at
            pattern[:] = trial
        binds = multipliers[replicas, at, PRESSURE] > 0.0 or (
            other > 0.0 and count < replicas
        )
        if step == 0:
            step = 1 if binds else -1
        elif binds == (step < 0):
            break
        at += step
    if size == 0:
        level = min(max(at, 0), levels - 1)
    start[replicas] = level
    found.items[replicas, :size] = pattern[:size]
    found.size[replicas] = size
    found.worth[replicas] = (
        worth if size > 0 else min(most, task.threshold * (1.0 + task.effort.tolerance))
    )


@compiled
def _price(
    task: PricingTask,
    parts: PackingCells,
    replicas: int,
    level: int,
    multipliers: Reals,
    scratch: Scratch,
    pattern: Numbers,
) -> tuple[float, float, int]:
    """(bound, worth of the best pattern found, its size) of one cell; 0 where nothing is above the threshold."""
    mode, size, services, last = task.mode, 0, 0, -1
    for at in range(parts.first[replicas, level], parts.first[replicas, level + 1]):
        item = parts.item[at]
        value = (
            task.worth.stairs[mode.service[item], 1]
            - mode.watt_price * mode.power[item]
        )
        if value > 0.0:
            scratch.ids[size], scratch.value[size] = item, value
            size += 1
            if mode.service[item] != last:
                services, last = services + 1, mode.service[item]
    if services < replicas:
        return 0.0, 0.0, 0
    cell = PricingCell(replicas, 0.0, parts.ceiling[replicas, level])
    bound, _, count = relax(
        task, cell, scratch, size, multipliers[replicas, level], pattern
    )
    if bound <= task.threshold * (1.0 + task.effort.tolerance):
        return max(0.0, bound), 0.0, 0
    if count == 0:
        # The last relaxed optimum takes too much of something: what is left of it fits.
        pattern[:] = scratch.solution[:replicas]
        count = _fitting(task, cell, pattern, replicas)
    if count == 0:
        return bound, 0.0, 0
    _swap(task, cell, scratch, size, pattern, count)
    return (
        bound,
        max(0.0, pattern_worth(mode, task.law, task.worth, pattern, count)),
        count,
    )


@compiled
def _fitting(task: PricingTask, cell: PricingCell, pattern: Numbers, count: int) -> int:
    """Drop the replicas of least value until the rest fits; returns how many are left."""
    mode, use = task.mode, np.zeros(3)
    while count > 0:
        fill_use(task, pattern, count, use)
        if (
            use[MEMORY] <= mode.memory_mib * _FIT
            and use[POWER] <= mode.power_w * _FIT
            and use[PRESSURE] <= cell.high * _FIT
        ):
            return count
        least = 0
        for at in range(1, count):
            if (
                task.worth.stairs[mode.service[pattern[at]], 1]
                < task.worth.stairs[mode.service[pattern[least]], 1]
            ):
                least = at
        count -= 1
        pattern[least] = pattern[count]
    return count


@compiled
def _swap(
    task: PricingTask,
    cell: PricingCell,
    scratch: Scratch,
    size: int,
    pattern: Numbers,
    count: int,
) -> None:
    """Put candidates of greater value in the place of others as long as any fits."""
    mode, use, width = task.mode, np.zeros(3), 0
    value = np.zeros(count)
    for at in range(count):
        width += mode.width[pattern[at]]
        value[at] = (
            task.worth.stairs[mode.service[pattern[at]], 1]
            - mode.watt_price * mode.power[pattern[at]]
        )
    fill_use(task, pattern, count, use)
    most = cell.high * _FIT if cell.replicas > 1 else np.inf
    for _ in range(_SWAPS):
        gain, out, into = 0.0, -1, -1
        for entry in range(size):
            item = scratch.ids[entry]
            same = -1
            for at in range(count):
                if mode.service[pattern[at]] == mode.service[item]:
                    same = at
            for at in range(count):
                old = pattern[at]
                if (
                    scratch.value[entry] - value[at] > gain
                    and (same < 0 or same == at)
                    and width - mode.width[old] + mode.width[item] <= mode.steps
                    and use[POWER] - mode.power[old] + mode.power[item]
                    <= mode.power_w * _FIT
                    and use[PRESSURE] - mode.pressure[old] + mode.pressure[item] <= most
                    and use[MEMORY] - mode.memory[old] + mode.memory[item]
                    <= mode.memory_mib * _FIT
                ):
                    gain, out, into = scratch.value[entry] - value[at], at, entry
        if out < 0:
            return
        width += mode.width[scratch.ids[into]] - mode.width[pattern[out]]
        pattern[out], value[out] = scratch.ids[into], scratch.value[into]
        fill_use(task, pattern, count, use)
