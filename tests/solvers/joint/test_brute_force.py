"""Against the optimum of tiny problems, found by trying every plan."""

import pytest

from solvers.check import violations
from solvers.cost import cost_usd_per_hour, served_weight
from solvers.joint.solve import OPTIMAL_GAP, solve
from solvers.outcome import Budget, SolveStatus
from tests.solvers.joint.oracle import best_plan
from tests.solvers.joint.problems import tiny_problem

SEEDS = 200
BUDGET = Budget(work=0.2)


@pytest.mark.parametrize("block", range(4))
def test_no_plan_is_better_than_the_optimum_and_no_bound_is_above_it(block: int) -> None:
    for seed in range(block, SEEDS, 4):
        problem = tiny_problem(seed)
        best = best_plan(problem)
        solution, report = solve(problem, BUDGET)
        weight, cost = served_weight(problem, solution.plan), cost_usd_per_hour(problem, solution.plan)
        missing = sum(entry.replicas_missing for entry in solution.plan.unserved)
        assert violations(problem, solution.plan) == (), seed
        assert weight <= best.weight + 1e-5, seed
        assert solution.served_weight_bound >= best.weight - 1e-5, seed
        if weight >= best.weight - 1e-5 and missing <= best.missing:
            assert cost >= best.cost - 1e-9, seed
            assert solution.cost_bound is None or solution.cost_bound <= best.cost + 1e-9, seed
        if report.status == SolveStatus.OPTIMAL:
            assert weight == pytest.approx(best.weight, abs=1e-5), seed
            assert cost <= best.cost * (1.0 + 2.0 * OPTIMAL_GAP), seed
