"""Language models next to policies: one stock of GPUs, one plan, one bound."""

from dataclasses import replace

import pytest

from app.solver.process import PlanAnswer, PlanRequest, run_policy
from solvers.check import violations
from solvers.check_report import report_violations
from solvers.policies.beside import others_beside
from solvers.types.outcome import Budget
from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import Observed
from tests.solvers.llm.models import (
    make_points,
    make_problem,
    make_row,
    make_service,
    make_type,
)


def mixed(count: int, **changes: object) -> Problem:
    """A language model on H100 or L40S, and a service of small batches that would rather have an H100, too."""
    row = OperatingPoint(50.0, 1, 1980.0, 0.0, 0.0, 5.0, 4000.0, 50.0, 0.3)
    slow = row._replace(run_ms=18.0)
    types = (
        make_type("H100", price_usd_per_hour=4.0, count=count),
        make_type("L40S", price_usd_per_hour=3.0, count=16),
    )
    problem = make_problem(
        gpu_types=types,
        services=(
            ServiceDemand(
                name="images",
                network="resnet",
                slo_ms=50.0,
                percentile=0.99,
                arrival_rate_rps=300.0,
            ),
        ),
        points=tuple(
            OperatingPoints(
                network="resnet", gpu_type=name, sensitivity=0.0, rows=(each,)
            )
            for name, each in (("H100", row), ("L40S", slow))
        ),
        llm_services=(make_service(rate_rps=12.0),),
        llm_points=(
            make_points(rows=(make_row(1, 3.0), make_row(2, 6.5))),
            make_points(gpu_type="L40S", rows=(make_row(1, 1.0), make_row(2, 2.0))),
        ),
    )
    return replace(problem, **changes)  # type: ignore[arg-type]


def solved(problem: Problem, policy: str) -> PlanAnswer:
    return run_policy(
        PlanRequest(
            policy=policy,
            problem=problem,
            observed=Observed(at_s=0.0),
            memory=None,
            budget=Budget(seconds=20.0),
        ),
        # Time stands still, so that a busy machine finds the same.
        now_s=lambda: 0.0,
    )


@pytest.mark.parametrize("policy", ["joint", "hetsev_greedy", "hetsev"])
@pytest.mark.parametrize("count", [4, 16])
def test_both_kinds_of_services_are_served_from_one_stock(
    policy: str, count: int
) -> None:
    problem = mixed(count)

    answer = solved(problem, policy)

    assert violations(problem, answer.plan) == ()
    assert report_violations(problem, answer.plan, answer.report) == ()
    assert answer.plan.unserved == ()
    assert answer.plan.llm_replicas
    assert answer.plan.gpus


def test_where_gpus_are_enough_the_bound_is_that_of_both_parts() -> None:
    answer = solved(mixed(16), "joint")

    report = answer.report
    assert report.lower_bound_usd_per_hour is not None
    assert report.gap_percent is not None and report.gap_percent < 1.0


def test_prices_of_what_is_short_prove_the_best_division() -> None:
    answer = solved(mixed(6), "joint")

    # Three H100 for images and three for 9 rps of the model, 24 USD; three L40S for the other 3 rps, 9 USD.
    assert answer.report.cost_usd_per_hour == pytest.approx(33.0)
    # One more H100 would save an L40S three times over, less its own price: 5 USD, at which the bound is reached.
    assert answer.report.lower_bound_usd_per_hour == pytest.approx(33.0)
    assert answer.report.status == "optimal"


def test_language_models_alone_need_no_other_service() -> None:
    problem = mixed(16, services=(), points=())

    answer = solved(problem, "joint")

    assert violations(problem, answer.plan) == ()
    # Two on two GPUs carry 13 for 16 USD; four on one GPU carry 12 for the same.
    assert answer.report.cost_usd_per_hour == pytest.approx(16.0)
    assert answer.report.status == "optimal"


def test_a_fleet_that_is_paid_for_serves_what_it_can() -> None:
    answer = solved(mixed(4, objective="max_goodput"), "joint")

    assert answer.report.served_weight == pytest.approx(312.0)


def test_a_power_budget_holds_for_both_kinds_of_services() -> None:
    plenty = solved(mixed(16), "joint")
    watts = sum(each.gpus * (70.0 + 400.0) for each in plenty.plan.llm_replicas)
    # Enough for some of the model's replicas, and for the others' GPUs.
    problem = mixed(16, power_budget_w=watts)

    answer = solved(problem, "joint")

    assert violations(problem, answer.plan) == ()
    assert answer.report.lower_bound_usd_per_hour is None
    short = mixed(16, power_budget_w=600.0)
    left = solved(short, "joint").plan
    assert violations(short, left) == ()
    assert {entry.service: entry.reason for entry in left.unserved}["chat"] == "power"


def test_who_shares_gpus_is_explained_on_what_models_leave_over() -> None:
    problem = mixed(6)
    plan = solved(problem, "joint").plan

    others = others_beside(problem, plan)

    used = sum(each.gpus for each in plan.llm_replicas if each.gpu_type == "H100")
    assert others.llm_services == ()
    assert others.gpu_type("H100").count == 6 - used
