"""NVIDIA's management library: which GPUs there are, what they do, their two knobs, and how they are sliced (MIG).

    agents.gpu.nvml.session           what others use: an open library, errors and restarts of it, one write at a time
    agents.gpu.nvml.reading   the calls about one GPU and what they answer
    agents.gpu.nvml.slices       the calls about slices and what they answer

These three are the only importers of pynvml. Writes of clocks and power limits come from `agents.gpu.knobs.knobs`
alone, which keeps a journal of them: a locked clock cannot be read back. Slices are made by `agents.gpu.mig.change`
alone.

NVML's errors are translated here, once, to those of `agents.base.device` (`agents.gpu.nvml.errors` has the table).
Handles are looked up by UUID for each call; where the driver went away underneath, NVML is started again and the call
made once more. Safe from several threads.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pynvml

from agents.base.device import (
    DeviceError,
    GpuLost,
    NoDriver,
    NotPermitted,
    NotSupported,
    OutOfRange,
)
from agents.gpu.nvml import reading
from agents.gpu.nvml import slices as mig
from agents.gpu.nvml.driver_session import DriverSession
from agents.gpu.nvml.errors import translate
from agents.gpu.nvml.lacks import Lack, lack_of
from agents.gpu.nvml.mig_types import MigInstance, MigProfile, MigSlice, Placement
from agents.gpu.nvml.parse import to_unsigned
from agents.gpu.nvml.reading import Handle
from agents.gpu.nvml.types import (
    Capability,
    GpuIdentity,
    GpuListing,
    GpuProcess,
    GpuSample,
    NextXid,
    PowerRange,
    ProcessUse,
    XidEvent,
)
from agents.gpu.nvml.xids import RecoveryAction

_Found = TypeVar("_Found")


class Nvml(contextlib.AbstractContextManager["Nvml"]):
    """An open NVML; use it as a context manager."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Raises NoDriver when there is no working driver."""
        self._writing = threading.Lock()
        self._refused: dict[tuple[str, Capability], Lack] = {}
        self._session = DriverSession(_start, _stop, now_s=now_s)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut NVML down; the GPUs stay as they are."""
        self._session.close()

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU of this machine that answers, by index."""
        return self.listing().gpus

    def listing(self) -> GpuListing:
        """The GPUs that answer, and why others do not; NoDriver where none does since the driver is gone."""
        return self._ask("list the GPUs", _listing)

    def driver_version(self) -> str:
        """E.g. `580.65.06`."""
        return self._ask(
            "read the driver's version",
            lambda: str(pynvml.nvmlSystemGetDriverVersion()),
        )

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        """What the GPU does now; GpuLost when it no longer answers."""
        return self._on(gpu, "read", reading.sample)

    def power_w(self, gpu: GpuIdentity) -> float:
        """What the GPU draws now, without the rest of a sample; GpuLost when it no longer answers."""
        return self._on(gpu, "read the power of", reading.power_w)

    def recovery(self, gpu: GpuIdentity) -> RecoveryAction | int | None:
        """What the driver asks for to clear a fault of the GPU; None where it does not tell."""
        return self._on(gpu, "read the recovery action of", reading.recovery)

    def check(self, gpu: GpuIdentity, capability: Capability) -> None:
        """Return when the GPU has this capability, which is none of the two knobs; raises DeviceError with why not."""
        self._on(gpu, f"{capability} of", reading.CHECKS[capability])

    def refusals(self, gpu: GpuIdentity) -> tuple[Lack, ...]:
        """The knobs that the driver refused to turn when that was last tried."""
        return tuple(
            lack
            for (uuid, _), lack in sorted(self._refused.items())
            if uuid == gpu.uuid
        )

    def power_limit_w(self, gpu: GpuIdentity) -> float:
        """The power limit that is set now, by whomever."""
        read = pynvml.nvmlDeviceGetPowerManagementLimit
        return self._on(
            gpu, "read the power limit of", lambda handle: float(read(handle) / 1000.0)
        )

    def power_range(self, gpu: GpuIdentity) -> PowerRange:
        """Which power limits the GPU takes."""
        return self._on(gpu, "read the power range of", reading.power_range)

    def clocks_mhz(self, gpu: GpuIdentity) -> tuple[float, ...]:
        """The SM clocks that the GPU can be locked at, ascending. Raises NotSupported on GPUs older than Volta."""
        return self._on(gpu, "list the clocks of", reading.clocks_mhz)

    def limit_power_w(self, gpu: GpuIdentity, limit_w: float | None) -> None:
        """Limit the board's power; None sets the board's default.

        Raises OutOfRange (with the range), NotSupported, NotPermitted or GpuLost.
        """
        # Read first: `None` needs the board's default, and a refusal should name the range.
        takes = self.power_range(gpu)
        asked_w = takes.default_w if limit_w is None else limit_w

        def write(handle: Handle) -> None:
            pynvml.nvmlDeviceSetPowerManagementLimit(
                handle, to_unsigned(asked_w * 1000.0)
            )

        try:
            self._write(
                gpu, Capability.LIMIT_POWER, f"limit power to {asked_w:g} W on", write
            )
        except OutOfRange as error:
            raise OutOfRange(
                f"{error}: give {takes.low_w:g} to {takes.high_w:g} W"
            ) from error

    def lock_clock_mhz(
        self, gpu: GpuIdentity, *, low_mhz: float, high_mhz: float
    ) -> None:
        """Keep the SM clock in this range; the driver rounds down to its steps. Equal ends lock it at one value.

        Raises OutOfRange (with the range), NotSupported, NotPermitted or GpuLost.
        """

        def write(handle: Handle) -> None:
            pynvml.nvmlDeviceSetGpuLockedClocks(
                handle, to_unsigned(low_mhz), to_unsigned(high_mhz)
            )

        try:
            self._write(
                gpu,
                Capability.LOCK_CLOCK,
                f"lock the clock at {low_mhz:g} to {high_mhz:g} MHz on",
                write,
            )
        except OutOfRange as error:
            # Read only after a refusal, since the list is long and nearly every value is accepted.
            clocks = self.clocks_mhz(gpu)
            raise OutOfRange(
                f"{error}: give {clocks[0]:g} to {clocks[-1]:g} MHz, the lower end first"
            ) from error

    def unlock_clock(self, gpu: GpuIdentity) -> None:
        """Let the SM clock go as the GPU likes, after any lock. Raises NotSupported, NotPermitted or GpuLost."""
        self._write(
            gpu,
            Capability.LOCK_CLOCK,
            "unlock the clock of",
            pynvml.nvmlDeviceResetGpuLockedClocks,
        )

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        """Who computes on the GPU, by PID. Raises NotSupported where the driver's list cannot be read."""
        return self._on(gpu, "list the processes of", reading.processes)

    def process_use(
        self, gpu: GpuIdentity, since_us: int = 0
    ) -> tuple[ProcessUse, ...]:
        """The use of each process that ran since then, by PID. Raises NotSupported (old GPU, MIG).

        `since_us`: the newest `at_us` of the answer before; 0: as far back as the driver knows.
        """
        return self._on(
            gpu,
            "measure the processes of",
            lambda handle: reading.process_use(handle, since_us),
        )

    def sm_activity_percent(self, gpu: GpuIdentity) -> float:
        """Mean share of SMs that are busy in the next 0.12 s, which this takes. Raises NotSupported before Hopper."""
        return self._on(gpu, "measure the SMs of", reading.sm_activity_percent)

    def used_mib(self, uuid: str) -> float:
        """Memory in use of a slice by its UUID. Raises UnknownPart when there is no such slice any more."""
        return self._ask(
            f"read the memory of {uuid}",
            lambda: reading.used_mib(pynvml.nvmlDeviceGetHandleByUUID(uuid)),
        )

    def is_sliced(self, gpu: GpuIdentity) -> bool:
        """Whether the GPU is in MIG mode. Raises NotSupported where there is no MIG."""
        return self._on(gpu, "read the MIG mode of", mig.is_sliced)

    def mig_slices(self, gpu: GpuIdentity) -> tuple[MigSlice, ...]:
        """The MIG devices of the GPU; empty while MIG is off. Raises NotSupported where there is no MIG."""
        return self._on(gpu, "read the MIG layout of", mig.slices)

    def mig_profiles(self, gpu: GpuIdentity) -> tuple[MigProfile, ...]:
        """Which slices the GPU can have, and of how many of each there is room now."""
        return self._on(gpu, "read the MIG profiles of", mig.profiles)

    def mig_instances(self, gpu: GpuIdentity) -> tuple[MigInstance, ...]:
        """The GPU instances, with the compute instances in them; most slices are one of each."""
        return self._on(gpu, "read the GPU instances of", mig.instances)

    def create_slice(
        self, gpu: GpuIdentity, profile: MigProfile, placement: Placement | None
    ) -> None:
        """A GPU instance of that profile with one compute instance of all of it; None: where the driver likes.

        Raises NoRoom, NotPermitted or another DeviceError; then nothing of it is left unless that cannot be undone.
        """
        self._change(
            gpu,
            f"create {profile.name} on",
            lambda handle: mig.create(handle, profile, placement),
        )

    def destroy_instance(self, gpu: GpuIdentity, instance_id: int) -> None:
        """Destroy a GPU instance, its compute instances first. Raises InUse, NotPermitted or another DeviceError."""
        self._change(
            gpu,
            f"destroy instance {instance_id} of",
            lambda handle: mig.destroy(handle, instance_id),
        )

    @contextlib.contextmanager
    def watched_xids(self, gpus: tuple[GpuIdentity, ...]) -> Iterator[NextXid]:
        """A way to wait for these GPUs' critical errors, for a thread of its own.

        GPUs that are lost are left out. Raises NotSupported when no GPU tells its errors, GpuLost when no other does.
        Waiting raises NoDriver once NVML was started again: begin again then.
        """
        starts = self._session.starts
        with _translated("watch for critical errors"):
            events = pynvml.nvmlEventSetCreate()
        try:
            with _translated("watch for critical errors"):
                reading.register(events, gpus)
            yield lambda wait_ms: self._next_xid(events, starts, wait_ms)
        finally:
            # A set of an earlier start has gone with it.
            with (
                contextlib.suppress(NoDriver, pynvml.NVMLError),
                self._session.waiting(starts),
            ):
                pynvml.nvmlEventSetFree(events)

    def _next_xid(self, events: object, starts: int, wait_ms: int) -> XidEvent | None:
        # The library must not be stopped under this call: the set of events would go with it.
        with self._session.waiting(starts), _translated("wait for critical errors"):
            try:
                return reading.event_of(pynvml.nvmlEventSetWait(events, wait_ms))
            except pynvml.NVMLError_Timeout:
                return None

    def _write(
        self,
        gpu: GpuIdentity,
        knob: Capability,
        doing: str,
        act: Callable[[Handle], _Found],
    ) -> _Found:
        """`act`, one write at a time; a refusal counts against the capability until a write succeeds."""
        # After two writes of one knob at once it would be unknown which of them is in force.
        with self._writing:
            try:
                done = self._on(gpu, doing, act)
            except (NotSupported, NotPermitted) as error:
                self._refused[gpu.uuid, knob] = lack_of(knob, error)
                raise
            self._refused.pop((gpu.uuid, knob), None)
            return done

    def _change(
        self, gpu: GpuIdentity, doing: str, act: Callable[[Handle], None]
    ) -> None:
        """One change of the layout, never made twice: who does it must not meet a driver that was restarted."""
        with self._writing, _translated(f"{doing} GPU {gpu.index} ({gpu.uuid})"):
            act(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid))

    def _on(
        self, gpu: GpuIdentity, doing: str, act: Callable[[Handle], _Found]
    ) -> _Found:
        """What `act` makes of the GPU's handle, with NVML's errors translated."""
        doing = f"{doing} GPU {gpu.index} ({gpu.uuid})"
        # By UUID and again each time: indices may change, and handles are void, when the library starts again.
        return self._ask(doing, lambda: act(_handle_of(gpu, doing)))

    def _ask(self, doing: str, act: Callable[[], _Found]) -> _Found:
        """What `act` returns, with NVML's errors translated."""

        def translated() -> _Found:
            with _translated(doing):
                return act()

        return self._session.ask(translated)


def _listing() -> GpuListing:
    gpus: list[GpuIdentity] = []
    silent: dict[int, str] = {}
    gone: NoDriver | None = None
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            with _translated(f"open GPU {index}"):
                gpus.append(reading.identity(index))
        # Whatever it is, it costs this GPU alone.
        except DeviceError as error:
            silent[index] = str(error)
            gone = error if isinstance(error, NoDriver) else gone
    if gone is not None and not gpus:
        raise gone
    return GpuListing(gpus=tuple(gpus), silent=tuple(silent.items()))


def _handle_of(gpu: GpuIdentity, doing: str) -> Handle:
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    except pynvml.NVMLError_NotFound as error:
        # One that was not there when the library started is only found by a new start, which this error leads to.
        if gpu.part is None:
            raise GpuLost(f"could not {doing}: the driver does not list it") from error
        raise


def _start() -> None:
    with _translated("start NVML"):
        pynvml.nvmlInit()


def _stop() -> None:
    # After a start that failed there is nothing to stop.
    with (
        _translated("shut NVML down"),
        contextlib.suppress(pynvml.NVMLError_Uninitialized),
    ):
        pynvml.nvmlShutdown()


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    """NVML's errors as those of `agents.base.device`, keeping the cause."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise translate(error.value, doing) from error
