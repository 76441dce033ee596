"""clipper_power: the batches of a GPU by AIMD on its peak power; the clock stays the plan's.

    over = peak power of the period > power cap, for all replicas of the GPU alike

Source: baseline Clipper-P of Morak's evaluation (§VI-A): Clipper's AIMD (NSDI 2017, §4.3.1) with the power cap as its
limit. Good where batches move the power much. Its limits: at batch 1 it has nothing left to turn, it breaks the cap
once per tooth of its saw, and it does not look at latency.
"""

from dataclasses import replace

from solvers.governors.aimd import next_batch
from solvers.governors.types import GovernorKnobs, GovernorLimits, GpuPeriod


def step(
    knobs: GovernorKnobs, reading: GpuPeriod, limits: GovernorLimits
) -> GovernorKnobs:
    """One step of AIMD: above the cap every replica backs off, below it those that executed anything grow."""
    is_over = reading.peak_power_w > limits.power_cap_w
    # It is unknown which replica drew the power; growth without work would be blind.
    turned = (
        knobs.batches
        if is_over
        else [each.id for each in reading.replicas if each.batches]
    )
    changed = {
        each: next_batch(knobs.batches[each], is_over=is_over) for each in turned
    }
    return replace(knobs, batches={**knobs.batches, **changed})
