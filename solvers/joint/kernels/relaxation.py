"""Bounds of a cell: side limits priced by multipliers, which a few subgradient steps improve.

For any multipliers θ of memory and watts (≥ 0) and of pressure (of either sign, since it is limited on both sides), the
knapsack's optimum of v_i − θ·use_i, plus θ·limits, bounds every pattern of the cell. The steps are Polyak's with the
threshold as their target: they end as soon as the cell is known to hold nothing, most often after the first.
"""

import numpy as np

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.knapsack import fill_table, read_solution, shorten
from solvers.joint.kernels.laws import (
    candidate_worth,
    capacity_rps,
    execution_ms,
    pattern_worth,
)
from solvers.joint.kernels.types import (
    MEMORY,
    POWER,
    PRESSURE,
    Numbers,
    PricingCell,
    PricingTask,
    Reals,
    Scratch,
)

_FIT = 1.0 + 1e-9
_NO_SLOPE = 1e-12


@compiled
def value_candidates(
    task: PricingTask, cell: PricingCell, scratch: Scratch, size: int
) -> int:
    """Values of the first `size` ids at the cell's optimistic end: the least pressure that the others can have.

    Returns how many stay: those that are worth nothing go, since a pattern without them is worth no less and belongs to
    another cell.
    """
    mode, kept = task.mode, 0
    for at in range(size):
        item = scratch.ids[at]
        others = max(0.0, cell.low - mode.pressure[item]) if cell.replicas > 1 else 0.0
        carried = capacity_rps(
            mode, task.law, item, execution_ms(mode, item, cell.replicas, others)
        )
        counts = carried > 0.0 or mode.may_idle[item]
        worth = candidate_worth(mode, task.worth, item, carried) if counts else 0.0
        if worth > 0.0:
            scratch.ids[kept], scratch.value[kept] = item, worth
            kept += 1
    return kept


@compiled
def charge(task: PricingTask, scratch: Scratch, size: int, multipliers: Reals) -> None:
    """Adjusted values: less what the multipliers charge for memory, watts and pressure."""
    mode, ids, value, adjusted = task.mode, scratch.ids, scratch.value, scratch.adjusted
    memory, power, pressure = (
        multipliers[MEMORY],
        multipliers[POWER],
        multipliers[PRESSURE],
    )
    for at in range(size):
        item = ids[at]
        use = (
            memory * mode.memory[item]
            + power * mode.power[item]
            + pressure * mode.pressure[item]
        )
        adjusted[at] = value[at] - use


@compiled
def limits_price(task: PricingTask, cell: PricingCell, multipliers: Reals) -> float:
    """θ · limits: what the bound adds for the side limits; a reward for pressure counts its lower limit."""
    mode = task.mode
    priced = multipliers[MEMORY] * mode.memory_mib + multipliers[POWER] * mode.power_w
    if cell.replicas == 1:
        return priced
    return priced + multipliers[PRESSURE] * (
        cell.high if multipliers[PRESSURE] >= 0.0 else cell.low
    )


@compiled
def relax(
    task: PricingTask,
    cell: PricingCell,
    scratch: Scratch,
    size: int,
    multipliers: Reals,
    pattern: Numbers,
) -> tuple[float, float, int]:
    """(bound of the cell, worth of the best pattern met, its size); multipliers and `pattern` are updated in place.

    The multipliers of the least bound are kept; a step that does not lower it is halved and tried again. The table and
    the adjusted values of these multipliers stay in the scratch.
    """
    goal = task.threshold * (1.0 + task.effort.tolerance)
    bound, worth, best_size, length = 1.0e300, 0.0, 0, 1.0
    kept, use = multipliers.copy(), np.zeros(3)
    for step in range(task.effort.steps + 1):
        reached, count = _solve(task, cell, scratch, size, multipliers)
        if count > 0:
            met = _worth_if_valid(task, scratch.solution, count)
            if met > worth:
                worth, best_size = met, count
                pattern[:count] = scratch.solution[:count]
        if reached < bound:
            bound = reached
            kept[:] = multipliers
            fill_use(task, scratch.solution, count, use)
        elif step > 1:
            length *= 0.5
        if bound <= goal or step == task.effort.steps:
            break
        if step == 0 and multipliers.any():
            # Multipliers of an earlier round may be far too great for the prices of this one.
            multipliers[:] = 0.0
            continue
        multipliers[:] = kept
        if not _improve(
            task, cell, multipliers, use, length * (bound - task.threshold)
        ):
            break
    if bound > goal and (multipliers != kept).any():
        multipliers[:] = kept
        _solve(task, cell, scratch, size, multipliers)
    return bound, worth, best_size


@compiled
def _solve(
    task: PricingTask,
    cell: PricingCell,
    scratch: Scratch,
    size: int,
    multipliers: Reals,
) -> tuple[float, int]:
    """(bound under these multipliers, number of candidates in the solution)."""
    charge(task, scratch, size, multipliers)
    short = scratch.short[: shorten(task, scratch, size, cell.replicas)]
    reached = fill_table(task, scratch, short, cell.replicas) + limits_price(
        task, cell, multipliers
    )
    return reached, read_solution(task, scratch, short, cell.replicas)


@compiled
def _worth_if_valid(task: PricingTask, items: Numbers, count: int) -> float:
    """What a pattern is truly worth, 0 where it takes too much memory or too many watts."""
    use = np.zeros(3)
    fill_use(task, items, count, use)
    if (
        use[MEMORY] > task.mode.memory_mib * _FIT
        or use[POWER] > task.mode.power_w * _FIT
    ):
        return 0.0
    return max(0.0, pattern_worth(task.mode, task.law, task.worth, items, count))


@compiled
def fill_use(task: PricingTask, items: Numbers, count: int, use: Reals) -> None:
    """Memory, watts and pressure of the first `count` items, into `use`."""
    use[:] = 0.0
    for at in range(count):
        use[MEMORY] += task.mode.memory[items[at]]
        use[POWER] += task.mode.power[items[at]]
        use[PRESSURE] += task.mode.pressure[items[at]]


@compiled
def _improve(
    task: PricingTask, cell: PricingCell, multipliers: Reals, use: Reals, excess: float
) -> bool:
    """One step along the subgradient, in units of the limits; False where there is no slope."""
    scale = (
        task.mode.memory_mib,
        max(task.mode.power_w, _NO_SLOPE),
        max(cell.high, _NO_SLOPE),
    )
    slope = np.zeros(3)
    slope[MEMORY] = (use[MEMORY] - task.mode.memory_mib) / scale[MEMORY]
    slope[POWER] = (use[POWER] - task.mode.power_w) / scale[POWER]
    for side in range(2):
        if multipliers[side] <= 0.0 and slope[side] < 0.0:
            slope[side] = 0.0
    if cell.replicas > 1:
        if multipliers[PRESSURE] > 0.0 or use[PRESSURE] > cell.high:
            slope[PRESSURE] = (use[PRESSURE] - cell.high) / scale[PRESSURE]
        elif multipliers[PRESSURE] < 0.0 or use[PRESSURE] < cell.low:
            slope[PRESSURE] = (use[PRESSURE] - cell.low) / scale[PRESSURE]
    square = slope @ slope
    if square <= _NO_SLOPE:
        return False
    length = excess / square
    for side in range(3):
        moved = multipliers[side] + length * slope[side] / scale[side]
        # The pressure's multiplier stops at 0, where its limit changes sides.
        crosses = moved * multipliers[side] < 0.0 if side == PRESSURE else moved < 0.0
        multipliers[side] = 0.0 if crosses else moved
    return True
