"""Calling a policy in this process; the real worker is in tests/integration/test_solver_worker.py."""

import itertools
from dataclasses import replace

import pytest

from app.solver.inline import InlineSolver
from app.solver.process import PlanRequest, SolverUnavailable, run_policy
from solvers.policies.warm_up import tiny_problem
from solvers.types.outcome import Budget
from solvers.types.state import Observed
from tests.waiting import run


def request(policy: str = "hetsev") -> PlanRequest:
    return PlanRequest(
        policy=policy,
        problem=tiny_problem(),
        observed=Observed(at_s=0.0),
        memory=None,
        budget=Budget(seconds=60.0),
    )


def test_the_report_carries_the_seconds_that_passed() -> None:
    ticks = itertools.count()
    answer = run_policy(request(), now_s=lambda: float(next(ticks)))
    assert answer.report.seconds == next(ticks) - 1


def test_the_inline_solver_gives_the_same_answer_again_to_the_last_byte() -> None:
    solver = InlineSolver()
    answers = [run(solver.make_plan(request())) for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0].report.seconds == 0.0
    assert answers[0].plan.gpus


def test_a_policy_that_fails_is_a_solver_that_is_not_there() -> None:
    with pytest.raises(SolverUnavailable, match="no policy is called 'nobody'"):
        run(InlineSolver().make_plan(request("nobody")))


def test_the_report_says_what_is_set_of_the_policy() -> None:
    stated = {"queues": 8, "placement": "as printed"}
    answer = run_policy(replace(request(), parameters=stated))
    assert "parameters: queues = 8, placement = as printed" in answer.report.messages
    assert answer.report.method.endswith("worst fit")
    assert not any(
        "parameters" in each for each in run_policy(request()).report.messages
    )


def test_parameters_that_this_version_does_not_know_leave_the_policy_as_by_default() -> (
    None
):
    answer = run_policy(replace(request(), parameters={"gone": 1}))
    assert answer.plan == run_policy(request()).plan
    assert answer.report.messages[-1].startswith(
        "parameters ignored, the defaults are used: gone: unknown parameter"
    )
