"""Whatever the policy: GPUs that are shared without SM limits get plans that keep the rules, from nothing and later."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.solver.process import PlanRequest, run_policy
from solvers.check import violations
from solvers.check_report import report_violations
from solvers.policies.registry import policies
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Observed
from tests.solvers.instances import random_problem
from tests.solvers.problems import uncapped

SHARING = {"gslice", "hetsev", "hetsev_greedy", "joint", "oltunes"}
"""All others leave such GPUs to one replica each."""


def answer(policy: str, problem: Problem, work: float = 0.1) -> Plan:
    request = PlanRequest(
        policy=policy,
        problem=problem,
        observed=Observed(at_s=0.0),
        memory=None,
        budget=Budget(seconds=60.0, work=work),
    )
    answered = run_policy(request)
    assert report_violations(problem, answered.plan, answered.report) == ()
    broken = violations(problem, answered.plan)
    assert [each for each in broken if each.severity == "physical"] == []
    return answered.plan


def is_shared(plan: Plan) -> bool:
    return any(len(gpu.replicas) > 1 for gpu in plan.gpus)


@pytest.mark.parametrize(
    ("seeds", "work"),
    [((0,), 0.1), pytest.param(range(3), 2.0, marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize("policy", policies())
def test_gpus_without_sm_limits_are_planned(
    policy: str, seeds: Sequence[int], work: float
) -> None:
    shared = 0
    for seed in seeds:
        problem = uncapped(random_problem(seed), seed)
        plan = answer(policy, problem, work)
        assert plan.gpus
        shared += is_shared(plan)
        # Shared GPUs that another policy left behind are nothing that a policy fails at.
        running = answer("gslice", problem)
        assert is_shared(running) or seed != 0
        answer(policy, replace(problem, current=running), work)
    assert bool(shared) == (policy in SHARING)
