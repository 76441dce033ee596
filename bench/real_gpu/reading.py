"""NVML without its writers: what the measuring scripts may ask of a GPU that is not theirs."""

from contextlib import AbstractContextManager

from agents.base.device import NotSupported
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import (
    Capability,
    GpuIdentity,
    GpuProcess,
    GpuSample,
    NextXid,
    ProcessUse,
)
from agents.gpu.nvml.xids import RecoveryAction


class ReadNvml:
    """Passes on the calls that read; it has none that writes."""

    def __init__(self, nvml: Nvml, *, why_no_processes: str = "") -> None:
        """`why_no_processes`: the driver's list of processes means nothing here, so it is not asked for."""
        self._nvml, self._why_no_processes = nvml, why_no_processes

    def without_processes(self, why: str) -> "ReadNvml":
        """The same, whose list of processes raises NotSupported."""
        return ReadNvml(self._nvml, why_no_processes=why)

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU."""
        return self._nvml.gpus()

    def driver_version(self) -> str:
        """Of the driver that is loaded."""
        return self._nvml.driver_version()

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        """What a GPU does now."""
        return self._nvml.sample(gpu)

    def power_w(self, gpu: GpuIdentity) -> float:
        """What a GPU draws now."""
        return self._nvml.power_w(gpu)

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        """Who computes on it. Raises NotSupported."""
        if self._why_no_processes:
            raise NotSupported(self._why_no_processes)
        return self._nvml.processes(gpu)

    def process_use(
        self, gpu: GpuIdentity, since_us: int = 0
    ) -> tuple[ProcessUse, ...]:
        """How busy each process kept it since then. Raises NotSupported."""
        if self._why_no_processes:
            raise NotSupported(self._why_no_processes)
        return self._nvml.process_use(gpu, since_us)

    def recovery(self, gpu: GpuIdentity) -> RecoveryAction | int | None:
        """What the driver asks for to clear a fault of the GPU; None where it does not tell."""
        return self._nvml.recovery(gpu)

    def check(self, gpu: GpuIdentity, capability: Capability) -> None:
        """Return when the GPU can be read in this way; raises DeviceError with why not."""
        self._nvml.check(gpu, capability)

    def watched_xids(
        self, gpus: tuple[GpuIdentity, ...]
    ) -> AbstractContextManager[NextXid]:
        """A way to wait for critical errors."""
        return self._nvml.watched_xids(gpus)

    def close(self) -> None:
        """Nothing: who opened NVML closes it."""
