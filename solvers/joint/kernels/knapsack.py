"""The relaxed problem of a cell: a multiple-choice knapsack over SM steps, by dynamic programming.

    max Σ v_i    over sets of exactly n candidates, one per service, Σ width_i ≤ U

The number of services does not matter to the program: *of each width only the n best services can be needed*. A set
that uses another service at that width leaves, of those n, at least one unused (it holds at most n − 1 others), and
taking that one instead is no worse. So at most n · U candidates enter, however many services there are.
"""

import numpy as np

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.types import GpuMode, Numbers, PricingTask, Reals, Scratch

NONE = -1.0e300
"""The worth of no set at all."""


@compiled
def shorten(task: PricingTask, scratch: Scratch, size: int, replicas: int) -> int:
    """Put the candidates (positions among the first `size` ids) that the optimum may need on the shortlist.

    Returns how many. ids are sorted by service and width.
    """
    mode, ids, value = task.mode, scratch.ids, scratch.adjusted
    best, filled, short = scratch.best, scratch.filled, scratch.short
    filled[:] = 0
    at = 0
    while at < size:
        service, width, top = mode.service[ids[at]], mode.width[ids[at]], -1
        while (
            at < size
            and mode.service[ids[at]] == service
            and mode.width[ids[at]] == width
        ):
            if top < 0 or value[at] > value[top]:
                top = at
            at += 1
        place = filled[width]
        if place == replicas:
            if value[best[width, place - 1]] >= value[top]:
                continue
            place -= 1
        else:
            filled[width] = place + 1
        while place > 0 and value[best[width, place - 1]] < value[top]:
            best[width, place] = best[width, place - 1]
            place -= 1
        best[width, place] = top
    count = 0
    for width in range(1, filled.shape[0]):
        for place in range(filled[width]):
            short[count] = best[width, place]
            count += 1
    short[:count].sort()
    return count


@compiled
def find_groups(task: PricingTask, scratch: Scratch, short: Numbers) -> int:
    """Where each service begins in `short`, into `first`; returns how many services there are."""
    mode, ids, count = task.mode, scratch.ids, 0
    for at in range(short.shape[0]):
        if at == 0 or mode.service[ids[short[at]]] != mode.service[ids[short[at - 1]]]:
            scratch.first[count] = at
            count += 1
    scratch.first[count] = short.shape[0]
    return count


@compiled
def fill_table(
    task: PricingTask, scratch: Scratch, short: Numbers, replicas: int
) -> float:
    """The optimum over these positions, NONE where no set has that number of candidates.

    table[g, n, u]: the same of the services from the g-th on, with exactly n candidates in u steps.
    """
    mode, ids, value, table = task.mode, scratch.ids, scratch.adjusted, scratch.table
    groups = find_groups(task, scratch, short)
    table[groups, : replicas + 1, :] = NONE
    table[groups, 0, :] = 0.0
    for group in range(groups - 1, -1, -1):
        before, after = table[group], table[group + 1]
        before[: replicas + 1, :] = after[: replicas + 1, :]
        for at in range(scratch.first[group], scratch.first[group + 1]):
            gain, width = value[short[at]], mode.width[ids[short[at]]]
            for places in range(1, replicas + 1):
                # Slices from zero, so that the loop runs on vectors.
                rest, total = after[places - 1], before[places, width:]
                for room in range(total.shape[0]):
                    total[room] = max(total[room], rest[room] + gain)
    return table[0, replicas, mode.steps]


@compiled
def read_solution(
    task: PricingTask, scratch: Scratch, short: Numbers, replicas: int
) -> int:
    """The candidates of the optimum that `fill_table` found, into `solution`; returns how many: `replicas`, or 0."""
    if scratch.table[0, replicas, task.mode.steps] <= NONE / 2.0:
        return 0
    mode, ids, value, table = task.mode, scratch.ids, scratch.adjusted, scratch.table
    places, room, count, group = replicas, mode.steps, 0, 0
    while scratch.first[group] < short.shape[0] and places > 0:
        total, after = table[group, places, room], table[group + 1]
        group += 1
        # The services behind do as well without this one.
        if total <= after[places, room]:
            continue
        for at in range(scratch.first[group - 1], scratch.first[group]):
            width = mode.width[ids[short[at]]]
            if (
                width <= room
                and after[places - 1, room - width] + value[short[at]] == total
            ):
                scratch.solution[count] = ids[short[at]]
                count += 1
                places -= 1
                room -= width
                break
    return count


@compiled
def max_pressure(mode: GpuMode) -> Reals:
    """(N + 1,) the greatest summed pressure of 0 to N replicas of different services within the SM steps.

    The same program with pressures as values; −inf where that number does not fit.
    """
    reached = np.full((mode.max_replicas + 1, mode.steps + 1), -np.inf)
    reached[0] = 0.0
    at, size = 0, mode.service.shape[0]
    while at < size:
        service, before = mode.service[at], reached.copy()
        while at < size and mode.service[at] == service:
            width, pressure = mode.width[at], mode.pressure[at]
            at += 1
            while at < size and mode.service[at] == service and mode.width[at] == width:
                pressure = max(pressure, mode.pressure[at])
                at += 1
            _reach(reached, before, width, pressure)
    return reached[:, -1].copy()


@compiled
def _reach(reached: Reals, before: Reals, width: int, pressure: float) -> None:
    """Raise what is reached to what a replica of that width and pressure adds to the sets before."""
    for replicas in range(1, reached.shape[0]):
        # Slices from zero, so that the loop runs on vectors.
        rest, total = before[replicas - 1], reached[replicas, width:]
        for room in range(total.shape[0]):
            total[room] = max(total[room], rest[room] + pressure)
