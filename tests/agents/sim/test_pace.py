"""What a pace maker remembers of its world, and when it looks again."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from agents.base.device import Part
from agents.sim.pace import GpuUnderLoad, PaceMaker, SimulatedPart
from agents.sim.queues.tally import Floats
from agents.sim.truth.running import RunningPart

MOST = 20_000
"""Places of which times and watts are remembered."""


@dataclass(slots=True)
class CountingWorld:
    """10 ms and 100 W for everybody; counts who asks at which clock."""

    times: Counter[float] = field(default_factory=Counter)
    watts: Counter[float] = field(default_factory=Counter)

    def max_batch(self, network: str) -> int:
        return 1

    def noise_cv(self, network: str) -> float:
        return 0.0

    def batch_ms(self, placed: RunningPart) -> Floats:
        self.times[placed.clock_mhz] += 1
        return np.full(2, 10.0)

    def stall_ms(self, placed: RunningPart) -> float:
        """No batch stalls."""
        return 0.0

    def busy_w(self, placed: RunningPart, batch: int) -> float:
        self.watts[placed.clock_mhz] += 1
        return 100.0

    def idle_w(self, gpu_type: str) -> float:
        return 50.0


def look(maker: PaceMaker, clock_mhz: float, *, is_task: bool) -> None:
    board = GpuUnderLoad(
        gpu_type="T4", clock_mhz=clock_mhz, lowest_mhz=300.0, power_limit_w=200.0
    )
    tenants: dict[Part, SimulatedPart] = {
        ("task", "a"): SimulatedPart(
            network="resnet50", sm_percent=50.0, batch=1, is_task=is_task
        ),
    }
    assert maker.clock_mhz(board, tuple(tenants.values())) == clock_mhz
    paces = (
        maker.task_paces(board, tenants, clock_mhz)
        if is_task
        else maker.paces(board, tenants, clock_mhz)
    )
    assert list(paces) == list(tenants)


@pytest.mark.parametrize("is_task", [False, True])
def test_only_so_much_that_was_looked_up_is_remembered(is_task: bool) -> None:
    world = CountingWorld()
    maker = PaceMaker(world)
    for clock_mhz in (
        1000.0,
        1000.0,
        *(2000.0 + step for step in range(MOST - 1)),
        1000.0,
    ):
        look(maker, clock_mhz, is_task=is_task)
    assert world.times[1000.0] == 1
    once = world.watts[1000.0]  # a replica's: at its own batch, and at every batch
    look(maker, 1001.0, is_task=is_task)
    look(maker, 1000.0, is_task=is_task)
    assert (world.times[1000.0], world.watts[1000.0]) == (2, 2 * once)
    assert set(world.times.values()) == {1, 2}
