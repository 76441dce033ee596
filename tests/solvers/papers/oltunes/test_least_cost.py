"""Jobs at least cost: the cheapest place in time, the nearest deadline first."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.papers.oltunes.least_cost import schedule
from solvers.types.jobs import Job, JobBatch, JobGpu, JobSetting, Queues, enqueue
from tests.solvers.jobs import a_gpu, a_job, a_resident, a_setting

PRICES = {"fast": 3.0, "cheap": 1.0}
GPUS = (a_gpu("f", gpu_type="fast"), a_gpu("c", gpu_type="cheap"))
# USD of a GPU hour × share × s: 3 · 0.5 · 1 = 1.5 on the fast type, 1 · 0.5 · 2 = 1 on the cheap one.
FAST = a_setting(gpu_type="fast", sm_percent=50.0, latency_s=1.0)
CHEAP = a_setting(gpu_type="cheap", sm_percent=50.0, latency_s=2.0)


def round_of(
    *jobs: Job, gpus: tuple[JobGpu, ...] = GPUS, now_s: float = 0.0
) -> tuple[JobBatch, ...]:
    return schedule(enqueue(Queues(), jobs), gpus, now_s, PRICES)[0]


def names(batches: Sequence[JobBatch]) -> list[str]:
    return [batch.members[0].job.name for batch in batches]


@pytest.mark.parametrize(
    ("deadline_s", "expected"), [(9.0, CHEAP), (2.0, CHEAP), (1.9, FAST), (0.5, CHEAP)]
)
def test_the_cheapest_setting_in_time_else_the_cheapest(
    deadline_s: float, expected: JobSetting
) -> None:
    (batch,) = round_of(a_job("a", FAST, CHEAP, deadline_s=deadline_s))
    assert batch.members[0].setting == expected


def test_a_share_below_a_quarter_costs_a_quarter() -> None:
    # A GPU holds four jobs: 5 % for 2 s costs 0.25 · 2 = 0.5, 25 % for 1 s 0.25.
    narrow = a_setting(gpu_type="cheap", sm_percent=5.0, latency_s=2.0)
    quarter = a_setting(gpu_type="cheap", sm_percent=25.0, latency_s=1.0)
    assert round_of(a_job("a", narrow, quarter))[0].members[0].setting == quarter


def test_the_nearest_deadline_takes_the_last_room() -> None:
    gpus = (a_gpu("c", a_resident(sm_percent=50.0), gpu_type="cheap"),)
    batches = round_of(
        a_job("later", CHEAP, deadline_s=9.0),
        a_job("sooner", CHEAP, deadline_s=5.0),
        gpus=gpus,
    )
    assert [batch.members[0].job.name for batch in batches] == ["sooner"]


def test_a_job_without_room_holds_nobody_up() -> None:
    whole = a_setting(gpu_type="cheap", sm_percent=100.0)
    gpus = (a_gpu("c", a_resident(sm_percent=50.0), gpu_type="cheap"),)
    batches = round_of(
        a_job("whole", whole, deadline_s=1.0), a_job("small", CHEAP), gpus=gpus
    )
    assert [batch.members[0].job.name for batch in batches] == ["small"]


def test_a_job_that_is_lost_goes_behind_those_that_can_be_in_time() -> None:
    # One GPU for one job of 2 s: due in 3 s; too late by a second; past its deadline.
    whole = a_setting(gpu_type="cheap", sm_percent=100.0, latency_s=2.0)
    fine, lost, past = (
        a_job(name, whole, deadline_s=due)
        for name, due in (("fine", 3.0), ("lost", 1.0), ("past", -9.0))
    )
    gpus = (a_gpu("c", gpu_type="cheap"),)
    assert names(round_of(past, lost, fine, gpus=gpus)) == ["fine"]
    assert names(round_of(past, lost, gpus=gpus)) == ["past"]
    assert names(round_of(past, lost, a_job("free", whole), gpus=gpus)) == ["free"]


def test_who_has_waited_for_30_s_comes_first_the_longest_wait_first() -> None:
    whole = a_setting(gpu_type="cheap", sm_percent=100.0)
    jobs = [
        a_job("a", whole, queued_s=1.0),
        a_job("b", whole, queued_s=0.0),
        a_job("due", whole, deadline_s=41.0),
    ]
    due = a_job("due", whole, queued_s=20.0, deadline_s=41.0)
    gpus = (a_gpu("c", gpu_type="cheap"),)
    assert names(round_of(*jobs[:2], due, gpus=gpus, now_s=29.0)) == ["due"]
    assert names(round_of(*jobs[:2], due, gpus=gpus, now_s=30.0)) == ["b"]
    assert names(round_of(jobs[0], due, gpus=gpus, now_s=31.0)) == ["a"]


def test_who_has_room_closes_no_gpu_and_who_fits_nowhere_neither() -> None:
    half = a_job("half", CHEAP)
    never = a_job("never", CHEAP._replace(memory_mib=20000.0))
    gpus = (a_gpu("c", gpu_type="cheap"),)
    new = a_job("new", CHEAP, queued_s=39.0)
    assert names(round_of(never, half, new, gpus=gpus, now_s=40.0)) == ["half", "new"]


def test_of_gpus_that_run_the_network_as_often_the_fullest_is_taken() -> None:
    other = a_resident(sm_percent=40.0, network="other")
    gpus = (a_gpu("a", gpu_type="cheap"), a_gpu("b", other, gpu_type="cheap"))
    assert round_of(a_job("a", CHEAP), gpus=gpus)[0].gpu == "b"


def test_a_gpu_with_idle_containers_of_the_network_comes_first() -> None:
    running = a_resident(sm_percent=40.0)
    gpus = (a_gpu("a", gpu_type="cheap"), a_gpu("b", running, gpu_type="cheap"))
    assert round_of(a_job("a", CHEAP), gpus=gpus)[0].gpu == "a"
    gpus = (a_gpu("a", gpu_type="fast"), a_gpu("b", running, gpu_type="cheap"))
    assert round_of(a_job("a", FAST, CHEAP), gpus=gpus)[0].gpu == "a"


def test_jobs_of_a_round_do_not_all_go_to_one_idle_container() -> None:
    gpus = (a_gpu("a", gpu_type="cheap"), a_gpu("b", gpu_type="cheap"))
    batches = round_of(a_job("j1", CHEAP), a_job("j2", CHEAP), gpus=gpus)
    assert [batch.gpu for batch in batches] == ["a", "b"]


def test_to_be_in_time_comes_before_an_idle_container() -> None:
    gpus = (
        a_gpu("a", gpu_type="cheap"),
        a_gpu("b", a_resident(sm_percent=40.0), gpu_type="fast"),
    )
    assert round_of(a_job("a", FAST, CHEAP, deadline_s=1.5), gpus=gpus)[0].gpu == "b"


def test_without_a_price_jobs_or_gpus_nothing_is_done() -> None:
    assert (
        round_of(a_job("a", a_setting(gpu_type="odd")), gpus=(a_gpu(gpu_type="odd"),))
        == ()
    )
    assert round_of(a_job("a"), gpus=()) == ()
    assert round_of() == ()


@given(
    st.integers(0, 10),
    st.sampled_from((0.0, 2.0, 31.0)),
    st.randoms(use_true_random=False),
)
def test_the_order_of_jobs_and_gpus_changes_nothing(
    count: int, now_s: float, shuffle: random.Random
) -> None:
    # At 2 s some deadlines are lost; at 31 s some jobs have waited long, and those of 90 % close GPUs.
    sizes = [
        [one._replace(sm_percent=percent) for one in (FAST, CHEAP)]
        for percent in (90.0, 50.0)
    ]
    jobs = [
        a_job(f"j{at}", *sizes[at % 2], queued_s=float(at % 4), deadline_s=1.0 + at % 3)
        for at in range(count)
    ]
    gpus = [a_gpu(f"g{at}", gpu_type=("fast", "cheap")[at % 2]) for at in range(3)]
    mixed = round_of(
        *shuffle.sample(jobs, count), gpus=tuple(shuffle.sample(gpus, 3)), now_s=now_s
    )
    assert mixed == round_of(*jobs, gpus=tuple(gpus), now_s=now_s)
