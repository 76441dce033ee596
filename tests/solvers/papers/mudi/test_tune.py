"""Tuning one GPU by hand: batch, the replica's smallest share, even shares for its tasks."""

from dataclasses import replace

import pytest

from solvers.backfill.hosts import Host, make_host
from solvers.backfill.residents import Seats
from solvers.laws.operating_rows import OperatingRows
from solvers.papers.mudi.iterations import Iterations
from solvers.papers.mudi.tune import ROOM, Tuned, Tuner, longest_ms
from solvers.types.problem import Problem
from solvers.types.state import Task
from tests.solvers.training_beside import (
    LAW,
    POINTS,
    a_problem,
    a_service,
    a_task,
    bound_gpu,
)


def a_tuner(problem: Problem) -> Tuner:
    seats = Seats(POINTS)
    return Tuner(
        problem=problem, seats=seats, iterations=Iterations(problem, seats, (), ())
    )


def a_host(
    rate_rps: float, problem: Problem, *, sm_percent: float = 100.0, batch: int = 1
) -> Host:
    gpu = bound_gpu(rate_rps=rate_rps, sm_percent=sm_percent, batch=batch)
    return make_host(problem, OperatingRows(problem), gpu)


def tuned(
    rate_rps: float,
    *tasks: Task,
    room: float = 1.0,
    sm_percent: float = 100.0,
    batch: int = 1,
) -> Tuned | None:
    problem = a_problem(a_service(rate_rps=rate_rps))
    return a_tuner(problem).tune(
        a_host(rate_rps, problem, sm_percent=sm_percent, batch=batch), tasks, room=room
    )


def summary(found: Tuned | None) -> tuple[float, int, list[float]] | None:
    return found and (
        found.row.sm_percent,
        found.row.batch,
        [seat.row.sm_percent for seat in found.seats],
    )


def test_the_largest_batch_needs_the_smallest_share() -> None:
    # 60 rps: batch 4 may take 66.7 ms. At 20 % with 80 % of training (Π = 0.4) it takes 1100 / 20 · 1.4 = 77, at 30 %
    # with 70 % 36.7 · 1.35 = 49.5. Batch 2 may take 33.3: 23.3 · 1.35 = 31.5 at 30 %. Batch 1 16.7: 40 % with 60 %.
    # Both leave 70 % to the task; a search that began with batch 1 may end with either.
    found = tuned(60.0, a_task())
    assert summary(found) in [(30.0, 2, [70.0]), (30.0, 4, [70.0])]
    assert found is not None and found.slowness == pytest.approx(100.0 / 70.0)
    assert found.speed == pytest.approx(0.7)


def test_room_for_more_than_the_rate_is_kept_where_there_is_any() -> None:
    # At 1.25 times 60 rps batch 4 may take 53.3 ms (49.5 at 30 % with 70 %), batch 2 26.7, batch 1 13.3.
    assert summary(tuned(60.0, a_task(), room=ROOM)) == (30.0, 4, [70.0])
    # 240 rps: batch 4 may take 16.7 ms; 90 % with 10 % take 12.2 · 1.05 = 12.8. At 1.25 times that 13.3 still do.
    assert summary(tuned(240.0, a_task(), room=ROOM)) == (90.0, 4, [10.0])
    # 300 rps: 13.3 ms are enough for 12.8, but 10.7 at 1.25 times the rate are not: the rate itself must do.
    assert summary(tuned(300.0, a_task(), room=ROOM)) == (90.0, 4, [10.0])


def test_what_a_service_cannot_bear_is_not_tuned() -> None:
    # 330 rps: batch 4 may take 12.1 ms; 90 % with the smallest task take 12.8.
    assert tuned(330.0, a_task()) is None


def test_three_tasks_get_even_shares_and_single_ones_what_rounding_leaves() -> None:
    three = a_task("a"), a_task("b"), a_task("c")
    # 20 rps: batch 4 may take 200 ms: at 10 % with 3 · 30 % (Π = 0.45) it takes 110 · 1.45 = 159.5.
    assert summary(tuned(20.0, *three)) == (10.0, 4, [30.0, 30.0, 30.0])
    # 45 rps: batch 1 may take 22 ms, 25 at 20 %; batch 2 44 ms: at 10 % 70, at 20 % with 3 · 20 % 35 · 1.3 = 45.5; so
    # 30 %: 23.3 · 1.3 = 30. Batch 4 may take 89 ms: 55 · 1.3 = 71.5 at 20 %. Rounding leaves 20 % of the 80 %: the
    # first two get 10 % more each, 55 · 1.4 = 77 ms.
    assert summary(tuned(45.0, *three, batch=4)) == (20.0, 4, [30.0, 30.0, 20.0])


def test_tasks_get_less_than_an_even_part_where_the_service_bears_no_more() -> None:
    # 250 rps: batch 4 may take 16 ms. 70 %: 15.7 alone. 80 % take 13.75 alone, 14.4 with 10 % and 15.1 with 20 %.
    assert summary(tuned(250.0, a_task())) == (80.0, 4, [20.0])
    # 275 rps: 14.5 ms; at 80 % with 10 % it takes 14.4.
    assert summary(tuned(275.0, a_task())) == (80.0, 4, [10.0])


def test_a_replica_stays_as_it_is_where_another_tuning_is_hardly_better() -> None:
    # 60 rps at batch 4, 40 %: 60 % for the task. 30 % leave 70 %, which is 14 % better, so that it moves; for `light`,
    # which takes the same time at any share, nothing is better.
    moved = summary(tuned(60.0, a_task(), sm_percent=40.0, batch=4))
    assert moved is not None and (moved[0], moved[2]) == (30.0, [70.0])
    assert summary(tuned(60.0, a_task(network="light"), sm_percent=40.0, batch=4)) == (
        40.0,
        4,
        [60.0],
    )


def test_the_constraint_of_the_slide_holds_beside_the_law() -> None:
    # W = max(b, λ · SLO) requests within one SLO of 1 s: at 60 rps with batch 4 the 60 must be done in 15 batches of
    # 66.7 ms. At 2 rps W is the batch itself, which must be done within the SLO.
    service = a_service()
    assert longest_ms(LAW, service, 4, 60.0) == pytest.approx(
        1000.0 * 4 / 60.0, rel=1e-6
    )
    assert longest_ms(LAW, service, 4, 2.0) == pytest.approx(1000.0, rel=2e-3)


def test_another_batch_in_place_is_one_that_bears_those_who_are_there() -> None:
    # 60 rps, batch 1 at 30 %: 16.7 ms alone already; batch 2 takes 23.3 and may take 33.3.
    problem = a_problem(a_service(rate_rps=70.0))
    tuner, host = a_tuner(problem), a_host(70.0, problem, sm_percent=30.0)
    row = tuner.rebatched(host, [])
    assert row is not None and (row.sm_percent, row.batch) in [(30.0, 2), (30.0, 4)]
    # 200 rps at 30 %: batch 4 takes 36.7 ms, which is 109 rps.
    assert (
        tuner.rebatched(
            a_host(200.0, a_problem(a_service(rate_rps=200.0)), sm_percent=30.0), []
        )
        is None
    )


def test_what_a_replica_could_spare() -> None:
    # 60 rps with batch 4: 66.7 ms are 20 % alone (55 ms). At twice the rate 33.3 ms are 40 % (27.5).
    problem = a_problem(a_service(rate_rps=60.0))
    tuner, host = a_tuner(problem), a_host(60.0, problem, sm_percent=90.0, batch=4)
    assert tuner.spare_percent(host, [], room=1.0) == 70.0
    assert tuner.spare_percent(host, [], room=2.0) == 50.0
    assert tuner.spare_percent(host, [], room=100.0) == 0.0


def test_a_task_that_stalls_leaves_the_service_less_of_its_slo() -> None:
    law, service = LAW, a_service(rate_rps=60.0)
    # Of 1000 ms 970 are stalled: batch 4 may take 30 ms, where it might take 66.7 by its rate.
    problem = a_problem(service)
    points = tuple(
        replace(entry, rows=tuple(row._replace(stall_ms=970.0) for row in entry.rows))
        for entry in POINTS
    )
    seats = Seats(points)
    tuner = Tuner(
        problem=problem, seats=seats, iterations=Iterations(problem, seats, (), ())
    )
    found = tuner.tune(a_host(60.0, problem), [a_task()], room=1.0)
    plain = tuned(60.0, a_task())
    assert found is not None and plain is not None
    own_ms = found.row.solo_ms * (1.0 + found.seats[0].row.pressure)
    assert own_ms <= longest_ms(law, replace(service, slo_ms=30.0), 4, 60.0)
    assert found.row.sm_percent > plain.row.sm_percent
    assert longest_ms(law, replace(service, slo_ms=-1.0), 4, 60.0) == 0.0
