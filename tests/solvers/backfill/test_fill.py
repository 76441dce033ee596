"""Filling: replicas keep their promises, tasks take the rest, and none waits for ever."""

import random
from dataclasses import replace

import pytest

from solvers.backfill.greedy import fill
from solvers.backfill.problem import FillLimits
from solvers.check_residents import task_violations
from solvers.policies.registry import fill_of, policies
from solvers.types.errors import InvalidInput
from solvers.types.plan import BoundGpu, BoundReplica
from tests.examples import seeds
from tests.solvers.factories import (
    POINTS,
    PROBLEM,
    SHARES,
    a_gpu,
    a_plan,
    a_task,
    bound_gpu,
    bound_task,
    to_fill,
)
from tests.solvers.training_beside import shares

GPU = a_gpu(0)


def names(gpus: tuple[BoundGpu, ...]) -> list[str]:
    """Tasks that are on a GPU, swapped out or not."""
    return sorted(task.name for gpu in gpus for task in gpu.tasks)


# A replica with rate r may take 1000 / r ms, and takes 10 · (1 + p / 100) next to p percent of training:
# 60 rps allow p ≤ 66, 80 rps p ≤ 25, 95 rps p ≤ 5.
@pytest.mark.parametrize(
    ("rate_rps", "sm_percent"), [(60.0, 50.0), (80.0, 20.0), (89.0, 10.0), (95.0, None)]
)
def test_a_task_takes_as_much_as_every_promise_allows(
    rate_rps: float, sm_percent: float | None
) -> None:
    filled = fill(to_fill(a_plan(bound_gpu(GPU, rate_rps=rate_rps)), [a_task()], [GPU]))
    assert shares(filled) == (
        {} if sm_percent is None else {"nightly": (GPU.id, sm_percent)}
    )
    assert names(filled) == ([] if sm_percent is None else ["nightly"])


def test_it_leaves_to_others_what_would_hardly_make_it_faster() -> None:
    flat = replace(
        POINTS[0],
        rows=tuple(
            row._replace(run_ms=100.0 if row.sm_percent >= 30.0 else 200.0)
            for row in POINTS[0].rows
        ),
    )
    wanted = replace(
        to_fill(a_plan(bound_gpu(GPU, rate_rps=10.0)), [a_task()], [GPU]),
        points=(flat,),
    )
    assert shares(fill(wanted)) == {"nightly": (GPU.id, 30.0)}


def test_it_goes_where_it_is_fastest() -> None:
    # 20 % of a dear GPU (twice as fast) take 250 ms, 50 % of a cheap one 200.
    cheap, dear = a_gpu(0), a_gpu(1, "dear")
    bound = a_plan(bound_gpu(cheap, rate_rps=60.0), bound_gpu(dear, rate_rps=80.0))
    assert shares(fill(to_fill(bound, [a_task()], [cheap, dear]))) == {
        "nightly": (cheap.id, 50.0)
    }
    bound = a_plan(bound_gpu(cheap, rate_rps=80.0), bound_gpu(dear, rate_rps=80.0))
    assert shares(fill(to_fill(bound, [a_task()], [cheap, dear]))) == {
        "nightly": (dear.id, 20.0)
    }


def test_what_runs_stays_with_its_share_and_its_start() -> None:
    was = bound_gpu(
        GPU, bound_task(sm_percent=20.0, done_iterations=5.0), rate_rps=10.0
    )
    task = a_task(done_iterations=400.0)
    filled = fill(
        to_fill(
            a_plan(bound_gpu(GPU, rate_rps=10.0)), [task], [GPU], running=a_plan(was)
        )
    )
    assert filled == (was,)  # though 50 % are free now, and 400 steps are done


def test_what_stopped_on_its_gpu_is_started_again_from_its_last_report() -> None:
    was = bound_gpu(GPU, bound_task(done_iterations=5.0), rate_rps=10.0)
    task = a_task(done_iterations=400.0, waiting_s=5.0)
    (gpu,) = fill(
        to_fill(
            a_plan(bound_gpu(GPU, rate_rps=10.0)), [task], [GPU], running=a_plan(was)
        )
    )
    assert gpu.tasks == (bound_task(done_iterations=400.0),)


def test_a_task_is_swapped_out_for_a_promise_and_comes_back() -> None:
    was = a_plan(bound_gpu(GPU, bound_task(), rate_rps=10.0))
    busy = fill(
        to_fill(a_plan(bound_gpu(GPU, rate_rps=95.0)), [a_task()], [GPU], running=was)
    )
    assert busy == (bound_gpu(GPU, bound_task(is_resident=False), rate_rps=95.0),)
    calm = fill(
        to_fill(
            a_plan(bound_gpu(GPU, rate_rps=10.0)),
            [a_task()],
            [GPU],
            running=a_plan(*busy),
        )
    )
    assert calm == (bound_gpu(GPU, bound_task(), rate_rps=10.0),)


def test_what_was_swapped_out_for_long_goes_elsewhere_from_where_it_was() -> None:
    other = a_gpu(1)
    was = a_plan(
        bound_gpu(GPU, bound_task(is_resident=False), rate_rps=95.0),
        bound_gpu(other, rate_rps=10.0),
    )
    task = a_task(waiting_s=59.0, done_iterations=70.0)
    assert shares(fill(to_fill(was, [task], [GPU, other], running=was))) == {}
    filled = fill(
        to_fill(was, [replace(task, waiting_s=60.0)], [GPU, other], running=was)
    )
    assert shares(filled) == {"nightly": (other.id, 50.0)}
    assert filled[1].tasks[0].done_iterations == 70.0


def test_a_gpu_that_its_replicas_leave_is_not_paid_for_a_task_that_can_wait() -> None:
    running = a_plan(bound_gpu(GPU, bound_task(), rate_rps=10.0))
    assert fill(to_fill(a_plan(), [a_task()], [GPU], running=running)) == ()


def test_one_that_has_waited_long_gets_the_idle_gpu_that_costs_least_per_step() -> None:
    # The dear GPU is twice as fast at three times the price.
    cheap, dear = a_gpu(1), a_gpu(2, "dear")
    full = a_plan(bound_gpu(GPU, rate_rps=95.0))
    waiting = a_task(waiting_s=600.0)
    assert shares(fill(to_fill(full, [waiting], [GPU, dear, cheap]))) == {
        "nightly": (cheap.id, 100.0)
    }
    assert shares(fill(to_fill(full, [waiting], [GPU, dear]))) == {
        "nightly": (dear.id, 100.0)
    }
    assert names(fill(to_fill(full, [waiting], [GPU]))) == []
    patient = FillLimits(wait_s=601.0)
    assert names(fill(to_fill(full, [waiting], [GPU, cheap]), patient)) == []


# 1,000 steps take 200 s on half of a GPU (200 ms each), 100 s on a whole cheap one and 50 s on a whole dear one.
@pytest.mark.parametrize(
    ("due_in_s", "place"),
    [
        (None, "n1/gpu-0"),
        (200.0, "n1/gpu-0"),
        (199.0, "n1/gpu-1"),
        (120.0, "n1/gpu-2"),
        (100.0, "n1/gpu-0"),
    ],
    ids=[
        "no deadline",
        "in time",
        "in time alone",
        "in time on the faster one",
        "too late anywhere",
    ],
)
def test_a_deadline_is_worth_a_gpu_where_one_can_keep_it(
    due_in_s: float | None, place: str
) -> None:
    # Alone it must be ready RESTART_S = 60 s before: a cheap GPU serves from 160 s on, a dear one from 110 s on.
    fleet = [GPU, a_gpu(1), a_gpu(2, "dear")]
    bound = a_plan(bound_gpu(GPU, rate_rps=60.0))
    filled = fill(to_fill(bound, [a_task(due_in_s=due_in_s)], fleet))
    assert shares(filled)["nightly"][0] == place


def test_one_that_runs_too_slowly_for_its_deadline_moves_once() -> None:
    fleet = [GPU, a_gpu(1)]
    was = a_plan(bound_gpu(GPU, bound_task(sm_percent=20.0), rate_rps=80.0))
    task = a_task(
        due_in_s=300.0, done_iterations=100.0
    )  # 900 steps: 450 s here, 90 s alone.
    moved = fill(
        to_fill(a_plan(bound_gpu(GPU, rate_rps=80.0)), [task], fleet, running=was)
    )
    assert shares(moved) == {"nightly": ("n1/gpu-1", 100.0)}
    again = fill(
        to_fill(
            a_plan(bound_gpu(GPU, rate_rps=80.0)), [task], fleet, running=a_plan(*moved)
        )
    )
    assert again == moved


def test_a_task_gets_a_gpu_at_the_last_moment_that_meets_its_deadline() -> None:
    # Alone it takes 100 s, and is given RESTART_S = 60 s more.
    full = a_plan(bound_gpu(GPU, rate_rps=95.0))
    found = [
        names(fill(to_fill(full, [a_task(due_in_s=due_s)], [GPU, a_gpu(1)])))
        for due_s in (161.0, 159.0, 99.0)
    ]
    assert found == [[], ["nightly"], []]


def test_a_gpu_that_only_tasks_use_is_given_back_with_the_last_of_them() -> None:
    alone = bound_gpu(a_gpu(1), bound_task(sm_percent=100.0))
    running = a_plan(bound_gpu(GPU, rate_rps=95.0), alone)
    wanted = to_fill(
        a_plan(bound_gpu(GPU, rate_rps=95.0)),
        [a_task()],
        [GPU, a_gpu(1)],
        running=running,
    )
    assert fill(wanted) == running.gpus
    assert fill(replace(wanted, tasks=[])) == (bound_gpu(GPU, rate_rps=95.0),)


@pytest.mark.parametrize("name", policies())
def test_a_replica_planned_where_a_task_ran_alone_is_kept_by_every_fill(
    name: str,
) -> None:
    alone = a_plan(bound_gpu(GPU, bound_task(sm_percent=100.0)))
    wanted = to_fill(
        a_plan(bound_gpu(GPU, rate_rps=60.0)), [a_task()], [GPU], running=alone
    )
    (gpu,) = fill_of(name)(wanted)
    assert [replica.service for replica in gpu.replicas] == ["web"]


def test_a_gpu_that_is_gone_takes_its_task_nowhere() -> None:
    running = a_plan(bound_gpu(a_gpu(1), bound_task(sm_percent=100.0)))
    filled = fill(
        to_fill(
            a_plan(bound_gpu(GPU, rate_rps=60.0)), [a_task()], [GPU], running=running
        )
    )
    assert shares(filled) == {"nightly": (GPU.id, 50.0)}


def test_on_a_cordoned_gpu_what_runs_stays_and_nothing_starts() -> None:
    other = a_gpu(1)
    bound = a_plan(bound_gpu(GPU, rate_rps=10.0))
    wanted = replace(
        to_fill(bound, [a_task(waiting_s=1e6)], [GPU, other]),
        cordoned=[GPU.id, other.id],
    )
    assert names(fill(wanted)) == []
    running = a_plan(bound_gpu(GPU, bound_task(), rate_rps=10.0))
    assert fill(replace(wanted, running=running)) == running.gpus


def test_memory_watts_and_the_number_of_tasks_are_limits() -> None:
    # 10 GiB less the replica's 2 hold two tasks of 4; the replica's 100 W and the idle 50 leave 150 for 1 W a percent.
    tasks = [a_task(name) for name in "abc"]
    filled = fill(to_fill(a_plan(bound_gpu(GPU, rate_rps=1.0)), tasks, [GPU]))
    assert len(shares(filled)) == 1  # "a" takes all 50 % that are free
    small = replace(POINTS[0], rows=POINTS[0].rows[:1])
    wanted = replace(
        to_fill(a_plan(bound_gpu(GPU, rate_rps=1.0)), tasks, [GPU]), points=(small,)
    )
    assert names(fill(wanted)) == ["a", "b"]
    assert names(fill(wanted, FillLimits(max_tasks_per_gpu=1))) == ["a"]
    hot = replace(small, rows=(small.rows[0]._replace(power_w=80.0),))
    assert names(fill(replace(wanted, points=(hot,)))) == ["a"]


def test_priority_goes_first_then_the_deadline_then_the_longer_wait() -> None:
    small = replace(POINTS[0], rows=POINTS[0].rows[:1])
    tasks = [
        a_task("a"),
        a_task("b", waiting_s=5.0),
        a_task("c", due_in_s=1e6),
        a_task("d", priority=2.0),
    ]
    bound = a_plan(bound_gpu(GPU, rate_rps=1.0))
    limits = (FillLimits(max_tasks_per_gpu=most) for most in (1, 2))
    first, second = (
        fill(replace(to_fill(bound, tasks, [GPU]), points=(small,)), each)
        for each in limits
    )
    assert set(names(first)) == {"d"}
    assert set(names(second)) == {"c", "d"}


def test_a_plan_of_another_time_is_refused() -> None:
    gpu = bound_gpu(GPU, rate_rps=1.0)
    gpu = replace(gpu, replicas=(replace(gpu.replicas[0], service="gone"),))
    with pytest.raises(InvalidInput, match="web-0: no service is called 'gone'"):
        fill(to_fill(a_plan(gpu), [a_task()], [GPU]))


@pytest.mark.parametrize("seed", seeds(16))
def test_no_rule_is_ever_broken_and_the_order_of_the_input_changes_nothing(
    seed: int,
) -> None:
    draw = random.Random(seed)
    fleet = [a_gpu(number, draw.choice(("cheap", "dear"))) for number in range(6)]
    bound = a_plan(
        *(bound_gpu(gpu, rate_rps=draw.uniform(1.0, 100.0)) for gpu in fleet[:4])
    )
    tasks = [
        a_task(
            f"t{number}",
            priority=draw.choice((1.0, 2.0)),
            waiting_s=draw.choice((0.0, 700.0)),
            due_in_s=draw.choice((None, draw.uniform(50.0, 500.0))),
        )
        for number in range(draw.randrange(1, 10))
    ]
    running = a_plan(
        *(
            bound_gpu(
                gpu,
                bound_task(f"t{gpu.index}", sm_percent=draw.choice(SHARES)),
                rate_rps=1.0,
            )
            for gpu in fleet
        )
    )
    filled = fill(to_fill(bound, tasks, fleet, running=running))
    assert task_violations(PROBLEM, filled, POINTS) == ()
    assert len(set(names(filled))) == len(names(filled))
    assert set(names(filled)) <= {task.name for task in tasks}
    assert replicas(filled) == replicas(bound.gpus)
    for items in (tasks, fleet):
        draw.shuffle(items)
    assert fill(to_fill(bound, tasks, fleet, running=running)) == filled


def replicas(gpus: tuple[BoundGpu, ...]) -> list[BoundReplica]:
    """All of them, by GPU."""
    return [
        replica
        for gpu in sorted(gpus, key=lambda gpu: gpu.id)
        for replica in gpu.replicas
    ]


@pytest.mark.parametrize("name", policies())
def test_no_technique_places_a_task_on_a_gpu_that_it_avoids(name: str) -> None:
    gpus = [a_gpu(number) for number in range(4)]
    bound = a_plan(bound_gpu(gpus[0], rate_rps=10.0), bound_gpu(gpus[1], rate_rps=10.0))
    beside = a_task(avoided_gpus=frozenset({gpus[0].id}))
    other = a_task("other")
    filled = fill_of(name)(to_fill(bound, [beside, other], gpus))
    places = {task: gpu for task, (gpu, _) in shares(filled).items()}
    assert places["nightly"] == gpus[1].id
    assert "other" in places
    # The idle GPU of the lowest id stands for its type, but not for a task that avoids it.
    alone = a_task(avoided_gpus=frozenset(gpu.id for gpu in gpus[:3]), waiting_s=600.0)
    filled = fill_of(name)(to_fill(bound, [alone], gpus))
    assert shares(filled)["nightly"][0] == gpus[3].id


# Next to p percent a replica takes 10 · (1 + p / 100) ms, and stalls leave so much of its SLO of 1000 ms.
@pytest.mark.parametrize(
    ("stall_ms", "sm_percent"),
    [(0.0, 50.0), (984.0, 50.0), (985.5, 40.0), (988.5, 10.0), (990.0, None)],
)
def test_a_task_that_stalls_batches_takes_less_or_nothing(
    stall_ms: float, sm_percent: float | None
) -> None:
    stalling = replace(
        POINTS[0],
        rows=tuple(row._replace(stall_ms=stall_ms) for row in POINTS[0].rows),
    )
    wanted = replace(
        to_fill(a_plan(bound_gpu(GPU, rate_rps=60.0)), [a_task()], [GPU]),
        points=(stalling,),
    )
    filled = fill(wanted)
    assert shares(filled) == (
        {} if sm_percent is None else {"nightly": (GPU.id, sm_percent)}
    )
    assert task_violations(PROBLEM, filled, (stalling,)) == ()
