"""The joint technique as a whole: hand-solved cases, symmetries, limits, and the contract's example."""

from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.joint.solution import OPTIMAL_GAP, JointSolution
from solvers.joint.solve import solve
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.types.outcome import Budget, SolveReport, SolveStatus
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from tests.examples import seeds, tried
from tests.solvers.instances import a_problem, a_row, a_service, a_type, random_problem
from tests.solvers.problems import tiny_problem
from tests.solvers.small_plans import example

BUDGET = Budget(work=0.3)


def run(problem: Problem, budget: Budget = BUDGET) -> tuple[JointSolution, SolveReport]:
    """A solution whose plan keeps every rule, with bounds that it does not contradict."""
    solution, report = solve(problem, budget)
    assert violations(problem, solution.plan) == ()
    assert solution.served_weight_bound >= served_weight(problem, solution.plan)
    assert solution.cost_bound is None or solution.cost_bound <= cost_usd_per_hour(
        problem, solution.plan
    )
    return solution, report


def cost_of(problem: Problem) -> float:
    return cost_usd_per_hour(problem, run(problem)[0].plan)


def unserved_of(plan: Plan) -> list[tuple[str, float, str, int]]:
    return [
        (each.service, round(each.rate_rps, 6), each.reason, each.replicas_missing)
        for each in plan.unserved
    ]


def test_the_example_of_the_contract_is_solved_to_its_optimum() -> None:
    problem, plan, _ = example()
    solution, report = run(problem)
    assert cost_usd_per_hour(problem, solution.plan) == pytest.approx(1.7642, abs=1e-4)
    assert cost_usd_per_hour(problem, plan) == pytest.approx(1.7642, abs=1e-4)
    assert report.status == SolveStatus.OPTIMAL


def test_two_services_share_a_gpu_by_halves() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=40.0), a_service("photo", rate_rps=50.0)
    )
    (gpu,) = run(problem)[0].plan.gpus
    assert [(each.service, each.sm_percent) for each in gpu.replicas] == [
        ("chat", 50.0),
        ("photo", 50.0),
    ]
    assert [each.arrival_rate_rps for each in gpu.replicas] == pytest.approx(
        [40.0, 50.0]
    )


def test_the_cheaper_type_is_taken_until_it_runs_out() -> None:
    # 250 rps are 2.5 GPUs: two cheap ones, then a dear one; nothing else serves as much for 5 USD/h.
    types = (
        a_type("cheap", price_usd_per_hour=1.0, count=2),
        a_type("dear", price_usd_per_hour=3.0),
    )
    solution, report = run(a_problem(a_service("chat", rate_rps=250.0), types=types))
    assert report.objective == pytest.approx(5.0)
    assert sum(gpu.count for gpu in solution.plan.gpus) == 3


@pytest.mark.parametrize(
    ("problem", "unserved"),
    [
        (
            a_problem(a_service("chat", rate_rps=70.0, slo_ms=9.9)),
            [("chat", 70.0, "slo", 0)],
        ),
        (
            a_problem(a_service("chat", rate_rps=250.0), types=(a_type(count=2),)),
            [("chat", 50.0, "stock", 0)],
        ),
        (
            a_problem(a_service("chat", rate_rps=250.0, max_replicas=2)),
            [("chat", 50.0, "replicas", 0)],
        ),
        (
            a_problem(a_service("chat", min_replicas=3), types=(a_type(count=2),)),
            [("chat", 0.0, "stock", 1)],
        ),
        (
            a_problem(
                a_service("chat", rate_rps=9.0), types=(a_type(memory_mib=999.0),)
            ),
            [("chat", 9.0, "memory", 0)],
        ),
        (
            a_problem(
                a_service("chat", rate_rps=9.0), types=(a_type(power_cap_w=60.0),)
            ),
            [("chat", 9.0, "power", 0)],
        ),
        (
            a_problem(a_service("chat", rate_rps=9.0), rows=()),
            [("chat", 9.0, "slo", 0)],
        ),
        (
            a_problem(a_service("chat", rate_rps=9.0), types=()),
            [("chat", 9.0, "slo", 0)],
        ),
        (
            a_problem(a_service("chat", rate_rps=9.0, allowed_gpu_types=())),
            [("chat", 9.0, "slo", 0)],
        ),
    ],
)
def test_what_cannot_be_served_names_its_rule(
    problem: Problem, unserved: list[tuple[str, float, str, int]]
) -> None:
    plan = run(problem)[0].plan
    entries = [
        (name, pytest.approx(rate, abs=1e-5), *rest) for name, rate, *rest in unserved
    ]
    assert unserved_of(plan) == entries


def test_a_problem_that_asks_for_nothing_has_an_empty_plan_that_is_optimal() -> None:
    for problem in (
        a_problem(),
        a_problem(a_service("chat", rate_rps=0.0)),
        a_problem(types=()),
    ):
        solution, report = run(problem)
        assert solution.plan.gpus == ()
        assert (report.status, report.objective) == (SolveStatus.OPTIMAL, 0.0)


def test_least_replicas_run_without_any_demand_in_different_gpus() -> None:
    solution, _ = run(a_problem(a_service("chat"), a_service("photo", min_replicas=2)))
    assert [
        (gpu.count, [each.service for each in gpu.replicas])
        for gpu in solution.plan.gpus
    ] == [(2, ["photo"])]


def test_a_replica_that_misses_its_slo_counts_as_one_of_the_fewest() -> None:
    # No row of `chat` meets its SLO: a quarter of the GPU that `photo` needs anyway is the cheapest place to stand.
    rows = (a_row(100.0, 5.0), a_row(25.0, 20.0))
    services = (
        a_service("chat", slo_ms=9.9, min_replicas=1),
        a_service("photo", rate_rps=20.0),
    )
    solution, report = run(a_problem(*services, rows=rows))
    (gpu,) = solution.plan.gpus
    assert [each.service for each in gpu.replicas] == ["chat", "photo"]
    assert (solution.plan.unserved, report.status) == ((), SolveStatus.OPTIMAL)
    assert (
        run(a_problem(services[0], rows=rows))[0]
        .plan.gpus[0]
        .replicas[0]
        .arrival_rate_rps
        == 0.0
    )


def test_when_gpus_are_short_the_important_service_is_served() -> None:
    services = (
        a_service("dull", rate_rps=100.0),
        a_service("vital", rate_rps=100.0, priority=5.0),
    )
    plan = run(a_problem(*services, types=(a_type(count=1),)))[0].plan
    assert unserved_of(plan) == [("dull", pytest.approx(100.0, abs=1e-5), "stock", 0)]


def test_the_last_request_is_served_however_dear_it_is() -> None:
    # One GPU carries 100 rps; the hundredth part of a request more costs a GPU of a hundred times the price.
    types = (a_type("cheap", count=1), a_type("dear", price_usd_per_hour=100.0))
    solution, _ = run(a_problem(a_service("chat", rate_rps=100.01), types=types))
    assert solution.plan.unserved == ()
    assert {gpu.gpu_type for gpu in solution.plan.gpus} == {"cheap", "dear"}


def test_goodput_fills_the_gpus_that_are_paid_for_by_weight() -> None:
    services = (
        a_service("dull", rate_rps=150.0),
        a_service("vital", rate_rps=100.0, priority=5.0),
    )
    problem = a_problem(*services, types=(a_type(count=2),), objective="max_goodput")
    solution, report = run(problem)
    # 200 rps fit: all of `vital` (500) and 100 of `dull`.
    assert served_weight(problem, solution.plan) == pytest.approx(600.0, rel=1e-6)
    assert report.objective == pytest.approx(600.0, rel=1e-6)
    assert solution.cost_bound is None


def test_a_replica_may_not_stand_where_its_service_is_not_allowed() -> None:
    types = (a_type("cheap"), a_type("dear", price_usd_per_hour=3.0))
    plan = run(
        a_problem(
            a_service("chat", rate_rps=50.0, allowed_gpu_types=("dear",)), types=types
        )
    )[0].plan
    assert [gpu.gpu_type for gpu in plan.gpus] == ["dear"]


def test_dear_energy_prefers_the_row_that_draws_less() -> None:
    rows = (a_row(100.0, 5.0, power_w=150.0), a_row(100.0, 5.0, batch=4, power_w=20.0))
    plan = run(
        a_problem(
            a_service("chat", rate_rps=80.0), rows=rows, energy_price_usd_per_kwh=5.0
        )
    )[0].plan
    assert [each.batch for gpu in plan.gpus for each in gpu.replicas] == [4]


@pytest.mark.parametrize("seed", seeds(8))
def test_prices_scale_the_cost(seed: int) -> None:
    problem = tiny_problem(seed)
    scaled = replace(
        problem,
        energy_price_usd_per_kwh=7.0 * problem.energy_price_usd_per_kwh,
        gpu_types=tuple(
            replace(one, price_usd_per_hour=7.0 * one.price_usd_per_hour)
            for one in problem.gpu_types
        ),
    )
    assert cost_of(scaled) == pytest.approx(
        7.0 * cost_of(problem), rel=2.0 * OPTIMAL_GAP
    )


@pytest.mark.seeded
@pytest.mark.parametrize("objective", ["min_cost", "max_goodput"])
def test_plans_of_random_problems_keep_every_rule(objective: str) -> None:
    served = 0
    for seed in range(tried(60)):
        problem = random_problem(
            seed, services=2 + seed % 9, types=1 + seed % 3, gpus=1 + seed % 6
        )
        solution, _ = run(
            replace(problem, objective=objective), Budget(work=0.01, seed=seed)
        )
        served += any(gpu.replicas for gpu in solution.plan.gpus)
    assert served > 0.9 * tried(60), "a plan without GPUs keeps every rule, too"


def test_the_same_seed_gives_the_same_plan() -> None:
    problem = random_problem(3)
    assert run(problem)[0] == run(problem)[0]


def test_a_budget_without_any_time_still_has_a_plan() -> None:
    problem = random_problem(4)
    solution, report = run(problem, Budget(seconds=0.0, elapsed=lambda: 1.0))
    assert solution.plan.gpus
    assert "the budget ended the search" in report.messages
