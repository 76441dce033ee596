"""Baselines' fills by hand: the left-over is taken whole, promises do not count, services' rules hold."""

from dataclasses import replace

import pytest

from solvers.backfill.hosts import make_host
from solvers.backfill.problem import FillLimits
from solvers.backfill.residents import Seats
from solvers.baselines.leftover_fill import (
    best_fit,
    fill_left_over,
    knee_percent,
    widest,
)
from solvers.baselines.muxflow import fill as match
from solvers.baselines.muxflow import idle_percent
from solvers.laws.operating_rows import OperatingRows
from solvers.policies.registry import fill_of
from solvers.types.plan import BoundGpu
from tests.solvers.training_beside import (
    POINTS,
    a_gpu,
    a_plan,
    a_problem,
    a_service,
    a_task,
    bound_gpu,
    bound_task,
    settings,
    shares,
    swapped,
    task_points,
    to_fill,
)

NARROW, WIDE = (
    bound_gpu(0, sm_percent=20.0, batch=4),
    bound_gpu(1, sm_percent=60.0, batch=4),
)


def test_widest_takes_the_most_that_is_left_and_best_fit_the_knee() -> None:
    # `train` has no knee: its speed is straight in the share, so that the smallest share "reaches" it.
    wanted = to_fill(a_plan(NARROW, WIDE), [a_task()], gpus=2)
    assert shares(fill_left_over(wanted, widest)) == {"nightly": ("n1/gpu-0", 80.0)}
    assert shares(fill_left_over(wanted, best_fit)) == {"nightly": ("n1/gpu-1", 40.0)}


def test_the_knee_is_where_the_speed_lies_farthest_above_its_chord() -> None:
    host = make_host(a_problem(), OperatingRows(a_problem()), WIDE)
    straight = Seats(POINTS).on(a_task(), host)
    assert knee_percent(straight) == 10.0
    bent = task_points()
    rows = tuple(
        row._replace(run_ms=max(row.run_ms, 200.0)) for row in bent.rows
    )  # full speed from 50 % on
    assert knee_percent(Seats([replace(bent, rows=rows)]).on(a_task(), host)) == 50.0


def test_promises_do_not_count_and_one_task_is_enough() -> None:
    # 20 % with batch 4 carry 73 rps alone, and 52 next to 80 % of training.
    wanted = to_fill(a_plan(NARROW), [a_task("a"), a_task("b")])
    assert shares(fill_left_over(wanted, widest)) == {"a": ("n1/gpu-0", 80.0)}


def test_where_a_replica_has_grown_the_task_starts_again_or_is_swapped_out() -> None:
    running = a_plan(replace(NARROW, tasks=(bound_task(sm_percent=80.0),)))
    grown = a_plan(bound_gpu(0, sm_percent=60.0, batch=4))
    assert shares(
        fill_left_over(to_fill(grown, [a_task()], running=running), widest)
    ) == {"nightly": ("n1/gpu-0", 40.0)}
    full = a_plan(bound_gpu(0, sm_percent=100.0, batch=4))
    held = fill_left_over(to_fill(full, [a_task()], running=running), widest)
    assert (shares(held), swapped(held)) == ({}, ["nightly"])
    again = fill_left_over(
        to_fill(running, [a_task(waiting_s=59.0)], running=a_plan(*held)), widest
    )
    assert shares(again) == {"nightly": ("n1/gpu-0", 80.0)}


def test_what_runs_stays_and_idle_gpus_are_for_those_who_waited() -> None:
    running = a_plan(replace(NARROW, tasks=(bound_task(sm_percent=30.0),)))
    assert (
        fill_left_over(to_fill(a_plan(NARROW), [a_task()], running=running), widest)
        == running.gpus
    )
    full = to_fill(a_plan(bound_gpu(0)), [a_task(waiting_s=599.0)], gpus=2)
    assert shares(fill_left_over(full, widest)) == {}
    long = replace(full, tasks=[a_task(waiting_s=600.0)])
    alone = fill_left_over(long, widest)
    assert shares(alone) == {"nightly": ("n1/gpu-1", 100.0)}
    assert shares(fill_left_over(full, widest, FillLimits(wait_s=0.0))) == {
        "nightly": ("n1/gpu-1", 100.0)
    }
    assert (
        fill_left_over(
            to_fill(a_plan(bound_gpu(0)), [a_task()], gpus=2, running=a_plan(*alone)),
            widest,
        )
        == alone
    )


def test_cordoned_gpus_start_nothing() -> None:
    wanted = replace(
        to_fill(a_plan(NARROW), [a_task(waiting_s=1e6)]), cordoned=[a_gpu().id]
    )
    assert shares(fill_left_over(wanted, widest)) == {}
    assert shares(match(wanted)) == {}


def test_gslice_and_gpulets_use_these_and_gpulets_never_a_third_partition() -> None:
    pair = replace(
        NARROW,
        replicas=(
            *NARROW.replicas,
            *bound_gpu(0, sm_percent=20.0, service="other").replicas,
        ),
    )
    problem = a_problem(a_service(), a_service("other"))
    wanted = to_fill(a_plan(pair), [a_task()], problem=problem)
    assert shares(fill_of("gslice")(wanted)) == {"nightly": ("n1/gpu-0", 60.0)}
    assert shares(fill_of("gpulets")(wanted)) == {}
    assert (
        shares(fill_of("gpulets")(to_fill(a_plan(NARROW, WIDE), [a_task()], gpus=2)))[
            "nightly"
        ][0]
        == "n1/gpu-1"
    )


def host_of(gpu: BoundGpu) -> float:
    problem = a_problem()
    return idle_percent(problem, make_host(problem, OperatingRows(problem), gpu))


def test_idle_sms_are_what_the_replica_leaves_on_average() -> None:
    # 60 rps with batch 4 on the whole GPU: 11 ms for 4 requests, 16.5 % of the time. On 50 % of it 33 %, of 50.
    assert host_of(bound_gpu(0, batch=4)) == pytest.approx(83.5)
    assert host_of(bound_gpu(0, sm_percent=50.0, batch=4)) == pytest.approx(83.5)
    assert host_of(bound_gpu(0, sm_percent=50.0, batch=4, rate_rps=1e6)) == 50.0


def test_muxflow_narrows_the_replica_to_what_it_uses_on_average() -> None:
    # 83.5 % are idle: 80 % for the task, 20 % for the replica, which then carries 52 rps next to it, less than come.
    (gpu,) = match(to_fill(a_plan(bound_gpu(0, batch=4)), [a_task()]))
    assert (settings(gpu), gpu.replicas[0].id, shares((gpu,))) == (
        (20.0, 4),
        "",
        {"nightly": ("n1/gpu-0", 80.0)},
    )


def test_muxflow_matches_for_the_largest_sum_of_speeds() -> None:
    # 80 % are idle on the first GPU (speed 0.8 for `train`), 50 % on the second; `light` is as fast on both.
    calm, busy = bound_gpu(0, batch=4), bound_gpu(1, batch=4, rate_rps=180.0)
    tasks = [a_task("a", "light"), a_task("b")]
    found = shares(match(to_fill(a_plan(calm, busy), tasks, gpus=2)))
    assert (found["a"][0], found["b"][0]) == ("n1/gpu-1", "n1/gpu-0")


def test_muxflow_gives_an_idle_gpu_to_one_that_waited_long() -> None:
    saturated = bound_gpu(0, batch=4, rate_rps=1e6)
    for waiting_s, placed in ((600.0, {"nightly": ("n1/gpu-1", 100.0)}), (0.0, {})):
        task = a_task(waiting_s=waiting_s)
        assert shares(match(to_fill(a_plan(saturated), [task], gpus=2))) == placed


def test_a_matching_leaves_out_who_cannot_sit_and_the_least_urgent() -> None:
    tasks = [a_task("a", "unknown"), a_task("b"), a_task("c", priority=2.0)]
    assert set(shares(match(to_fill(a_plan(bound_gpu(0, batch=4)), tasks)))) == {"c"}
    assert shares(match(to_fill(a_plan(bound_gpu(0, batch=4)), [tasks[0]]))) == {}
    saturated = bound_gpu(0, batch=4, rate_rps=1e6)
    assert shares(match(to_fill(a_plan(saturated), [a_task()]))) == {}
