"""Every policy plans the same in every unit of money, with and without language models."""

import math

import pytest

from app.solver.process import PlanAnswer, PlanRequest, run_policy
from solvers.joint import policy as joint
from solvers.policies.beside import plan_beside
from solvers.policies.registry import policies
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed
from tests.solvers.instances import priced, random_problem
from tests.solvers.llm.models import make_points, make_problem, make_row, make_service
from tests.solvers.llm.models import make_type as make_llm_type
from tests.solvers.policies.test_beside import mixed

FACTORS = (1e-9, 1e-6, 1e6)


def solved(problem: Problem, policy: str) -> PlanAnswer:
    request = PlanRequest(
        policy=policy,
        problem=problem,
        observed=Observed(at_s=0.0),
        memory=None,
        budget=Budget(seconds=math.inf, work=0.5),
    )
    return run_policy(request, now_s=lambda: 0.0)


def assert_alike(problem: Problem, policy: str) -> None:
    """One plan at all prices, and money in proportion to them."""
    usual = solved(problem, policy)
    for factor in FACTORS:
        answer = solved(priced(problem, factor), policy)
        assert answer.plan == usual.plan
        report, expected = answer.report, usual.report
        assert report.status == expected.status
        cost = factor * expected.cost_usd_per_hour
        assert report.cost_usd_per_hour == pytest.approx(cost, rel=1e-9)
        bound, usual_bound = (
            report.lower_bound_usd_per_hour,
            expected.lower_bound_usd_per_hour,
        )
        assert (bound is None) is (usual_bound is None)
        if bound is not None and usual_bound is not None:
            assert bound == pytest.approx(factor * usual_bound, rel=1e-4)


@pytest.mark.parametrize("policy", ["hetsev", "hetsev_greedy", "joint", "k8s_hpa"])
def test_priced_policies_plan_the_same_in_any_unit_of_money(policy: str) -> None:
    assert_alike(random_problem(2, services=4), policy)


@pytest.mark.thorough
@pytest.mark.parametrize("policy", policies())
@pytest.mark.parametrize("seed", [0, 1])
def test_all_policies_plan_the_same_in_any_unit_of_money(
    policy: str, seed: int
) -> None:
    assert_alike(random_problem(seed, services=4), policy)


def a_language_model() -> Problem:
    types = (
        make_llm_type("H100", price_usd_per_hour=4.0, count=6),
        make_llm_type("L40S", price_usd_per_hour=1.5, count=16),
    )
    points = (
        make_points(rows=(make_row(1, 3.0), make_row(2, 6.5))),
        make_points(gpu_type="L40S", rows=(make_row(1, 1.0), make_row(2, 2.0))),
    )
    return make_problem(
        gpu_types=types,
        llm_services=(make_service(rate_rps=13.0),),
        llm_points=points,
    )


def test_language_models_are_planned_the_same_in_any_unit_of_money() -> None:
    assert_alike(a_language_model(), "joint")


@pytest.mark.parametrize("factor", FACTORS)
def test_a_policy_beside_language_models_is_asked_and_remembers_in_usd(
    factor: float,
) -> None:
    asked: list[Problem] = []

    def make_plan(
        problem: Problem, observed: Observed, memory: Json, budget: Budget
    ) -> tuple[Plan, PlanReport, Json]:
        asked.append(problem)
        return joint.make_plan(problem, observed, memory, budget)

    problem = priced(mixed(count=6), factor)
    budget = Budget(seconds=math.inf, work=0.5)
    _, report, _ = plan_beside(make_plan, problem, Observed(at_s=0.0), None, budget)
    prices = [each.price_usd_per_hour for each in asked[0].gpu_types]
    assert prices == pytest.approx(
        [each.price_usd_per_hour for each in problem.gpu_types], rel=1e-9
    )
    _, usual, _ = plan_beside(
        joint.make_plan, mixed(count=6), Observed(at_s=0.0), None, budget
    )
    cost = factor * usual.cost_usd_per_hour
    assert report.cost_usd_per_hour == pytest.approx(cost, rel=1e-9)
