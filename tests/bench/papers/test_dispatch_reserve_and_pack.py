"""The baseline reserve-and-pack: heavy jobs on reserved GPUs, light ones packed on the others."""

import pytest

from bench.papers.dispatch_reserve_and_pack import Reservation, schedule
from solvers.types.jobs import Job, JobGpu, Queues, enqueue
from tests.solvers.jobs import a_gpu, a_job, a_resident, a_setting

pytestmark = pytest.mark.thorough

RESERVATION = Reservation(high_end={"big"}, heavy={"heavy"})


def a_light(name: str, *, sm_percent: float = 25.0, queued_s: float = 0.0) -> Job:
    settings = (
        a_setting("light", gpu, sm_percent=sm_percent) for gpu in ("big", "small")
    )
    return a_job(name, *settings, queued_s=queued_s)


def a_heavy(name: str) -> Job:
    return a_job(name, a_setting("heavy", "big"), a_setting("heavy", "small"))


def places(jobs: list[Job], gpus: list[JobGpu]) -> list[tuple[str, str]]:
    batches, _ = schedule(enqueue(Queues(), jobs), gpus, RESERVATION)
    return [(batch.members[0].job.name, batch.gpu) for batch in batches]


def test_heavy_and_light_jobs_stay_apart_though_the_others_gpus_are_idle() -> None:
    gpus = [a_gpu("b", gpu_type="big"), a_gpu("s", gpu_type="small")]
    assert places([a_heavy("h"), a_light("l")], gpus) == [("h", "b"), ("l", "s")]
    full = [
        a_gpu("b", gpu_type="big"),
        a_gpu("s", a_resident(sm_percent=90.0), gpu_type="small"),
    ]
    assert places([a_light("l")], full) == []


def test_light_jobs_are_packed_on_the_fullest_gpu_that_has_room() -> None:
    gpus = [
        a_gpu("a", gpu_type="small"),
        a_gpu("b", a_resident(sm_percent=50.0), gpu_type="small"),
        a_gpu("c", a_resident(sm_percent=90.0), gpu_type="small"),
    ]
    assert places([a_light("l")], gpus) == [("l", "b")]


def test_the_longest_wait_comes_first_and_a_large_job_holds_nobody_up() -> None:
    gpus = [a_gpu("s", a_resident(sm_percent=50.0), gpu_type="small")]
    jobs = [
        a_light("wide", sm_percent=80.0, queued_s=1.0),
        a_light("new", queued_s=3.0),
        a_light("old", queued_s=2.0),
    ]
    assert places(jobs, gpus) == [("old", "s"), ("new", "s")]
