"""clipper_latency: every replica's batch by AIMD on the time that its batches take; the clock stays the plan's.

    over(i) = execution time of a batch of replica i > latency of its SLO

Source: Clipper (NSDI 2017, §4.3.1): the batch grows "until the latency to process a batch exceeds the latency
objective"; baseline Clipper-L of Morak's evaluation (§VI-A). Good for throughput where only latency counts. Its limits:
waiting is not counted, so a request may take nearly two batches' time; and it does not look at power.
"""

from dataclasses import replace

from solvers.governors.aimd import next_batch
from solvers.governors.types import GovernorKnobs, GovernorLimits, GpuPeriod


def step(
    knobs: GovernorKnobs, reading: GpuPeriod, limits: GovernorLimits
) -> GovernorKnobs:
    """One step of AIMD for every replica that executed anything; the others are left as they are."""
    latency_ms = {each.id: each.latency_ms for each in limits.replicas}
    changed = {
        each.id: next_batch(
            knobs.batches[each.id], is_over=each.execution_ms > latency_ms[each.id]
        )
        for each in reading.replicas
        if each.batches
    }
    return replace(knobs, batches={**knobs.batches, **changed})
