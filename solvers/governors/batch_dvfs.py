"""batch_dvfs: batches by bisection, then the clock, hold the power cap.

One ladder of settings: at the lowest clock the batches from 1 to the largest, then, at the largest, the clocks upwards.

    rung r <= L:  clock = lowest,      batch of replica i = 1 + round((B_i - 1) · r / L),   L = max B_i - 1
    rung r >  L:  clock = grid[r - L], batch of replica i = B_i

with B_i the largest batch of replica i. Among the batches the next rung is half way between the last that kept the cap
and the last that broke it; among the clocks it is some steps on (see `ladder`).

Source: Nabavinejad, Reda, Ebrahimi, "Coordinated Batching and DVFS for DNN Inference on GPU Accelerators", TPDS 33(10),
2022: batch size by binary search, combined with DVFS for a wider range of power; after its abstract and Morak's §VI-A,
where it is the strongest baseline. Several replicas of a GPU (the paper has one) move together. Good for throughput
under a cap; it does not look at latency.
"""

from solvers.governors.ladder import Climb, climb_after, stride_to
from solvers.governors.types import (
    GovernorKnobs,
    GovernorLimits,
    GpuPeriod,
    clock_position,
)


def step(
    knobs: GovernorKnobs, reading: GpuPeriod, limits: GovernorLimits
) -> GovernorKnobs:
    """One step on the ladder; a GPU that executed nothing stays unless it is over the cap."""
    levels = max((each.largest_batch for each in limits.replicas), default=1) - 1
    rung = _rung(knobs, limits, levels)
    climb = climb_after(reading, knobs.memory, rung=rung, cap_w=limits.power_cap_w)
    # The low power of a GPU without work says nothing of what a larger batch would draw.
    if climb.is_over or reading.has_work:
        rung = _next_rung(climb, levels, len(limits.clocks_mhz))
    return GovernorKnobs(
        clock_mhz=limits.clocks_mhz[max(0, rung - levels)],
        batches=_batches(min(rung, levels), limits, levels),
        memory=climb.memory,
    )


def _next_rung(climb: Climb, levels: int, clocks: int) -> int:
    top = levels + clocks - 1
    # At the largest batches the clock goes on upwards; above the cap there, bisection of the batches resumes.
    if climb.rung > levels or (climb.rung == levels and not climb.is_over):
        return stride_to(climb, lowest=levels, top=top)
    if climb.is_over:
        return max(0, (max(0, climb.base) + climb.rung) // 2)
    if climb.has_room:
        # Rounded up, for half of one rung is none and the last one would never be tried.
        return max(climb.rung, (climb.rung + climb.highest(levels) + 1) // 2)
    return climb.rung


def _rung(knobs: GovernorKnobs, limits: GovernorLimits, levels: int) -> int:
    """The rung of these knobs: the batch of the replica with the most to turn says it, or else the clock."""
    clock = clock_position(knobs.clock_mhz, limits.clocks_mhz)
    if clock > 0 or levels == 0:
        return levels + clock
    # Only that replica has a batch of its own on every rung; the others' are rounded.
    return max(
        knobs.batches[each.id] - 1
        for each in limits.replicas
        if each.largest_batch == levels + 1
    )


def _batches(level: int, limits: GovernorLimits, levels: int) -> dict[str, int]:
    return {
        each.id: 1 + round((each.largest_batch - 1) * level / levels) if levels else 1
        for each in limits.replicas
    }
