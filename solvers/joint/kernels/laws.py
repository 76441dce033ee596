"""The contract's laws in compiled form: what a candidate can carry next to neighbours, and what a pattern is worth."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.types import Flags, GpuMode, Law, Numbers, Reals, Worth

OPTIMISM = 1.0 + 1e-6
"""Tabulated capacities are rounded up to single precision, lest a bound be too low."""
INVALID = -1.0e300
"""The worth of a pattern in which some replica that does not count as present only misses its SLO."""


class Services(Protocol):
    """Candidates by whose they are: of one mode, or of several."""

    @property
    def service(self) -> Numbers:
        """(C,)"""

    @property
    def shares_label(self) -> Flags:
        """(S, S) which services may not share a GPU; (0, 0) where all may."""


class Pressed(Protocol):
    """Candidates as their neighbours press on them: of one mode, or of several."""

    @property
    def growth_ms(self) -> Reals:
        """(C,)"""

    @property
    def overload_ms(self) -> Reals:
        """(C,)"""

    @property
    def room(self) -> Reals:
        """(C,)"""


class Promises(Protocol):
    """Candidates as the capacity law sees them: of one mode, or of several."""

    @property
    def batch(self) -> Reals:
        """(C,)"""

    @property
    def law(self) -> Numbers:
        """(C,) row of the capacity law."""

    @property
    def slo_ms(self) -> Reals:
        """(C,)"""

    @property
    def max_rps(self) -> Reals:
        """(C,)"""


@compiled
def execution_ms(
    mode: GpuMode, candidate: int, replicas: int, pressure: float
) -> float:
    """Time of one batch with that many replicas on the GPU, under the neighbours' pressure."""
    launch = mode.launch_ms[candidate] * mode.launch_factor[replicas]
    return mode.alone_ms[candidate] + launch + stretch_ms(mode, candidate, pressure)


@compiled
def stretch_ms(mode: Pressed, candidate: int, pressure: float) -> float:
    """By how much the neighbours' pressure lengthens a batch: more steeply once the GPU is full."""
    beyond = max(0.0, pressure - mode.room[candidate])
    return mode.growth_ms[candidate] * pressure + mode.overload_ms[candidate] * beyond


@compiled
def capacity_rps(mode: Promises, law: Law, candidate: int, duration_ms: float) -> float:
    """What counts of the rate that a candidate can carry when one batch takes so long; 0 where its SLO is missed."""
    # Without calls, since it is in every inner loop: only of such kernels are references to arrays not counted.
    ratios, ratio = law.ratios, mode.slo_ms[candidate] / duration_ms
    peak = 1000.0 * mode.batch[candidate] / duration_ms
    utilisation = law.utilisation[mode.law[candidate]]
    low, high = 0, ratios.shape[0] - 1
    # Below the first ratio the law promises nothing: the SLO is missed whatever the rate.
    if ratio < ratios[0]:
        return 0.0
    if ratio >= ratios[high]:
        return min(peak * utilisation[high], mode.max_rps[candidate])
    while high - low > 1:
        middle = (low + high) >> 1
        if ratios[middle] <= ratio:
            low = middle
        else:
            high = middle
    slope = (utilisation[high] - utilisation[low]) / (ratios[high] - ratios[low])
    carried = peak * (utilisation[low] + slope * (ratio - ratios[low]))
    return min(carried, mode.max_rps[candidate])


@compiled
def pattern_worth(
    mode: GpuMode, law: Law, worth: Worth, items: Numbers, count: int
) -> float:
    """What the first `count` items, together on one GPU, are worth.

    INVALID where one of them misses its SLO and its presence alone counts for nothing, and where two may not share a
    GPU. Shares, memory and watts are not looked at.
    """
    if mode.shares_label.shape[0] > 0 and breaks_anti_affinity(mode, items, count):
        return INVALID
    pressure, total = 0.0, 0.0
    for at in range(count):
        pressure += mode.pressure[items[at]]

    for at in range(count):
        item = items[at]
        # Alone there are no neighbours: rounding of the difference must not leave any pressure either.
        others = pressure - mode.pressure[item] if count > 1 else 0.0
        carried = capacity_rps(mode, law, item, execution_ms(mode, item, count, others))
        if carried <= 0.0 and not mode.may_idle[item]:
            return INVALID
        total += candidate_worth(mode, worth, item, carried)
    return total


@compiled
def breaks_anti_affinity(mode: Services, items: Numbers, count: int) -> bool:
    """Whether two of the first `count` items are of services that may not share a GPU."""
    for at in range(count):
        for other in range(at):
            if mode.shares_label[mode.service[items[at]], mode.service[items[other]]]:
                return True
    return False


@compiled
def candidate_worth(
    mode: GpuMode, worth: Worth, candidate: int, carried_rps: float
) -> float:
    """What a candidate that can carry so much is worth, its watts paid."""
    service = mode.service[candidate]
    earned = worth.rps[service] * min(carried_rps, worth.rate[service])
    # Cuts pay for capacity, so a replica that carries nothing earns none of it even on the lowest stair.
    if carried_rps > 0.0 and worth.edges.shape[0] > 0:
        level = _level(worth.edges, worth.rate[service], carried_rps)
        earned += worth.stairs[service, level]
    return earned + worth.bonus[candidate] - mode.watt_price * mode.power[candidate]


@compiled
def _level(edges: Reals, rate: float, carried_rps: float) -> int:
    """How many parts of the rate are exceeded."""
    low, high = 0, edges.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] * rate < carried_rps:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def root_capacities(mode: GpuMode, law: Law, edges: Reals) -> Reals:
    """(N + 1, K, C) rps at the optimistic end of every root cell, 0 where the SLO is missed even there."""
    candidates, intervals = mode.service.shape[0], edges.shape[1] - 1
    # Single precision halves what the table takes of the cache, and rounding up keeps the bounds valid.
    capacities = np.zeros((edges.shape[0], intervals, candidates), np.float32)
    for replicas in range(1, edges.shape[0]):
        # A replica alone has no neighbours whose pressure could be divided into intervals.
        for number in range(intervals if replicas > 1 else 1):
            for item in range(candidates):
                low = edges[replicas, number]
                others = max(0.0, low - mode.pressure[item]) if replicas > 1 else 0.0
                duration = execution_ms(mode, item, replicas, others)
                carried = capacity_rps(mode, law, item, duration)
                capacities[replicas, number, item] = np.float32(carried * OPTIMISM)
    return capacities


@compiled
def find_dominated(
    first: npt.NDArray[np.int64], needs: Reals, lowest: Reals, maximum: Reals
) -> npt.NDArray[np.bool_]:
    """(C,) whether another candidate of the service needs no more of anything and carries at its worst no less.

    first: (S + 1,) where each service begins; needs: (C, L), within a service ascending in the first of them;
    lowest, maximum: (C, M) what a candidate carries at the worse and at the better end of M intervals of neighbours.
    Of candidates that dominate each other the last one stays.
    """
    # Names decide the machine code here: with `worst` and `best` for these two, this took four times as long.
    dominated = np.zeros(needs.shape[0], np.bool_)
    for service in range(first.shape[0] - 1):
        begin, end = first[service], first[service + 1]
        _find_dominated_of(
            needs[begin:end],
            lowest[begin:end],
            maximum[begin:end],
            dominated[begin:end],
        )
    return dominated


@compiled
def _find_dominated_of(
    needs: Reals, lowest: Reals, maximum: Reals, dominated: npt.NDArray[np.bool_]
) -> None:
    """The same among the candidates of one service, into `dominated`."""
    for at in range(needs.shape[0]):
        for other in range(needs.shape[0]):
            # Candidates ascend in this need: no later one needs as little.
            if needs[other, 0] > needs[at, 0]:
                break
            # Of two that dominate each other one must stay; what dominates a dominated one dominates `at` as well.
            if (
                other != at
                and not dominated[other]
                and _dominates(needs, lowest, maximum, other, at)
            ):
                dominated[at] = True
                break


@compiled
def _dominates(
    needs: Reals, lowest: Reals, maximum: Reals, better: int, worse: int
) -> bool:
    for kind in range(1, needs.shape[1]):
        if needs[better, kind] > needs[worse, kind]:
            return False
    for interval in range(lowest.shape[1]):  # noqa: SIM110 (numba compiles no generator)
        if lowest[better, interval] < maximum[worse, interval]:
            return False
    return True
