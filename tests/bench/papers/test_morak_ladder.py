"""Morak's plan never serves less where requests may take longer, in all worlds of the bench and under all caps."""

from itertools import pairwise

import pytest

from bench.papers.morak_stage import Setting, Stage, a_problem, plenty_rps, stages
from solvers.papers.morak.parameters import MorakParameters
from solvers.policies.registry import policy
from solvers.types.outcome import Budget
from solvers.types.parameters import AS_BY_DEFAULT, PolicyParameters
from solvers.types.state import Observed

LIMITS_MS = tuple(12.5 * 2.0 ** (step / 2.0) for step in range(7))


def served(
    stage: Stage,
    setting: Setting,
    parameters: PolicyParameters = AS_BY_DEFAULT,
    *,
    work: float = 4.0,
    elapsed_s: float = 0.0,
) -> float:
    """Weighted rate that the plan serves."""
    problem = a_problem(stage, setting, plenty_rps(stage))
    budget = Budget(
        seconds=10.0, work=work, parameters=parameters, elapsed=lambda: elapsed_s
    )
    plan, _, _ = policy("morak").make_plan(problem, Observed(at_s=0.0), None, budget)
    unserved = {entry.service: entry.rate_rps for entry in plan.unserved}
    return sum(
        each.priority * (each.arrival_rate_rps - unserved.get(each.name, 0.0))
        for each in problem.services
    )


@pytest.mark.parametrize(
    "cap_w",
    [
        pytest.param(cap_w, marks=() if cap_w == 150.0 else pytest.mark.thorough)
        for cap_w in (100.0, 125.0, 150.0, 175.0, 200.0)
    ],
)
@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.name)
def test_a_looser_limit_never_serves_less(stage: Stage, cap_w: float) -> None:
    found = [served(stage, Setting(cap_w=cap_w, latency_ms=each)) for each in LIMITS_MS]
    assert all(
        tighter <= looser * (1.0 + 1e-9) for tighter, looser in pairwise(found)
    ), found


@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.name)
@pytest.mark.thorough
def test_gpus_divided_by_worth_serve_more_than_by_knees_alone(stage: Stage) -> None:
    setting = Setting(cap_w=150.0, latency_ms=100.0)
    by_knees = served(stage, setting, MorakParameters(division="by knees"))
    assert served(stage, setting) > 1.02 * by_knees


def test_without_work_or_time_the_plan_is_that_by_knees_or_its_first_rung() -> None:
    stage, setting = stages()[-1], Setting(cap_w=150.0, latency_ms=100.0)
    by_knees = MorakParameters(division="by knees")
    assert served(stage, setting, work=0.0) == served(stage, setting, by_knees)
    # Time is over when the plan begins: it is filled once all the same.
    first = served(stage, setting, elapsed_s=11.0)
    assert 0.0 < first < served(stage, setting)
