"""Survival in the loop: goals from services and policy, replicas for them, and what is said where that fails."""

from dataclasses import replace

import pytest

from app.answers.status import service_statuses
from app.loop.make_problem import make_problem
from app.loop.plan import Decision, decide
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import (
    ClusterState,
    Demand,
    Gpu,
    GpuId,
    NodeId,
    Observed,
    Scaling,
    Service,
)
from solvers.types.survival import Survival
from tests.app.fleets import (
    FAST,
    POINTS,
    SETTINGS,
    Answering,
    a_node,
    a_service,
    on_half_gpus,
)
from tests.app.snapshots import (
    a_bound_plan,
    a_replica,
    a_snapshot,
    a_state,
    windows_of,
)
from tests.waiting import run

ASKING = replace(a_service(), survival=Survival(loss="node", share=0.5))
DEMANDS = (Demand(service="chat", arrival_rate_rps=30.0, reserve_rps=10.0),)


def a_state_of(nodes: int, **zones: str) -> ClusterState:
    made = [a_node(f"n{number}") for number in range(1, nodes + 1)]
    return replace(
        a_state(gpus=[gpu for _, gpus in made for gpu in gpus], services=(ASKING,)),
        nodes=tuple(replace(node, zone=zones.get(node.id, "")) for node, _ in made),
    )


def problem_of(
    state: ClusterState,
    *,
    points: tuple[OperatingPoints, ...] = (POINTS,),
    **changes: object,
) -> Problem:
    return make_problem(
        state,
        points,
        DEMANDS,
        SETTINGS,
        target=None,
        **changes,  # type: ignore[arg-type]
    )


def decided(state: ClusterState) -> Decision:
    return run(
        decide(
            Answering(on_half_gpus),
            problem_of(state),
            state,
            Observed(at_s=0.0),
            settings=replace(SETTINGS, policy="any"),
            target=None,
            memory=None,
            promises_may_break=True,
        )
    )


def test_what_must_be_left_is_of_the_forecast_and_not_of_the_reserve() -> None:
    (goal,) = problem_of(a_state_of(2)).survival
    # Half of 30 − 10 rps.
    assert (goal.service, goal.needed_rps, goal.is_asked) == ("chat", 10.0, True)


def test_a_service_that_asks_gets_two_replicas_where_there_are_two_nodes() -> None:
    (service,) = problem_of(a_state_of(2)).services
    # Of 30 rps planned for one replica may carry 20, since 10 must be left; rounded up to a power of 1.1.
    assert 20.0 <= (service.max_replica_rps or 0.0) < 22.0
    assert service.min_replicas == 2
    assert service.arrival_rate_rps == 10.0 + (service.max_replica_rps or 0.0)


def test_one_node_or_one_zone_is_planned_as_if_nobody_had_asked() -> None:
    (alone,) = problem_of(a_state_of(1)).services
    assert (alone.min_replicas, alone.max_replica_rps) == (0, None)
    zoned = replace(
        a_state_of(2, n1="east", n2="east"),
        services=(replace(ASKING, survival=Survival(loss="zone", share=0.5)),),
    )
    assert problem_of(zoned).services[0].max_replica_rps is None


def test_gpus_that_a_service_cannot_use_are_no_place_to_survive_on() -> None:
    """Two nodes; the GPU of the second is of a type for which its network has no points, or that it may not use."""
    state = a_state_of(2)
    slow = replace(FAST, name="slow")
    mixed = replace(
        state,
        gpu_types=(FAST, slow),
        gpus=(state.gpus[0], replace(state.gpus[1], gpu_type="slow")),
    )
    of_both = (POINTS, replace(POINTS, gpu_type="slow"))
    excluding = replace(ASKING, excluded_gpu_types=("slow",))
    for services, points, replicas in (
        ((ASKING,), of_both, 2),
        ((ASKING,), (POINTS,), 0),
        ((excluding,), of_both, 0),
    ):
        problem = problem_of(replace(mixed, services=services), points=points)
        assert problem.services[0].min_replicas == replicas


def test_where_gpus_are_short_serving_comes_before_surviving() -> None:
    problem = problem_of(a_state_of(2), limited="nobody")
    assert problem.services[0].max_replica_rps is None
    # Replicas are spread all the same.
    assert problem.survival


def test_the_plan_says_which_loss_takes_too_much_and_what_would_help() -> None:
    (message,) = decided(a_state_of(1)).report.messages
    assert message == (
        "chat would not survive the loss of node n1: 0.0 requests per second are planned elsewhere, 10.0 (50 %) are "
        "needed; more free GPUs of a type that it can use on another node would help"
    )


def test_the_condition_tells_what_a_gpu_more_would_cost() -> None:
    heard = windows_of("chat", [40] * 5)
    apart = a_bound_plan(
        (a_replica("chat-1", rate_rps=10.0),), (a_replica("chat-2", rate_rps=10.0),)
    )
    state = a_state_of(2)
    for target, status, text in (
        (apart, "True", "after the loss of any node, 50 % of the load is"),
        (replace(apart, gpus=apart.gpus[:1]), "False", "from 2.00 USD per hour (fast)"),
    ):
        snapshot = replace(a_snapshot(windows=heard, target=target), state=state)
        conditions = service_statuses(snapshot, ["chat"])["chat"].conditions
        (found,) = [each for each in conditions if each.type == "Survives"]
        assert found.status == status and text in found.message


SLOW = replace(FAST, name="slow", price_usd_per_hour=0.5)
AN_OWNED_SLOW_GPU = Gpu(
    id=GpuId("n3/gpu-0"), node=NodeId("n3"), gpu_type="slow", index=0
)


@pytest.mark.parametrize(
    ("service", "points", "paid", "told"),
    [
        (ASKING, "both", 0, "would help, from 0.50 USD per hour (slow)"),
        # Its network was never measured on the slow type; or it may not run there.
        (ASKING, "fast", 1, "would help, from 2.00 USD per hour (fast)"),
        (
            replace(ASKING, excluded_gpu_types=("slow",)),
            "both",
            1,
            "would help, from 2.00 USD per hour (fast)",
        ),
        (ASKING, "both", 1, "from 0.00 USD per hour (slow, paid for and idle)"),
        # No GPU changes what its team's own limit forbids.
        (
            replace(ASKING, scaling=Scaling(max_replicas=1)),
            "both",
            1,
            "it already has max_replicas replicas, each in a different place",
        ),
    ],
)
def test_advice_is_of_gpus_that_the_service_can_use(
    service: Service, points: str, paid: int, told: str
) -> None:
    """It stands on n1 alone; n2 is busy with another service, and n3 has an idle GPU of the slow type."""
    fleet = a_state_of(3)
    state = replace(
        fleet,
        gpu_types=(FAST, replace(SLOW, paid_count=paid)),
        gpus=(*fleet.gpus[:2], AN_OWNED_SLOW_GPU),
        services=(service,),
    )
    of_both = (POINTS, replace(POINTS, gpu_type="slow"))
    snapshot = replace(
        a_snapshot(
            windows=windows_of("chat", [40] * 5),
            target=a_bound_plan(
                (a_replica("chat-1"),), (a_replica("other-1", service="other"),)
            ),
        ),
        state=state,
        points=of_both if points == "both" else (POINTS,),
    )
    conditions = service_statuses(snapshot, ["chat"])["chat"].conditions
    (found,) = [each for each in conditions if each.type == "Survives"]
    assert found.message.endswith(told)
