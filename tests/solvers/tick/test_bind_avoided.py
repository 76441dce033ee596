"""Binding where services avoid GPUs: nothing of them starts there, and all others stay as they are."""

import random
from collections.abc import Mapping, Set

from solvers.tick.bind import Bound, bind
from solvers.types.plan import BoundPlan, Plan
from solvers.types.state import Gpu, GpuId
from tests.solvers.tick.test_bind import (
    NODES,
    PROBLEM,
    a_plan,
    fleet,
    ids,
    on_gpu,
    where,
)

ROUNDS = 60


def avoiding(
    plan: Plan,
    gpus: list[Gpu],
    avoided: Mapping[str, Set[GpuId]],
    running: BoundPlan | None = None,
) -> Bound:
    return bind(
        PROBLEM,
        plan,
        gpus,
        NODES,
        running=running,
        generation=running.generation + 1 if running else 1,
        avoided=avoided,
    )


def test_a_service_takes_the_next_gpu_and_others_take_the_one_that_it_avoids() -> None:
    avoided = {"a": {GpuId("big-0")}}
    assert where(avoiding(a_plan(on_gpu("a")), fleet(2), avoided).plan) == {
        "big-1": ["a"]
    }
    both = a_plan(on_gpu("a"), on_gpu("b"))
    assert where(avoiding(both, fleet(2), avoided).plan) == {
        "big-0": ["b"],
        "big-1": ["a"],
    }


def test_others_take_gpus_that_nobody_avoids_first() -> None:
    avoided = {"a": {GpuId("big-0"), GpuId("big-1")}}
    assert where(avoiding(a_plan(on_gpu("b")), fleet(4), avoided).plan) == {
        "big-2": ["b"]
    }
    # What runs on one of them stays there all the same.
    running = avoiding(a_plan(on_gpu("b")), fleet(4), {}).plan
    two = a_plan(on_gpu("b"), on_gpu("c"))
    assert where(avoiding(two, fleet(4), avoided, running).plan) == {
        "big-0": ["b"],
        "big-2": ["c"],
    }


def test_what_runs_beside_it_stays_where_the_plan_lets_it() -> None:
    gpus = fleet(3)
    running = avoiding(a_plan(on_gpu("b"), on_gpu("c")), gpus, {}).plan
    wanted = a_plan(on_gpu("b"), on_gpu("c"), on_gpu("a"))
    moved = avoiding(wanted, gpus, {"a": {GpuId("big-2")}}, running)
    # Only an exchange makes room: one of the two that run starts again on the GPU that `a` avoids.
    placed = where(moved.plan)
    assert placed["big-2"] != ["a"] and len(placed) == 3
    assert sum(len(step.start) for step in moved.steps) == 2
    free = avoiding(wanted, gpus, {"a": {GpuId("big-0")}}, running)
    kept = ids(free.plan)
    assert kept["big-0"] == ids(running)["big-0"]
    assert kept["big-1"] == ids(running)["big-1"]


def test_a_replica_that_serves_on_an_avoided_gpu_stays_and_no_other_starts() -> None:
    gpus = fleet(3)
    running = avoiding(a_plan(on_gpu("a")), gpus, {}).plan
    avoided = {"a": {GpuId("big-0"), GpuId("big-1")}}
    moved = avoiding(a_plan(on_gpu("a"), on_gpu("a")), gpus, avoided, running)
    assert where(moved.plan) == {"big-0": ["a"], "big-2": ["a"]}
    assert ids(moved.plan)["big-0"] == ids(running)["big-0"]


def test_a_plan_without_another_place_is_told_to_be_without_one() -> None:
    result = avoiding(a_plan(on_gpu("a")), fleet(1), {"a": {GpuId("big-0")}})
    assert [gpu.replicas[0].service for gpu in result.unplaced] == ["a"]


def test_nothing_is_placed_where_it_is_avoided_and_all_where_it_can_be() -> None:
    for seed in range(ROUNDS):
        draw = random.Random(seed)
        gpus = fleet(draw.randint(2, 6))
        services = draw.sample("abcd", draw.randint(1, min(4, len(gpus))))
        # One GPU for each that it must be able to take: what is avoided leaves that.
        order = draw.sample(gpus, len(gpus))
        avoided = {
            service: {
                gpu.id
                for gpu in draw.sample(gpus, draw.randint(0, len(gpus) - 1))
                if gpu.id != own.id
            }
            for service, own in zip(services, order, strict=False)
        }
        plan = a_plan(*(on_gpu(service) for service in services))
        result = avoiding(plan, gpus, avoided)
        assert not result.unplaced, seed
        for gpu in result.plan.gpus:
            for replica in gpu.replicas:
                assert gpu.id not in avoided[replica.service], seed
