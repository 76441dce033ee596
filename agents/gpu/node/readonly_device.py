"""A machine with real GPUs that is only watched: telemetry goes up, commands are answered with NotSupported."""

from collections.abc import Callable
from typing import Protocol

from agents.base.clock import Clock
from agents.base.device import (
    DeviceError,
    DeviceReadings,
    GpuPoll,
    GpuState,
    NodeState,
    NotSupported,
    ServiceRoute,
)
from agents.base.protocol import GpuReading, ReplicaCommand, TaskCommand
from agents.gpu.nvml.mig_types import max_clients
from agents.gpu.nvml.types import GpuIdentity, GpuSample
from agents.gpu.nvml.xids import bars_use, describe_recovery

_NOTHING = GpuSample(
    memory_used_mib=None, power_w=None, energy_j=None, clock_mhz=None, busy_percent=None
)
"""A GPU that does not answer tells this."""
ADVICE = "this agent only watches its GPUs; run replicas on simulated nodes"


class TelemetryDriver(Protocol):
    """The part of `agents.gpu.nvml.session.Nvml` that is needed."""

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU."""
        ...

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        """What a GPU does now."""
        ...

    def close(self) -> None:
        """Shut down."""
        ...


class ReadOnlyDevice:
    """Telemetry of the machine's GPUs through NVML."""

    def __init__(
        self,
        nvml: TelemetryDriver,
        clock: Clock,
        *,
        type_of: Callable[[GpuIdentity], str],
        more_problems: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """`type_of`: the catalogue's name of a GPU's type."""
        self._nvml = nvml
        self._clock = clock
        self._gpus = nvml.gpus()
        self._types = {gpu.index: type_of(gpu) for gpu in self._gpus}
        self._last_s = clock.now_s()
        self._energy_j: dict[int, float] = {}
        self._problems: dict[int, str] = {}
        """Why GPUs are not healthy."""
        self._notes: dict[int, str] = {}
        """What else people should know of one."""
        self._more_problems = more_problems

    async def state(self) -> NodeState:
        return NodeState(
            gpus=tuple(
                GpuState(
                    index=gpu.index,
                    gpu_type=self._types[gpu.index],
                    memory_mib=gpu.memory_mib,
                    healthy=gpu.index not in self._problems,
                    max_replicas=max_clients(
                        "" if gpu.part is None else gpu.part.profile
                    ),
                )
                for gpu in self._gpus
            )
        )

    def on_change(self, notify: Callable[[], None]) -> None:
        pass

    async def read(self) -> DeviceReadings:
        now_s = self._clock.now_s()
        window_s, self._last_s = now_s - self._last_s, now_s
        readings = tuple(self._read(gpu, window_s) for gpu in self._gpus)
        return DeviceReadings(
            gpus=readings,
            problems=(
                ADVICE,
                *self._problems.values(),
                *filter(None, self._notes.values()),
                *self._more_problems(),
            ),
        )

    async def poll(self, gpu_index: int) -> GpuPoll:
        raise NotSupported(f"GPU {gpu_index} cannot be governed: {ADVICE}")

    async def peak_power_w(self, gpu_index: int) -> float:
        return (await self.poll(gpu_index)).peak_power_w

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        raise NotSupported(
            f"replica {replica.id} cannot start on GPU {gpu_index}: {ADVICE}"
        )

    async def switch_routes(self, routes: tuple[ServiceRoute, ...]) -> None:
        raise NotSupported(
            f"requests of {len(routes)} services cannot be routed: {ADVICE}"
        )

    async def drain(self, replica_id: str) -> None:
        raise NotSupported(f"replica {replica_id} cannot be drained: {ADVICE}")

    async def stop_replica(self, replica_id: str) -> None:
        raise NotSupported(f"replica {replica_id} cannot be stopped: {ADVICE}")

    async def sleep(self, replica_id: str) -> None:
        raise NotSupported(f"replica {replica_id} cannot sleep: {ADVICE}")

    async def wake(self, replica_id: str) -> None:
        raise NotSupported(f"replica {replica_id} cannot be woken: {ADVICE}")

    async def set_batch(self, replica_id: str, batch: int) -> None:
        raise NotSupported(f"replica {replica_id} cannot take batch {batch}: {ADVICE}")

    async def start_task(self, gpu_index: int, task: TaskCommand) -> None:
        raise NotSupported(
            f"task {task.name} cannot start on GPU {gpu_index}: {ADVICE}"
        )

    async def stop_task(self, name: str) -> None:
        raise NotSupported(f"task {name} cannot be stopped: {ADVICE}")

    async def swap_out(self, task: str) -> None:
        raise NotSupported(f"task {task} cannot be swapped out: {ADVICE}")

    async def swap_in(self, task: str) -> None:
        raise NotSupported(f"task {task} cannot be swapped in: {ADVICE}")

    async def lock_clock_mhz(self, gpu_index: int, clock_mhz: float | None) -> None:
        raise NotSupported(
            f"GPU {gpu_index} cannot be locked at {clock_mhz} MHz: {ADVICE}"
        )

    async def limit_power_w(self, gpu_index: int, limit_w: float | None) -> None:
        raise NotSupported(
            f"GPU {gpu_index} cannot be limited to {limit_w} W: {ADVICE}"
        )

    async def acquit(self, gpu_index: int) -> None:
        """Nothing is remembered here: a GPU is as it was read last."""

    async def close(self) -> None:
        self._nvml.close()

    def _read(self, gpu: GpuIdentity, window_s: float) -> GpuReading:
        """One GPU's reading; a GPU that does not answer is unhealthy, not an error of the node."""
        try:
            sample = self._nvml.sample(gpu)
        except DeviceError as error:
            self._problems[gpu.index] = str(error)
            sample = _NOTHING
        else:
            self._note(gpu, sample)
        energy_j = self._energy_of_window(gpu.index, sample, window_s)
        knows_power = sample.power_w is not None or sample.energy_j is not None
        return GpuReading(
            index=gpu.index,
            gpu_type=self._types[gpu.index],
            memory_mib=gpu.memory_mib,
            memory_used_mib=sample.memory_used_mib,
            # From the counter, which misses nothing between two readings; the sample alone is one moment.
            power_w=energy_j / window_s
            if window_s > 0.0 and knows_power
            else sample.power_w,
            energy_j=energy_j,
            clock_mhz=sample.clock_mhz,
            busy_percent=sample.busy_percent,
            healthy=gpu.index not in self._problems,
        )

    def _note(self, gpu: GpuIdentity, sample: GpuSample) -> None:
        """What a GPU that answers asks for, and does not tell."""
        self._problems.pop(gpu.index, None)
        asks = ""
        if sample.recovery:
            asks = f"GPU {gpu.index}: its driver asks to {describe_recovery(sample.recovery)}"
        if bars_use(sample.recovery):
            self._problems[gpu.index] = f"{asks}; until then it is not used"
            asks = ""
        self._notes[gpu.index] = "; ".join(filter(None, (asks, _untold(gpu, sample))))

    def _energy_of_window(
        self, index: int, sample: GpuSample, window_s: float
    ) -> float:
        """The counter's growth; power · time where there is no counter, or where it fell (the driver was reloaded)."""
        # Removed first: growth over a reading in which the counter was missing would count that window twice.
        before_j = self._energy_j.pop(index, None)
        if sample.energy_j is not None:
            self._energy_j[index] = sample.energy_j
            if before_j is not None and sample.energy_j >= before_j:
                return sample.energy_j - before_j
        return (sample.power_w or 0.0) * window_s


def _untold(gpu: GpuIdentity, sample: GpuSample) -> str:
    """What the driver does not tell of a GPU, and what that means; empty: it tells all."""
    if not sample.unknown:
        return ""
    said = f"GPU {gpu.index}: its driver does not tell {', '.join(sample.unknown)}, so that it is unknown"
    if sample.power_w is None and sample.energy_j is not None:
        said += "; the mean of its power is known from its energy"
    if sample.power_w is None:
        said += "; power caps are not kept there, unless its board takes a power limit"
    return said
