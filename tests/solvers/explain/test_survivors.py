"""Survivors: what is still carried when a GPU or a node is lost, by hand and against taking GPUs out of plans."""

from dataclasses import replace

import pytest

from solvers.explain.survivors import survivors
from solvers.greedy.arrange import running_carriers
from solvers.greedy.routing import route
from solvers.policies.registry import policy
from solvers.types.outcome import Budget
from solvers.types.plan import (
    BoundGpu,
    BoundPlan,
    BoundReplica,
    GpuPlan,
    Plan,
)
from solvers.types.problem import Problem
from solvers.types.state import GpuId, NodeId, Observed, ReplicaId
from tests.examples import seeds
from tests.solvers.instances import (
    a_problem,
    a_service,
    gpu_plan,
    random_problem,
    replica_on,
)


def on_halves(*services: str, count: int = 1) -> GpuPlan:
    """Replicas that carry 50 rps each."""
    replicas = (replica_on(name, 50.0, 40.0) for name in services)
    return gpu_plan(*replicas, count=count)


def bound(*gpus: tuple[str, str, GpuPlan]) -> BoundPlan:
    """GPUs by id and node."""
    return BoundPlan(
        generation=1,
        parent=0,
        policy="any",
        gpus=tuple(
            BoundGpu(
                id=GpuId(id_),
                node=NodeId(node),
                gpu_type=gpu.gpu_type,
                clock_mhz=gpu.clock_mhz,
                power_cap_w=250.0,
                replicas=tuple(
                    BoundReplica(
                        id=ReplicaId(f"{id_}-{at}"),
                        service=each.service,
                        network="net",
                        sm_percent=each.sm_percent,
                        batch=each.batch,
                        arrival_rate_rps=each.arrival_rate_rps,
                        memory_mib=4000.0,
                    )
                    for at, each in enumerate(gpu.replicas)
                ),
            )
            for id_, node, gpu in gpus
        ),
    )


def test_a_spare_replica_survives_the_loss_of_a_gpu() -> None:
    # Three replicas carry 150 rps; two of them carry the 90 that are wanted.
    problem = a_problem(a_service("chat", rate_rps=90.0))
    found = survivors(problem, Plan(policy="any", gpus=(on_halves("chat", count=3),)))
    assert (found.gpu_losses, found.gpus) == ((), 3)


def test_what_the_survivors_cannot_carry_is_short() -> None:
    # Two replicas carry 100 of 90 rps; one alone carries 50.
    problem = a_problem(a_service("chat", rate_rps=90.0, priority=2.0))
    (worst,) = survivors(
        problem, Plan(policy="any", gpus=(on_halves("chat", count=2),))
    ).gpu_losses
    (chat,) = worst.shortfalls
    assert (worst.name, worst.gpus, chat.service) == ("gpus[0]", 1, "chat")
    assert [chat.rate_rps, chat.share, worst.weight] == pytest.approx(
        [40.0, 40.0 / 90.0, 80.0]
    )


def test_the_loss_of_a_node_takes_all_of_its_gpus() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=90.0), a_service("photo", rate_rps=40.0)
    )
    plan = bound(
        ("g1", "left", on_halves("chat", "photo")),
        ("g2", "left", on_halves("chat")),
        ("g3", "right", on_halves("chat")),
    )
    found = survivors(problem, plan)
    assert [
        (loss.name, [each.service for each in loss.shortfalls])
        for loss in found.gpu_losses
    ] == [("g1", ["photo"])]
    (worst,) = found.node_losses
    assert (worst.name, worst.gpus, found.nodes) == ("left", 2, 2)
    # 40 of 40 rps, and 40 of 90: 50 are left of 150.
    assert [each.service for each in worst.shortfalls] == ["photo", "chat"]
    assert [each.rate_rps for each in worst.shortfalls] == pytest.approx([40.0, 40.0])


def test_what_is_short_before_is_not_counted_against_a_loss() -> None:
    problem = a_problem(a_service("chat", rate_rps=130.0))
    found = survivors(problem, Plan(policy="any", gpus=(on_halves("chat", count=2),)))
    assert [each.rate_rps for each in found.short_already] == [pytest.approx(30.0)]
    assert [loss.weight for loss in found.gpu_losses] == [pytest.approx(50.0)]


@pytest.mark.parametrize("seed", seeds(6))
def test_losses_are_what_routing_without_the_gpu_leaves_unserved(seed: int) -> None:
    problem = random_problem(seed)
    plan, _, _ = policy("hetsev_greedy").make_plan(
        problem, Observed(at_s=0.0), None, Budget(work=0.05)
    )
    found = survivors(problem, plan)
    losses = {loss.name: loss for loss in found.gpu_losses}
    short_before = {each.service: each.rate_rps for each in found.short_already}
    assert losses
    for at in range(len(plan.gpus)):
        left = _unserved(problem, _without(plan, at))
        expected = {
            name: rate - short_before.get(name, 0.0) for name, rate in left.items()
        }
        told = (
            {each.service: each.rate_rps for each in losses[f"gpus[{at}]"].shortfalls}
            if f"gpus[{at}]" in losses
            else {}
        )
        assert told == {
            name: pytest.approx(rate, rel=1e-4)
            for name, rate in expected.items()
            if rate > 1e-4
        }


def _without(plan: Plan, at: int) -> Plan:
    gpus = list(plan.gpus)
    gpus[at] = replace(gpus[at], count=gpus[at].count - 1)
    return replace(plan, gpus=tuple(gpu for gpu in gpus if gpu.count > 0))


def _unserved(problem: Problem, plan: Plan) -> dict[str, float]:
    carriers = running_carriers(replace(problem, current=plan))
    return {
        entry.service: entry.rate_rps
        for entry in route(problem, "any", carriers, {}).unserved
    }
