"""The baseline Orion: high priority first, one per GPU; best effort next to complements."""

import pytest

from bench.papers.dispatch_orion import OrionState, schedule
from solvers.types.jobs import MAX_JOBS, Job, JobBatch, JobGpu, Queues, enqueue
from tests.solvers.jobs import a_gpu, a_job, a_resident, a_setting

pytestmark = pytest.mark.thorough

RATIOS = {"compute": 3.0, "memory": 0.5}
COMPUTE, MEMORY = a_setting("compute"), a_setting("memory")


def round_of(
    *jobs: Job, gpus: tuple[JobGpu, ...] = (a_gpu(),), turn: int = 0
) -> tuple[tuple[JobBatch, ...], OrionState]:
    return schedule(OrionState(queues=enqueue(Queues(), jobs), turn=turn), gpus, RATIOS)


def places(batches: tuple[JobBatch, ...]) -> list[tuple[str, str]]:
    return [(batch.members[0].job.name, batch.gpu) for batch in batches]


def test_high_priority_jobs_go_first_one_per_gpu_in_their_order() -> None:
    batches, state = round_of(
        a_job("late", COMPUTE, queued_s=2.0),
        a_job("first", COMPUTE, queued_s=1.0),
        a_job("effort", COMPUTE, weight=0.1),
    )
    # The best-effort job is of the same class as the high-priority one that has just been placed.
    assert places(batches) == [("first", "g1")]
    assert {job.name for job in state.queues.jobs} == {"late", "effort"}


def test_best_effort_runs_beside_high_priority_of_the_other_class_only() -> None:
    effort = a_job("effort", MEMORY, weight=0.1)
    beside_compute = (
        a_gpu("g", a_resident(is_latency_critical=True, network="compute")),
    )
    beside_memory = (
        a_gpu("g", a_resident(is_latency_critical=True, network="memory")),
    )
    assert places(round_of(effort, gpus=beside_compute)[0]) == [("effort", "g")]
    assert round_of(effort, gpus=beside_memory)[0] == ()


def test_best_effort_jobs_share_a_gpu_without_high_priority_whatever_their_class() -> (
    None
):
    batches, _ = round_of(*(a_job(f"e{at}", MEMORY, weight=0.1) for at in range(6)))
    assert len(batches) == MAX_JOBS


def test_gpus_take_turns() -> None:
    gpus = (a_gpu("a"), a_gpu("b"), a_gpu("c"))
    batches, state = round_of(
        a_job("x", COMPUTE), a_job("y", COMPUTE), gpus=gpus, turn=2
    )
    assert places(batches) == [("x", "c"), ("y", "a")]
    assert state.turn == 1
