"""The rules of language models' replicas: each broken alone, and none by the contract's example."""

from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.check_report import report_violations
from solvers.types.llm import LlmReplicaPlan
from solvers.types.outcome import PlanReport
from solvers.types.plan import Plan, Unserved
from solvers.types.problem import Problem
from tests.solvers.llm.models import (
    make_points,
    make_problem,
    make_row,
    make_service,
    make_type,
)


def replica(tp: int, rate_rps: float, **changes: object) -> LlmReplicaPlan:
    fields: dict[str, object] = {
        "service": "chat",
        "gpu_type": "H100",
        "tp": tp,
        "count": 1,
        "clock_mhz": 1980.0,
        "max_num_batched_tokens": 1024,
        "max_num_seqs": 256,
        "arrival_rate_rps": rate_rps,
    }
    return LlmReplicaPlan(**{**fields, **changes})  # type: ignore[arg-type]


def rules(problem: Problem, *replicas: LlmReplicaPlan, **more: object) -> list[str]:
    plan = Plan(policy="joint", llm_replicas=replicas, **more)  # type: ignore[arg-type]
    return [each.rule for each in violations(problem, plan)]


def test_the_contracts_example_breaks_no_rule() -> None:
    assert rules(make_problem(), replica(4, 11.7), replica(2, 5.3)) == []


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (replica(2, 6.1, count=3), "capacity"),
        (replica(4, 13.5, count=1), "demand"),
        (replica(8, 8.5, count=3), "stock"),
        (replica(2, 6.0, count=3, service="nobody"), "point"),
        (replica(2, 6.0, count=3, gpu_type="T4"), "gpu_type"),
        (replica(2, 6.0, count=3, max_num_batched_tokens=512), "point"),
        (replica(2, 6.0, count=3, clock_mhz=1500.0), "point"),
        (replica(3, 6.0, count=3), "tp"),
    ],
)
def test_a_broken_rule_is_named(broken: LlmReplicaPlan, rule: str) -> None:
    assert rule in rules(make_problem(), broken)


def test_every_gpu_of_a_replica_has_limits() -> None:
    thirsty = make_row(2, 20.0, power_w_per_gpu=650.0)
    large = make_row(2, 20.0, memory_mib_per_gpu=90_000.0)

    for row, rule in ((thirsty, "power"), (large, "memory")):
        problem = make_problem(llm_points=(make_points(rows=(row,)),))
        assert rules(problem, replica(2, 17.0)) == [rule]


def test_a_service_keeps_to_its_gpu_types_and_numbers() -> None:
    elsewhere = make_service(allowed_gpu_types=("L40S",))
    problem = make_problem(
        gpu_types=(make_type(), make_type("L40S")), llm_services=(elsewhere,)
    )
    assert rules(problem, replica(2, 6.0, count=3)) == ["gpu_type"]

    few = make_problem(llm_services=(make_service(max_replicas=2),))
    assert rules(few, replica(2, 6.0, count=3)) == ["replicas"]

    many = make_problem(llm_services=(make_service(min_replicas=4),))
    assert rules(many, replica(2, 6.0, count=3)) == ["demand"]


def test_what_is_listed_as_unserved_is_no_broken_promise() -> None:
    left = Unserved(service="chat", rate_rps=11.0, reason="slots")

    assert rules(make_problem(), replica(2, 6.0), unserved=(left,)) == []


def test_gpus_of_both_kinds_of_services_are_one_stock() -> None:
    few = replace(make_problem(), gpu_types=(make_type(count=4, free_slots=((2, 9),)),))

    assert rules(few, replica(2, 6.0, count=3)) == ["stock"]


def test_a_large_set_takes_the_room_of_several_small_ones() -> None:
    # Two sets of four are four of two.
    for pairs, broken in ((4, []), (3, ["slots"])):
        slots = ((2, pairs), (4, 2), (8, 1))
        problem = replace(make_problem(), gpu_types=(make_type(free_slots=slots),))
        assert rules(problem, replica(4, 11.7, count=2)) == broken


def test_a_report_counts_the_gpus_of_language_models() -> None:
    problem = replace(make_problem(), energy_price_usd_per_kwh=0.1)
    plan = Plan(policy="joint", llm_replicas=(replica(4, 11.7), replica(2, 5.3)))
    # Six GPUs at 4.5 USD and 470 W at 0.1 USD per kWh.
    report = PlanReport(status="feasible", cost_usd_per_hour=6 * (4.5 + 0.047))

    assert report_violations(problem, plan, report) == ()
    wrong = replace(report, cost_usd_per_hour=27.0)
    assert [each.rule for each in report_violations(problem, plan, wrong)] == ["report"]
