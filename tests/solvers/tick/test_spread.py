"""Spreading: replicas of a service over nodes and zones, as far as GPUs and what runs allow."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from solvers.check_survival import survival_gaps
from solvers.tick.bind import Bound, bind
from solvers.tick.spread import MAX_LOOKED_AT, MAX_PLACES
from solvers.types.plan import BoundPlan, Plan
from solvers.types.state import Gpu, GpuId, Node, NodeId
from solvers.types.survival import SurvivalGoal
from tests.examples import seeds
from tests.solvers.tick.test_bind import PROBLEM, a_plan, fleet, on_gpu, replica, where
from tests.solvers.tick.test_survive import a_goal


def blocks(*nodes: str, gpus: int = 2) -> list[Gpu]:
    """`gpus` GPUs of the type `big` per node, with ids in the order of nodes."""
    return [
        Gpu(id=GpuId(f"{node}/{index}"), node=NodeId(node), gpu_type="big", index=index)
        for node in nodes
        for index in range(gpus)
    ]


def free_gpus(gpu_type: str, count: int) -> list[Gpu]:
    """On a node whose ids come first."""
    return [
        Gpu(
            id=GpuId(f"a/{index:03}"),
            node=NodeId("a"),
            gpu_type=gpu_type,
            index=index,
        )
        for index in range(count)
    ]


def spread_over(
    plan: Plan,
    gpus: Sequence[Gpu],
    *goals: SurvivalGoal,
    running: BoundPlan | None = None,
    zones: dict[str, str] | None = None,
) -> Bound:
    problem = replace(PROBLEM, survival=goals)
    nodes = [
        Node(id=node, zone=(zones or {}).get(node, ""))
        for node in sorted({gpu.node for gpu in gpus})
    ]
    return bind(
        problem,
        plan,
        gpus,
        nodes,
        running=running,
        generation=1 + (running.generation if running else 0),
    )


def nodes_of(found: Bound, service: str) -> list[str]:
    return sorted(
        gpu.node
        for gpu in found.plan.gpus
        for each in gpu.replicas
        if each.service == service
    )


def test_two_replicas_stand_on_two_nodes() -> None:
    plan = a_plan(on_gpu("a", count=2))
    packed = spread_over(plan, blocks("n1", "n2"))
    assert nodes_of(packed, "a") == ["n1", "n1"]
    apart = spread_over(plan, blocks("n1", "n2"), a_goal(rate_rps=20.0))
    assert nodes_of(apart, "a") == ["n1", "n2"]


def test_two_services_exchange_gpus_where_none_is_free() -> None:
    plan = a_plan(on_gpu("a", count=2), on_gpu("b", count=2))
    goals = (a_goal("a", rate_rps=20.0), a_goal("b", rate_rps=20.0))
    found = spread_over(plan, blocks("n1", "n2"), *goals)
    assert nodes_of(found, "a") == nodes_of(found, "b") == ["n1", "n2"]


def test_many_free_gpus_of_another_type_hide_none() -> None:
    gpus = [*free_gpus("small", MAX_PLACES + 2), *blocks("n1", "n2")]
    found = spread_over(a_plan(on_gpu("a", count=2)), gpus, a_goal(rate_rps=20.0))
    assert nodes_of(found, "a") == ["n1", "n2"]


def test_many_free_gpus_of_the_same_zone_hide_none() -> None:
    gpus = [*free_gpus("big", MAX_PLACES + 2), *blocks("n1", gpus=1)]
    goal = a_goal(rate_rps=20.0, loss="zone")
    zones = {"a": "east", "n1": "west"}
    found = spread_over(a_plan(on_gpu("a", count=2)), gpus, goal, zones=zones)
    assert nodes_of(found, "a") == ["a", "n1"]


def test_many_slots_that_stay_hide_none_that_may_go() -> None:
    """More replicas of a run on n1 than one step looks at, and two of b are new there."""
    count = MAX_LOOKED_AT + 2
    goals = (
        a_goal("a", rate_rps=10.0 * count, is_asked=False),
        a_goal("b", rate_rps=20.0),
    )
    on_a = [on_gpu("a", count=count)]
    gpus = [*blocks("n1", gpus=count + 2), *blocks("n2", gpus=1)]
    # Gpus of b come before those of a, which is at fault, too.
    first = [gpu for gpu in gpus if gpu.node == "n1"][2:]
    running = spread_over(a_plan(*on_a), first)
    plan = a_plan(*on_a, on_gpu("b", count=2))
    found = spread_over(plan, gpus, *goals, running=running.plan)
    assert nodes_of(found, "b") == ["n1", "n2"]


def test_nothing_starts_where_what_moves_still_runs() -> None:
    """A replica of a moves to the only free GPU; one of b would go where it came from."""
    plan = a_plan(on_gpu("a", count=2), on_gpu("b", count=2))
    goals = (a_goal("a", rate_rps=20.0), a_goal("b", rate_rps=20.0))
    packed = spread_over(plan, blocks("n1", "n2"))
    gpus = [*blocks("n1"), *blocks("n2", gpus=3)]
    found = spread_over(plan, gpus, *goals, running=packed.plan)
    assert nodes_of(found, "a") == ["n1", "n2"]
    assert nodes_of(found, "b") == ["n2", "n2"]


def test_zones_are_kept_apart_and_not_only_nodes() -> None:
    zones = {"n1": "east", "n2": "east", "n3": "west"}
    found = spread_over(
        a_plan(on_gpu("a", count=2)),
        blocks("n1", "n2", "n3", gpus=1),
        a_goal(rate_rps=20.0, loss="zone"),
        zones=zones,
    )
    assert nodes_of(found, "a") in (["n1", "n3"], ["n2", "n3"])


def test_what_runs_moves_to_a_free_gpu_once_and_then_stays() -> None:
    plan = a_plan(on_gpu("a", count=2))
    goal = a_goal(rate_rps=20.0)
    packed = spread_over(plan, blocks("n1", "n2"))
    moved = spread_over(plan, blocks("n1", "n2"), goal, running=packed.plan)
    assert nodes_of(moved, "a") == ["n1", "n2"]
    assert sum(len(step.start) for step in moved.steps) == 1
    again = spread_over(plan, blocks("n1", "n2"), goal, running=moved.plan)
    assert not again.steps and where(again.plan) == where(moved.plan)


def test_gpus_that_run_replicas_are_not_free() -> None:
    packed = spread_over(a_plan(on_gpu("a", count=2)), blocks("n1", "n2"))
    held = spread_over(a_plan(on_gpu("b", count=2)), blocks("n2")).plan.gpus
    serving = replace(packed.plan, gpus=(*packed.plan.gpus, *held))
    both = a_plan(on_gpu("a", count=2), on_gpu("b", count=2))
    stays = spread_over(
        both, blocks("n1", "n2"), a_goal(rate_rps=20.0), running=serving
    )
    assert not stays.steps


def test_what_runs_is_not_stopped_before_it_can_start_elsewhere() -> None:
    plan = a_plan(on_gpu("a", count=2), on_gpu("b", count=2))
    packed = spread_over(plan, blocks("n1", "n2"))
    # Every GPU is taken: an exchange would stop replicas that serve.
    found = spread_over(
        plan, blocks("n1", "n2"), a_goal(rate_rps=20.0), running=packed.plan
    )
    assert not found.steps


def test_a_small_gain_is_not_worth_a_start() -> None:
    # The loss of n1 takes 2.5 + 8.5 of 20 rps, of which it may take 10: one twentieth too much.
    plan = a_plan(*(on_gpu(replica("a", rate_rps=rate)) for rate in (2.5, 8.5, 9.0)))
    goal = a_goal(rate_rps=20.0)
    packed = spread_over(plan, blocks("n1", "n2", "n3"))
    assert nodes_of(packed, "a") == ["n1", "n1", "n2"]
    assert not spread_over(
        plan, blocks("n1", "n2", "n3"), goal, running=packed.plan
    ).steps


@pytest.mark.parametrize("seed", seeds(10))
def test_gaps_only_shrink_and_the_order_of_gpus_changes_nothing(seed: int) -> None:
    drawn = random.Random(seed)
    names = ["a", "b", "c", "d"]
    plan = a_plan(
        *(
            on_gpu(
                *(
                    replica(name, rate_rps=float(drawn.randint(1, 20)))
                    for name in drawn.sample(names, drawn.randint(1, 2))
                )
            )
            for _ in range(6)
        )
    )
    gpus = fleet(8)
    rates = {
        name: sum(
            each.arrival_rate_rps
            for gpu in plan.gpus
            for each in gpu.replicas
            if each.service == name
        )
        for name in names
    }
    goals = tuple(a_goal(name, rate_rps=rates[name]) for name in names if rates[name])
    before = spread_over(plan, gpus)
    after = spread_over(plan, gpus, *goals)
    nodes = [Node(id=NodeId("n0")), Node(id=NodeId("n1"))]

    def missing(found: Bound) -> float:
        gaps = survival_gaps(found.plan, nodes, goals)
        return sum((gap.needed_rps - gap.left_rps) / rates[gap.service] for gap in gaps)

    assert missing(after) <= missing(before) + 1e-9
    shuffled = list(gpus)
    drawn.shuffle(shuffled)
    assert spread_over(plan, shuffled, *goals).plan == after.plan


def test_a_gap_names_the_worst_loss() -> None:
    plan = a_plan(
        on_gpu(replica("a", rate_rps=30.0)), on_gpu(replica("a", rate_rps=10.0))
    )
    found = spread_over(plan, blocks("n1", "n2", gpus=1))
    nodes = [Node(id=NodeId("n1")), Node(id=NodeId("n2"))]
    (gap,) = survival_gaps(found.plan, nodes, (a_goal(rate_rps=40.0),))
    # Of 40 rps the larger replica's node takes 30, and half of it must be left.
    assert (gap.left_rps, gap.needed_rps, gap.share) == (10.0, 20.0, 0.5)
    assert gap.lost in {gpu.node for gpu in found.plan.gpus}
    assert not survival_gaps(found.plan, nodes, (a_goal(share=0.25, rate_rps=40.0),))
    assert not survival_gaps(found.plan, nodes, (a_goal("b"),))
