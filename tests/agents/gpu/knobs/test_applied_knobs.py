"""Knobs of GPUs as they were turned, and those that a GPU does not have."""

from agents.gpu.knobs.applied_knobs import TurnedKnobs
from agents.gpu.nvml.types import Capability, GpuCapabilities, GpuIdentity
from tests.agents.gpu_nodes import GPUS


class IdleKnobs:
    """Nobody turns them here."""

    def lock_clock_mhz(
        self, gpu: GpuIdentity, *, low_mhz: float, high_mhz: float
    ) -> None:
        raise AssertionError("no clock is locked here")

    def unlock_clock(self, gpu: GpuIdentity) -> None:
        raise AssertionError("no clock is unlocked here")

    def limit_power_w(self, gpu: GpuIdentity, limit_w: float | None) -> None:
        raise AssertionError("no power is limited here")

    def close(self) -> None:
        pass


def test_what_a_gpu_lacks_that_starts_late_is_told() -> None:
    # As while its start is tried again: nothing is known of it.
    capabilities = {gpu.index: GpuCapabilities() for gpu in GPUS}
    turned = TurnedKnobs(IdleKnobs(), GPUS, capabilities)
    assert not turned.of(0).refused
    capabilities[0] = GpuCapabilities(
        why_not=((Capability.LOCK_CLOCK, "it has no clocks"),)
    )
    assert turned.of(0).refused.keys() == {"clock"}
    assert turned.problems == ("GPU 0: the clock is not in force: it has no clocks",)
    assert not turned.of(1).refused
