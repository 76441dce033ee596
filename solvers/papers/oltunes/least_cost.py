"""Dispatch of jobs at least cost: each job, the nearest deadline first, goes where it meets its deadline at least cost.

    cost = price of the GPU type · max(share of the SMs, 1 / most jobs of a GPU) · predicted time

The planner's law of cost, one job at a time: what a plan charges a service for, a job is charged for; since a GPU has
a largest number of jobs, each takes that part of it at least. A job that meets its deadline nowhere is done at least
cost, too: speed would not save it and would make others late; for the same reason one that is lost goes behind those
that are not. One that finds no room waits and holds no other up.

A job that waited for `patience_s` comes first of all, the longest wait first. Where no GPU has room for it, one that
could hold it once empty takes nothing more in this round: the one with the fewest jobs, ties by id; one GPU for each
such job at most. So no job that some GPU could hold waits for ever.

Cost comes after one thing: the fewest jobs of the same network on the GPU. A container that is idle there can take the
next job of its network, but where they are all at work another one must be started, which takes longer than most jobs.
Ours.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from solvers.papers.oltunes.queues import impatient, is_lost
from solvers.types.jobs import (
    MAX_JOBS,
    PATIENCE_S,
    ROUNDING,
    Job,
    JobBatch,
    JobGpu,
    JobSetting,
    PlacedJob,
    Queues,
    could_hold,
    without,
)


def schedule(
    queues: Queues,
    gpus: Sequence[JobGpu],
    now_s: float,
    prices_usd_per_hour: Mapping[str, float],
    patience_s: float = PATIENCE_S,
    *,
    max_jobs: int = MAX_JOBS,
) -> tuple[tuple[JobBatch, ...], Queues]:
    """One round: jobs, each with the GPU on which it starts now, and who waits on. The order of items changes nothing.

    `prices_usd_per_hour` by GPU type; a type without one is not used. O(GPUs · jobs · settings of a job).
    """
    rooms = [
        _Room(gpu, max_jobs)
        for gpu in sorted(gpus, key=lambda gpu: gpu.id)
        if gpu.gpu_type in prices_usd_per_hour
    ]
    first = impatient(queues.jobs, now_s, patience_s)
    others = without(queues, {job.name for job in first}).jobs
    batches = []
    for at, job in enumerate((*first, *_in_order(others, now_s))):
        choice = _choose(job, rooms, now_s, prices_usd_per_hour)
        if choice is not None:
            room, setting = choice
            room.take(setting)
            batches.append(
                JobBatch(gpu=room.gpu.id, members=(PlacedJob(job, setting),))
            )
        elif not any(room.is_open for room in rooms):
            # No job behind finds a place either; queues may be long.
            break
        elif at < len(first):
            _keep(job, rooms)
    return tuple(batches), without(
        queues, {batch.members[0].job.name for batch in batches}
    )


class _Room:
    """A GPU as it fills up."""

    def __init__(self, gpu: JobGpu, max_jobs: int) -> None:
        self.gpu = gpu
        self.max_jobs = max_jobs
        self.is_kept = False
        """Whether it takes nothing more, for one that has waited for long."""
        self.free_percent, self.free_mib, self.jobs = (
            gpu.free_percent,
            gpu.free_mib,
            len(gpu.residents),
        )
        self._networks = Counter(resident.network for resident in gpu.residents)

    @property
    def is_open(self) -> bool:
        return (
            not self.is_kept
            and self.free_percent > ROUNDING
            and self.jobs < self.max_jobs
        )

    def has_room(self, setting: JobSetting) -> bool:
        """Whether a job may start there so."""
        fits = (
            setting.sm_percent <= self.free_percent + ROUNDING
            and setting.memory_mib <= self.free_mib + ROUNDING
        )
        return (
            fits
            and setting.gpu_type == self.gpu.gpu_type
            and self.jobs < self.max_jobs
            and not self.is_kept
        )

    def running(self, network: str) -> int:
        """Jobs of the network that it has."""
        return self._networks[network]

    def take(self, setting: JobSetting) -> None:
        self.free_percent -= setting.sm_percent
        self.free_mib -= setting.memory_mib
        self.jobs += 1
        self._networks[setting.network] += 1


def _in_order(jobs: Iterable[Job], now_s: float) -> list[Job]:
    """Who can be in time, then who cannot; each by deadline."""
    return sorted(
        jobs,
        key=lambda job: (is_lost(job, now_s), job.deadline_s, job.queued_s, job.name),
    )


def _keep(job: Job, rooms: Sequence[_Room]) -> None:
    """Close the GPU that shall drain for one that has waited for long, if any could hold it."""
    able = [room for room in rooms if not room.is_kept and could_hold(room.gpu, job)]
    if able:
        min(able, key=lambda room: (room.jobs, room.gpu.id)).is_kept = True


def _choose(
    job: Job, rooms: Sequence[_Room], now_s: float, prices: Mapping[str, float]
) -> tuple[_Room, JobSetting] | None:
    """The best place in time, else the best of all: fewest jobs of its network there, then cheapest, then fastest."""
    best: tuple[tuple[bool, int, float, float], _Room, JobSetting] | None = None
    for gpu_type in sorted({room.gpu.gpu_type for room in rooms if room.is_open}):
        for setting in (one for one in job.settings if one.gpu_type == gpu_type):
            is_late = now_s + setting.latency_s > job.deadline_s
            # Emptier ones stay free for jobs that need more.
            room = _fullest(rooms, setting)
            if room is None:
                continue
            usd = (
                prices[gpu_type]
                * max(setting.sm_percent, 100.0 / room.max_jobs)
                * setting.latency_s
            )
            rank = (is_late, room.running(setting.network), usd, setting.latency_s)
            if best is None or rank < best[0]:
                best = rank, room, setting
    return None if best is None else best[1:]


def _fullest(rooms: Sequence[_Room], setting: JobSetting) -> _Room | None:
    """The fullest GPU, of those that can take it and run its network least."""
    fitting = [room for room in rooms if room.has_room(setting)]
    return min(
        fitting,
        key=lambda room: (
            room.running(setting.network),
            room.free_percent,
            room.gpu.id,
        ),
        default=None,
    )
