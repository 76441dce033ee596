"""Policy `joint` under a power budget: from nothing, from what runs, and from tick to tick."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.check import violations
from solvers.check_report import report_violations
from solvers.joint.policy import make_plan
from solvers.joint.trim_to_power import draws_w
from solvers.laws.cost import cost_usd_per_hour, started
from solvers.types.outcome import Budget, PlanReport, Stability
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed
from tests.examples import examples
from tests.solvers.instances import (
    a_problem,
    a_service,
    a_type,
    random_problem,
    with_rates,
)

STEADY = Stability(start_price=0.2, min_dwell_s=60.0)


def tick(
    problem: Problem,
    *,
    at_s: float = 0.0,
    memory: Json = None,
    stability: Stability = STEADY,
) -> tuple[Plan, PlanReport, Json]:
    """A plan that the checker accepts, within the power budget, and what is remembered."""
    budget = Budget(work=0.2, seconds=math.inf, stability=stability)
    plan, report, memory = make_plan(problem, Observed(at_s=at_s), memory, budget)
    assert violations(problem, plan) == ()
    assert report_violations(problem, plan, report) == ()
    assert problem.power_budget_w is None or draws_w(
        problem, plan
    ) <= problem.power_budget_w * (1.0 + 1e-9)
    return plan, report, memory


def two_services(watts: float | None, *, rate_rps: float = 100.0) -> Problem:
    """Either needs a whole GPU for 100 rps: 50 W idle and 100 W."""
    services = (
        a_service("dull", rate_rps=rate_rps),
        a_service("vital", rate_rps=rate_rps, priority=5.0),
    )
    return a_problem(*services, types=(a_type(),), power_budget_w=watts)


def served(plan: Plan) -> dict[str, float]:
    rates: dict[str, float] = {}
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            rates[replica.service] = (
                rates.get(replica.service, 0.0) + gpu.count * replica.arrival_rate_rps
            )
    return {name: round(rate, 3) for name, rate in rates.items()}


def test_the_budget_serves_the_important_first_and_names_itself() -> None:
    plan, report, _ = tick(two_services(150.0))
    assert served(plan) == {"vital": 100.0}
    assert [(each.service, each.reason) for each in plan.unserved] == [
        ("dull", "power")
    ]
    assert report.status == "optimal"


def test_a_budget_that_nothing_reaches_leaves_the_plan_as_it_is() -> None:
    for seed in range(4):
        problem = random_problem(seed, services=5)
        free, report, _ = tick(problem, stability=Stability())
        roomy, bounded, _ = tick(
            replace(problem, power_budget_w=1e9), stability=Stability()
        )
        assert cost_usd_per_hour(problem, roomy) == pytest.approx(
            cost_usd_per_hour(problem, free), rel=1e-3
        )
        assert report.lower_bound_usd_per_hour is not None
        assert bounded.lower_bound_usd_per_hour is not None


def test_what_runs_gives_way_at_once_when_the_budget_falls() -> None:
    free, _, memory = tick(two_services(None))
    assert served(free) == {"dull": 100.0, "vital": 100.0}
    capped = replace(two_services(200.0), current=free)
    plan, _, memory = tick(capped, at_s=5.0, memory=memory)
    # 150 W for `vital`; of the 50 left no other GPU can run, which needs 100.
    assert served(plan) == {"vital": 100.0}
    again, _, _ = tick(replace(capped, current=plan), at_s=10.0, memory=memory)
    assert served(again) == served(plan)
    assert started(replace(capped, current=plan), again) == 0


def test_demand_that_other_replicas_could_carry_is_looked_for_at_once() -> None:
    # `frugal` GPUs cost more and draw less: 20 + 100 W. Two cheap ones draw 300 W, one of each 270.
    types = (a_type("cheap"), a_type("frugal", price_usd_per_hour=3.0, idle_w=20.0))
    problem = a_problem(
        a_service("chat", rate_rps=100.0), types=types, power_budget_w=280.0
    )
    first, _, memory = tick(problem)
    assert [(gpu.gpu_type, gpu.count) for gpu in first.gpus] == [("cheap", 1)]
    more = with_rates(replace(problem, current=first), 2.0)
    plan, _, _ = tick(more, at_s=5.0, memory=memory)  # long before min_dwell_s
    assert served(plan) == {"chat": 200.0}
    assert {gpu.gpu_type for gpu in plan.gpus} == {"cheap", "frugal"}


def test_a_lasting_lack_of_watts_rearranges_next_to_nothing_from_tick_to_tick() -> None:
    problem = random_problem(3, services=6)
    free, _, _ = tick(problem)
    capped = replace(problem, power_budget_w=0.5 * draws_w(problem, free))
    plan, _, memory = tick(capped)
    starts = 0
    for number in range(1, 6):
        now = with_rates(replace(capped, current=plan), 1.0 + 0.002 * (-1) ** number)
        following, _, memory = tick(now, at_s=5.0 * number, memory=memory)
        starts += started(now, following)
        plan = following
    assert starts <= 1  # a replica for what the watts left over


@settings(max_examples=examples(12))
@given(seed=st.integers(0, 60), part=st.floats(0.0, 1.2), is_goodput=st.booleans())
def test_every_budget_is_kept_whatever_runs(
    seed: int, part: float, is_goodput: bool
) -> None:
    problem = replace(
        random_problem(seed, services=4, gpus=3),
        objective="max_goodput" if is_goodput else "min_cost",
    )
    free, _, memory = tick(problem)
    capped = replace(
        problem, power_budget_w=part * draws_w(problem, free), current=free
    )
    plan, report, _ = tick(capped, at_s=100.0, memory=memory)
    if (
        report.served_weight_upper_bound is not None
        and report.served_weight is not None
    ):
        assert report.served_weight <= report.served_weight_upper_bound * (1.0 + 1e-9)
    assert plan.gpus == () or part > 0.0
