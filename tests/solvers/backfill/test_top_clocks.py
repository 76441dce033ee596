"""Tasks run next to replicas at the highest clock that these can have there."""

from dataclasses import replace

import pytest

from solvers.backfill.exact import fill
from solvers.backfill.problem import FillProblem
from solvers.backfill.replica_settings import with_top_clocks
from solvers.types.errors import InvalidInput
from solvers.types.plan import BoundGpu
from tests.solvers.factories import (
    CLOCK_MHZ,
    POINTS,
    PROBLEM,
    a_gpu,
    a_plan,
    a_task,
    bound_gpu,
    bound_task,
    to_fill,
)

TOP_MHZ = 1500.0


def two_clocks(*gpus: BoundGpu, web_w: float = 120.0, tasks: int = 1) -> FillProblem:
    """`web` and `train` are half as fast again at 1500 MHz; `web` draws that many watts there."""
    wanted = to_fill(
        a_plan(*gpus), [a_task(f"t{at}") for at in range(tasks)], [a_gpu(1)]
    )
    types = tuple(
        replace(each, clocks_mhz=(CLOCK_MHZ, TOP_MHZ)) for each in PROBLEM.gpu_types
    )
    points = tuple(
        replace(
            each,
            rows=(
                *each.rows,
                *(
                    row._replace(
                        clock_mhz=TOP_MHZ, run_ms=row.run_ms / 1.5, power_w=web_w
                    )
                    for row in each.rows
                ),
            ),
        )
        for each in PROBLEM.points
    )
    training = tuple(
        replace(
            each,
            rows=(
                *each.rows,
                *(
                    row._replace(clock_mhz=TOP_MHZ, run_ms=row.run_ms / 1.5)
                    for row in each.rows
                ),
            ),
        )
        for each in wanted.points
    )
    return replace(
        wanted,
        problem=replace(PROBLEM, gpu_types=types, points=points),
        points=training,
    )


def test_a_gpu_with_a_task_runs_at_its_top_clock_and_leaves_the_task_more_sms() -> None:
    # At 90 rps an execution of web may take 11.1 ms. At 1000 MHz it takes 10 · (1 + Π): pressures up to 11 %, a
    # share of 10 %. At 1500 MHz it takes 6.7 · (1 + Π), pressures up to 67 %: half of the SMs, all that web leaves.
    (gpu,) = fill(two_clocks(bound_gpu(a_gpu(1), rate_rps=90.0)))
    assert (gpu.clock_mhz, [task.sm_percent for task in gpu.tasks]) == (TOP_MHZ, [50.0])


def test_a_gpu_without_a_task_keeps_its_clock() -> None:
    (gpu,) = fill(two_clocks(bound_gpu(a_gpu(1), rate_rps=90.0), tasks=0))
    assert gpu.clock_mhz == CLOCK_MHZ


def test_caps_hold_at_the_higher_clock() -> None:
    # 50 W idle and 260 W are more than the board's 300 W.
    wanted = two_clocks(bound_gpu(a_gpu(1), rate_rps=90.0), web_w=260.0)
    assert with_top_clocks(wanted).bound.gpus[0].clock_mhz == CLOCK_MHZ


def test_watts_that_a_task_needs_are_not_given_away() -> None:
    # 50 W idle, 249 W and 10 W of the task's smallest share are more than 300 W.
    (gpu,) = fill(two_clocks(bound_gpu(a_gpu(1), rate_rps=60.0), web_w=249.0))
    assert (gpu.clock_mhz, [task.sm_percent for task in gpu.tasks]) == (
        CLOCK_MHZ,
        [50.0],
    )


def test_a_clock_at_which_the_task_was_never_measured_is_not_taken() -> None:
    gpu, task = bound_gpu(a_gpu(1), rate_rps=60.0), bound_task("t0", sm_percent=20.0)
    wanted = replace(two_clocks(gpu), points=POINTS)
    assert [(each.clock_mhz, len(each.tasks)) for each in fill(wanted)] == [
        (CLOCK_MHZ, 1)
    ]
    running = replace(wanted, running=a_plan(replace(gpu, tasks=(task,))))
    assert [(each.clock_mhz, each.tasks) for each in fill(running)] == [
        (CLOCK_MHZ, (task,))
    ]


def test_under_a_power_budget_the_planner_s_clocks_stand() -> None:
    wanted = two_clocks(bound_gpu(a_gpu(1), rate_rps=90.0))
    budgeted = replace(wanted, problem=replace(wanted.problem, power_budget_w=1000.0))
    assert with_top_clocks(budgeted) is budgeted


def test_a_replica_whose_row_is_gone_is_told_as_it_is() -> None:
    wanted = two_clocks(bound_gpu(a_gpu(1), rate_rps=90.0))
    odd = replace(wanted.bound.gpus[0], clock_mhz=900.0)
    with pytest.raises(InvalidInput, match="web-1: its row"):
        with_top_clocks(replace(wanted, bound=replace(wanted.bound, gpus=(odd,))))
