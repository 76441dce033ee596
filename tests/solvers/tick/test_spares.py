"""Spares: where, how large and in what turn, by hand and over random plans; and what becomes of them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from solvers.check_residents import spare_violations
from solvers.tick.bind import bind
from solvers.tick.spares import spares_of, with_spares
from solvers.types.plan import (
    BoundGpu,
    BoundPlan,
    BoundReplica,
    BoundTask,
    Plan,
)
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import (
    ALL_PAID,
    Gpu,
    GpuId,
    GpuType,
    Node,
    NodeId,
    ReplicaId,
)
from solvers.types.survival import LossKind, SurvivalGoal
from tests.examples import seeds
from tests.solvers.instances import gpu_plan, replica_on

SHARES = (25.0, 50.0, 75.0, 100.0)


def a_problem(*services: ServiceDemand, **gpu_type: Any) -> Problem:
    """A replica carries 1 rps per percent of the SMs, and takes 2 GiB of 10 and 1 W per percent of 250."""
    rows = tuple(
        OperatingPoint(share, 1, 1000.0, 0.0, 0.0, 1000.0 / share, 2048.0, share, 0.0)
        for share in SHARES
    )
    kind = GpuType(
        name="T4",
        price_usd_per_hour=1.0,
        memory_mib=10240.0,
        sm_percent_step=25.0,
        idle_w=50.0,
        power_cap_w=300.0,
        clocks_mhz=(1000.0,),
    )
    return Problem(
        max_replicas_per_gpu=4,
        capacity_law=CapacityLaw(
            percentiles=(0.95,),
            batches=(1,),
            slo_ratios=(1.0, 1.001),
            max_utilisation=(((0.0, 1.0),),),
        ),
        gpu_types=(replace(kind, **gpu_type),),
        services=services or (a_service("a"), a_service("b")),
        points=(
            OperatingPoints(network="net", gpu_type="T4", sensitivity=0.0, rows=rows),
        ),
    )


def a_service(name: str, **changes: Any) -> ServiceDemand:
    service = ServiceDemand(
        name=name,
        network="net",
        slo_ms=1000.0,
        percentile=0.95,
        arrival_rate_rps=20.0,
    )
    return replace(service, **changes)


def a_replica(service: str, sm_percent: float = 25.0) -> BoundReplica:
    return BoundReplica(
        id=ReplicaId(f"{service}-g1-1"),
        service=service,
        network="net",
        sm_percent=sm_percent,
        batch=1,
        arrival_rate_rps=sm_percent,
        memory_mib=2048.0,
    )


def a_gpu(name: str, *replicas: BoundReplica, **changes: Any) -> BoundGpu:
    """`n1/0` is GPU 0 of node n1."""
    gpu = BoundGpu(
        id=GpuId(name),
        node=NodeId(name.split("/")[0]),
        gpu_type="T4",
        clock_mhz=1000.0,
        power_cap_w=300.0,
        replicas=replicas,
    )
    return replace(gpu, **changes)


def fleet(*names: str) -> list[Gpu]:
    return [
        Gpu(
            id=GpuId(name),
            node=NodeId(name.split("/")[0]),
            gpu_type="T4",
            index=int(name.split("/")[1]),
        )
        for name in names
    ]


def nodes_of(gpus: Sequence[Gpu]) -> list[Node]:
    return [Node(id=node) for node in sorted({gpu.node for gpu in gpus})]


def a_plan(*gpus: BoundGpu, generation: int = 1) -> BoundPlan:
    return BoundPlan(
        generation=generation, parent=generation - 1, policy="joint", gpus=gpus
    )


def a_goal(service: str, loss: LossKind = "node") -> SurvivalGoal:
    return SurvivalGoal(
        service=service, loss=loss, share=0.5, needed_rps=10.0, is_asked=False
    )


def surviving(problem: Problem, *services: str, loss: LossKind = "node") -> Problem:
    goals = tuple(a_goal(service, loss) for service in services)
    return replace(problem, survival=goals)


def spared(plan: BoundPlan, problem: Problem, **changes: Any) -> BoundPlan:
    gpus = changes.pop("gpus", None) or fleet(*(gpu.id for gpu in plan.gpus))
    options: dict[str, Any] = {"running": None, "generation": 2, "may_open": True}
    return with_spares(problem, plan, gpus, nodes_of(gpus), **{**options, **changes})


def places(plan: BoundPlan) -> dict[str, tuple[str, float]]:
    """By service, the GPU of its spare and the share."""
    return {each.service: (gpu, each.sm_percent) for gpu, each in spares_of(plan)}


@pytest.mark.parametrize("loss", ["node", "zone"])
def test_the_spare_of_a_service_on_one_node_that_must_survive_stands_on_another(
    loss: LossKind,
) -> None:
    plan = a_plan(
        a_gpu("n1/0", a_replica("a", 50.0)),
        a_gpu("n1/1", a_replica("b")),
        a_gpu("n2/0", a_replica("b")),
    )
    found = spared(plan, surviving(a_problem(), "a", loss=loss))
    assert places(found)["a"] == ("n2/0", 50.0)


@pytest.mark.parametrize("loss", ["none", "gpu"])
def test_where_nothing_must_survive_a_node_the_spare_helps_its_own(
    loss: LossKind,
) -> None:
    plan = a_plan(a_gpu("n1/0", a_replica("b")), a_gpu("n2/0", a_replica("a")))
    gpus = fleet("n1/0", "n2/0", "n2/1")
    problem = surviving(a_problem(paid_count=ALL_PAID), "a", loss=loss)
    assert places(spared(plan, problem, gpus=gpus))["a"] == ("n2/1", 25.0)


def test_the_spare_of_a_service_on_two_nodes_stands_where_most_of_its_rate_is() -> None:
    plan = a_plan(
        a_gpu("n1/0", a_replica("b")),
        a_gpu("n2/0", a_replica("a", 25.0)),
        a_gpu("n2/1", a_replica("b")),
        a_gpu("n3/0", a_replica("a", 50.0)),
        a_gpu("n3/1", a_replica("b")),
    )
    problem = surviving(a_problem(), "a")
    assert places(spared(plan, problem))["a"] == ("n3/1", 50.0)
    # Without room there the other node of its own comes before one that serves nothing of it.
    full = replace(plan.gpus[4], replicas=(a_replica("b", 100.0),))
    left = a_plan(*plan.gpus[:4], full)
    assert places(spared(left, problem))["a"] == ("n2/1", 50.0)


def test_a_spare_moves_to_the_node_that_it_helps_but_not_after_the_rates() -> None:
    plan = a_plan(
        a_gpu("n1/0", a_replica("b")),
        a_gpu("n2/0", a_replica("a", 25.0)),
        a_gpu("n2/1", a_replica("b")),
        a_gpu("n3/0", a_replica("a", 50.0)),
        a_gpu("n3/1", a_replica("b")),
    )

    def after(runs_at: int) -> str:
        spare = replace(a_replica("a"), id=ReplicaId("x"), arrival_rate_rps=0.0)
        gpus = list(plan.gpus)
        gpus[runs_at] = replace(gpus[runs_at], spares=(spare,))
        running = a_plan(*gpus)
        return places(spared(plan, a_problem(), running=running))["a"][0]

    assert [after(at) for at in (0, 2, 4)] == ["n3/1", "n2/1", "n3/1"]


def test_none_stands_beside_its_own_service_or_beside_tasks_that_run() -> None:
    task = BoundTask(
        name="nightly",
        kind="training",
        network="train",
        batch=1,
        sm_percent=10.0,
        memory_mib=1.0,
        iterations=1,
    )
    beside = a_gpu("n2/0", a_replica("b"), tasks=(task,))
    plan = a_plan(a_gpu("n1/0", a_replica("a")), beside)
    assert places(spared(plan, a_problem())) == {"b": ("n1/0", 25.0)}
    swapped = a_plan(
        plan.gpus[0], replace(beside, tasks=(replace(task, is_resident=False),))
    )
    assert places(spared(swapped, a_problem())) == {
        "a": ("n2/0", 25.0),
        "b": ("n1/0", 25.0),
    }


def test_none_stands_beside_a_service_that_it_may_not_share_a_gpu_with() -> None:
    plan = a_plan(a_gpu("n1/0", a_replica("a")), a_gpu("n2/0", a_replica("b")))
    rivals = [
        a_service(name, anti_affinity=frozenset({"team/edge"})) for name in ("a", "b")
    ]
    assert places(spared(plan, a_problem())) == {
        "a": ("n2/0", 25.0),
        "b": ("n1/0", 25.0),
    }
    assert places(spared(plan, a_problem(*rivals))) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_mib": 3000.0},
        {"power_cap_w": 99.0},
        {"replicas": (a_replica("b", 100.0),)},
        {"replicas": (a_replica("b", 25.0),), "power_cap_w": 99.0},
    ],
    ids=["memory", "watts", "SMs", "the GPU's own cap"],
)
def test_there_is_none_without_room(changes: dict[str, Any]) -> None:
    gpu_type = {key: changes[key] for key in ("memory_mib",) if key in changes}
    other = a_gpu("n2/0", a_replica("b", 25.0))
    other = replace(
        other, **{key: value for key, value in changes.items() if key not in gpu_type}
    )
    problem = a_problem(**gpu_type)
    found = spared(a_plan(a_gpu("n1/0", a_replica("a")), other), problem)
    assert "a" not in places(found)


def test_the_largest_share_that_there_is_room_for_is_better_than_none() -> None:
    plan = a_plan(
        a_gpu("n1/0", a_replica("a", 100.0)), a_gpu("n2/0", a_replica("b", 50.0))
    )
    assert places(spared(plan, a_problem()))["a"] == ("n2/0", 50.0)


def test_idle_gpus_are_used_only_where_they_are_paid_for() -> None:
    plan = a_plan(a_gpu("n1/0", a_replica("a", 50.0)))
    gpus = fleet("n1/0", "n2/0", "n2/1")
    assert places(spared(plan, a_problem(), gpus=gpus)) == {}
    owned = a_problem(paid_count=ALL_PAID)
    assert places(spared(plan, owned, gpus=gpus)) == {"a": ("n2/0", 50.0)}
    assert places(spared(plan, owned, gpus=gpus, may_open=False)) == {}
    # The one that is paid for is in use.
    reserved = a_problem(paid_count=1)
    assert places(spared(plan, reserved, gpus=gpus)) == {}
    cordoned = [replace(gpus[0], cordoned=True), *gpus[1:]]
    assert places(spared(plan, reserved, gpus=cordoned)) == {}


def test_cordoned_broken_and_avoided_gpus_get_none() -> None:
    plan = a_plan(a_gpu("n1/0", a_replica("a")), a_gpu("n2/0", a_replica("b")))
    gpus = fleet("n1/0", "n2/0")
    for change in ({"cordoned": True}, {"healthy": False}):
        changed = [gpus[0], replace(gpus[1], **change)]  # type: ignore[arg-type]
        assert "a" not in places(spared(plan, a_problem(), gpus=changed))
    avoided = {"a": {GpuId("n2/0")}}
    assert places(spared(plan, a_problem(), avoided=avoided)) == {"b": ("n1/0", 25.0)}


def test_a_teams_limit_of_replicas_counts_its_spare() -> None:
    plan = a_plan(a_gpu("n1/0", a_replica("a")), a_gpu("n2/0", a_replica("b")))
    problem = a_problem(a_service("a", max_replicas=1), a_service("b", max_replicas=2))
    assert places(spared(plan, problem)) == {"b": ("n1/0", 25.0)}


def test_the_more_important_goes_first_where_there_is_room_for_one() -> None:
    full = a_gpu("n2/0", a_replica("c", 75.0))
    plan = a_plan(a_gpu("n1/0", a_replica("a", 50.0), a_replica("b", 50.0)), full)
    c = a_service("c", max_replicas=1)
    for first in ("a", "b"):
        others = [
            a_service(each, priority=2.0 if each == first else 1.0) for each in "ab"
        ]
        found = spared(plan, a_problem(*others, c))
        assert places(found) == {first: ("n2/0", 25.0)}


def test_a_spare_stays_where_it_runs_and_leaves_where_there_is_no_room() -> None:
    plan = a_plan(
        a_gpu("n1/0", a_replica("a")),
        a_gpu("n2/0", a_replica("b")),
        a_gpu("n3/0", a_replica("b")),
    )
    problem = surviving(a_problem(), "a")
    first = spared(plan, problem)
    # Alone it would choose the first node of equal ones; it runs on the last.
    moved = replace(
        first,
        gpus=(
            plan.gpus[0],
            plan.gpus[1],
            replace(
                plan.gpus[2],
                spares=(
                    replace(a_replica("a"), id=ReplicaId("x"), arrival_rate_rps=0.0),
                ),
            ),
        ),
    )
    again = spared(plan, problem, running=moved, generation=3)
    assert {
        (gpu, each.id) for gpu, each in spares_of(again) if each.service == "a"
    } == {("n3/0", "x")}
    full = a_plan(plan.gpus[0], plan.gpus[1], a_gpu("n3/0", a_replica("b", 100.0)))
    after = spared(full, problem, running=moved, generation=3)
    (spare,) = (each for _, each in spares_of(after) if each.service == "a")
    assert places(after)["a"] == ("n2/0", 25.0)
    assert spare.id == "a-g3-0"


def test_a_spare_becomes_the_replica_that_the_plan_wants_on_its_gpu() -> None:
    problem = a_problem(a_service("a"))
    gpus = fleet("n1/0", "n2/0", "n3/0")
    spare = replace(a_replica("a"), id=ReplicaId("a-g1-0"), arrival_rate_rps=0.0)
    running = a_plan(a_gpu("n1/0", a_replica("a")), a_gpu("n3/0", spares=(spare,)))
    replica = replica_on("a", 25.0, 20.0)
    wanted = gpu_plan(replica, gpu_type="T4", count=2)
    bound = bind(
        problem,
        Plan(policy="joint", gpus=(wanted,)),
        gpus,
        nodes_of(gpus),
        running=running,
        generation=2,
    )
    assert {(gpu.id, each.id) for gpu in bound.plan.gpus for each in gpu.replicas} == {
        ("n1/0", "a-g1-1"),
        ("n3/0", "a-g1-0"),
    }
    assert not any(step.start for step in bound.steps)


def random_case(seed: int) -> tuple[BoundPlan, Problem, list[Gpu]]:
    drawn = random.Random(seed)
    services = [a_service(name, priority=drawn.choice((1.0, 2.0))) for name in "abcdef"]
    gpus = fleet(*(f"n{node}/{index}" for node in range(4) for index in range(2)))
    used = []
    for gpu in gpus:
        room = 100.0
        replicas = []
        for service in drawn.sample(services, drawn.randint(0, 3)):
            share = drawn.choice(SHARES[:2])
            if share <= room:
                room -= share
                replicas.append(
                    replace(
                        a_replica(service.name, share),
                        id=ReplicaId(f"{service.name}-{gpu.id}"),
                    )
                )
        if replicas:
            used.append(a_gpu(gpu.id, *replicas))
    problem = a_problem(*services, paid_count=drawn.choice((0, 5, ALL_PAID)))
    problem = surviving(problem, *"abc"[: drawn.randint(0, 3)])
    return a_plan(*used), problem, gpus


@pytest.mark.parametrize("seed", seeds(14))
def test_whatever_the_plan_the_checker_agrees_and_the_order_of_input_is_nothing(
    seed: int,
) -> None:
    plan, problem, gpus = random_case(seed)
    found = spared(plan, problem, gpus=gpus)
    assert spare_violations(problem, found.gpus) == ()
    assert [replace(gpu, spares=()) for gpu in found.gpus if gpu.replicas] == list(
        plan.gpus
    )
    shuffled = replace(plan, gpus=tuple(reversed(plan.gpus)))
    backwards = replace(problem, services=tuple(reversed(problem.services)))
    assert spares_of(spared(shuffled, backwards, gpus=gpus[::-1])) == spares_of(found)
    # What runs is what is wanted: nothing moves from tick to tick.
    again = spared(plan, problem, gpus=gpus, running=found, generation=3)
    assert spares_of(again) == spares_of(found)
