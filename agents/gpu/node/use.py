"""Who uses the GPUs of a node: asks the driver once per GPU and window, and finds whose each process is.

    use = GpuUse(driver, gpus, clock)
    use.note_busy("r1", 12.5)         what a replica's server says: seconds in which batches ran, since its start
    use.read(readings, replicas)      -> UseReadings since the last time, for the wire, by `agents.gpu.node.attribution`

A process belongs to the part whose own process leads its session, or is one of its ancestors. Servers of MPS work for
their clients and belong to none. A process that is not to be seen under /proc, since it has ended or since this agent
does not run in the host's PID namespace, belongs to none either. All others are others.

What an idle GPU draws is the least that it was seen to draw over a window.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agents.base.clock import Clock
from agents.base.device import DeviceError
from agents.base.protocol import GpuReading, Overuse, UseReading
from agents.gpu.mps.gpu_sharing import Sharing, UnderMps
from agents.gpu.node.attribution import (
    GpuWindow,
    Judge,
    Key,
    OwnedProcess,
    PartUse,
    attribute,
)
from agents.gpu.node.owners import (
    PartProcesses,
    SharedGpu,
    TaskPlace,
    owner_of,
    placed_replica,
    placed_task,
    placed_together,
)
from agents.gpu.nvml.types import (
    Capability,
    GpuCapabilities,
    GpuIdentity,
    GpuProcess,
    ProcessUse,
)
from agents.replicas.adapters import ReplicaCounts
from agents.replicas.replica import ReplicaView


class UseReader(Protocol):
    """The part of `agents.gpu.nvml.session.Nvml` that is needed."""

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        """Who computes on it."""
        ...

    def process_use(
        self, gpu: GpuIdentity, since_us: int = 0
    ) -> tuple[ProcessUse, ...]:
        """How busy each process kept it since then."""
        ...


class _SharedGpus:
    """Looked up again each time: a GPU may start later than its agent, and with another sharing."""

    def __init__(
        self,
        gpus: Iterable[GpuIdentity],
        capabilities: Mapping[int, GpuCapabilities],
        sharings: Mapping[int, Sharing],
    ) -> None:
        self._gpus, self._capabilities, self._sharings = (
            tuple(gpus),
            capabilities,
            sharings,
        )

    def __iter__(self) -> Iterator[SharedGpu]:
        for gpu in self._gpus:
            yield SharedGpu(
                gpu=gpu,
                capabilities=self._capabilities[gpu.index],
                is_limited=isinstance(self._sharings[gpu.index], UnderMps),
            )


def shared_gpus(
    gpus: Iterable[GpuIdentity],
    capabilities: Mapping[int, GpuCapabilities],
    sharings: Mapping[int, Sharing],
) -> Iterable[SharedGpu]:
    """What is known of the GPUs whenever it is asked; capabilities and sharings by index, filled in as GPUs start."""
    return _SharedGpus(gpus, capabilities, sharings)


@dataclass(slots=True)
class _Busy:
    total_s: float
    at_s: float
    share: float | None = None


class GpuUse:
    """The use of a node's GPUs. `read` is not safe from two threads at once; `note_busy` may be called meanwhile."""

    def __init__(
        self, driver: UseReader, gpus: Iterable[SharedGpu], clock: Clock
    ) -> None:
        """`gpus` are listed again by each reading."""
        self._driver, self._clock, self._shared = driver, clock, gpus
        self._gpus: Mapping[int, SharedGpu] = {}
        self._last_s = clock.now_s()
        self._judge = Judge()
        self._idle_w: dict[int, float] = {}
        self._busy: dict[str, _Busy] = {}
        self._since_us: dict[int, int] = {}
        self._owners: dict[int, dict[int, Key | None]] = {}

    def note_busy(self, replica_id: str, busy_s: float | None) -> None:
        """Keep what its server counted; None where it does not count."""
        if busy_s is None:
            return
        now_s = self._clock.now_s()
        before = self._busy.get(replica_id)
        share = None if before is None else before.share
        # A count that fell is a server's that was started again, so nothing is known of the time between.
        if before is not None and busy_s >= before.total_s and now_s > before.at_s:
            share = min(1.0, (busy_s - before.total_s) / (now_s - before.at_s))
        self._busy[replica_id] = _Busy(total_s=busy_s, at_s=now_s, share=share)

    def noted(self, replica_id: str, counts: ReplicaCounts) -> ReplicaCounts:
        """The same counts, of which the busy time is kept."""
        self.note_busy(replica_id, counts.busy_s)
        return counts

    def forget(self, replica_id: str) -> None:
        """It is gone."""
        self._busy.pop(replica_id, None)

    def busy_share(self, replica_id: str) -> float | None:
        """The share of the time between the last two counts of its server in which batches ran; None without two."""
        found = self._busy.get(replica_id)
        return found.share if found is not None else None

    def read(
        self,
        readings: Iterable[GpuReading],
        replicas: Sequence[ReplicaView],
        tasks: Sequence[TaskPlace] = (),
    ) -> tuple[UseReading, ...]:
        """What every part used; nothing of a GPU that is not healthy or whose driver does not list its processes."""
        now_s = self._clock.now_s()
        seconds, self._last_s = now_s - self._last_s, now_s
        # Listed again, since a GPU may have started after its agent.
        self._gpus = {each.gpu.index: each for each in self._shared}
        uses: list[PartUse] = []
        if seconds > 0.0:
            for reading in readings:
                if reading.healthy and reading.index in self._gpus:
                    uses += self._attribute(
                        reading, self._placed(reading.index, replicas, tasks), seconds
                    )
        return tuple(map(to_reading, self._judge.judge(uses)))

    def _attribute(
        self, reading: GpuReading, placed: Sequence[PartProcesses], seconds: float
    ) -> Sequence[PartUse]:
        shared = self._gpus[reading.index]
        # The reading has a window of its own, which other reads made a little longer or shorter than ours.
        if reading.power_w:
            seconds = reading.energy_j / reading.power_w
        idle_w = self._idle(reading)
        try:
            # A GPU whose processes are not told is left out: its energy would all seem to belong to none.
            processes = self._driver.processes(shared.gpu)
        except DeviceError:
            return ()
        use = self._process_use(shared)
        return attribute(
            GpuWindow(
                gpu_index=reading.index,
                seconds=seconds,
                energy_j=reading.energy_j,
                idle_w=idle_w,
                processes=tuple(
                    self._owned(reading.index, placed, processes, use or {})
                ),
                knows_use=use is not None,
                knows_clients=shared.capabilities.can(Capability.LIST_MPS),
            ),
            [each.part for each in placed],
        )

    def _idle(self, reading: GpuReading) -> float:
        """A busy GPU shows no idle power, so the lowest window seen so far stands for it."""
        known = self._idle_w.get(reading.index)
        # A window whose power the driver did not tell is not one without power.
        if reading.power_w is None:
            return known or 0.0
        lowest_w = reading.power_w if known is None else min(known, reading.power_w)
        self._idle_w[reading.index] = lowest_w
        return lowest_w

    def _process_use(self, shared: SharedGpu) -> dict[int, float] | None:
        """Percent of time by PID since the last reading; None where the driver does not measure processes."""
        if not shared.capabilities.can(Capability.PROCESS_USE):
            return None
        try:
            since_us = self._since_us.get(shared.gpu.index, 0)
            found = self._driver.process_use(shared.gpu, since_us)
        except DeviceError:
            return None
        # Of an earlier window the driver would tell again: what ran then would seem to run for ever.
        self._since_us[shared.gpu.index] = max(
            (each.at_us for each in found), default=since_us
        )
        return {each.pid: each.sm_percent for each in found}

    def _owned(
        self,
        gpu_index: int,
        placed: Sequence[PartProcesses],
        processes: Sequence[GpuProcess],
        use: Mapping[int, float],
    ) -> Iterable[OwnedProcess]:
        leaders = {pid: each.part.key for each in placed for pid in each.pids}
        before = self._owners.get(gpu_index, {})
        owners = {}
        for each in processes:
            # Looked up once while it stays on the GPU, unless the part that it was found to belong to is gone.
            owner = before.get(each.pid)
            if owner is None or owner not in leaders.values():
                owner = owner_of(each.pid, leaders)
            owners[each.pid] = owner
            if owner is not None:
                percent = use.get(each.pid)
                yield OwnedProcess(
                    owner=owner,
                    memory_mib=each.memory_mib,
                    is_mps=each.is_mps,
                    time_percent=percent,
                )
        self._owners[gpu_index] = owners

    def _placed(
        self,
        gpu_index: int,
        replicas: Sequence[ReplicaView],
        tasks: Sequence[TaskPlace],
    ) -> tuple[PartProcesses, ...]:
        """Those of that GPU as parts; a replica and its successor are one, under the id that was commanded."""
        shared = self._gpus[gpu_index]
        found: dict[str, PartProcesses] = {}
        for view in replicas:
            if view.gpu_index == gpu_index and view.state != "failed":
                each = placed_replica(view, shared, self.busy_share(view.id))
                before = found.get(each.part.name)
                found[each.part.name] = (
                    each if before is None else placed_together(before, each)
                )
        mine = (
            placed_task(each, shared) for each in tasks if each.gpu_index == gpu_index
        )
        return (*found.values(), *mine)


def to_reading(use: PartUse) -> UseReading:
    """As it goes over the wire."""
    return UseReading(
        kind=use.kind,
        name=use.name,
        service=use.owner,
        gpu_index=use.gpu_index,
        memory_used_mib=use.memory_used_mib,
        sm_percent=use.sm_percent,
        energy_j=use.energy_mj / 1000.0,
        is_estimated=use.is_estimated,
        over=tuple(
            Overuse(
                quantity=each.quantity,
                granted=each.granted,
                used=each.used,
                is_estimated=use.is_estimated,
            )
            for each in use.over
        ),
    )
