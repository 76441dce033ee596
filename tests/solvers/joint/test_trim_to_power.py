"""What goes first when there are too few watts for a plan."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.check import violations
from solvers.joint.solve import solve
from solvers.joint.trim_to_power import draws_w, fits, trimmed
from solvers.types.outcome import Budget
from solvers.types.plan import Plan, ReplicaPlan
from solvers.types.problem import Problem
from tests.examples import examples
from tests.solvers.instances import (
    a_problem,
    a_service,
    a_type,
    gpu_plan,
    random_problem,
    replica_on,
)

# Half a GPU carries 50 rps with 50 W on top of 50 W idle.
PROBLEM = a_problem(
    a_service("dull", rate_rps=100.0),
    a_service("vital", rate_rps=50.0, priority=4.0, min_replicas=1),
    types=(a_type(),),
)


def a_replica(service: str, rate_rps: float = 50.0) -> ReplicaPlan:
    return replica_on(service, 50.0, rate_rps)


SHARED = gpu_plan(a_replica("dull"), a_replica("vital"))
ALONE = gpu_plan(a_replica("dull"))
PLAN = Plan(policy="joint", gpus=(SHARED, ALONE))
"""150 W and 100 W."""


def cut(watts: float | None, problem: Problem = PROBLEM, plan: Plan = PLAN) -> Plan:
    return trimmed(replace(problem, power_budget_w=watts), plan)


def unserved(plan: Plan) -> list[tuple[str, float, str, int]]:
    return [
        (each.service, each.rate_rps, each.reason, each.replicas_missing)
        for each in plan.unserved
    ]


def test_a_plan_that_fits_stays_as_it_is() -> None:
    assert draws_w(PROBLEM, PLAN) == 250.0
    for watts in (None, 250.0, 1e6):
        assert cut(watts) is PLAN
        assert fits(replace(PROBLEM, power_budget_w=watts), PLAN)
    assert not fits(replace(PROBLEM, power_budget_w=249.0), PLAN)


def test_what_is_worth_least_per_watt_goes_first() -> None:
    # The GPU with `dull` alone: 50 rps / 100 W. Where it shares one: 50 rps / 50 W; all of that GPU: 250 / 150.
    found = cut(249.0)
    assert found.gpus == (SHARED,)
    assert unserved(found) == [("dull", 50.0, "power", 0)]
    assert [gpu.replicas for gpu in cut(149.0).gpus] == [(a_replica("vital"),)]
    assert unserved(cut(149.0)) == [("dull", 100.0, "power", 0)]


def test_below_the_last_gpu_nothing_is_left() -> None:
    found = cut(99.0)
    assert found.gpus == ()
    assert unserved(found) == [("dull", 100.0, "power", 0), ("vital", 50.0, "power", 1)]


def test_of_equal_gpus_only_as_many_go_as_must() -> None:
    plan = Plan(policy="joint", gpus=(replace(ALONE, count=5),))
    found = cut(
        399.0, a_problem(a_service("dull", rate_rps=250.0), types=(a_type(),)), plan
    )
    assert found.gpus == (replace(ALONE, count=3),)
    assert unserved(found) == [("dull", 100.0, "power", 0)]


@settings(max_examples=examples(25))
@given(seed=st.integers(0, 40), part=st.floats(0.0, 1.1))
def test_what_is_left_fits_and_keeps_every_rule(seed: int, part: float) -> None:
    problem = random_problem(seed, services=5, gpus=3)
    plan = solve(problem, Budget(work=0.05))[0].plan
    watts = part * draws_w(problem, plan)
    found = cut(watts, problem, plan)
    assert draws_w(problem, found) <= watts + 1e-6
    assert violations(problem, found) == ()
    before = {replace(gpu, count=1) for gpu in plan.gpus} if part >= 1.0 else set()
    assert part < 1.0 or {replace(gpu, count=1) for gpu in found.gpus} == before


@pytest.mark.parametrize("seed", range(4))
def test_what_is_trimmed_names_the_power(seed: int) -> None:
    problem = random_problem(seed, services=6, gpus=4)
    plan = solve(problem, Budget(work=0.05))[0].plan
    found = cut(0.8 * draws_w(problem, plan), problem, plan)
    assert "power" in {entry.reason for entry in found.unserved}
    assert len(found.gpus) > 0
