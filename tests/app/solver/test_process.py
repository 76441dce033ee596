"""Calling a policy in this process; the real worker is in tests/integration/test_solver_worker.py."""

import itertools

import pytest

from app.solver.process import InlineSolver, PlanRequest, SolverUnavailable, run_policy
from solvers.policies.warm_up import tiny_problem
from solvers.types.outcome import Budget
from solvers.types.state import Observed
from tests.app.fleets import run


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
