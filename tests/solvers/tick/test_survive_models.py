"""Survival of language models: as many replicas as must be left after a loss, and the plans that keep to it."""

from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.policies.beside import plan_beside
from solvers.tick.survive import LossDomains, without_goal
from solvers.tick.survive_models import model_limits, with_model_limits
from solvers.types.documents.problem_json import problem_document
from solvers.types.llm import LlmDemand, LlmPoints, LlmReplicaPlan
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed
from solvers.types.survival import SurvivalGoal
from tests.solvers.llm.models import (
    CLOCK_MHZ,
    make_points,
    make_problem,
    make_row,
    make_service,
    make_type,
)


def a_goal(share: float = 1.0, *, forecast_rps: float = 10.0) -> SurvivalGoal:
    return SurvivalGoal(
        service="chat",
        loss="node",
        share=share,
        needed_rps=share * forecast_rps,
        is_asked=True,
    )


def nodes(**counts: int) -> LossDomains:
    """`counts` nodes with eight GPUs of each type."""
    return {
        "node": {
            name: {f"{name}-{at}": 8 for at in range(count)}
            for name, count in counts.items()
        }
    }


def a_problem(
    *goals: SurvivalGoal,
    service: LlmDemand | None = None,
    points: tuple[LlmPoints, ...] | None = None,
    **changes: object,
) -> Problem:
    """`chat` with 10 rps, where a replica carries 3.4 rps on two GPUs."""
    return make_problem(
        llm_services=(service or make_service(rate_rps=10.0),),
        llm_points=points or (make_points(rows=(make_row(2, 3.4),)),),
        survival=goals,
        **changes,
    )


def limited(problem: Problem, domains: LossDomains) -> LlmDemand:
    (model,) = with_model_limits(problem, domains).llm_services
    return model


@pytest.mark.parametrize(
    ("share", "capacity_rps", "places", "replicas"),
    [
        # Three carry 10 rps; of five on three nodes a loss takes two.
        (1.0, 3.4, 3, 5),
        # Four are needed: two on each of three nodes.
        (1.0, 3.3, 3, 6),
        # One more where each stands alone, and twice as many on two nodes.
        (1.0, 3.3, 5, 5),
        (1.0, 3.3, 2, 8),
        # One carries everything: any other one does as well.
        (1.0, 12.0, 3, 2),
        # Half of it is what two of the three leave that carry the load.
        (0.5, 3.4, 3, 3),
        (0.5, 10.0, 3, 2),
        # What replicas carry exactly takes no other one for the last digits.
        (1.0, 10.0 / 3.0, 4, 4),
    ],
)
def test_what_the_largest_loss_leaves_carries_what_is_needed(
    share: float, capacity_rps: float, places: int, replicas: int
) -> None:
    model, goal = make_service(rate_rps=10.0), a_goal(share)
    limits = model_limits(model, goal, capacity_rps, places)
    assert limits.min_replicas == replicas
    each_rps = limits.rate_rps / replicas
    assert each_rps <= capacity_rps * (1.0 + 1e-9)
    assert limits.rate_rps >= model.arrival_rate_rps
    # Spread evenly, a loss takes as many as stand on the fullest node.
    left = replicas - -(-replicas // places)
    assert left * each_rps >= goal.needed_rps * (1.0 - 1e-9)


def test_room_for_bursts_takes_replicas_too() -> None:
    # 20 rps are planned for, 10 of them forecast: six replicas of 3.4 rps.
    model = make_service(rate_rps=20.0)
    assert model_limits(model, a_goal(), 3.4, 3).min_replicas == 6


def test_where_bursts_have_no_room_what_is_kept_for_a_loss_is_room_for_either() -> None:
    # 30 rps would take nine replicas, and there are GPUs for eight; five do for the 10 rps of the forecast.
    model = limited(
        a_problem(a_goal(), service=make_service(rate_rps=30.0)), nodes(H100=3)
    )
    assert model.min_replicas == 5
    assert model.arrival_rate_rps == pytest.approx(5 * 10.0 / 3.0)


def test_nodes_with_fewer_gpus_than_a_replica_spans_are_no_places() -> None:
    two = nodes(H100=2)
    small = {"H100": {**two["node"]["H100"], "n8": 1, "n9": 1}}

    assert limited(a_problem(a_goal()), {"node": small}) == limited(
        a_problem(a_goal()), two
    )


def test_only_what_a_team_asks_for_changes_anything() -> None:
    default = replace(a_goal(), is_asked=False)
    for problem in (a_problem(), a_problem(default)):
        assert with_model_limits(problem, nodes(H100=3)) == problem


@pytest.mark.parametrize(
    ("domains", "changes", "count"),
    [
        # One node; one with a type that it may use; two replicas at most; GPUs for four.
        (nodes(H100=1), {}, 16),
        (nodes(H100=1, L40S=2), {"allowed_gpu_types": ("H100",)}, 16),
        (nodes(H100=3), {"max_replicas": 4}, 16),
        (nodes(H100=3), {}, 8),
    ],
)
def test_nothing_is_asked_for_that_no_plan_could_reach(
    domains: LossDomains, changes: dict[str, object], count: int
) -> None:
    service = make_service(rate_rps=10.0, **changes)
    types = (make_type(count=count), make_type("L40S", count=16))
    problem = a_problem(a_goal(), service=service, gpu_types=types)
    assert with_model_limits(problem, domains) == problem


def test_the_cheapest_way_is_the_measure_and_one_that_runs_stays_it() -> None:
    # 10 rps on three nodes: five replicas on two GPUs each, or two on four.
    points = (make_points(rows=(make_row(2, 3.4), make_row(4, 12.0))),)
    free = a_problem(a_goal(), points=points)
    assert limited(free, nodes(H100=3)).min_replicas == 2
    running = replace(free, current=Plan(policy="joint", llm_replicas=(replicas(5),)))
    # 20 % are less than a change is worth.
    assert limited(running, nodes(H100=3)).min_replicas == 5


def replicas(count: int) -> LlmReplicaPlan:
    return LlmReplicaPlan(
        service="chat",
        gpu_type="H100",
        tp=2,
        count=count,
        clock_mhz=CLOCK_MHZ,
        max_num_batched_tokens=1024,
        max_num_seqs=256,
        arrival_rate_rps=2.0,
    )


def test_without_the_goal_the_service_is_what_it_was() -> None:
    problem = a_problem(a_goal(), service=make_service(rate_rps=10.0, min_replicas=1))
    asked = with_model_limits(problem, nodes(H100=3))
    (goal,) = asked.survival
    assert asked.llm_services != problem.llm_services
    assert without_goal(asked, goal).llm_services == problem.llm_services


def test_the_contracts_document_knows_no_limit_of_a_replica() -> None:
    asked = with_model_limits(a_problem(a_goal()), nodes(H100=3))
    (service,) = problem_document(asked)["services"]  # type: ignore[misc]
    assert "max_replica_rps" not in service


def nothing(
    _problem: Problem, _observed: Observed, memory: Json, _budget: Budget
) -> tuple[Plan, PlanReport, Json]:
    """The plan of no other service."""
    report = PlanReport(
        status="optimal",
        cost_usd_per_hour=0.0,
        method="none",
        lower_bound_usd_per_hour=0.0,
    )
    return Plan(policy="joint"), report, memory


@pytest.mark.parametrize("rate_rps", [0.3, 10.0, 61.0])
@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_plans_have_replicas_of_which_any_may_be_lost(
    share: float, rate_rps: float
) -> None:
    points = (
        make_points(rows=(make_row(1, 1.6), make_row(2, 3.4), make_row(8, 16.0))),
    )
    problem = a_problem(
        a_goal(share, forecast_rps=rate_rps),
        service=make_service(rate_rps=rate_rps),
        points=points,
        gpu_types=(make_type(count=64),),
    )
    asked = with_model_limits(problem, nodes(H100=8))
    plan, *_ = plan_beside(nothing, asked, Observed(at_s=0.0), None, Budget())
    (model,), (goal,) = asked.llm_services, asked.survival
    assert violations(asked, plan) == ()
    assert not plan.unserved
    rates = [
        each.arrival_rate_rps for each in plan.llm_replicas for _ in range(each.count)
    ]
    # No replica more than are needed, and each node has one at most, or two where there are more than nodes.
    assert len(rates) == model.min_replicas
    on_a_node = -(-len(rates) // 8)
    lost_rps = sum(sorted(rates)[-on_a_node:])
    assert sum(rates) - lost_rps >= goal.needed_rps * (1.0 - 1e-6)
