"""The registry of governors: feedback steps that run on a node, per GPU and once a second, within a plan's limits.

A governor is a pure function from the knobs in force and what was measured under them to the next knobs; all that it
remembers goes out in `GovernorKnobs.memory` and comes back at the next step. To add one, write
`solvers/governors/<name>.py` with a `step` function and enter it in `GOVERNORS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from solvers.governors import (
    batch_dvfs,
    clipper_latency,
    clipper_power,
    dfs,
    power_latency,
)
from solvers.governors.types import GovernorKnobs, GovernorLimits, GpuPeriod, within


class GovernorStep(Protocol):
    """What a governor's module offers."""

    def __call__(
        self, knobs: GovernorKnobs, reading: GpuPeriod, limits: GovernorLimits
    ) -> GovernorKnobs:
        """The knobs for the next period. `knobs` lie within the limits; the same arguments give the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Governor:
    """One governor and what it answers for."""

    step: GovernorStep
    holds_power: bool
    """Whether it keeps the power cap; where it does not, the board has to."""
    start: Callable[[GovernorLimits], GovernorKnobs] | None = None
    """Where it begins, and where not again when only limits change; None = with what the plan says, every time."""
    asks_for_partition: Callable[[Mapping[str, float]], bool] = lambda _: False
    """Whether notes of it say that only other SM percents can help."""


GOVERNORS = {
    "batch_dvfs": Governor(step=batch_dvfs.step, holds_power=True),
    "clipper_latency": Governor(step=clipper_latency.step, holds_power=False),
    "clipper_power": Governor(step=clipper_power.step, holds_power=True),
    "dfs": Governor(step=dfs.step, holds_power=True),
    "power_latency": Governor(
        step=power_latency.step,
        holds_power=True,
        start=power_latency.start,
        asks_for_partition=power_latency.asks_for_partition,
    ),
}
"""By name, as policies and commands call them."""


def govern(
    name: str, knobs: GovernorKnobs, reading: GpuPeriod, limits: GovernorLimits
) -> GovernorKnobs:
    """One step of the governor of that name, held within the limits whatever it answers.

    Raises KeyError for a name that is not in `GOVERNORS`.
    """
    # Before as well as after: knobs from an older plan may lie outside its successor's limits.
    return within(GOVERNORS[name].step(within(knobs, limits), reading, limits), limits)
