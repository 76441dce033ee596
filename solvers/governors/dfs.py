"""dfs: the clock alone holds the power cap; batches are the largest that the plan allows.

    P > cap: clock down;   P < α · cap: clock up;   between: stay          (steps: see `ladder`)

Source: baseline DFS of Morak's evaluation (§VI-A): frequency under a power cap, at a fixed, usually large batch,
without a look at latency. Good where batches hardly move the power. Its limits: the clock's range is narrow and, at the
highest clock, nothing is left to turn.
"""

from solvers.governors.ladder import climb_after, stride_to
from solvers.governors.types import (
    GovernorKnobs,
    GovernorLimits,
    GpuPeriod,
    clock_position,
)


def step(
    knobs: GovernorKnobs, reading: GpuPeriod, limits: GovernorLimits
) -> GovernorKnobs:
    """One step of the clock towards the cap; a GPU that executed nothing keeps it unless it is over the cap."""
    rung = clock_position(knobs.clock_mhz, limits.clocks_mhz)
    climb = climb_after(reading, knobs.memory, rung=rung, cap_w=limits.power_cap_w)
    # A GPU without work draws little at any clock: a climb then would break the cap with the next batch.
    if climb.is_over or reading.has_work:
        rung = stride_to(climb, lowest=0, top=len(limits.clocks_mhz) - 1)
    return GovernorKnobs(
        clock_mhz=limits.clocks_mhz[rung],
        batches={each.id: each.largest_batch for each in limits.replicas},
        memory=climb.memory,
    )
