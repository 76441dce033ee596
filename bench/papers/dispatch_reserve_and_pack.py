"""Baseline `reserve_and_pack`: high-end GPUs are reserved for heavy jobs, the others are packed with the light ones.

    heavy jobs:  on high-end GPU types only, light ones on all other types only; each first come, first served
    packing:     best fit: the GPU with the fewest SMs left that has room; ties by id

Source: Weng et al., "MLaaS in the Wild" (NSDI 2022), as OLTunes compares with it (section 4.1.2: strictly apart; there
is no second try on the other kind). Settings are as submitted: it tunes none.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from solvers.types.jobs import (
    MAX_JOBS,
    Job,
    JobBatch,
    JobGpu,
    JobSetting,
    PlacedJob,
    Queues,
    without,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What is reserved for what."""

    high_end: Collection[str]
    """GPU types."""
    heavy: Collection[str]
    """Networks."""


class _Load:
    """A GPU as it fills up."""

    def __init__(self, gpu: JobGpu) -> None:
        self.gpu = gpu
        self.free_percent, self.free_mib, self.jobs = (
            gpu.free_percent,
            gpu.free_mib,
            len(gpu.residents),
        )

    def has_room(self, setting: JobSetting) -> bool:
        fits = (
            setting.sm_percent <= self.free_percent
            and setting.memory_mib <= self.free_mib
        )
        return fits and self.jobs < MAX_JOBS

    def take(self, setting: JobSetting) -> None:
        self.free_percent -= setting.sm_percent
        self.free_mib -= setting.memory_mib
        self.jobs += 1


def schedule(
    queues: Queues, gpus: Sequence[JobGpu], reservation: Reservation
) -> tuple[tuple[JobBatch, ...], Queues]:
    """One round: jobs, each with the GPU on which it starts now, and who waits on. The order of items changes nothing.

    Where the fleet has GPUs of one kind only, all jobs use them. A job that finds no room holds no other up.
    """
    loads = [_Load(gpu) for gpu in sorted(gpus, key=lambda gpu: gpu.id)]
    high = [load for load in loads if load.gpu.gpu_type in reservation.high_end]
    regular = [load for load in loads if load.gpu.gpu_type not in reservation.high_end]
    batches = []
    for job in sorted(queues.jobs, key=lambda job: (job.queued_s, job.name)):
        is_heavy = any(setting.network in reservation.heavy for setting in job.settings)
        placed = _place(job, (high or regular) if is_heavy else (regular or high))
        if placed is not None:
            batches.append(placed)
    return tuple(batches), without(
        queues, {batch.members[0].job.name for batch in batches}
    )


def _place(job: Job, loads: Sequence[_Load]) -> JobBatch | None:
    by_type = {setting.gpu_type: setting for setting in reversed(job.settings)}
    fitting = [
        load
        for load in loads
        if load.gpu.gpu_type in by_type and load.has_room(by_type[load.gpu.gpu_type])
    ]
    if not fitting:
        return None
    best = min(fitting, key=lambda load: (load.free_percent, load.gpu.id))
    setting = by_type[best.gpu.gpu_type]
    best.take(setting)
    return JobBatch(gpu=best.gpu.id, members=(PlacedJob(job, setting),))
