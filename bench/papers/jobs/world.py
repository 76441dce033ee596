"""The GPUs on which jobs run: times, watts and memory by the simulated truth, from event to event.

A job needs a container of its network. One that is idle on its GPU is used at once, else one is started for `launch_s`,
in which it holds SMs and memory and does nothing. Idle containers stay until their memory is wanted; dispatchers see
that memory as free. While a job runs its pace follows who else runs on the GPU.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import Truth
from solvers.papers.oltunes.tuning_score import BASE_W, estimated_power_consumption
from solvers.types.jobs import Job, JobBatch, JobGpu, JobSetting, Resident
from solvers.types.state import GpuId


@dataclass(frozen=True, slots=True, kw_only=True)
class SimGpu:
    """One GPU of the simulated fleet."""

    id: GpuId
    gpu_type: str
    memory_mib: float
    clock_mhz: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A job that is done."""

    job: Job
    setting: JobSetting
    gpu: GpuId
    at_s: float
    ran_s: float
    batch_ms: float
    """What one of its batches took, in the neighbours that it had."""
    epc: float
    """OLTunes' estimate of its power (equation 7), with the time that it ran."""


@dataclass(slots=True, kw_only=True)
class _Running:
    """A job on its GPU."""

    job: Job
    setting: JobSetting
    started_s: float
    ready_s: float
    """When its container is there."""
    noise: float
    left: float = 1.0
    """Of its work."""
    full_s: float = math.inf
    """What all of its work takes at the present pace."""

    @property
    def batches(self) -> int:
        return -(-self.job.inputs // self.setting.batch)


@dataclass(slots=True, kw_only=True)
class _Gpu:
    """A GPU with what is on it."""

    spec: SimGpu
    running: list[_Running] = field(default_factory=list)
    idle: Counter[str] = field(default_factory=Counter)
    """Idle containers by network, in the order in which they were last used."""
    idle_mib: dict[str, float] = field(default_factory=dict)
    has_early_end: bool = False
    """Whether a job of the latest batch is done already."""
    now_s: float = 0.0
    energy_j: float = 0.0
    busy_sm_s: float = 0.0
    """Σ share of the SMs × seconds in which jobs ran."""
    watts: float = 0.0

    def next_s(self) -> float:
        """When something changes by itself."""
        return min(
            (_next_s(each, self.now_s) for each in self.running), default=math.inf
        )


class JobWorld:
    """All GPUs. `start` and `advance` must be called in the order of time."""

    def __init__(
        self, truth: Truth, gpus: Sequence[SimGpu], *, launch_s: float, seed: int
    ) -> None:
        self._truth = truth
        self._launch_s = launch_s
        self._random = np.random.default_rng([seed, 1])
        self._gpus = {
            spec.id: _Gpu(spec=spec, watts=truth.idle_w(spec.gpu_type)) for spec in gpus
        }
        self._times_ms: dict[tuple[str, str, float, int, int, float], float] = {}
        self.launches = 0

    def preload(self, networks: Sequence[str]) -> None:
        """An idle container of each of these networks on every GPU, as far as memory goes."""
        for gpu in self._gpus.values():
            for network in networks:
                self._put_idle(gpu, network)
            _evict(gpu)

    def views(self) -> tuple[JobGpu, ...]:
        """The GPUs as a dispatcher sees them now, by id."""
        return tuple(
            JobGpu(
                id=key,
                gpu_type=gpu.spec.gpu_type,
                memory_mib=gpu.spec.memory_mib,
                has_early_end=gpu.has_early_end,
                residents=tuple(_resident(each, gpu.now_s) for each in gpu.running),
            )
            for key, gpu in sorted(self._gpus.items())
        )

    def start(self, batch: JobBatch) -> bool:
        """Start all jobs of a batch; False, and nothing started, where SMs or memory do not suffice."""
        gpu = self._gpus[batch.gpu]
        percent = sum(
            member.setting.sm_percent for member in batch.members
        ) + _held_percent(gpu)
        memory = sum(member.setting.memory_mib for member in batch.members) + _held_mib(
            gpu
        )
        if percent > 100.0 + 1e-6 or memory > gpu.spec.memory_mib + 1e-6:
            return False
        for member in batch.members:
            cold_s = 0.0 if self._takes_idle(gpu, member.setting) else self._launch_s
            noise = 1.0 + self._truth.noise_cv(member.setting.network) * float(
                self._random.standard_normal()
            )
            gpu.running.append(
                _Running(
                    job=member.job,
                    setting=member.setting,
                    started_s=gpu.now_s,
                    ready_s=gpu.now_s + cold_s,
                    noise=max(0.5, noise),
                )
            )
        gpu.has_early_end = False
        _evict(gpu)
        self._set_pace(gpu)
        return True

    def advance(self, until_s: float) -> list[Done]:
        """Run everything until then; what was done, in the order of time."""
        done = [
            each for gpu in self._gpus.values() for each in self._advance(gpu, until_s)
        ]
        return sorted(done, key=lambda each: (each.at_s, each.job.name))

    def energy_j(self) -> float:
        """Of all GPUs since the beginning, idle watts included."""
        return math.fsum(gpu.energy_j for gpu in self._gpus.values())

    def busy_sm_s(self) -> dict[GpuId, float]:
        """Σ share of the SMs × seconds in which jobs ran, by GPU."""
        return {key: gpu.busy_sm_s for key, gpu in sorted(self._gpus.items())}

    def _advance(self, gpu: _Gpu, until_s: float) -> Iterable[Done]:
        while (next_s := gpu.next_s()) <= until_s:
            _run(gpu, next_s)
            finished = [each for each in gpu.running if each.left <= 1e-9]
            gpu.running = [each for each in gpu.running if each.left > 1e-9]
            gpu.has_early_end |= bool(finished)
            for each in finished:
                self._put_idle(gpu, each.setting.network)
                yield self._done(each, gpu)
            self._set_pace(gpu)
        _run(gpu, until_s)

    def _set_pace(self, gpu: _Gpu) -> None:
        active = [each for each in gpu.running if each.ready_s <= gpu.now_s]
        busy_w = 0.0
        for each in active:
            neighbours = [other.setting for other in active if other is not each]
            each.full_s = (
                each.batches
                * self._batch_ms(gpu, each, neighbours)
                * each.noise
                / 1000.0
            )
            items = min(each.setting.batch, each.job.inputs)
            busy_w += self._truth.busy_w(_placed(gpu.spec, each.setting, ()), items)
        idle_w, tdp_w = (
            self._truth.idle_w(gpu.spec.gpu_type),
            self._truth.tdp_w(gpu.spec.gpu_type),
        )
        gpu.watts = min(tdp_w, idle_w + busy_w)

    def _batch_ms(
        self, gpu: _Gpu, each: _Running, neighbours: Sequence[JobSetting]
    ) -> float:
        setting = each.setting
        percent = sum(other.sm_percent for other in neighbours)
        items = min(setting.batch, each.job.inputs)
        key = (
            setting.network,
            gpu.spec.gpu_type,
            setting.sm_percent,
            items,
            len(neighbours),
            percent,
        )
        if key not in self._times_ms:
            placed = tuple(
                SimulatedNeighbour(one.network, one.sm_percent, one.batch)
                for one in neighbours
            )
            self._times_ms[key] = self._truth.execution_ms(
                _placed(gpu.spec, setting, placed), items
            )
        return self._times_ms[key]

    def _takes_idle(self, gpu: _Gpu, setting: JobSetting) -> bool:
        if gpu.idle[setting.network] > 0:
            gpu.idle[setting.network] -= 1
            return True
        self.launches += 1
        return False

    def _put_idle(self, gpu: _Gpu, network: str) -> None:
        count = gpu.idle.pop(network, 0)
        gpu.idle[network] = count + 1  # last in the order of use
        gpu.idle_mib[network] = self._truth.memory_mib(network, 0)

    def _done(self, each: _Running, gpu: _Gpu) -> Done:
        ran_s = gpu.now_s - each.ready_s
        epc = estimated_power_consumption(
            base_w=BASE_W,
            tdp_w=self._truth.tdp_w(gpu.spec.gpu_type),
            sm_percent=each.setting.sm_percent,
            memory_share=each.setting.memory_mib / gpu.spec.memory_mib,
            latency_s=ran_s,
        )
        return Done(
            job=each.job,
            setting=each.setting,
            gpu=gpu.spec.id,
            at_s=gpu.now_s,
            ran_s=ran_s,
            batch_ms=1000.0 * ran_s / each.batches,
            epc=float(epc),
        )


def _placed(
    spec: SimGpu, setting: JobSetting, neighbours: tuple[SimulatedNeighbour, ...]
) -> RunningPart:
    return RunningPart(
        network=setting.network,
        gpu_type=spec.gpu_type,
        sm_percent=setting.sm_percent,
        batch=setting.batch,
        clock_mhz=spec.clock_mhz,
        neighbours=neighbours,
    )


def _next_s(each: _Running, now_s: float) -> float:
    return each.ready_s if each.ready_s > now_s else now_s + each.left * each.full_s


def _run(gpu: _Gpu, until_s: float) -> None:
    """Run through a stretch in which nothing changes."""
    length_s = until_s - gpu.now_s
    for each in gpu.running:
        if each.ready_s <= gpu.now_s:
            each.left = max(0.0, each.left - length_s / each.full_s)
            gpu.busy_sm_s += length_s * each.setting.sm_percent / 100.0
    gpu.energy_j += length_s * gpu.watts
    gpu.now_s = until_s


def _held_percent(gpu: _Gpu) -> float:
    return sum(each.setting.sm_percent for each in gpu.running)


def _held_mib(gpu: _Gpu) -> float:
    return sum(each.setting.memory_mib for each in gpu.running)


def _evict(gpu: _Gpu) -> None:
    """Idle containers go, the longest unused first, until what runs has its memory."""
    free = gpu.spec.memory_mib - _held_mib(gpu)
    for network in list(gpu.idle):
        while (
            gpu.idle[network] > 0
            and sum(gpu.idle_mib[name] * count for name, count in gpu.idle.items())
            > free
        ):
            gpu.idle[network] -= 1


def _resident(each: _Running, now_s: float) -> Resident:
    passed_s = max(0.0, now_s - each.ready_s)
    return Resident(
        name=each.job.name,
        sm_percent=each.setting.sm_percent,
        memory_mib=each.setting.memory_mib,
        done_share=passed_s / each.setting.latency_s,
        is_latency_critical=each.job.is_latency_critical,
        network=each.setting.network,
    )
