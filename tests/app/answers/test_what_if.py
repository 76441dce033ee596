"""What-ifs: ranking, consistency between scenarios, and how the time is shared."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.answers.scenario import (
    WhatIfScenario,
    alternatives,
    changed,
    describe_scenario,
)
from app.answers.what_if import (
    TODAY,
    FollowUp,
    Planned,
    ScenarioAnswer,
    answers,
    ask,
)
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.outcome import PlanReport
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, Unserved
from solvers.types.problem import Problem
from tests.solvers.instances import a_problem, a_service, a_type

# A whole GPU carries 100 rps: 200 by its time, half of that by the law at batch 1.
PROBLEM = a_problem(a_service(rate_rps=150.0), types=(a_type(count=4),))


def a_plan(gpus: int, rate_rps: float, *unserved: Unserved) -> Plan:
    replica = ReplicaPlan(
        service="chat", sm_percent=100.0, batch=1, arrival_rate_rps=rate_rps
    )
    gpu = GpuPlan(gpu_type="gpu", count=gpus, clock_mhz=1000.0, replicas=(replica,))
    return Plan(policy="test", gpus=(gpu,), unserved=unserved)


def planned(
    scenario: WhatIfScenario, plan: Plan, *, bound: float | None = None
) -> Planned:
    problem = changed(PROBLEM, scenario)
    cost = cost_usd_per_hour(problem, plan)
    report = PlanReport(
        status="feasible", cost_usd_per_hour=cost, lower_bound_usd_per_hour=bound
    )
    return Planned(scenario=scenario, problem=problem, plan=plan, report=report)


def by_question(found: Sequence[ScenarioAnswer]) -> dict[str, ScenarioAnswer]:
    return {one.question: one for one in found}


def test_today_comes_first_then_what_serves_all_by_cost_then_what_does_not() -> None:
    today = planned(TODAY, a_plan(2, 75.0))
    more = planned(WhatIfScenario(demand_factor={"chat": 2.0}), a_plan(3, 100.0))
    short = planned(
        WhatIfScenario(gpus={"gpu": -3}),
        a_plan(1, 100.0, Unserved(service="chat", rate_rps=50.0, reason="stock")),
    )
    cheap = planned(WhatIfScenario(price_usd_per_hour={"gpu": 0.5}), a_plan(2, 75.0))
    found = answers(today, [short, more, cheap])
    assert [
        (one.question, one.cost_usd_per_hour, one.difference_usd_per_hour)
        for one in found
    ] == [
        ("as it is", 2.0, 0.0),
        ("gpu at $0.5/h", 1.0, -1.0),
        ("demand of chat × 2", 3.0, 1.0),
        ("-3 gpu", 1.0, -1.0),
    ]
    assert found[-1].unserved_percent == pytest.approx(33.3333)
    assert found[-1].gpus == {"gpu": 1}


def test_added_gpus_are_ranked_by_what_they_save_per_dollar_of_their_price() -> None:
    types = (
        a_type(count=4),
        a_type(name="big", price_usd_per_hour=1.5, count=0),
        a_type(name="small", price_usd_per_hour=0.5, count=0),
    )
    problem = a_problem(a_service(rate_rps=150.0), types=types)

    def bought(name: str, number: int) -> Planned:
        (gpu,) = a_plan(1, 75.0).gpus
        plan = replace(a_plan(1, 75.0), gpus=(gpu, replace(gpu, gpu_type=name)))
        scenario = WhatIfScenario(gpus={name: number})
        return replace(
            planned(TODAY, a_plan(4, 37.5)),
            scenario=scenario,
            problem=changed(problem, scenario),
            plan=plan,
        )

    # 4 USD today; with a big one 1 + 1.5, with a small one 1 + 0.5. A second big one is not needed.
    today = replace(planned(TODAY, a_plan(4, 37.5)), problem=problem)
    found = answers(today, [bought("big", 2), bought("big", 1), bought("small", 1)])
    assert [
        (one.question, one.added_usd_per_hour, one.saving_per_usd) for one in found
    ] == [
        ("as it is", None, None),
        ("+1 small", 0.5, 5.0),
        ("+1 big", 1.5, 1.0),
        ("+2 big", 3.0, 0.5),
    ]
    assert {one.unmeasured for one in found} == {()}


def test_the_mix_adds_up_replicas_and_shares_by_service_and_gpu_type() -> None:
    chat, photo = (
        ReplicaPlan(service=name, sm_percent=50.0, batch=1, arrival_rate_rps=10.0)
        for name in ("chat", "photo")
    )
    # Three GPUs with two halves of chat, one with a half of chat and one of photo: 7 × 50 % and 1 × 50 %.
    full = GpuPlan(gpu_type="gpu", count=3, clock_mhz=1000.0, replicas=(chat, chat))
    mixed = replace(full, count=1, replicas=(photo, chat))
    plan = Plan(policy="t", gpus=(full, mixed))
    services = (a_service(rate_rps=70.0), a_service("photo", rate_rps=10.0))
    problem = a_problem(*services, types=(a_type(count=4),))
    today = replace(planned(TODAY, a_plan(4, 20.0)), problem=problem, plan=plan)
    (found,) = answers(today, [])
    assert [
        (one.service, one.gpu_type, one.replicas, one.sm_percent) for one in found.mix
    ] == [("chat", "gpu", 7, 350.0), ("photo", "gpu", 1, 50.0)]


def test_a_scenario_takes_another_one_s_plan_where_that_is_better() -> None:
    today = planned(TODAY, a_plan(2, 75.0), bound=1.5)
    poor = planned(WhatIfScenario(gpus={"gpu": 1}), a_plan(3, 50.0), bound=1.5)
    found = by_question(answers(today, [poor]))["+1 gpu"]
    assert (
        found.cost_usd_per_hour,
        found.difference_usd_per_hour,
        found.planned_for,
    ) == (2.0, 0.0, "as it is")
    assert found.gap_percent == pytest.approx(100.0 * 0.5 / 1.5)


def test_no_plan_is_borrowed_that_breaks_a_rule_or_serves_too_little() -> None:
    # Two GPUs for today's rate are not allowed where one is left, nor enough for twice the rate.
    today = planned(TODAY, a_plan(2, 75.0))
    fewer = planned(
        WhatIfScenario(gpus={"gpu": -3}),
        a_plan(1, 100.0, Unserved(service="chat", rate_rps=50.0, reason="stock")),
    )
    more = planned(WhatIfScenario(demand_factor={"chat": 2.0}), a_plan(4, 75.0))
    found = by_question(answers(today, [fewer, more]))
    assert {name: one.planned_for for name, one in found.items()} == {
        name: name for name in found
    }


def test_suggestions_are_asked_and_scenarios_begin_with_today_s_plan_where_moves_are_free() -> (
    None
):
    seen: list[Problem] = []

    async def make_plan(problem: Problem, _seconds: float) -> tuple[Plan, PlanReport]:
        seen.append(problem)
        return a_plan(2, 75.0), PlanReport(status="feasible", cost_usd_per_hour=2.0)

    found = asyncio.run(
        ask(
            make_plan,
            PROBLEM,
            [],
            follow_up=FollowUp(suggest=True),
            seconds=1.0,
            is_free_to_move=True,
        )
    )
    asked = {describe_scenario(one.scenario) for one in found}
    assert {
        "+1 gpu",
        "-1 gpu",
        "all demand × 1.2",
        "SLO of chat +10 % (110 ms)",
    } <= asked
    assert seen[0].current is None and all(
        problem.current == a_plan(2, 75.0) for problem in seen[1:]
    )
    seen.clear()
    dear = replace(PROBLEM, migration_cost_usd_per_hour=0.1)
    asyncio.run(
        ask(
            make_plan,
            dear,
            [],
            follow_up=FollowUp(suggest=True),
            seconds=1.0,
            is_free_to_move=True,
        )
    )
    assert all(problem.current is None for problem in seen)


def test_less_of_a_promise_and_other_types_are_asked_of_the_costliest_service() -> None:
    service = replace(a_service(rate_rps=150.0), min_replicas=2)
    other = a_type(name="other", count=1)
    problem = replace(
        a_problem(service, types=(a_type(count=4), other)),
    )
    asked = alternatives(problem, a_plan(2, 75.0), ["chat", "gone"])
    assert [describe_scenario(one) for one in asked] == [
        "SLO of chat 150 ms instead of 100",
        "chat on other instead of gpu",
        "chat with min_replicas 0 instead of 2",
    ]
    assert alternatives(problem, a_plan(2, 75.0), ["gone"]) == ()
    # What they ask can be planned.
    for one in asked:
        changed(problem, one)
