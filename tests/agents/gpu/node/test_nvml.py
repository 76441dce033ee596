"""Telemetry of a node that only watches its GPUs."""

import pytest

from agents.base.clock import ManualClock
from agents.base.device import DeviceError, GpuLost, NotSupported
from agents.gpu.node.readonly_device import ReadOnlyDevice
from agents.gpu.nvml.types import GpuIdentity, GpuSample
from tests.agents.factories import a_replica, run


class PaperNvml:
    """One GPU whose counter and state the test moves."""

    def __init__(self) -> None:
        self.energy_j: float | None = 1000.0
        self.error: DeviceError | None = None
        self.is_closed = False

    def gpus(self) -> tuple[GpuIdentity, ...]:
        return (
            GpuIdentity(
                index=0, uuid="GPU-0", name="Tesla V100-SXM2-32GB", memory_mib=32768.0
            ),
        )

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        if self.error is not None:
            raise self.error
        return GpuSample(
            memory_used_mib=1.0,
            power_w=50.0,
            energy_j=self.energy_j,
            clock_mhz=1380.0,
            busy_percent=5.0,
        )

    def close(self) -> None:
        self.is_closed = True


class Watched:
    def __init__(self) -> None:
        self.nvml, self.clock = PaperNvml(), ManualClock()
        self.device = ReadOnlyDevice(
            self.nvml, self.clock, type_of=lambda _: "V100-32GB"
        )

    def energy_j(self, after_s: float) -> float:
        self.clock.advance(after_s)
        return run(self.device.read()).gpus[0].energy_j


def test_energy_is_the_counters_growth_and_survives_a_reload_of_the_driver() -> None:
    watched = Watched()
    assert watched.energy_j(10.0) == 500.0  # nothing to subtract yet: 50 W · 10 s
    watched.nvml.energy_j = 1700.0
    assert watched.energy_j(10.0) == 700.0
    watched.nvml.energy_j = 3.0
    assert watched.energy_j(10.0) == 500.0
    watched.nvml.energy_j = None
    assert watched.energy_j(2.0) == 100.0


def test_a_lost_gpu_is_unhealthy_and_comes_back() -> None:
    watched = Watched()
    watched.nvml.error = GpuLost("it fell off the bus")
    readings = run(watched.device.read())
    assert not readings.gpus[0].healthy
    assert "it fell off the bus" in readings.problems
    assert not run(watched.device.state()).gpus[0].healthy
    watched.nvml.error = None
    assert run(watched.device.read()).gpus[0].healthy


def test_commands_are_answered_with_not_supported() -> None:
    device = Watched().device
    for refused in (
        device.poll(0),
        device.start_replica(0, a_replica()),
        device.switch_routes(()),
        device.drain("r1"),
        device.stop_replica("r1"),
        device.set_batch("r1", 2),
        device.lock_clock_mhz(0, 1000.0),
        device.limit_power_w(0, None),
    ):
        with pytest.raises(NotSupported, match="only watches"):
            run(refused)
