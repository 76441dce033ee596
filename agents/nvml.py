"""NVIDIA's management library, read only: which GPUs there are and what they do now. The only importer of pynvml.

NVML's errors are translated here, once, to those of `agents.device`. Handles are looked up by UUID for each call, so
that a driver that came back needs no special path. Units are converted at this rim: bytes → MiB, mW → W, mJ → J.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import pynvml

from agents.device import DeviceError, GpuLost, NoDriver, NotPermitted, NotSupported, OutOfRange, UnknownPart

_BYTES_PER_MIB = 1024.0 * 1024.0

_TRANSLATIONS: dict[int, tuple[type[DeviceError], str]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: (NoDriver, "NVML was shut down; start it again"),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (OutOfRange, "the driver does not take this value"),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (NotSupported, "this GPU does not have it"),
    pynvml.NVML_ERROR_NO_PERMISSION: (NotPermitted, "it needs CAP_SYS_ADMIN"),
    pynvml.NVML_ERROR_NOT_FOUND: (UnknownPart, "there is no such GPU"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (NoDriver, "the NVIDIA kernel driver is not loaded"),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (NoDriver, "libnvidia-ml.so.1 is not installed; it comes with the driver"),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (NotSupported, "the installed driver is too old for it"),
    pynvml.NVML_ERROR_GPU_IS_LOST: (GpuLost, "the GPU fell off the bus; reset it or restart the machine"),
    pynvml.NVML_ERROR_RESET_REQUIRED: (GpuLost, "the GPU needs a reset"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (NoDriver, "the driver is being upgraded; restart when it is done"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """What never changes of one GPU."""

    index: int
    uuid: str
    name: str
    """As the driver says, e.g. `Tesla V100-SXM2-32GB`."""
    memory_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """What one GPU does at this moment."""

    memory_used_mib: float
    power_w: float
    energy_j: float | None
    """Since the driver was loaded; None on GPUs older than Volta."""
    clock_mhz: float
    busy_percent: float
    """Share of the last second in which any kernel ran; 0 where the driver does not say (MIG)."""


class Nvml:
    """An open NVML; use it as a context manager."""

    def __init__(self) -> None:
        """Raises NoDriver when there is no working driver."""
        with _translated("start NVML"):
            pynvml.nvmlInit()

    def __enter__(self) -> "Nvml":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Shut NVML down; the GPUs stay as they are."""
        with _translated("shut NVML down"):
            pynvml.nvmlShutdown()

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU of this machine, by index."""
        with _translated("list the GPUs"):
            return tuple(_identity(index) for index in range(pynvml.nvmlDeviceGetCount()))

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        """What the GPU does now; GpuLost when it no longer answers."""
        with _translated(f"read GPU {gpu.index} ({gpu.uuid})"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            return GpuSample(
                memory_used_mib=_memory(handle).used / _BYTES_PER_MIB,
                power_w=pynvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
                energy_j=_energy_j(handle),
                clock_mhz=float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
                busy_percent=_busy_percent(handle),
            )


def _identity(index: int) -> GpuIdentity:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return GpuIdentity(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=_memory(handle).total / _BYTES_PER_MIB,
    )


def _memory(handle: object) -> "pynvml.c_nvmlMemory_t":
    """Version 2 keeps the driver's own reserve out of `used`; old drivers only know version 1."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError_FunctionNotFound:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _energy_j(handle: object) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000.0)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None


def _busy_percent(handle: object) -> float:
    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError_NotSupported:
        return 0.0


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    """NVML's errors as those of `agents.device`, keeping the cause."""
    try:
        yield
    except pynvml.NVMLError as error:
        kind, words = _TRANSLATIONS.get(error.value, (DeviceError, str(error)))
        raise kind(f"could not {doing}: {words}") from error
