"""A tiny GPU on paper: power = idle + k f^2.5 Σ b, time of a batch = a + c b / f; every replica always has work."""

from dataclasses import dataclass

from solvers.governors.registry import govern
from solvers.governors.types import (
    GovernorKnobs,
    GovernorLimits,
    GpuPeriod,
    ReplicaLimits,
    ReplicaPeriod,
)

CLOCKS_MHZ = tuple(600.0 + 15.0 * step for step in range(63))
"""600 to 1530 MHz."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    idle_w: float = 50.0
    watts_per_item: float = 5.0
    """At 1000 MHz."""
    base_ms: float = 5.0
    ms_per_item: float = 2.0
    """At 1000 MHz."""

    def power_w(self, knobs: GovernorKnobs) -> float:
        busy_w = self.watts_per_item * sum(knobs.batches.values())
        return self.idle_w + busy_w * float((knobs.clock_mhz / 1000.0) ** 2.5)

    def execution_ms(self, knobs: GovernorKnobs, replica: str) -> float:
        return (
            self.base_ms
            + self.ms_per_item * knobs.batches[replica] * 1000.0 / knobs.clock_mhz
        )

    def read(self, knobs: GovernorKnobs) -> GpuPeriod:
        return GpuPeriod(
            peak_power_w=self.power_w(knobs),
            replicas=tuple(
                a_period(each, self.execution_ms(knobs, each)) for each in knobs.batches
            ),
        )


def a_period(
    replica: str = "r1", execution_ms: float = 10.0, *, batches: int = 20
) -> ReplicaPeriod:
    return ReplicaPeriod(
        id=replica,
        batches=batches,
        requests=4 * batches,
        queued=0,
        execution_ms=execution_ms if batches else 0.0,
        latency_ms=2.0 * execution_ms if batches else 0.0,
    )


def limits(
    cap_w: float = 150.0, *, latency_ms: float = 100.0, **largest: int
) -> GovernorLimits:
    """Limits of replicas with these largest batches; one of 32 where none is named."""
    return GovernorLimits(
        power_cap_w=cap_w,
        clocks_mhz=CLOCKS_MHZ,
        replicas=tuple(
            ReplicaLimits(id=each, latency_ms=latency_ms, largest_batch=batch)
            for each, batch in (largest or {"r1": 32}).items()
        ),
    )


def course(
    name: str, plant: Plant, knobs: GovernorKnobs, within: GovernorLimits, *, steps: int
) -> list[GovernorKnobs]:
    """The knobs at the start and after every step."""
    passed = [knobs]
    for _ in range(steps):
        passed.append(govern(name, passed[-1], plant.read(passed[-1]), within))
    return passed
