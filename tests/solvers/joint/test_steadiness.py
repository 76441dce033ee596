"""Whether serving a little more is worth moving replicas while every GPU is in use."""

from dataclasses import replace

import pytest

from solvers.joint.policy import make_plan
from solvers.joint.shortage import is_worth_moving
from solvers.laws.cost import stopped
from solvers.types.outcome import Budget, Stability
from solvers.types.plan import GpuPlan, Plan, Unserved
from solvers.types.problem import Problem
from solvers.types.state import Observed
from tests.solvers.instances import a_problem, a_service, a_type, gpu_plan, replica_on


def gpu(*replicas: tuple[str, float, float]) -> GpuPlan:
    """(service, SM percent, rps)."""
    return gpu_plan(
        *(
            replica_on(service, sm_percent, rate_rps)
            for service, sm_percent, rate_rps in replicas
        )
    )


def a_plan(*gpus: GpuPlan, **unserved_rps: float) -> Plan:
    left = (
        Unserved(service=name, rate_rps=rate, reason="stock")
        for name, rate in unserved_rps.items()
    )
    return Plan(policy="joint", gpus=gpus, unserved=tuple(left))


# A whole GPU serves 100 rps, half a one 50. Of 170 rps the first arrangement serves 150, the second all; the second
# one stops one of two replicas: b's.
KEPT = a_plan(gpu(("a", 100.0, 100.0)), gpu(("b", 100.0, 50.0)), a=20.0)
OTHER = a_plan(gpu(("a", 100.0, 80.0)), gpu(("a", 50.0, 40.0), ("b", 50.0, 50.0)))


def full(
    *,
    a_rps: float = 120.0,
    b_rps: float = 50.0,
    gpus: int | None = 2,
    current: Plan = KEPT,
) -> Problem:
    return a_problem(
        a_service("a", rate_rps=a_rps),
        a_service("b", rate_rps=b_rps),
        types=(a_type(count=gpus),),
        current=current,
    )


def test_a_replica_that_moves_to_another_gpu_is_interrupted_as_well() -> None:
    # As many of each as before: b's moves next to a's.
    before = a_plan(gpu(("a", 50.0, 50.0)), gpu(("b", 50.0, 40.0)), b=10.0)
    after = a_plan(gpu(("a", 50.0, 50.0), ("b", 50.0, 50.0)))
    problem = full(a_rps=50.0, current=before)
    assert stopped(problem, after) == 0
    # A tenth of the rate is gained, and one of two replicas moves: 0.5 · 0.19 = 9.5 %.
    assert is_worth_moving(problem, before, after, start_price=0.19)
    assert not is_worth_moving(problem, before, after, start_price=0.21)


def test_the_gain_must_exceed_the_price_of_what_stops() -> None:
    assert stopped(full(), OTHER) == 1
    # 20 of 170 rps are 11.8 %; one of two replicas stops: 0.5 · 0.23 = 11.5 %, 0.5 · 0.24 = 12 %.
    assert is_worth_moving(full(), KEPT, OTHER, start_price=0.23)
    assert not is_worth_moving(full(), KEPT, OTHER, start_price=0.24)


@pytest.mark.parametrize("gpus", [3, None])
def test_always_while_a_gpu_is_free(gpus: int | None) -> None:
    assert is_worth_moving(full(gpus=gpus), KEPT, OTHER, start_price=0.9)


def test_always_where_nothing_stops() -> None:
    current = a_plan(gpu(("a", 50.0, 50.0)), gpu(("b", 100.0, 50.0)), a=70.0)
    more = a_plan(
        gpu(("a", 50.0, 50.0), ("a", 50.0, 50.0)), gpu(("b", 100.0, 50.0)), a=20.0
    )
    problem = full(current=current)
    assert stopped(problem, more) == 0
    assert is_worth_moving(problem, current, more, start_price=0.9)


def test_the_starved_do_not_wait() -> None:
    # b lacks all of its 50 rps, then 26 of them, then 25, which is half and no more.
    before = a_plan(gpu(("a", 100.0, 100.0)), gpu(("a", 100.0, 20.0)), b=50.0)
    problem = full(current=before)
    after = a_plan(gpu(("a", 100.0, 100.0)), gpu(("b", 100.0, 24.0)), a=20.0, b=26.0)
    assert not is_worth_moving(problem, before, after, start_price=0.9)
    after = a_plan(gpu(("a", 100.0, 100.0)), gpu(("b", 100.0, 26.0)), a=20.0, b=24.0)
    assert is_worth_moving(problem, before, after, start_price=0.9)


def test_missing_replicas_do_not_wait() -> None:
    short = replace(
        KEPT,
        unserved=(
            Unserved(service="a", rate_rps=20.0, reason="stock", replicas_missing=1),
        ),
    )
    assert is_worth_moving(full(), short, OTHER, start_price=0.9)


def test_without_a_running_plan_there_is_nothing_to_keep() -> None:
    assert is_worth_moving(replace(full(), current=None), KEPT, OTHER, start_price=0.9)


@pytest.mark.parametrize(("start_price", "starts"), [(0.1, True), (0.3, False)])
def test_joint_heeds_it(start_price: float, starts: bool) -> None:
    budget = Budget(
        work=0.2,
        stability=Stability(start_price=start_price, min_dwell_s=60.0),
        is_series=True,
    )
    plan, _, _ = make_plan(full(), Observed(at_s=0.0), None, budget)
    assert (stopped(full(), plan) > 0) is starts
    # Without a memory it is as with one: the running arrangement says all.
    again, _, _ = make_plan(full(), Observed(at_s=0.0), None, budget)
    assert again == plan


def test_what_costs_less_and_serves_as_much_is_no_matter_of_steadiness() -> None:
    # Half of either GPU would do: 40 rps of 50.
    current = a_plan(gpu(("a", 100.0, 40.0)), gpu(("b", 100.0, 40.0)))
    problem = full(a_rps=40.0, b_rps=40.0, current=current)
    plan, _, _ = make_plan(problem, Observed(at_s=0.0), None, Budget(work=1.0))
    assert (sum(each.count for each in plan.gpus), plan.unserved) == (1, ())
