"""Policy `joint`: what it keeps, what it replaces, and what its report proves."""

import math
from dataclasses import replace
from typing import NoReturn

import pytest

from solvers.check import violations
from solvers.check_report import report_violations
from solvers.greedy.arrange import running_carriers
from solvers.greedy.routing import route
from solvers.highs import SolverFailed
from solvers.joint import policy as joint_policy
from solvers.joint.policy import make_plan
from solvers.laws.cost import (
    cost_usd_per_hour,
    migration_cost_usd_per_hour,
    served_weight,
)
from solvers.policies.registry import policy
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Observed
from tests.examples import seeds, tried
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    priced,
    random_problem,
    replica_counts,
    replica_on,
    started,
    with_rates,
)
from tests.solvers.small_plans import example

NOW = Observed(at_s=0.0)
BUDGET = Budget(work=0.05)


def run(problem: Problem, budget: Budget = BUDGET) -> tuple[Plan, PlanReport]:
    """A plan that the checker accepts, with a report that it confirms."""
    plan, report, _ = make_plan(problem, NOW, None, budget)
    assert violations(problem, plan) == ()
    assert report_violations(problem, plan, report) == ()
    assert plan.policy == "joint"
    return plan, report


def on_whole_gpus(
    services: tuple[str, ...], *, gpu_type: str = "gpu", rate_rps: float = 40.0
) -> Plan:
    """Each service alone on a whole GPU."""
    gpus = (
        gpu_plan(replica_on(name, 100.0, rate_rps), gpu_type=gpu_type)
        for name in services
    )
    return Plan(policy="before", gpus=tuple(gpus))


def test_the_example_of_the_contract_is_optimal_and_stays_as_it_is() -> None:
    problem, _, _ = example()
    before, report = run(problem, Budget())
    assert (report.status, report.gap_percent) == (
        "optimal",
        pytest.approx(0.0, abs=0.01),
    )
    after, _ = run(replace(problem, current=before), Budget())
    assert started(before, after) == 0


@pytest.mark.parametrize(("usd_per_start", "gpus"), [(0.4, 1), (0.6, 2)])
def test_a_dear_running_plan_is_replaced_only_where_starting_costs_less_than_it_saves(
    usd_per_start: float, gpus: int
) -> None:
    # Two GPUs at 1 USD/h; by halves one will do, which starts two replicas.
    services = (a_service("chat", rate_rps=40.0), a_service("photo", rate_rps=40.0))
    problem = a_problem(
        *services,
        current=on_whole_gpus(("chat", "photo")),
        migration_cost_usd_per_hour=usd_per_start,
    )
    plan, report = run(problem)
    assert report.cost_usd_per_hour == pytest.approx(gpus)
    assert replica_counts(plan).total() == 2
    if gpus == 2:
        assert migration_cost_usd_per_hour(problem, plan) == 0.0
        assert report.status == "kept"


def test_the_running_plan_follows_the_rates_that_it_still_carries() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=90.0),
        current=on_whole_gpus(("chat",)),
        migration_cost_usd_per_hour=5.0,
    )
    plan, _ = run(problem)
    assert [each.arrival_rate_rps for gpu in plan.gpus for each in gpu.replicas] == [
        pytest.approx(90.0)
    ]


def test_a_running_plan_that_breaks_a_limit_goes() -> None:
    service = a_service("chat", rate_rps=40.0, max_replicas=1)
    plan, _ = run(
        a_problem(
            service,
            current=on_whole_gpus(("chat", "chat")),
            migration_cost_usd_per_hour=5.0,
        )
    )
    assert replica_counts(plan).total() == 1


@pytest.mark.parametrize("seed", seeds(8))
def test_no_plan_is_worse_than_the_running_one(seed: int) -> None:
    problem = replace(random_problem(seed), migration_cost_usd_per_hour=0.1)
    greedy, _, _ = policy("hetsev_greedy").make_plan(problem, NOW, None, BUDGET)
    problem = with_rates(replace(problem, current=greedy), 0.9)
    kept = route(problem, "kept", running_carriers(problem), {})
    plan, _ = run(problem)
    weight, kept_weight = served_weight(problem, plan), served_weight(problem, kept)
    assert weight >= kept_weight * (1.0 - 1e-5)
    if weight <= kept_weight * (1.0 + 1e-5):
        total = cost_usd_per_hour(problem, plan) + migration_cost_usd_per_hour(
            problem, plan
        )
        kept_total = cost_usd_per_hour(problem, kept) + migration_cost_usd_per_hour(
            problem, kept
        )
        assert total <= kept_total + 1e-5


@pytest.mark.seeded
@pytest.mark.parametrize("objective", ["min_cost", "max_goodput"])
def test_reports_of_random_problems_are_confirmed(objective: str) -> None:
    for seed in range(tried(12)):
        problem = replace(random_problem(seed, gpus=1 + seed % 4), objective=objective)
        plan, report = run(problem)
        assert report.steps[0].technique == "joint"
        assert (report.served_weight is None) == (objective == "min_cost")
        assert report.status != "kept"
        assert plan.gpus


def test_energy_is_part_of_what_a_running_plan_costs() -> None:
    rows = (a_row(100.0, 5.0, power_w=200.0), a_row(50.0, 10.0, power_w=20.0))
    problem = a_problem(
        a_service("chat", rate_rps=40.0),
        rows=rows,
        types=(a_type(),),
        energy_price_usd_per_kwh=10.0,
        current=on_whole_gpus(("chat",)),
        migration_cost_usd_per_hour=1.0,
    )
    # 250 W cost 2.50 USD/h and 70 W cost 0.70: the start for 1.00 is worth it.
    plan, report = run(problem)
    assert [each.sm_percent for gpu in plan.gpus for each in gpu.replicas] == [50.0]
    assert report.cost_usd_per_hour == pytest.approx(1.7)


def test_growth_is_added_to_what_runs_when_starting_is_dear() -> None:
    # Whole GPUs carry 100 rps. A third one with one start: 3 + 1.5 USD/h; again on two GPUs with two starts: 2 + 3.
    services = (a_service("chat", rate_rps=130.0), a_service("photo", rate_rps=40.0))
    problem = a_problem(
        *services,
        current=on_whole_gpus(("chat", "photo")),
        migration_cost_usd_per_hour=1.5,
    )
    plan, _ = run(problem)
    assert plan.unserved == ()
    assert started(on_whole_gpus(("chat", "photo")), plan) == 1


def test_after_the_loss_of_gpus_what_still_fits_goes_on() -> None:
    before = on_whole_gpus(("chat", "chat", "chat"), rate_rps=90.0)
    problem = a_problem(
        a_service("chat", rate_rps=270.0),
        types=(a_type(count=2), a_type("spare", price_usd_per_hour=2.0)),
        current=before,
        migration_cost_usd_per_hour=0.5,
    )
    plan, _ = run(problem)
    assert plan.unserved == ()
    assert started(before, plan) == 1


def test_a_plan_that_costs_nothing_because_nothing_can_run_has_no_gap() -> None:
    service = a_service("chat", rate_rps=40.0, min_replicas=1)
    plan, report = run(a_problem(service, types=(a_type(count=0),)))
    assert plan.gpus == ()
    assert (
        report.cost_usd_per_hour,
        report.lower_bound_usd_per_hour,
        report.gap_percent,
    ) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("has_current", [False, True])
def test_where_highs_fails_the_greedy_plan_answers_and_says_why(
    monkeypatch: pytest.MonkeyPatch, *, has_current: bool
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise SolverFailed("HiGHS ended the master problem with kUnknown")

    monkeypatch.setattr(joint_policy, "solve", fail)
    monkeypatch.setattr(joint_policy, "estimate", fail)
    monkeypatch.setattr(joint_policy, "change", fail)
    problem = random_problem(3, services=4)
    if has_current:
        current, _, _ = policy("hetsev_greedy").make_plan(problem, NOW, None, BUDGET)
        problem = replace(problem, current=current)
    _, report = run(problem)
    assert report.status == "greedy"
    assert "HiGHS ended the master problem with kUnknown" in report.messages[0]
    assert report.lower_bound_usd_per_hour is None


FACTORS = (1e-9, 1e-6, 1e-3, 1e3, 1e6)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("seed", seeds(6))
def test_any_unit_of_money_gives_the_same_plan_and_scales_what_is_proven(
    seed: int, factor: float
) -> None:
    problem = random_problem(seed, services=4)
    budget = Budget(seconds=math.inf, work=0.5)
    plan, report, _ = make_plan(problem, NOW, None, budget)
    scaled, report_scaled, _ = make_plan(priced(problem, factor), NOW, None, budget)
    assert (scaled, report_scaled.status) == (plan, report.status)
    bounds = (report.lower_bound_usd_per_hour, report_scaled.lower_bound_usd_per_hour)
    assert bounds[0] is not None and bounds[1] is not None
    assert bounds[1] == pytest.approx(factor * bounds[0], rel=1e-4)
    cost = report_scaled.cost_usd_per_hour
    assert cost == pytest.approx(factor * report.cost_usd_per_hour, rel=1e-9)
    assert report_violations(priced(problem, factor), scaled, report_scaled) == ()
