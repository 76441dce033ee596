"""Survival of language models in the loop: goals that teams ask for, replicas for them, and what is said otherwise."""

from dataclasses import replace

import pytest

from app.loop.make_problem import make_problem
from app.loop.planning.survival import cheapest_help, survival_messages
from solvers.check_survival import survival_gaps
from solvers.types.llm import LlmPoints
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, Demand, Service
from solvers.types.survival import Survival
from tests.app.fleets import FAST, SETTINGS, a_node
from tests.app.loop.planning.test_language_models import bound, gpus_of, model, row
from tests.app.snapshots import a_state

ASKING = model("chat", survival=Survival(loss="node"))
DEMANDS = (Demand(service="chat", arrival_rate_rps=30.0, reserve_rps=10.0),)


def state_of(service: Service, nodes: int = 3) -> ClusterState:
    """Nodes of four GPUs."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    gpus = [gpu for name in names for gpu in gpus_of(name, 4)]
    state = a_state(services=(service,), gpus=gpus)
    return replace(state, nodes=tuple(a_node(name)[0] for name in names))


def problem_of(state: ClusterState, **changes: object) -> Problem:
    """A replica carries 5 rps on one GPU and 10 on two."""
    points = LlmPoints(
        service="chat",
        gpu_type=FAST.name,
        network="llama",
        provenance="predicted",
        rows=(row(1), row(2)),
    )
    return make_problem(
        state,
        (),
        DEMANDS,
        SETTINGS,
        target=None,
        llm_points=(points,),
        **changes,  # type: ignore[arg-type]
    )


def test_a_model_that_asks_gets_replicas_for_the_loss_of_a_node() -> None:
    problem = problem_of(state_of(ASKING))
    (goal,), (service,) = problem.survival, problem.llm_services
    # All of 30 − 10 rps; of six replicas of 5 rps on three nodes four are left.
    assert (goal.service, goal.needed_rps, goal.is_asked) == ("chat", 20.0, True)
    assert (goal.rate_rps, goal.min_replicas) == (30.0, 0)
    assert (service.min_replicas, service.arrival_rate_rps) == (6, 30.0)
    assert 5.0 <= (service.max_replica_rps or 0.0) < 5.1
    # What replicas can carry stays what it is.
    assert problem.llm_points[0].rows == (row(1), row(2))


@pytest.mark.parametrize("survival", [None, Survival(loss="none")])
def test_the_policys_default_changes_nothing_of_models(
    survival: Survival | None,
) -> None:
    problem = problem_of(state_of(model("chat", survival=survival)))
    (service,) = problem.llm_services
    assert problem.survival == ()
    assert (service.min_replicas, service.max_replica_rps) == (0, None)
    assert service.arrival_rate_rps == 30.0


def test_where_gpus_are_short_models_need_not_survive_either() -> None:
    problem = problem_of(state_of(ASKING), limited="nobody")
    (service,) = problem.llm_services
    assert (service.min_replicas, service.max_replica_rps) == (0, None)
    assert problem.survival


def test_models_are_the_first_that_need_not_survive() -> None:
    problem = problem_of(state_of(ASKING), limited="all but models")
    assert problem.llm_services[0].max_replica_rps is None


def test_the_plan_says_which_loss_takes_too_much_and_what_would_help() -> None:
    state = state_of(ASKING)
    # Both replicas stand on one node.
    target = bound(("n1/gpu-0", "n1/gpu-1"), ("n1/gpu-2", "n1/gpu-3"))
    problem = problem_of(state)
    (message,) = survival_messages(problem, target, state)
    assert message == (
        "chat would not survive the loss of node n1: 0.0 requests per second are planned elsewhere, 20.0 (100 %) are "
        "needed; more free GPUs of a type that it can use on another node would help"
    )
    (gap,) = survival_gaps(target, state.nodes, problem.survival)
    told = cheapest_help(gap, target, state, ())
    assert told == f", from {2.0 * FAST.price_usd_per_hour:.2f} USD per hour (2 × fast)"
