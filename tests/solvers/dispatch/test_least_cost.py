"""Jobs under `joint`: the cheapest place in time, the nearest deadline first."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.dispatch.job import Batch, GpuView, Job, Setting
from solvers.dispatch.least_cost import schedule
from solvers.dispatch.queues import Queues, enqueue
from tests.solvers.dispatch.jobs import a_gpu, a_job, a_resident, a_setting

PRICES = {"fast": 3.0, "cheap": 1.0}
GPUS = (a_gpu("f", gpu_type="fast"), a_gpu("c", gpu_type="cheap"))
# USD of a GPU hour × share × s: 3 · 0.5 · 1 = 1.5 on the fast type, 1 · 0.5 · 2 = 1 on the cheap one.
FAST = a_setting(gpu_type="fast", sm_percent=50.0, latency_s=1.0)
CHEAP = a_setting(gpu_type="cheap", sm_percent=50.0, latency_s=2.0)


def round_of(*jobs: Job, gpus: tuple[GpuView, ...] = GPUS, now_s: float = 0.0) -> tuple[Batch, ...]:
    return schedule(enqueue(Queues(), jobs), gpus, now_s, PRICES)[0]


@pytest.mark.parametrize(("deadline_s", "expected"), [(9.0, CHEAP), (2.0, CHEAP), (1.9, FAST), (0.5, CHEAP)])
def test_the_cheapest_setting_in_time_else_the_cheapest(deadline_s: float, expected: Setting) -> None:
    (batch,) = round_of(a_job("a", FAST, CHEAP, deadline_s=deadline_s))
    assert batch.members[0].setting == expected


def test_a_share_below_a_quarter_costs_a_quarter() -> None:
    # A GPU holds four jobs: 5 % for 2 s costs 0.25 · 2 = 0.5, 25 % for 1 s 0.25.
    narrow = a_setting(gpu_type="cheap", sm_percent=5.0, latency_s=2.0)
    quarter = a_setting(gpu_type="cheap", sm_percent=25.0, latency_s=1.0)
    assert round_of(a_job("a", narrow, quarter))[0].members[0].setting == quarter


def test_the_nearest_deadline_takes_the_last_room() -> None:
    gpus = (a_gpu("c", a_resident(sm_percent=50.0), gpu_type="cheap"),)
    batches = round_of(a_job("later", CHEAP, deadline_s=9.0), a_job("sooner", CHEAP, deadline_s=5.0), gpus=gpus)
    assert [batch.members[0].job.name for batch in batches] == ["sooner"]


def test_a_job_without_room_holds_nobody_up() -> None:
    whole = a_setting(gpu_type="cheap", sm_percent=100.0)
    gpus = (a_gpu("c", a_resident(sm_percent=50.0), gpu_type="cheap"),)
    batches = round_of(a_job("whole", whole, deadline_s=1.0), a_job("small", CHEAP), gpus=gpus)
    assert [batch.members[0].job.name for batch in batches] == ["small"]


def test_of_equal_gpus_the_fullest_is_taken() -> None:
    gpus = (a_gpu("a", gpu_type="cheap"), a_gpu("b", a_resident(sm_percent=40.0), gpu_type="cheap"))
    assert round_of(a_job("a", CHEAP), gpus=gpus)[0].gpu == "b"


def test_a_type_without_a_price_is_not_used_and_nothing_is_done_without_jobs_or_gpus() -> None:
    assert round_of(a_job("a", a_setting(gpu_type="odd")), gpus=(a_gpu(gpu_type="odd"),)) == ()
    assert round_of(a_job("a"), gpus=()) == ()
    assert round_of() == ()


@given(st.integers(0, 10), st.randoms(use_true_random=False))
def test_the_order_of_jobs_and_gpus_changes_nothing(count: int, shuffle: random.Random) -> None:
    jobs = [a_job(f"j{at}", FAST, CHEAP, deadline_s=1.0 + at % 3) for at in range(count)]
    gpus = [a_gpu(f"g{at}", gpu_type=("fast", "cheap")[at % 2]) for at in range(3)]
    mixed = round_of(*shuffle.sample(jobs, count), gpus=tuple(shuffle.sample(gpus, 3)))
    assert mixed == round_of(*jobs, gpus=tuple(gpus))
