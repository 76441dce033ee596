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
    service, width, value = task.mode.service, task.mode.width, scratch.adjusted
    scratch.filled[:] = 0
    at = 0
    while at < size:
        item, best = scratch.ids[at], at
        # Of one service and width only the best one can be in the optimum: another batch takes no fewer steps.
        while (
            at < size
            and service[scratch.ids[at]] == service[item]
            and width[scratch.ids[at]] == width[item]
        ):
            if value[at] > value[best]:
                best = at
            at += 1
        _insert(scratch, width[item], best, replicas)
    return _join_lists(scratch)


@compiled
def _insert(scratch: Scratch, width: int, position: int, limit: int) -> None:
    """Put a position among the best of its width, best first, of which there are at most `limit`."""
    best, value, place = scratch.best[width], scratch.adjusted, scratch.filled[width]
    if place < limit:
        scratch.filled[width] = place + 1
    elif value[best[place - 1]] >= value[position]:
        return
    else:
        # The worst one makes room.
        place -= 1
    while place > 0 and value[best[place - 1]] < value[position]:
        best[place] = best[place - 1]
        place -= 1
    best[place] = position


@compiled
def _join_lists(scratch: Scratch) -> int:
    """Put the best of all widths on the shortlist, in the order of ids; returns how many."""
    count = 0
    for steps in range(1, scratch.filled.shape[0]):
        for place in range(scratch.filled[steps]):
            scratch.short[count] = scratch.best[steps, place]
            count += 1
    # The order of ids keeps the candidates of a service together.
    scratch.short[:count].sort()
    return count


@compiled
def _find_groups(task: PricingTask, scratch: Scratch, short: Numbers) -> int:
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
    """The optimum over these positions, NONE where no set has so many candidates.

    table[g, n, u]: the same of the services from the g-th on, with exactly n candidates in u steps.
    """
    mode, ids, value, table = task.mode, scratch.ids, scratch.adjusted, scratch.table
    groups = _find_groups(task, scratch, short)
    table[groups, : replicas + 1, :] = NONE
    table[groups, 0, :] = 0.0
    # From the last service to the first: searches take services in ascending order and ask what follows.
    for group in range(groups - 1, -1, -1):
        before, after = table[group, : replicas + 1], table[group + 1, : replicas + 1]
        before[:] = after
        for at in range(scratch.first[group], scratch.first[group + 1]):
            _add(before, after, value[short[at]], mode.width[ids[short[at]]])
    return table[0, replicas, mode.steps]


@compiled
def _add(reached: Reals, others: Reals, gain: float, width: int) -> None:
    """The candidate added to every set of `others` that leaves it a place and the steps."""
    for places in range(1, reached.shape[0]):
        # Slices from zero, so that the loop runs on vectors.
        rest, total = others[places - 1], reached[places, width:]
        for room in range(total.shape[0]):
            total[room] = max(total[room], rest[room] + gain)


@compiled
def read_solution(
    task: PricingTask, scratch: Scratch, short: Numbers, replicas: int
) -> int:
    """The candidates of the optimum that `fill_table` found, into `solution`; returns how many: `replicas`, or 0."""
    # NONE plus some gains is still no set at all.
    if scratch.table[0, replicas, task.mode.steps] <= NONE / 2.0:
        return 0
    places, room, group = replicas, task.mode.steps, 0
    while scratch.first[group] < short.shape[0] and places > 0:
        at = _find_taken(task, scratch, group, places, room)
        if at >= 0:
            item = scratch.ids[short[at]]
            scratch.solution[replicas - places] = item
            places -= 1
            room -= task.mode.width[item]
        group += 1
    return replicas - places


@compiled
def _find_taken(
    task: PricingTask, scratch: Scratch, group: int, places: int, room: int
) -> int:
    """Place on the shortlist of the candidate that the optimum takes of a service; −1 where it takes none."""
    total, after = scratch.table[group, places, room], scratch.table[group + 1]
    if total <= after[places, room]:
        return -1
    for at in range(scratch.first[group], scratch.first[group + 1]):
        position = scratch.short[at]
        width = task.mode.width[scratch.ids[position]]
        # Equal to the last digit: the table was filled with this very sum.
        if (
            width <= room
            and after[places - 1, room - width] + scratch.adjusted[position] == total
        ):
            return at
    return -1


@compiled
def max_pressure(mode: GpuMode) -> Reals:
    """(N + 1,) the greatest summed pressure of so many replicas of different services within the SM steps.

    The same program with pressures as values; −inf where so many do not fit.
    """
    reached = np.full((mode.max_replicas + 1, mode.steps + 1), -np.inf)
    reached[0] = 0.0
    before = reached.copy()
    for at in range(mode.service.shape[0]):
        # Candidates of one service are added to sets without it, so that no set holds two of them.
        if at > 0 and mode.service[at] != mode.service[at - 1]:
            before = reached.copy()
        _add(reached, before, mode.pressure[at], mode.width[at])
    return reached[:, -1].copy()
