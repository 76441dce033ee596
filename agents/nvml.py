"""NVIDIA's management library: which GPUs there are, what they do, and their two knobs. The only importer of pynvml.

Writes come from `agents.knobs` alone, which keeps a journal of them: a locked clock cannot be read back.

NVML's errors are translated here, once, to those of `agents.device` (`agents.nvml_errors` has the table). Handles are
looked up by UUID for each call; where the driver went away underneath, NVML is started again and the call made once
more. Safe from several threads. Units are converted at this rim: bytes → MiB, mW → W, mJ → J.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

import pynvml

from agents.device import NoDriver, NotPermitted, NotSupported, OutOfRange
from agents.driver_session import DriverSession
from agents.nvml_errors import translate
from agents.nvml_nouns import (
    Capability,
    GpuIdentity,
    GpuProcess,
    GpuSample,
    MigSlice,
    NextXid,
    PowerRange,
    ProcessUse,
    XidEvent,
    event_reasons,
)
from agents.nvml_parse import join_processes, newest_use, sms, upper_clocks_mhz, whole

_BYTES_PER_MIB = 1024.0 * 1024.0

GPM_PAUSE_S = 0.12
"""Two samples of SM activity must lie more than 100 ms apart."""
_CRITICAL = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError

_ABSENT = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)

_Found = TypeVar("_Found")
_Handle: TypeAlias = object


class Nvml(contextlib.AbstractContextManager["Nvml"]):
    """An open NVML; use it as a context manager."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Raises NoDriver when there is no working driver."""
        self._writing = threading.Lock()
        self._refused: dict[tuple[str, Capability], str] = {}
        self._session = DriverSession(_start, _stop, now_s=now_s)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut NVML down; the GPUs stay as they are."""
        self._session.close()

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU of this machine that answers, by index; one that is lost keeps no other from being used."""
        return self._ask("list the GPUs", lambda: tuple(_identities()))

    def driver_version(self) -> str:
        """E.g. `580.65.06`."""
        return self._ask("read the driver's version", lambda: str(pynvml.nvmlSystemGetDriverVersion()))

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        """What the GPU does now; GpuLost when it no longer answers."""
        return self._on(gpu, "read", _sample)

    def check(self, gpu: GpuIdentity, capability: Capability) -> None:
        """Return when the GPU has this capability, which is none of the two knobs; raises DeviceError with why not."""
        self._on(gpu, f"{capability} of", _CHECKS[capability])

    def refusals(self, gpu: GpuIdentity) -> tuple[tuple[Capability, str], ...]:
        """The knobs that the driver refused to turn when that was last tried, with the reason."""
        return tuple((knob, why) for (uuid, knob), why in sorted(self._refused.items()) if uuid == gpu.uuid)

    def power_limit_w(self, gpu: GpuIdentity) -> float:
        """The power limit that is set now, by whomever."""
        read = pynvml.nvmlDeviceGetPowerManagementLimit
        return self._on(gpu, "read the power limit of", lambda handle: float(read(handle) / 1000.0))

    def power_range(self, gpu: GpuIdentity) -> PowerRange:
        """Which power limits the GPU takes."""
        return self._on(gpu, "read the power range of", _power_range)

    def clocks_mhz(self, gpu: GpuIdentity) -> tuple[float, ...]:
        """The SM clocks that the GPU can be locked at, ascending. Raises NotSupported on GPUs older than Volta."""
        return self._on(gpu, "list the clocks of", _clocks_mhz)

    def limit_power_w(self, gpu: GpuIdentity, limit_w: float | None) -> None:
        """Limit the board's power; None sets the board's default.

        Raises OutOfRange (with the range), NotSupported, NotPermitted or GpuLost.
        """
        takes = self.power_range(gpu)
        asked_w = takes.default_w if limit_w is None else limit_w

        def write(handle: _Handle) -> None:
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, whole(asked_w * 1000.0))

        try:
            self._write(gpu, Capability.LIMIT_POWER, f"limit power to {asked_w:g} W on", write)
        except OutOfRange as error:
            raise OutOfRange(f"{error}: give {takes.low_w:g} to {takes.high_w:g} W") from error

    def lock_clock_mhz(self, gpu: GpuIdentity, *, low_mhz: float, high_mhz: float) -> None:
        """Keep the SM clock in this range; the driver rounds down to its steps. Equal ends lock it at one value.

        Raises OutOfRange (with the range), NotSupported, NotPermitted or GpuLost.
        """

        def write(handle: _Handle) -> None:
            pynvml.nvmlDeviceSetGpuLockedClocks(handle, whole(low_mhz), whole(high_mhz))

        try:
            self._write(gpu, Capability.LOCK_CLOCK, f"lock the clock at {low_mhz:g} to {high_mhz:g} MHz on", write)
        except OutOfRange as error:
            clocks = self.clocks_mhz(gpu)
            raise OutOfRange(f"{error}: give {clocks[0]:g} to {clocks[-1]:g} MHz, the lower end first") from error

    def unlock_clock(self, gpu: GpuIdentity) -> None:
        """Let the SM clock go as the GPU likes, whoever locked it. Raises NotSupported, NotPermitted or GpuLost."""
        self._write(gpu, Capability.LOCK_CLOCK, "unlock the clock of", pynvml.nvmlDeviceResetGpuLockedClocks)

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        """Who computes on the GPU, by PID. Raises NotSupported where the driver's list cannot be read."""
        return self._on(gpu, "list the processes of", _processes)

    def process_use(self, gpu: GpuIdentity) -> tuple[ProcessUse, ...]:
        """The last sample of each process, by PID; empty when none ran. Raises NotSupported (old GPU, MIG)."""
        return self._on(gpu, "measure the processes of", _process_use)

    def sm_activity_percent(self, gpu: GpuIdentity) -> float:
        """Mean share of SMs that are busy in the next 0.12 s, which this takes. Raises NotSupported before Hopper."""
        return self._on(gpu, "measure the SMs of", _sm_activity_percent)

    def mig_slices(self, gpu: GpuIdentity) -> tuple[MigSlice, ...]:
        """The MIG devices of the GPU; empty while MIG is off. Raises NotSupported where there is no MIG."""
        return self._on(gpu, "read the MIG layout of", _mig_slices)

    @contextlib.contextmanager
    def watched_xids(self, gpus: tuple[GpuIdentity, ...]) -> Iterator[NextXid]:
        """A way to wait for these GPUs' critical errors, for a thread of its own.

        GPUs that are lost are left out. Raises NotSupported when no GPU tells its errors, GpuLost when no other does.
        Waiting raises NoDriver once NVML was started again: begin anew then.
        """
        starts = self._session.starts
        with _translated("watch for critical errors"):
            events = pynvml.nvmlEventSetCreate()
        try:
            with _translated("watch for critical errors"):
                _register(events, gpus)
            yield lambda wait_ms: self._next_xid(events, starts, wait_ms)
        finally:
            # A set of an earlier start has gone with it.
            with contextlib.suppress(NoDriver, pynvml.NVMLError), self._session.waiting(starts):
                pynvml.nvmlEventSetFree(events)

    def _next_xid(self, events: object, starts: int, wait_ms: int) -> XidEvent | None:
        with self._session.waiting(starts), _translated("wait for critical errors"):
            try:
                return _event(pynvml.nvmlEventSetWait(events, wait_ms))
            except pynvml.NVMLError_Timeout:
                return None

    def _write(self, gpu: GpuIdentity, knob: Capability, doing: str, act: Callable[[_Handle], _Found]) -> _Found:
        """`act`, one write at a time; a refusal counts against the capability until a write succeeds."""
        with self._writing:
            try:
                done = self._on(gpu, doing, act)
            except (NotSupported, NotPermitted) as error:
                self._refused[gpu.uuid, knob] = str(error)
                raise
            self._refused.pop((gpu.uuid, knob), None)
            return done

    def _on(self, gpu: GpuIdentity, doing: str, act: Callable[[_Handle], _Found]) -> _Found:
        """What `act` makes of the GPU's handle, with NVML's errors translated."""
        return self._ask(
            f"{doing} GPU {gpu.index} ({gpu.uuid})", lambda: act(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
        )

    def _ask(self, doing: str, act: Callable[[], _Found]) -> _Found:
        """What `act` returns, with NVML's errors translated."""

        def translated() -> _Found:
            with _translated(doing):
                return act()

        return self._session.ask(translated)


def _start() -> None:
    with _translated("start NVML"):
        pynvml.nvmlInit()


def _stop() -> None:
    # After a start that failed there is nothing to stop.
    with _translated("shut NVML down"), contextlib.suppress(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlShutdown()


def _identities() -> Iterator[GpuIdentity]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired):
            yield _identity(index)


def _identity(index: int) -> GpuIdentity:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return GpuIdentity(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=_memory(handle).total / _BYTES_PER_MIB,
        sm_count=_or_none(
            lambda: sms(pynvml.nvmlDeviceGetNumGpuCores(handle), pynvml.nvmlDeviceGetCudaComputeCapability(handle))
        ),
    )


def _sample(handle: _Handle) -> GpuSample:
    memory = _memory(handle)
    return GpuSample(
        memory_used_mib=memory.used / _BYTES_PER_MIB,
        memory_reserved_mib=getattr(memory, "reserved", 0) / _BYTES_PER_MIB,
        power_w=pynvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
        enforced_limit_w=_or_none(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000.0),
        energy_j=_or_none(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000.0),
        clock_mhz=float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        event_reasons=event_reasons(_event_reasons(handle)),
        busy_percent=_or_none(lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)) or 0.0,
    )


def _or_none(read: Callable[[], _Found]) -> _Found | None:
    """What is read, or None where this GPU or driver does not have it."""
    try:
        return read()
    except _ABSENT:
        return None


def _memory(handle: _Handle) -> "pynvml.c_nvmlMemory_t":
    """Version 2 keeps the driver's own reserve out of `used`; old drivers only know version 1."""
    with contextlib.suppress(pynvml.NVMLError_FunctionNotFound):
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _event_reasons(handle: _Handle) -> int:
    """The mask, by its name before driver 535 where it has no other; 0 where there is none."""
    for read in (pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons):
        with contextlib.suppress(*_ABSENT):
            return int(read(handle))
    return 0


def _power_range(handle: _Handle) -> PowerRange:
    low_mw, high_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    default_mw = pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
    return PowerRange(low_w=low_mw / 1000.0, high_w=high_mw / 1000.0, default_w=default_mw / 1000.0)


def _clocks_mhz(handle: _Handle) -> tuple[float, ...]:
    if pynvml.nvmlDeviceGetArchitecture(handle) < pynvml.NVML_DEVICE_ARCH_VOLTA:
        raise NotSupported("clocks can be locked since Volta; this GPU is older")
    try:
        memory_mhz = max(pynvml.nvmlDeviceGetSupportedMemoryClocks(handle))
        return tuple(sorted(float(mhz) for mhz in pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)))
    except _ABSENT:
        return upper_clocks_mhz(float(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)))


def _processes(handle: _Handle) -> tuple[GpuProcess, ...]:
    running = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    clients = []
    with contextlib.suppress(*_ABSENT):
        clients = pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle)
    return join_processes(
        {each.pid: each.usedGpuMemory for each in running}, {each.pid: each.usedGpuMemory for each in clients}
    )


def _process_use(handle: _Handle) -> tuple[ProcessUse, ...]:
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
    except pynvml.NVMLError_NotFound:
        return ()
    return newest_use((each.timeStamp, each.pid, each.smUtil) for each in samples)


def _check_gpm(handle: _Handle) -> None:
    if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        raise NotSupported("there is GPM since Hopper; this GPU does not have it")


def _sm_activity_percent(handle: _Handle) -> float:
    _check_gpm(handle)
    asked = pynvml.c_nvmlGpmMetricsGet_t()
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
def _gpm_sample(handle: _Handle) -> Iterator[object]:
    sample = pynvml.nvmlGpmSampleAlloc()
    try:
        yield pynvml.nvmlGpmSampleGet(handle, sample)
    finally:
        pynvml.nvmlGpmSampleFree(sample)


def _mig_slices(handle: _Handle) -> tuple[MigSlice, ...]:
    if pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_DISABLE:
        return ()
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        # Places are empty where a slice was destroyed.
        with contextlib.suppress(pynvml.NVMLError_NotFound):
            found.append(_slice(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
    return tuple(found)


def _slice(handle: _Handle) -> MigSlice:
    attributes = pynvml.nvmlDeviceGetAttributes(handle)
    return MigSlice(
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        gpu_instance=int(pynvml.nvmlDeviceGetGpuInstanceId(handle)),
        sm_count=int(attributes.multiprocessorCount),
        memory_mib=float(attributes.memorySizeMB),
    )


def _check_xids(handle: _Handle) -> None:
    if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _CRITICAL:
        raise NotSupported("this GPU tells no critical errors")


def _check_persistence(handle: _Handle) -> None:
    if not pynvml.nvmlDeviceGetPersistenceMode(handle):
        raise NotSupported("persistence mode is off: without clients the driver may drop them; run nvidia-persistenced")


def _register(events: object, gpus: tuple[GpuIdentity, ...]) -> None:
    """Raises the last GPU's error when none could be registered."""
    problems = []
    for gpu in gpus:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            mask = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _CRITICAL
            pynvml.nvmlDeviceRegisterEvents(handle, mask, events)
        except (pynvml.NVMLError_GpuIsLost, *_ABSENT) as error:
            problems.append(error)
    if problems and len(problems) == len(gpus):
        raise problems[-1]


def _event(event: "pynvml.c_nvmlEventData_t") -> XidEvent:
    uuid = ""
    with contextlib.suppress(pynvml.NVMLError):
        uuid = str(pynvml.nvmlDeviceGetUUID(event.device))
    is_xid = event.eventType == pynvml.nvmlEventTypeXidCriticalError
    return XidEvent(gpu_uuid=uuid, xid=int(event.eventData) if is_xid else 0)


_CHECKS: dict[Capability, Callable[[_Handle], object]] = {
    Capability.COUNT_ENERGY: pynvml.nvmlDeviceGetTotalEnergyConsumption,
    Capability.PROCESS_USE: _process_use,
    Capability.LIST_MPS: pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    Capability.SM_ACTIVITY: _check_gpm,
    Capability.XID_EVENTS: _check_xids,
    Capability.MIG_LAYOUT: pynvml.nvmlDeviceGetMigMode,
    Capability.KEEP_SETTINGS: _check_persistence,
}


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    """NVML's errors as those of `agents.device`, keeping the cause."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise translate(error.value, doing) from error
