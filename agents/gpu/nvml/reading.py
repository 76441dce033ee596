"""NVML's calls about one GPU and what they answer, in our units: leaves of `agents.gpu.nvml.session`, which tells
errors.

Every function takes a handle, raises NVML's own errors, and keeps nothing. Bytes become MiB, mW become W, mJ become J.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias, TypeVar

import pynvml

from agents.base.device import NotSupported
from agents.gpu.nvml.errors import UNKNOWN_CODES
from agents.gpu.nvml.lacks import PersistenceOff
from agents.gpu.nvml.parse import join_processes, newest_use, sms, upper_clocks_mhz
from agents.gpu.nvml.types import (
    Capability,
    GpuIdentity,
    GpuProcess,
    GpuSample,
    PowerRange,
    ProcessUse,
    XidEvent,
    event_reasons,
)
from agents.gpu.nvml.xids import RecoveryAction, recovery_of

BYTES_PER_MIB = 1024.0 * 1024.0

GPM_PAUSE_S = 0.12
"""Two samples of SM activity must lie more than 100 ms apart."""
_CRITICAL = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError

_RECOVERY = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older bindings do not name."""

Handle: TypeAlias = object
_Found = TypeVar("_Found")


def identity(index: int) -> GpuIdentity:
    """What never changes of the GPU at that place of the driver's list."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return GpuIdentity(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=or_none(lambda: memory_of(handle).total / BYTES_PER_MIB) or 0.0,
        sm_count=or_none(
            lambda: sms(
                pynvml.nvmlDeviceGetNumGpuCores(handle),
                pynvml.nvmlDeviceGetCudaComputeCapability(handle),
            )
        ),
    )


def sample(handle: Handle) -> GpuSample:
    """What the GPU does now."""
    memory = or_none(lambda: memory_of(handle))
    return GpuSample(
        memory_used_mib=None if memory is None else memory.used / BYTES_PER_MIB,
        # Version 1 of the structure has no such field.
        memory_reserved_mib=getattr(memory, "reserved", 0) / BYTES_PER_MIB,
        power_w=or_none(lambda: power_w(handle)),
        enforced_limit_w=or_none(
            lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000.0
        ),
        energy_j=or_none(
            lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000.0
        ),
        clock_mhz=or_none(
            lambda: float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        ),
        event_reasons=event_reasons(_event_mask(handle)),
        busy_percent=or_none(
            lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        ),
        recovery=recovery(handle),
    )


def recovery(handle: Handle) -> RecoveryAction | int | None:
    """What the driver asks for to clear a fault."""
    return or_none(lambda: _recovery(handle))


def _recovery(handle: Handle) -> RecoveryAction | int:
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY])
    # The call succeeds whatever became of the field, whose own code says it.
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    return recovery_of(int(field.value.uiVal))


def power_w(handle: Handle) -> float:
    """What it draws now; since Ampere the mean of the last second."""
    return float(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000.0)


def used_mib(handle: Handle) -> float:
    """Memory in use, of a GPU or of a slice."""
    return float(memory_of(handle).used / BYTES_PER_MIB)


def or_none(read: Callable[[], _Found]) -> _Found | None:
    """What is read, or None where this GPU or driver does not tell it."""
    try:
        return read()
    except pynvml.NVMLError as error:
        if error.value not in UNKNOWN_CODES:
            raise
        return None


def memory_of(handle: Handle) -> "pynvml.c_nvmlMemory_t":
    """Version 2 keeps the driver's own reserve out of `used`; old drivers, and some GPUs, only know version 1."""
    newer = or_none(
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    )
    return pynvml.nvmlDeviceGetMemoryInfo(handle) if newer is None else newer


def _event_mask(handle: Handle) -> int:
    """The mask, by its name before driver 535 where it has no other; 0 where there is none."""
    for read in (
        pynvml.nvmlDeviceGetCurrentClocksEventReasons,
        pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,
    ):
        mask = or_none(partial(read, handle))
        if mask is not None:
            return int(mask)
    return 0


def power_range(handle: Handle) -> PowerRange:
    """Which power limits it takes."""
    low_mw, high_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    default_mw = pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
    return PowerRange(
        low_w=low_mw / 1000.0, high_w=high_mw / 1000.0, default_w=default_mw / 1000.0
    )


def clocks_mhz(handle: Handle) -> tuple[float, ...]:
    """The SM clocks that it can be locked at, ascending."""
    if pynvml.nvmlDeviceGetArchitecture(handle) < pynvml.NVML_DEVICE_ARCH_VOLTA:
        raise NotSupported("clocks can be locked since Volta; this GPU is older")
    return or_none(lambda: _listed_mhz(handle)) or upper_clocks_mhz(
        float(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
    )


def _listed_mhz(handle: Handle) -> tuple[float, ...]:
    # Graphics clocks are listed by memory clock, and under load the memory runs at its highest.
    memory_mhz = max(pynvml.nvmlDeviceGetSupportedMemoryClocks(handle), default=0)
    found = pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)
    return tuple(sorted(map(float, found)))


def processes(handle: Handle) -> tuple[GpuProcess, ...]:
    """Who computes on it."""
    # Named with its version, as layouts differ; `join_processes` notices a driver that answers in another one.
    running = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    clients = or_none(lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle))
    return join_processes(
        {each.pid: each.usedGpuMemory for each in running},
        {each.pid: each.usedGpuMemory for each in clients or ()},
    )


def process_use(handle: Handle, since_us: int = 0) -> tuple[ProcessUse, ...]:
    """The use of each process that ran since `since_us`; 0: as far back as the driver's buffer reaches."""
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    # No process ran since then, which is an answer and no error.
    except pynvml.NVMLError_NotFound:
        return ()
    return newest_use((each.timeStamp, each.pid, each.smUtil) for each in samples)


def _check_gpm(handle: Handle) -> None:
    if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        raise NotSupported("there is GPM since Hopper; this GPU does not have it")


def sm_activity_percent(handle: Handle) -> float:
    """Mean share of busy SMs over GPM_PAUSE_S, which this takes."""
    _check_gpm(handle)
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    # The driver refuses a structure without its version, and reads only as many metrics as are announced.
    asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    asked.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    with _gpm_sample(handle) as asked.sample1:
        time.sleep(GPM_PAUSE_S)
        with _gpm_sample(handle) as asked.sample2:
            metric = pynvml.nvmlGpmMetricsGet(asked).metrics[0]
    if metric.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(metric.nvmlReturn)
    return float(metric.value)


@contextlib.contextmanager
def _gpm_sample(handle: Handle) -> Iterator[object]:
    sample = pynvml.nvmlGpmSampleAlloc()
    try:
        yield pynvml.nvmlGpmSampleGet(handle, sample)
    finally:
        # Samples lie in the driver's memory: none may stay behind, whatever fails.
        pynvml.nvmlGpmSampleFree(sample)


def _check_xids(handle: Handle) -> None:
    if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _CRITICAL:
        raise NotSupported("this GPU tells no critical errors")


def _check_persistence(handle: Handle) -> None:
    if not pynvml.nvmlDeviceGetPersistenceMode(handle):
        raise PersistenceOff


def register(events: object, gpus: tuple[GpuIdentity, ...]) -> None:
    """Let the set tell these GPUs' critical errors; raises the last GPU's error when none could be registered."""
    problems = []
    for gpu in gpus:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            mask = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _CRITICAL
            pynvml.nvmlDeviceRegisterEvents(handle, mask, events)
        # Whatever it is, of any one GPU; a driver that is gone fails for all of them.
        except pynvml.NVMLError as error:
            problems.append(error)
    # One GPU that cannot be watched must not hide the errors of the others.
    if problems and len(problems) == len(gpus):
        raise problems[-1]


def event_of(event: "pynvml.c_nvmlEventData_t") -> XidEvent:
    """A critical error in our words."""
    uuid = ""
    # A GPU that fell off the bus may not say its UUID any more; its error counts all the same.
    with contextlib.suppress(pynvml.NVMLError):
        uuid = str(pynvml.nvmlDeviceGetUUID(event.device))
    is_xid = event.eventType == pynvml.nvmlEventTypeXidCriticalError
    return XidEvent(gpu_uuid=uuid, xid=int(event.eventData) if is_xid else 0)


CHECKS: dict[Capability, Callable[[Handle], object]] = {
    Capability.COUNT_ENERGY: pynvml.nvmlDeviceGetTotalEnergyConsumption,
    Capability.PROCESS_USE: process_use,
    Capability.LIST_MPS: pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    Capability.SM_ACTIVITY: _check_gpm,
    Capability.XID_EVENTS: _check_xids,
    Capability.MIG_LAYOUT: pynvml.nvmlDeviceGetMigMode,
    Capability.KEEP_SETTINGS: _check_persistence,
}
"""Calls that fail where a GPU does not have something."""
