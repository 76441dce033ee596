"""The program's filling: promises first, then deadlines and long waits, then money, then weighted progress."""

import itertools
import random
from dataclasses import replace

import pytest

from solvers.backfill import greedy
from solvers.backfill.exact import MAX_TASKS, MOVE_S, FillProgram, fill
from solvers.backfill.problem import FillLimits, FillProblem
from solvers.check_residents import task_violations
from solvers.policies.registry import fill_of
from solvers.types.plan import BoundGpu, BoundTask
from solvers.types.problem import OperatingPoints
from solvers.types.state import Gpu, Task
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

GPU, SECOND, DEAR = a_gpu(0), a_gpu(1), a_gpu(2, "dear")
FULL = a_plan(bound_gpu(GPU, rate_rps=95.0))
"""Next to 95 rps no share of training fits."""


def concave() -> OperatingPoints:
    """Steps whose speed grows with the root of the share."""
    rows = (row._replace(run_ms=1000.0 / row.sm_percent**0.5) for row in POINTS[0].rows)
    return replace(POINTS[0], rows=tuple(rows))


def worth(wanted: FillProblem, gpus: tuple[BoundGpu, ...]) -> float:
    return FillProgram(wanted, FillLimits()).worth(gpus)


def test_it_is_what_joint_fills_with() -> None:
    assert fill_of("joint") is fill
    assert fill_of("hetsev") is greedy.fill


def test_two_tasks_share_what_the_greedy_gives_to_one() -> None:
    # 50 % are free; speed grows with the root of the share: 0.71 with 50 %, 0.45 with 20 %, twice 0.45 for both.
    tasks = [a_task("a"), a_task("b")]
    wanted = replace(
        to_fill(a_plan(bound_gpu(GPU, rate_rps=1.0)), tasks, [GPU]), points=(concave(),)
    )
    assert shares(greedy.fill(wanted)) == {"a": (GPU.id, 50.0)}
    assert shares(fill(wanted)) == {"a": (GPU.id, 20.0), "b": (GPU.id, 20.0)}


@pytest.mark.parametrize(
    ("waiting_s", "place"), [(MOVE_S - 1.0, None), (MOVE_S, SECOND.id)]
)
def test_who_was_put_out_by_a_burst_waits_for_its_seat_for_a_while(
    waiting_s: float, place: str | None
) -> None:
    was = a_plan(bound_gpu(GPU, bound_task(is_resident=False), rate_rps=95.0))
    bound = a_plan(bound_gpu(GPU, rate_rps=95.0), bound_gpu(SECOND, rate_rps=1.0))
    found = shares(
        fill(to_fill(bound, [a_task(waiting_s=waiting_s)], [GPU, SECOND], running=was))
    )
    assert {name: gpu for name, (gpu, _) in found.items()} == (
        {} if place is None else {"nightly": place}
    )


def test_the_weightier_task_gets_the_faster_place() -> None:
    # 50 % of a cheap GPU are as fast as 25 % of a dear one; 20 % of each are free: the dear one is twice as fast.
    bound = a_plan(bound_gpu(GPU, rate_rps=80.0), bound_gpu(DEAR, rate_rps=80.0))
    tasks = [a_task("a"), a_task("b", priority=3.0)]
    small = [replace(each, rows=each.rows[1:2]) for each in POINTS]
    found = fill(replace(to_fill(bound, tasks, [GPU, DEAR]), points=small))
    assert shares(found) == {"a": (GPU.id, 20.0), "b": (DEAR.id, 20.0)}
    weights = [a_task("a", weight=1.0), a_task("b", weight=0.0)]
    found = fill(replace(to_fill(bound, weights, [GPU, DEAR]), points=small))
    assert shares(found) == {"a": (DEAR.id, 20.0), "b": (GPU.id, 20.0)}


def test_what_runs_stays_and_is_put_out_only_for_much_more() -> None:
    was = a_plan(bound_gpu(GPU, bound_task("a", sm_percent=20.0), rate_rps=80.0))
    for priority, who in ((1.0, "a"), (2.0, "a"), (5.0, "b")):
        tasks = [a_task("a"), a_task("b", priority=priority)]
        filled = fill(
            to_fill(a_plan(bound_gpu(GPU, rate_rps=80.0)), tasks, [GPU], running=was)
        )
        assert set(shares(filled)) == {who}, priority
    assert [task.name for task in filled[0].tasks if not task.is_resident] == ["a"]


def test_a_task_alone_on_its_gpu_is_widened_where_that_doubles_its_pace() -> None:
    was = a_plan(bound_gpu(GPU, bound_task(sm_percent=20.0), rate_rps=80.0))
    calm = to_fill(
        a_plan(bound_gpu(GPU, rate_rps=10.0)),
        [a_task(done_iterations=9.0)],
        [GPU],
        running=was,
    )
    (gpu,) = fill(calm)
    assert [(task.sm_percent, task.done_iterations) for task in gpu.tasks] == [
        (50.0, 9.0)
    ]
    # 30 % would be 1.5 times as fast: not worth a restart.
    busier = to_fill(
        a_plan(bound_gpu(GPU, rate_rps=75.0)), [a_task()], [GPU], running=was
    )
    assert shares(fill(busier)) == {"nightly": (GPU.id, 20.0)}


# 1,000 steps take 100 s on a whole cheap GPU, 50 s on a dear one; it must begin RESTART_S + SOON_S = 90 s before that.
@pytest.mark.parametrize(
    ("due_in_s", "fleet", "place"),
    [
        (None, [SECOND], None),
        (200.0, [SECOND], None),
        (180.0, [SECOND], "n1/gpu-1"),
        (99.0, [SECOND], None),
        (130.0, [SECOND, DEAR], "n1/gpu-2"),
        (139.0, [SECOND, DEAR], "n1/gpu-2"),
        (141.0, [SECOND, DEAR], None),
    ],
)
def test_a_gpu_is_paid_at_the_last_moment_for_a_deadline_that_it_can_keep(
    due_in_s: float | None, fleet: list[Gpu], place: str | None
) -> None:
    found = shares(fill(to_fill(FULL, [a_task(due_in_s=due_in_s)], [GPU, *fleet])))
    assert found.get("nightly", (None,))[0] == place


def test_until_then_it_gets_on_beside_replicas_for_nothing() -> None:
    # 20 % take 500 s for what is due in 300, but a whole GPU can wait: until 190 s before.
    bound, fleet = a_plan(bound_gpu(GPU, rate_rps=80.0)), [GPU, SECOND]
    first = fill(to_fill(bound, [a_task(due_in_s=300.0)], fleet))
    assert shares(first) == {"nightly": (GPU.id, 20.0)}
    # 130 s later 260 steps are done; the other 740 take 74 s alone, which is 164 s with all that is to spare.
    later = a_task(due_in_s=170.0, done_iterations=260.0)
    assert shares(fill(to_fill(bound, [later], fleet, running=a_plan(*first)))) == {
        "nightly": (GPU.id, 20.0)
    }
    late = a_task(due_in_s=160.0, done_iterations=280.0)
    moved = fill(to_fill(bound, [late], fleet, running=a_plan(*first)))
    assert shares(moved) == {"nightly": (SECOND.id, 100.0)}
    again = fill(
        to_fill(bound, [replace(late, due_in_s=150.0)], fleet, running=a_plan(*moved))
    )
    assert shares(again) == {"nightly": (SECOND.id, 100.0)}


def test_two_that_are_due_share_one_idle_gpu_where_both_are_in_time() -> None:
    # 200 steps take 20 s on a whole GPU and, at the root of the share, 28 s on half of it: one GPU for 28 s is cheaper
    # than two for 20 s each. RESTART_S more must be left: due in 85 s half a GPU would be too close.
    wanted = replace(
        to_fill(
            FULL,
            [a_task(name, iterations=200) for name in "ab"],
            [GPU, SECOND, a_gpu(3)],
        ),
        points=(concave(),),
    )
    in_time = replace(
        wanted, tasks=[replace(task, due_in_s=105.0) for task in wanted.tasks]
    )
    assert shares(fill(in_time)) == {"a": (SECOND.id, 50.0), "b": (SECOND.id, 50.0)}
    close = replace(
        wanted, tasks=[replace(task, due_in_s=85.0) for task in wanted.tasks]
    )
    assert {place for place, _ in shares(fill(close)).values()} == {
        SECOND.id,
        "n1/gpu-3",
    }


def test_who_has_waited_long_gets_an_idle_gpu_and_nobody_else_does() -> None:
    fleet = [GPU, SECOND, DEAR]
    assert (
        shares(fill(to_fill(FULL, [a_task(waiting_s=599.0, priority=100.0)], fleet)))
        == {}
    )
    # 100 s at 1 USD per hour, or 50 s at 3.
    assert (
        shares(fill(to_fill(FULL, [a_task(waiting_s=600.0)], fleet)))["nightly"][0]
        == SECOND.id
    )
    both = fill(
        to_fill(
            FULL,
            [a_task("a", waiting_s=600.0), a_task("b", waiting_s=600.0)],
            [GPU, SECOND],
        )
    )
    assert set(shares(both)) == {"a", "b"}


def test_a_power_budget_holds_for_tasks_too() -> None:
    # The replica's GPU draws 50 + 100 W; training takes 1 W per percent, on an idle GPU 50 W more.
    bound = a_plan(bound_gpu(GPU, rate_rps=10.0))
    for watts, share in ((200.0, 50.0), (190.0, 20.0), (165.0, 10.0), (155.0, None)):
        wanted = to_fill(bound, [a_task()], [GPU])
        found = shares(
            fill(replace(wanted, problem=replace(PROBLEM, power_budget_w=watts)))
        )
        assert found.get("nightly", (None, None))[1] == share, watts
    waiting = to_fill(FULL, [a_task(waiting_s=600.0)], [GPU, SECOND])
    for watts, count in ((300.0, 1), (299.0, 1), (199.0, 0)):
        assert (
            len(
                shares(
                    fill(
                        replace(waiting, problem=replace(PROBLEM, power_budget_w=watts))
                    )
                )
            )
            == count
        ), watts


def test_who_runs_is_swapped_out_for_want_of_watts_and_not_ended() -> None:
    # 150 W are drawn; the task draws 40 W at 40 %. A share that draws less is a restart: it waits for its own first.
    bound, was = a_plan(bound_gpu(GPU, rate_rps=10.0)), bound_task("a", sm_percent=40.0)
    running = a_plan(bound_gpu(GPU, was, rate_rps=10.0))
    wanted = to_fill(bound, [a_task("a")], [GPU], running=running)
    for watts, is_resident in ((189.0, False), (190.0, True)):
        (gpu,) = fill(replace(wanted, problem=replace(PROBLEM, power_budget_w=watts)))
        assert gpu.tasks == (replace(was, is_resident=is_resident),), watts
    # Of equals who runs goes on: with 190 W there is none for the other one.
    both = replace(
        wanted,
        tasks=[a_task("0"), a_task("a")],
        problem=replace(PROBLEM, power_budget_w=190.0),
    )
    assert shares(fill(both)) == {"a": (GPU.id, 40.0)}


def test_beyond_its_limits_it_is_the_greedy() -> None:
    tasks = [a_task(f"t{number:02}") for number in range(MAX_TASKS + 1)]
    wanted = to_fill(a_plan(bound_gpu(GPU, rate_rps=60.0)), tasks, [GPU])
    assert fill(wanted) == greedy.fill(wanted)


def random_case(seed: int, *, is_running: bool = True) -> FillProblem:
    draw = random.Random(seed)
    fleet = [a_gpu(number, draw.choice(("cheap", "dear"))) for number in range(6)]
    bound = a_plan(
        *(bound_gpu(gpu, rate_rps=draw.uniform(1.0, 100.0)) for gpu in fleet[:4])
    )
    tasks: list[Task] = [
        a_task(
            f"t{number}",
            priority=draw.choice((1.0, 2.0, 10.0)),
            weight=draw.choice((0.2, 0.5, 0.9)),
            waiting_s=0.0
            if is_running and number < 6
            else draw.choice((0.0, 300.0, 700.0)),
            due_in_s=draw.choice((None, draw.uniform(50.0, 500.0))),
        )
        for number in range(draw.randrange(1, 10))
    ]
    before = [
        bound_gpu(
            gpu,
            bound_task(f"t{gpu.index}", sm_percent=draw.choice(SHARES)),
            rate_rps=1.0,
        )
        for gpu in fleet
    ]
    return to_fill(bound, tasks, fleet, running=a_plan(*before) if is_running else None)


@pytest.mark.parametrize("seed", seeds(24))
def test_no_rule_is_ever_broken_and_the_order_of_the_input_changes_nothing(
    seed: int,
) -> None:
    wanted = random_case(seed)
    filled = fill(wanted)
    assert task_violations(PROBLEM, filled, POINTS) == ()
    assert len(shares(filled)) == len(
        [task for gpu in filled for task in gpu.tasks if task.is_resident]
    )
    assert [each for gpu in filled for each in gpu.replicas] == [
        each for gpu in wanted.bound.gpus for each in gpu.replicas
    ]
    assert worth(wanted, filled) >= worth(wanted, greedy.fill(wanted)) - 1e-12
    shuffled = replace(
        wanted, tasks=list(wanted.tasks)[::-1], gpus=list(wanted.gpus)[::-1]
    )
    assert fill(shuffled) == filled


def test_it_is_worth_more_than_the_greedy_in_many_cases() -> None:
    wanted = [random_case(seed, is_running=False) for seed in range(30)]
    gains = [
        worth(each, fill(each)) - worth(each, greedy.fill(each)) for each in wanted
    ]
    assert min(gains) >= -1e-12
    assert sum(gain > 1e-6 for gain in gains) >= 5


@pytest.mark.parametrize("seed", seeds(12))
def test_what_it_decided_it_decides_again(seed: int) -> None:
    # A task that lost its seat is given a moment to get it back; after that nothing is left to change.
    wanted = random_case(seed)
    decided = [fill(wanted)]
    for _ in range(3):
        placed = shares(decided[-1])
        tasks = [
            replace(task, waiting_s=0.0 if task.name in placed else task.waiting_s)
            for task in wanted.tasks
        ]
        decided.append(
            fill(
                replace(
                    wanted, tasks=tasks, running=replace(wanted.bound, gpus=decided[-1])
                )
            )
        )
    assert shares(decided[-1]) == shares(decided[-2])


def every_filling(wanted: FillProblem) -> list[tuple[BoundGpu, ...]]:
    """Every lawful way to put tasks on the bound GPUs."""
    gpus = wanted.bound.gpus
    seats: list[list[tuple[int, float] | None]] = [
        [None, *itertools.product(range(len(gpus)), SHARES)] for _ in wanted.tasks
    ]
    found = []
    for places in itertools.product(*seats):
        tasks: list[list[BoundTask]] = [[] for _ in gpus]
        for task, place in zip(wanted.tasks, places, strict=True):
            if place is not None:
                tasks[place[0]].append(bound_task(task.name, sm_percent=place[1]))
        filling = tuple(
            replace(gpu, tasks=tuple(own)) for gpu, own in zip(gpus, tasks, strict=True)
        )
        if not task_violations(PROBLEM, filling, POINTS):
            found.append(filling)
    return found


@pytest.mark.parametrize("seed", seeds(6))
def test_of_every_filling_it_finds_one_that_is_nearly_the_best(seed: int) -> None:
    # Of each task it looks at three shares, which do without the last tenth of the speed.
    draw = random.Random(seed)
    bound = a_plan(
        bound_gpu(GPU, rate_rps=draw.uniform(1.0, 90.0)),
        bound_gpu(DEAR, rate_rps=draw.uniform(1.0, 90.0)),
    )
    tasks = [
        a_task(
            name,
            priority=draw.choice((1.0, 2.0, 4.0)),
            waiting_s=draw.uniform(0.0, 500.0),
        )
        for name in "abc"
    ]
    wanted = to_fill(bound, tasks, [GPU, DEAR])
    best = max(worth(wanted, each) for each in every_filling(wanted))
    assert 0.9 * best <= worth(wanted, fill(wanted)) <= best + 1e-12
