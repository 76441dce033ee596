"""Two queues: classes by weight, urgency by deadline over latency, failures to the front."""

import math

import pytest

from solvers.papers.oltunes.queues import (
    by_urgency,
    impatient,
    is_lost,
    put_back,
    urgency,
)
from solvers.papers.oltunes.schedule import adjusted_ms
from solvers.types.jobs import Queues, enqueue, without
from tests.solvers.jobs import a_job, a_setting


def test_a_weight_of_exactly_one_half_is_throughput_oriented_as_in_table_4() -> None:
    queues = enqueue(
        Queues(),
        [
            a_job("low", weight=0.5),
            a_job("high", weight=0.51),
            a_job("zero", weight=0.0),
        ],
    )
    assert [job.name for job in queues.latency_critical] == ["high"]
    assert [job.name for job in queues.throughput_oriented] == ["low", "zero"]


def test_urgency_is_the_time_left_over_the_mean_latency() -> None:
    # (10 − 4) / mean(1, 3) = 3.
    job = a_job(
        "a", a_setting(latency_s=1.0), a_setting(latency_s=3.0), deadline_s=10.0
    )
    assert urgency(job, 4.0) == pytest.approx(3.0)


def test_the_most_urgent_goes_first_and_ties_go_to_the_shorter_job() -> None:
    # Urgencies at 0: 8 / 4 = 2, 6 / 3 = 2, 3 / 2 = 1.5; of the first two the one that takes 3 s is shorter.
    long = a_job("long", a_setting(latency_s=4.0), deadline_s=8.0)
    short = a_job("short", a_setting(latency_s=3.0), deadline_s=6.0)
    urgent = a_job("urgent", a_setting(latency_s=2.0), deadline_s=3.0)
    assert [job.name for job in by_urgency([long, short, urgent], 0.0)] == [
        "urgent",
        "short",
        "long",
    ]


def test_a_job_that_cannot_meet_its_deadline_goes_behind_those_that_can() -> None:
    lost = a_job("lost", a_setting(latency_s=5.0), deadline_s=4.0)
    past = a_job("past", a_setting(latency_s=1.0), deadline_s=-1.0)
    fine = a_job("fine", a_setting(latency_s=1.0), deadline_s=100.0)
    free = a_job("free", a_setting(latency_s=1.0))
    # Urgencies of the lost ones: −1 / 1 and 4 / 5.
    ordered = [job.name for job in by_urgency([lost, past, fine, free], 0.0)]
    assert ordered == ["fine", "free", "past", "lost"]


def test_what_failed_goes_to_the_front_of_the_latency_critical() -> None:
    waiting = enqueue(Queues(), [a_job("now", deadline_s=1.5)])
    back = put_back(waiting, [a_job("batch", weight=0.1)])
    assert [job.name for job in by_urgency(back.latency_critical, 0.0)] == [
        "batch",
        "now",
    ]
    assert back.latency_critical[0].failures == 1


def test_what_failed_is_there_once_even_if_it_was_never_taken_out() -> None:
    waiting = enqueue(Queues(), [a_job("a", weight=0.1), a_job("b", weight=0.1)])
    back = put_back(waiting, [waiting.throughput_oriented[0]])
    assert [(job.name, job.failures) for job in back.jobs] == [("a", 1), ("b", 0)]


def test_who_has_waited_for_long_the_longest_first() -> None:
    jobs = [
        a_job("new", queued_s=10.1),
        a_job("b", queued_s=10.0),
        a_job("a", queued_s=10.0),
        a_job("z", queued_s=0.0),
    ]
    assert [job.name for job in impatient(jobs, 40.0)] == ["z", "a", "b"]
    assert impatient(jobs, 40.0, 40.5) == []


@pytest.mark.parametrize(
    ("deadline_s", "expected"),
    [(3.0, False), (2.9, True), (math.inf, False), (-1.0, True)],
)
def test_a_job_is_lost_when_its_fastest_setting_would_be_late(
    deadline_s: float, expected: bool
) -> None:
    job = a_job(
        "a", a_setting(latency_s=5.0), a_setting(latency_s=2.0), deadline_s=deadline_s
    )
    assert is_lost(job, 1.0) is expected


def test_the_share_of_latency_critical_jobs_is_by_number() -> None:
    queues = enqueue(
        Queues(), [a_job("a"), a_job("b"), a_job("c"), a_job("d", weight=0.2)]
    )
    assert queues.critical_share == pytest.approx(0.75)
    assert without(queues, {"d"}).critical_share == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("window_ms", "share", "following_ms"),
    [
        (100.0, 0.71, 90.0),
        (100.0, 0.70, 110.0),
        (55.0, 1.0, 50.0),
        (50.0, 1.0, 50.0),
        (995.0, 0.0, 1000.0),
        (1000.0, 0.0, 1000.0),
        (120.0, None, 120.0),
    ],
)
def test_the_window_moves_by_10_ms_between_50_and_1000(
    window_ms: float, share: float | None, following_ms: float
) -> None:
    assert adjusted_ms(window_ms, share) == following_ms
