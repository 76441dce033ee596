"""Whatever the policy: services with a common anti-affinity label never share a GPU."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.solver.process import PlanRequest, run_policy
from solvers.check import violations
from solvers.check_report import report_violations
from solvers.greedy.separate import MESSAGE
from solvers.policies.registry import policies
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Observed
from tests.solvers.instances import random_problem

RIVALS = ({"s00", "s01", "s02"}, {"s02", "s05"}, {"s03", "s06"})
SEPARATED = {
    "gpulets",
    "gpulets_bda",
    "gslice",
    "igniter",
    "inss",
    "inss_1e",
    "inss_ni",
    "morak",
}
"""Policies that know no labels, and let these services share GPUs: their plans are changed."""
SHARING = {*SEPARATED, "hetsev", "hetsev_greedy", "joint"}


def with_labels(problem: Problem) -> Problem:
    services = (
        replace(
            each,
            anti_affinity=frozenset(
                f"label{number}"
                for number, rivals in enumerate(RIVALS)
                if each.name in rivals
            ),
        )
        for each in problem.services
    )
    return replace(problem, services=tuple(services))


def answer(policy: str, problem: Problem, work: float) -> tuple[Plan, tuple[str, ...]]:
    request = PlanRequest(
        policy=policy,
        problem=problem,
        observed=Observed(at_s=0.0),
        memory=None,
        budget=Budget(seconds=60.0, work=work),
    )
    answered = run_policy(request)
    assert report_violations(problem, answered.plan, answered.report) == ()
    return answered.plan, answered.report.messages


def has_rivals(plan: Plan) -> bool:
    return any(
        len(rivals & {replica.service for replica in gpu.replicas}) > 1
        for gpu in plan.gpus
        for rivals in RIVALS
    )


@pytest.mark.parametrize(
    ("policy", "seeds", "work"),
    [
        *((policy, (2 if policy == "hetsev" else 1,), 0.1) for policy in policies()),
        *(
            pytest.param(policy, range(3), 2.0, marks=pytest.mark.thorough)
            for policy in policies()
        ),
    ],
)
def test_services_with_a_common_label_never_share_a_gpu(
    policy: str, seeds: Sequence[int], work: float
) -> None:
    shared = 0
    for seed in seeds:
        plain = random_problem(seed)
        problem = with_labels(plain)
        unlabelled, _ = answer(policy, plain, work)
        shared += has_rivals(unlabelled)
        plan, messages = answer(policy, problem, work)
        assert plan.gpus and not has_rivals(plan)
        rules = {each.rule for each in violations(problem, plan)}
        assert "anti_affinity" not in rules
        assert MESSAGE not in messages or policy in SEPARATED
        # A running plan from before the labels is no reason to leave rivals together.
        again, _ = answer(policy, replace(problem, current=unlabelled), work)
        assert not has_rivals(again), seed
    # Else nothing was tested of it.
    assert bool(shared) == (policy in SHARING)
