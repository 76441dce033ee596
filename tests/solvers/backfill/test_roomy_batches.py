"""Replicas next to which tasks run take the batch that leaves most room.

`web` gets batches of two here, of 12 ms each. At 90 rps a request alone may take 1000 / 90 = 11.1 ms, 1.11 times its
10 ms; two may take 22.2 ms, 1.85 times their 12 ms.
"""

from dataclasses import replace

import pytest

from solvers.backfill.exact import fill
from solvers.backfill.problem import FillProblem
from solvers.backfill.replica_settings import with_roomy_batches
from solvers.types.errors import InvalidInput
from solvers.types.plan import BoundGpu, BoundReplica
from solvers.types.problem import CapacityLaw
from tests.solvers.factories import (
    CLOCK_MHZ,
    PROBLEM,
    a_gpu,
    a_plan,
    a_task,
    bound_gpu,
    bound_task,
    to_fill,
)

LAW = CapacityLaw(
    percentiles=(0.99,),
    batches=(1, 2),
    slo_ratios=(1.0, 1.001),
    max_utilisation=(((0.0, 1.0), (0.0, 1.0)),),
)


def two_batches(
    *gpus: BoundGpu,
    run_ms: float = 12.0,
    memory_mib: float = 2048.0,
    web_w: float = 100.0,
    tasks: int = 1,
) -> FillProblem:
    """`web` with batches of one and of two, which take times, memory and watts as given."""
    points = tuple(
        replace(
            each,
            rows=(
                *each.rows,
                *(
                    row._replace(
                        batch=2, run_ms=run_ms, memory_mib=memory_mib, power_w=web_w
                    )
                    for row in each.rows
                ),
            ),
        )
        for each in PROBLEM.points
    )
    problem = replace(PROBLEM, capacity_law=LAW, points=points)
    wanted = to_fill(
        a_plan(*gpus), [a_task(f"t{at}") for at in range(tasks)], [a_gpu(1)]
    )
    return replace(wanted, problem=problem)


def replica_of(wanted: FillProblem) -> BoundReplica:
    """The only one, at its roomiest batch."""
    (gpu,) = with_roomy_batches(wanted).bound.gpus
    return gpu.replicas[0]


def test_the_replica_takes_the_larger_batch_and_the_task_more_sms() -> None:
    # With a request of its own `web` bears pressures up to 11 %: a share of 10 %. With two it bears 85 %: all that
    # is left. The smallest share with 99 % of that speed is 50 %.
    (gpu,) = fill(two_batches(bound_gpu(a_gpu(1), rate_rps=90.0)))
    assert [(replica.id, replica.batch) for replica in gpu.replicas] == [("web-1", 2)]
    assert [task.sm_percent for task in gpu.tasks] == [50.0]


def test_a_gpu_without_a_running_task_keeps_its_batch() -> None:
    gpu = bound_gpu(a_gpu(1), rate_rps=90.0)
    assert fill(two_batches(gpu, tasks=0)) == (gpu,)
    # 6 GiB next to the 4 GiB of the task are all; a replica of 7 GiB has no room for it, nor it for that.
    (full,) = fill(
        two_batches(
            replace(gpu, replicas=(replace(gpu.replicas[0], memory_mib=7000.0),))
        )
    )
    assert ([replica.batch for replica in full.replicas], full.tasks) == ([1], ())


def test_a_task_that_is_out_for_a_burst_is_no_reason_for_another_batch() -> None:
    # At 95 rps two may take 21.05 ms, 1.20 times their 17.5 ms: roomier than 1.05, and not room for half of the SMs.
    gpu, task = bound_gpu(a_gpu(1), rate_rps=95.0), bound_task("t0", sm_percent=50.0)
    wanted = two_batches(gpu, run_ms=17.5)
    assert replica_of(wanted).batch == 2
    (found,) = fill(replace(wanted, running=a_plan(replace(gpu, tasks=(task,)))))
    assert found == replace(gpu, tasks=(replace(task, is_resident=False),))


def test_more_memory_than_it_was_started_with_needs_a_new_process() -> None:
    replica = replica_of(
        two_batches(bound_gpu(a_gpu(1), rate_rps=90.0), memory_mib=3000.0)
    )
    assert (replica.id, replica.batch, replica.memory_mib) == ("", 2, 3000.0)


def test_a_batch_keeps_the_memory_that_its_process_holds() -> None:
    replica = replica_of(
        two_batches(bound_gpu(a_gpu(1), rate_rps=90.0), memory_mib=1000.0)
    )
    assert (replica.id, replica.batch, replica.memory_mib) == ("web-1", 2, 2048.0)


@pytest.mark.parametrize("changes", [{"memory_mib": 10_241.0}, {"web_w": 251.0}])
def test_the_gpu_s_limits_hold(changes: dict[str, float]) -> None:
    # 10 GiB of memory; 50 W idle and 251 W are more than its 300 W.
    assert (
        replica_of(two_batches(bound_gpu(a_gpu(1), rate_rps=90.0), **changes)).batch
        == 1
    )


def test_no_task_loses_the_place_that_it_has_or_could_have() -> None:
    # 4 GiB of a task and the 7 GiB of batches of two are more than 10 GiB; with 2 GiB they are not.
    gpu, task = bound_gpu(a_gpu(1), rate_rps=70.0), bound_task("t0", sm_percent=10.0)
    waiting = two_batches(gpu, memory_mib=7168.0)
    assert replica_of(waiting).batch == 1
    assert [len(each.tasks) for each in fill(waiting)] == [1]
    running = replace(waiting, running=a_plan(replace(gpu, tasks=(task,))))
    assert [task.is_resident for each in fill(running) for task in each.tasks] == [True]
    # What runs may have no row where others have one: 30 % is not among them any more.
    odd = replace(
        waiting, running=a_plan(replace(gpu, tasks=(replace(task, sm_percent=35.0),)))
    )
    assert replica_of(odd).batch == 1


def test_watts_that_a_task_needs_are_not_given_away() -> None:
    # 50 W idle, 245 W of the batch and 10 W of the task's smallest share are more than 300 W; 100 W are not.
    wanted = two_batches(bound_gpu(a_gpu(1), rate_rps=70.0), web_w=245.0)
    assert replica_of(wanted).batch == 1
    assert [len(gpu.tasks) for gpu in fill(wanted)] == [1]


def test_under_a_power_budget_and_without_tasks_the_planner_s_batches_stand() -> None:
    wanted = two_batches(bound_gpu(a_gpu(1), rate_rps=90.0))
    budgeted = replace(wanted, problem=replace(wanted.problem, power_budget_w=1000.0))
    idle = replace(wanted, tasks=())
    assert with_roomy_batches(budgeted) is budgeted
    assert with_roomy_batches(idle) is idle


@pytest.mark.parametrize("odd", [{"clock_mhz": CLOCK_MHZ - 100.0}, {"batch": 3}])
def test_a_replica_whose_row_is_gone_is_left_to_who_seats_it(
    odd: dict[str, float],
) -> None:
    gpu = bound_gpu(a_gpu(1), rate_rps=90.0)
    if "batch" in odd:
        gpu = replace(gpu, replicas=(replace(gpu.replicas[0], batch=3),))
    else:
        gpu = replace(gpu, clock_mhz=odd["clock_mhz"])
    wanted = two_batches(gpu)
    assert with_roomy_batches(wanted).bound == wanted.bound
    with pytest.raises(InvalidInput, match="web-1: its row"):
        fill(wanted)
