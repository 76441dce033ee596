"""Baseline `orion`: high-priority jobs first, best-effort ones next to them where their kernels complement each other.

    high priority: latency-critical jobs, first come, first served; one per GPU
    best effort:   all others, in their order, after them; next to a high-priority job only where one of the two is
                   compute-bound and the other memory-bound

Source: Strati et al., "Orion" (EuroSys 2024), as OLTunes compares with it: by job instead of by kernel, and since Orion
chooses no GPU, the next one in a fixed round that has room ("best effort"). Settings are as submitted: it tunes none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from solvers.papers.oltunes.affinity import COMPUTE_FROM
from solvers.types.jobs import (
    MAX_JOBS,
    Job,
    JobBatch,
    JobGpu,
    JobSetting,
    PlacedJob,
    Queues,
    Resident,
    without,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrionState:
    """What it remembers."""

    queues: Queues = field(default_factory=Queues)
    turn: int = 0
    """Position of the GPU that is asked first."""


def schedule(
    state: OrionState, gpus: Sequence[JobGpu], ratios: Mapping[str, float]
) -> tuple[tuple[JobBatch, ...], OrionState]:
    """One round: jobs, each with the GPU on which it starts now. The order of GPUs and jobs changes nothing."""
    views = sorted(gpus, key=lambda gpu: gpu.id)
    residents = {gpu.id: list(gpu.residents) for gpu in views}
    batches: list[JobBatch] = []
    turn = state.turn
    refused: set[tuple[tuple[JobSetting, ...], bool]] = set()
    for job in (
        *_in_order(state.queues.latency_critical),
        *_in_order(state.queues.throughput_oriented),
    ):
        kind = job.settings, job.is_latency_critical
        if kind in refused:
            continue
        for step in range(len(views)):
            gpu = views[(turn + step) % len(views)]
            setting = _setting(job, gpu, residents[gpu.id], ratios)
            if setting is not None:
                batches.append(JobBatch(gpu=gpu.id, members=(PlacedJob(job, setting),)))
                residents[gpu.id].append(_resident(job, setting))
                turn = (turn + step + 1) % len(views)
                break
        else:  # GPUs only fill up within a round, so no other job of these settings finds room either
            refused.add(kind)
    started = {batch.members[0].job.name for batch in batches}
    return tuple(batches), OrionState(queues=without(state.queues, started), turn=turn)


def _in_order(jobs: Sequence[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (job.queued_s, job.name))


def _setting(
    job: Job, gpu: JobGpu, residents: Sequence[Resident], ratios: Mapping[str, float]
) -> JobSetting | None:
    """The job's setting where it may start there now."""
    setting = next((one for one in job.settings if one.gpu_type == gpu.gpu_type), None)
    if setting is None or len(residents) >= MAX_JOBS:
        return None
    free_percent = gpu.sm_percent - sum(each.sm_percent for each in residents)
    free_mib = gpu.memory_mib - sum(each.memory_mib for each in residents)
    if setting.sm_percent > free_percent or setting.memory_mib > free_mib:
        return None
    high = [each for each in residents if each.is_latency_critical]
    if job.is_latency_critical:
        return None if high else setting
    is_complement = all(
        _is_compute(each.network, ratios) != _is_compute(setting.network, ratios)
        for each in high
    )
    return setting if is_complement else None


def _is_compute(network: str, ratios: Mapping[str, float]) -> bool:
    return ratios.get(network, COMPUTE_FROM) >= COMPUTE_FROM


def _resident(job: Job, setting: JobSetting) -> Resident:
    return Resident(
        job.name,
        setting.sm_percent,
        setting.memory_mib,
        0.0,
        job.is_latency_critical,
        setting.network,
    )
