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
_NO_BOUND = 1.0e300


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
        # One that presses more than that by itself may still have neighbours that do not press at all.
        others = max(0.0, cell.low - mode.pressure[item]) if cell.replicas > 1 else 0.0
        duration = execution_ms(mode, item, cell.replicas, others)
        carried = capacity_rps(mode, task.law, item, duration)
        # A candidate that misses its SLO even at the optimistic end makes every pattern with it invalid.
        counts = carried > 0.0 or mode.may_idle[item]
        worth = candidate_worth(mode, task.worth, item, carried) if counts else 0.0
        if worth > 0.0:
            # `kept` never overtakes `at`, so that the list can be thinned in place.
            scratch.ids[kept], scratch.value[kept] = item, worth
            kept += 1
    return kept


@compiled
def charge(task: PricingTask, cell: PricingCell, scratch: Scratch, size: int) -> None:
    """Adjusted values: less what the multipliers charge for memory, watts and pressure."""
    mode = task.mode
    memory, power, pressure = cell.multipliers
    for at in range(size):
        item = scratch.ids[at]
        use = (
            memory * mode.memory[item]
            + power * mode.power[item]
            + pressure * mode.pressure[item]
        )
        scratch.adjusted[at] = scratch.value[at] - use


@compiled
def limits_price(task: PricingTask, cell: PricingCell) -> float:
    """θ · limits: what the bound adds for the side limits; a reward for pressure counts its lower limit."""
    mode, multipliers = task.mode, cell.multipliers
    priced = multipliers[MEMORY] * mode.memory_mib + multipliers[POWER] * mode.power_w
    # A replica alone feels no pressure, so that its cell has no such limit.
    if cell.replicas == 1:
        return priced
    limit = cell.high if multipliers[PRESSURE] >= 0.0 else cell.low
    return priced + multipliers[PRESSURE] * limit


@compiled
def relax(
    task: PricingTask, cell: PricingCell, scratch: Scratch, size: int
) -> tuple[float, float, int]:
    """(bound of the cell, worth of the best pattern met, its size); the pattern and the multipliers stay in place.

    The multipliers of the least bound are kept; a step that does not lower it is halved and tried again. The table and
    the adjusted values of these multipliers stay in the scratch.
    """
    goal = task.threshold * (1.0 + task.effort.tolerance)
    multipliers = cell.multipliers
    bound, worth, best_size, length = _NO_BOUND, 0.0, 0, 1.0
    kept, use = multipliers.copy(), np.zeros(3)
    for step in range(task.effort.steps + 1):
        reached, count = _solve(task, cell, scratch, size)
        met = _worth_if_valid(task, scratch.solution, count)
        if met > worth:
            worth, best_size = met, count
            scratch.pattern[:count] = scratch.solution[:count]

        if reached < bound:
            bound = reached
            kept[:] = multipliers
            fill_use(task, scratch.solution, count, use)
        elif step > 1:
            # Step 1 may begin anew from nothing, so that only later ones can be too long.
            length *= 0.5
        if bound <= goal or step == task.effort.steps:
            break

        if step == 0 and multipliers.any():
            # Multipliers of an earlier round may be far too great for the prices of this one.
            multipliers[:] = 0.0
            continue
        multipliers[:] = kept
        if not _improve(task, cell, use, length * (bound - task.threshold)):
            break

    # What follows reads the table, so that it must be that of the multipliers that are kept.
    if bound > goal and (multipliers != kept).any():
        multipliers[:] = kept
        _solve(task, cell, scratch, size)
    return bound, worth, best_size


@compiled
def _solve(
    task: PricingTask, cell: PricingCell, scratch: Scratch, size: int
) -> tuple[float, int]:
    """(bound under the cell's multipliers, number of candidates in the solution)."""
    charge(task, cell, scratch, size)
    short = scratch.short[: shorten(task, scratch, size, cell.replicas)]
    optimum = fill_table(task, scratch, short, cell.replicas)
    count = read_solution(task, scratch, short, cell.replicas)
    return optimum + limits_price(task, cell), count


@compiled
def _worth_if_valid(task: PricingTask, items: Numbers, count: int) -> float:
    """What a pattern is truly worth, 0 where it is empty or takes too much memory or too many watts."""
    use = np.zeros(3)
    fill_use(task, items, count, use)
    if (
        count == 0
        or use[MEMORY] > task.mode.memory_mib * _FIT
        or use[POWER] > task.mode.power_w * _FIT
    ):
        return 0.0
    # Its true pressure may be outside of the cell: a pattern of another cell is as good.
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
def _improve(task: PricingTask, cell: PricingCell, use: Reals, excess: float) -> bool:
    """One step along the subgradient, in units of the limits; False where there is no slope."""
    multipliers = cell.multipliers
    scale = (
        task.mode.memory_mib,
        max(task.mode.power_w, _NO_SLOPE),
        max(cell.high, _NO_SLOPE),
    )
    slope = np.zeros(3)
    slope[MEMORY] = (use[MEMORY] - task.mode.memory_mib) / scale[MEMORY]
    slope[POWER] = (use[POWER] - task.mode.power_w) / scale[POWER]
    for side in range(2):
        # A limit that is kept with room and free already has nowhere to go.
        if multipliers[side] <= 0.0 and slope[side] < 0.0:
            slope[side] = 0.0
    slope[PRESSURE] = _pressure_excess(cell, use[PRESSURE]) / scale[PRESSURE]
    square = slope @ slope
    if square <= _NO_SLOPE:
        return False

    # Polyak's length: as far as the bound would fall to the threshold if it were linear.
    length = excess / square
    for side in range(3):
        moved = multipliers[side] + length * slope[side] / scale[side]
        # The pressure's multiplier stops at 0, where its limit changes sides.
        crosses = moved * multipliers[side] < 0.0 if side == PRESSURE else moved < 0.0
        multipliers[side] = 0.0 if crosses else moved
    return True


@compiled
def _pressure_excess(cell: PricingCell, used: float) -> float:
    """By how much the pressure exceeds the limit that is priced or broken; negative where it falls short of it."""
    if cell.replicas == 1:
        return 0.0
    multiplier = cell.multipliers[PRESSURE]
    if multiplier > 0.0 or used > cell.high:
        return used - cell.high
    if multiplier < 0.0 or used < cell.low:
        return used - cell.low
    return 0.0
