"""Mudi's fill: who gets which GPU and share, who gives way, and that a service's promise comes before everything."""

import random
from dataclasses import replace

import pytest

from solvers.backfill.problem import FillLimits
from solvers.check import violations
from solvers.check_residents import task_violations
from solvers.papers.mudi.fill import fill
from solvers.papers.mudi.parameters import MudiParameters
from solvers.papers.mudi.sites import MAX_TUNINGS, PATIENCE_S
from solvers.types.errors import InvalidInput
from solvers.types.plan import BoundGpu, anonymous
from tests.examples import seeds
from tests.solvers.training_beside import (
    POINTS,
    SHARES,
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
    to_fill,
)

# 60 rps with 25 % more: at 30 % with batch 4 next to 70 % of `train` (see test_mudi_tune).
TUNED = {"sm_percent": 30.0, "batch": 4}

RETUNE_S = MudiParameters().retune_s


def test_a_task_gets_what_is_left_and_the_replica_is_a_new_process() -> None:
    (gpu,) = fill(to_fill(a_plan(bound_gpu()), [a_task()]))
    assert (settings(gpu), gpu.replicas[0].id) == ((30.0, 4), "")
    assert gpu.tasks == (bound_task(sm_percent=70.0),)


def test_without_a_service_training_waits_for_an_idle_gpu_and_gets_all_of_it() -> None:
    assert fill(to_fill(a_plan(), [a_task(waiting_s=599.0)])) == ()
    (gpu,) = fill(to_fill(a_plan(), [a_task(waiting_s=600.0)]))
    assert (gpu.replicas, shares((gpu,))) == ((), {"nightly": ("n1/gpu-0", 100.0)})
    again = fill(to_fill(a_plan(), [a_task()], running=a_plan(gpu)))
    assert again == (gpu,)


def test_it_goes_to_the_gpu_whose_service_needs_least() -> None:
    # The slow network needs twice the share: the task goes to the other one; the next task finds that one taken.
    problem = a_problem(a_service(), a_service("heavy", network="slow"))
    bound = a_plan(bound_gpu(0, service="heavy", network="slow"), bound_gpu(1))
    filled = fill(to_fill(bound, [a_task()], gpus=2, problem=problem))
    assert shares(filled)["nightly"][0] == "n1/gpu-1"
    filled = fill(to_fill(bound, [a_task("a"), a_task("b")], gpus=2, problem=problem))
    assert {gpu for gpu, _ in shares(filled).values()} == {"n1/gpu-0", "n1/gpu-1"}


def test_a_second_task_joins_only_where_both_together_get_more_done() -> None:
    # `train` at half the share takes twice as long: nothing is gained. `light` takes the same time at any share.
    running = a_plan(bound_gpu(0, bound_task("first", 70.0), **TUNED))
    waiting = to_fill(
        running, [a_task("first"), a_task("second", waiting_s=5.0)], running=running
    )
    assert set(shares(fill(waiting))) == {"first"}
    light = to_fill(
        running,
        [a_task("first"), a_task("second", "light", waiting_s=5.0)],
        running=running,
    )
    assert set(shares(fill(light))) == {"first", "second"}
    patient = replace(
        waiting, tasks=[a_task("first"), a_task("second", waiting_s=PATIENCE_S)]
    )
    assert set(shares(fill(patient))) == {"first", "second"}


def test_at_most_three_tasks_share_a_gpu() -> None:
    tasks = [a_task(name, "light", waiting_s=PATIENCE_S) for name in "abcde"]
    wanted = to_fill(a_plan(bound_gpu(rate_rps=10.0)), tasks)
    assert len(shares(fill(wanted))) == 3
    assert len(shares(fill(wanted, FillLimits(max_tasks_per_gpu=2)))) == 2


def test_what_runs_stays_through_small_changes_of_load() -> None:
    was = a_plan(bound_gpu(0, bound_task("nightly", 70.0), **TUNED))
    for rate_rps in (50.0, 60.0, 75.0):
        bound = a_plan(bound_gpu(rate_rps=rate_rps, **TUNED))
        (gpu,) = fill(to_fill(bound, [a_task()], running=was))
        assert (settings(gpu), gpu.tasks) == ((30.0, 4), was.gpus[0].tasks)


def test_when_load_rises_the_batch_grows_first() -> None:
    # 30 % with batch 2 take 31.5 ms next to 70 %: 63 rps. For 75, batch 4 takes 49.5: 80 rps. Nothing restarts.
    was = a_plan(bound_gpu(0, bound_task("nightly", 70.0), sm_percent=30.0, batch=2))
    bound = a_plan(bound_gpu(rate_rps=75.0, sm_percent=30.0, batch=2))
    (gpu,) = fill(to_fill(bound, [a_task()], running=was))
    assert (settings(gpu), gpu.replicas[0].id, gpu.tasks) == (
        (30.0, 4),
        "web-0",
        was.gpus[0].tasks,
    )


def test_then_the_task_is_swapped_out_and_comes_back() -> None:
    # 100 rps: batch 4 at 30 % takes 36.7 ms alone (109 rps), with the task 49.5 (80 rps).
    was = a_plan(bound_gpu(0, bound_task("nightly", 70.0), **TUNED))
    busy = fill(
        to_fill(a_plan(bound_gpu(rate_rps=100.0, **TUNED)), [a_task()], running=was)
    )
    assert (swapped(busy), settings(busy[0]), shares(busy)) == (
        ["nightly"],
        (30.0, 4),
        {},
    )
    calm = fill(
        to_fill(
            a_plan(bound_gpu(**TUNED)), [a_task(waiting_s=5.0)], running=a_plan(*busy)
        )
    )
    assert shares(calm) == {"nightly": ("n1/gpu-0", 70.0)}


def test_where_load_stays_high_the_gpu_is_divided_anew() -> None:
    # 100 rps, 125 with room: batch 4 may take 32 ms; at 50 % with 50 % it takes 22 · 1.25 = 27.5, at 40 % with 60 %
    # 27.5 · 1.3 = 35.8.
    was = a_plan(bound_gpu(0, bound_task("nightly", 70.0, is_resident=False), **TUNED))
    bound = a_plan(bound_gpu(rate_rps=100.0, **TUNED))
    early = fill(to_fill(bound, [a_task(waiting_s=RETUNE_S - 1.0)], running=was))
    assert swapped(early) == ["nightly"]
    (gpu,) = fill(
        to_fill(bound, [a_task(waiting_s=RETUNE_S, done_iterations=7.0)], running=was)
    )
    assert (settings(gpu), shares((gpu,))) == (
        (50.0, 4),
        {"nightly": ("n1/gpu-0", 50.0)},
    )
    assert gpu.tasks[0].done_iterations == 7.0


def test_what_cannot_come_back_goes_elsewhere_after_a_minute() -> None:
    full = bound_gpu(0, rate_rps=330.0, batch=4)
    was = a_plan(
        replace(full, tasks=(bound_task("nightly", 10.0, is_resident=False),)),
        bound_gpu(1),
    )
    problem = a_problem(a_service(rate_rps=390.0))
    bound = a_plan(full, bound_gpu(1))
    held = fill(
        to_fill(bound, [a_task(waiting_s=59.0)], gpus=2, running=was, problem=problem)
    )
    assert swapped(held) == ["nightly"]
    moved = fill(
        to_fill(bound, [a_task(waiting_s=60.0)], gpus=2, running=was, problem=problem)
    )
    assert shares(moved) == {"nightly": ("n1/gpu-1", 70.0)}


def test_a_widened_replica_leaves_its_tasks_the_rest() -> None:
    # The plan gives the replica the whole GPU again; the task gets what 100 rps leave, in the same plan.
    was = a_plan(bound_gpu(0, bound_task("nightly", 70.0), **TUNED))
    bound = a_plan(bound_gpu(rate_rps=100.0, sm_percent=100.0, batch=4))
    (gpu,) = fill(to_fill(bound, [a_task()], running=was))
    assert (settings(gpu), shares((gpu,))) == (
        (50.0, 4),
        {"nightly": ("n1/gpu-0", 50.0)},
    )


def test_the_least_urgent_is_swapped_out_first() -> None:
    # 85 rps with batch 4 may take 47 ms: 36.7 · 1.3 = 47.7 with both (Π = 0.3), 36.7 · 1.15 = 42 with one of them.
    was = a_plan(bound_gpu(0, bound_task("a", 30.0), bound_task("b", 30.0), **TUNED))
    bound = a_plan(bound_gpu(rate_rps=85.0, **TUNED))
    for urgent, other in (("a", "b"), ("b", "a")):
        tasks = [a_task(urgent, priority=2.0), a_task(other)]
        filled = fill(to_fill(bound, tasks, running=was))
        assert (set(shares(filled)), swapped(filled)) == ({urgent}, [other])


def test_nothing_starts_on_a_cordoned_gpu_and_what_runs_there_stays() -> None:
    wanted = replace(
        to_fill(a_plan(bound_gpu()), [a_task(waiting_s=1e6)]), cordoned=[a_gpu().id]
    )
    assert shares(fill(wanted)) == {}
    was = a_plan(bound_gpu(0, bound_task("nightly", 70.0), **TUNED))
    kept = replace(
        to_fill(a_plan(bound_gpu(**TUNED)), [a_task()], running=was),
        cordoned=[a_gpu().id],
    )
    assert fill(kept) == was.gpus


def test_a_gpu_with_several_replicas_keeps_its_tasks_and_gets_none() -> None:
    problem = a_problem(a_service(), a_service("other"))
    pair = bound_gpu(0, sm_percent=30.0, batch=4)
    second = bound_gpu(0, sm_percent=30.0, batch=4, service="other").replicas
    pair = replace(pair, replicas=(*pair.replicas, *second))
    assert shares(fill(to_fill(a_plan(pair), [a_task()], problem=problem))) == {}
    was = a_plan(replace(pair, tasks=(bound_task("nightly", 10.0),)))
    assert shares(
        fill(to_fill(a_plan(pair), [a_task()], running=was, problem=problem))
    ) == {"nightly": ("n1/gpu-0", 10.0)}


def test_a_replica_of_another_time_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no service is called 'gone' any more"):
        fill(to_fill(a_plan(bound_gpu(service="gone")), [a_task()]))


def test_tunings_of_one_call_are_limited_and_the_rest_follows() -> None:
    gpus = [
        bound_gpu(number, service=f"s{number}") for number in range(MAX_TUNINGS + 4)
    ]
    problem = a_problem(*(a_service(f"s{number}") for number in range(len(gpus))))
    tasks = [a_task(f"t{number:03}") for number in range(len(gpus))]
    first = fill(to_fill(a_plan(*gpus), tasks, gpus=len(gpus), problem=problem))
    assert len(shares(first)) == MAX_TUNINGS
    bound = a_plan(*(replace(gpu, tasks=()) for gpu in first))
    second = fill(
        to_fill(bound, tasks, gpus=len(gpus), running=a_plan(*first), problem=problem)
    )
    assert len(shares(second)) == len(tasks)


@pytest.mark.parametrize("seed", seeds(14))
def test_no_promise_is_ever_broken_and_the_order_of_the_input_changes_nothing(
    seed: int,
) -> None:
    draw = random.Random(seed)
    names = [f"s{number}" for number in range(5)]
    rates = {name: draw.uniform(5.0, 150.0) for name in names}
    problem = a_problem(
        *(
            a_service(name, rates[name], network=draw.choice(("web", "slow")))
            for name in names
        ),
        max_replicas_per_gpu=4,
    )
    networks = {service.name: service.network for service in problem.services}

    def site(number: int, *tasks: object) -> BoundGpu:
        name = names[number]
        gpu = bound_gpu(
            number,
            rate_rps=rates[name],
            batch=4,
            service=name,
            network=networks[name],
            sm_percent=draw.choice(SHARES),
        )
        return replace(gpu, tasks=tasks)  # type: ignore[arg-type]

    plain = [site(number) for number in range(5)]
    bound = a_plan(*plain)
    running = a_plan(
        *(
            replace(
                gpu,
                tasks=tuple(
                    bound_task(
                        f"t{number}{letter}",
                        draw.choice(SHARES[:3]),
                        is_resident=draw.random() < 0.7,
                    )
                    for letter in "ab"[: draw.randrange(3)]
                ),
            )
            for number, gpu in enumerate(plain)
        )
    )
    known = [task.name for gpu in running.gpus for task in gpu.tasks]
    tasks = [
        a_task(
            name,
            draw.choice(("train", "train", "light")),
            waiting_s=draw.choice((0.0, 30.0, 700.0)),
        )
        for name in (*known, "new-1", "new-2", "new-3")
    ]
    wanted = to_fill(bound, tasks, gpus=6, running=running, problem=problem)
    filled = fill(wanted)
    before = {(each.rule, each.where) for each in violations(problem, anonymous(bound))}
    after = replace(bound, gpus=tuple(gpu for gpu in filled if gpu.replicas))
    assert {
        (each.rule, each.where) for each in violations(problem, anonymous(after))
    } <= before
    sound = [gpu for gpu in filled if shares((gpu,))]
    assert task_violations(problem, sound, POINTS) == ()
    placed = [task.name for gpu in filled for task in gpu.tasks]
    assert len(set(placed)) == len(placed) and set(placed) <= {
        task.name for task in tasks
    }
    assert all(len(gpu.tasks) <= 3 for gpu in filled)
    shuffled = replace(
        wanted,
        tasks=draw.sample(tasks, len(tasks)),
        gpus=draw.sample(wanted.gpus, len(wanted.gpus)),
    )
    assert fill(shuffled) == filled


def test_one_that_is_slow_alone_moves_to_a_gpu_whose_service_leaves_more() -> None:
    # 60 rps of the slow network take as much as 120 of `web`: half of the GPU with room. 70 % are 40 % faster.
    problem = a_problem(a_service(), a_service("heavy", network="slow"))
    heavy = bound_gpu(0, service="heavy", network="slow", sm_percent=50.0, batch=4)
    was = a_plan(replace(heavy, tasks=(bound_task("nightly", 50.0),)), bound_gpu(1))
    bound = a_plan(heavy, bound_gpu(1))
    moved = fill(to_fill(bound, [a_task()], gpus=2, running=was, problem=problem))
    assert shares(moved) == {"nightly": ("n1/gpu-1", 70.0)}
    # Where it gets no more it stays.
    same = a_plan(
        replace(bound_gpu(0, **TUNED), tasks=(bound_task("nightly", 70.0),)),
        bound_gpu(1),
    )
    stays = fill(
        to_fill(
            a_plan(bound_gpu(0, **TUNED), bound_gpu(1)),
            [a_task()],
            gpus=2,
            running=same,
        )
    )
    assert shares(stays) == {"nightly": ("n1/gpu-0", 70.0)}
