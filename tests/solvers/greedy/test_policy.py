"""The greedy controller: hold and cool-down on a small clock, nothing is swapped, lawful on random problems."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings

from solvers.check import violations
from solvers.check_report import report_violations
from solvers.greedy.configure import MAX_REPLICAS
from solvers.greedy.policy import make_plan
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed, ServiceObservation
from tests.examples import examples, seeds, tried
from tests.solvers.instances import (
    HALVES,
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    random_problem,
    replica_counts,
    replica_on,
    started,
    with_rates,
)
from tests.solvers.small_plans import capacity_rps, planned_problems

# One replica takes half a GPU and carries 50 rps, so that 40 rps are the threshold.
HALF = HALVES[:1]
CHEAP_AND_DEAR = (
    a_type("cheap", price_usd_per_hour=1.0),
    a_type("dear", price_usd_per_hour=3.0),
)


def chat(rate_rps: float, **changes: object) -> Problem:
    return a_problem(a_service("chat", rate_rps=rate_rps, **changes), rows=HALF)


def tick(
    problem: Problem,
    *,
    at_s: float = 0.0,
    memory: Json = None,
    readings: Sequence[ServiceObservation] = (),
    seed: int = 0,
) -> tuple[Plan, PlanReport, Json]:
    """A plan that the checker accepts, with a report that it confirms; the memory passes through JSON."""
    observed = Observed(at_s=at_s, readings=tuple(readings))
    plan, report, remembered = make_plan(problem, observed, memory, Budget(seed=seed))
    assert violations(problem, plan) == ()
    assert report_violations(problem, plan, report) == ()
    assert report.status == "greedy"
    assert [(step.technique, step.method) for step in report.steps] == [
        ("autoscale", "greedy")
    ]
    return plan, report, json.loads(json.dumps(remembered))


def course(problem: Problem, steps: Iterable[tuple[float, float]]) -> list[Plan]:
    """The plans at (time, rate of the first service), each made from the one before."""
    plans, memory = list[Plan](), None
    for at_s, rate_rps in steps:
        service = replace(problem.services[0], arrival_rate_rps=rate_rps)
        problem = replace(problem, services=(service, *problem.services[1:]))
        plan, _, memory = tick(problem, at_s=at_s, memory=memory)
        problem = replace(problem, current=plan)
        plans.append(plan)
    return plans


def sizes(plans: Iterable[Plan]) -> list[int]:
    return [replica_counts(plan).total() for plan in plans]


def running(problem: Problem, *gpus: GpuPlan) -> Problem:
    return replace(problem, current=Plan(policy="any", gpus=gpus))


def gpu(
    gpu_type: str, *services: str, count: int = 1, sm_percent: float = 50.0
) -> GpuPlan:
    replicas = tuple(replica_on(service, sm_percent) for service in services)
    return gpu_plan(*replicas, gpu_type=gpu_type, count=count)


def by_type(plan: Plan, service: str = "chat") -> dict[str, int]:
    return {
        key[1]: count
        for key, count in sorted(replica_counts(plan).items())
        if key[0] == service
    }


def unserved(plan: Plan) -> list[tuple[object, ...]]:
    return [
        (each.service, each.rate_rps, each.reason, each.replicas_missing)
        for each in plan.unserved
    ]


# The trigger, by hand.


@pytest.mark.parametrize(
    ("rate_rps", "replicas"), [(0.0, 0), (0.1, 1), (40.0, 1), (40.1, 2), (100.0, 3)]
)
def test_at_the_start_every_service_is_sized_at_once_to_the_threshold(
    rate_rps: float, replicas: int
) -> None:
    plan, _, _ = tick(chat(rate_rps))
    assert sizes([plan]) == [replicas]
    assert plan.unserved == ()


def test_it_scales_out_only_after_the_hold_period() -> None:
    # 45 rps are 90 % of one replica.
    assert sizes(
        course(chat(40.0), [(0, 40), (15, 45), (30, 45), (44, 45), (45, 45), (60, 45)])
    ) == [1, 1, 1, 1, 2, 2]


def test_a_pause_below_the_threshold_restarts_the_hold() -> None:
    assert sizes(
        course(chat(40.0), [(0, 40), (15, 45), (30, 40), (45, 45), (74, 45), (75, 45)])
    ) == [1, 1, 1, 1, 1, 2]


def test_a_spike_is_unserved_while_it_is_held_and_then_served_in_one_step() -> None:
    plans = course(chat(40.0), [(0, 40), (15, 300), (45, 300)])
    assert unserved(plans[1]) == [("chat", pytest.approx(250.0), "replicas", 0)]
    assert sizes(plans) == [1, 1, 8]  # 300 / 40 = 7.5.
    assert plans[2].unserved == ()


def test_it_scales_in_one_replica_per_cool_down() -> None:
    # Of 8 replicas: 30 rps need one.
    steps = [(0, 300), (15, 30), (74, 30), (75, 30), (134, 30), (135, 30), (195, 30)]
    assert sizes(course(chat(0.0), steps)) == [8, 8, 8, 7, 7, 6, 5]


def test_a_replica_that_the_rest_needs_does_not_go() -> None:
    # Without one of two replicas 50 rps are left: 40 rps may lose it, 41 may not.
    assert sizes(course(chat(0.0), [(0, 60), (15, 41), (100, 41)])) == [2, 2, 2]
    assert sizes(course(chat(0.0), [(0, 60), (15, 40), (100, 40)])) == [2, 2, 1]


def test_the_observed_rate_drives_the_trigger_where_something_runs() -> None:
    problem = chat(40.0)
    reading = ServiceObservation(
        service="chat",
        arrival_rate_rps=100.0,
        served_rps=50.0,
        latency_ms=None,
        attainment=None,
        age_s=1.0,
    )
    first, _, memory = tick(problem, readings=[reading])
    assert sizes([first]) == [1]
    problem = replace(problem, current=first)
    _, _, memory = tick(problem, readings=[reading], at_s=15.0, memory=memory)
    later, report, _ = tick(problem, readings=[reading], at_s=45.0, memory=memory)
    assert sizes([later]) == [3]
    assert report.messages == ("chat: scale out, 100.0 rps are 200% of its capacity",)


# What stays, what goes, what comes.


def test_new_replicas_come_on_the_cheapest_type_and_none_is_swapped() -> None:
    problem = running(
        a_problem(a_service("chat", rate_rps=200.0), types=CHEAP_AND_DEAR),
        gpu("dear", "chat", count=2),
    )
    plan = course(problem, [(0, 200), (30, 200)])[-1]
    counts = replica_counts(plan)
    assert (
        counts["chat", "dear", 50.0] == 2
    )  # 100 rps of the 250 that bring 200 to the threshold.
    assert all(key[1] == "cheap" for key in counts if key != ("chat", "dear", 50.0))
    assert plan.unserved == ()


def test_the_dearest_replica_that_can_be_spared_goes_first() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=70.0), types=CHEAP_AND_DEAR, rows=HALF
    )
    problem = running(problem, gpu("dear", "chat", count=2), gpu("cheap", "chat"))
    assert [
        by_type(plan)
        for plan in course(
            problem, [(0, 70), (60, 70), (120, 70), (180, 30), (240, 30)]
        )
    ] == [
        {"cheap": 1, "dear": 2},
        {"cheap": 1, "dear": 1},
        {"cheap": 1, "dear": 1},
        {"cheap": 1, "dear": 1},
        {"cheap": 1},
    ]


def test_replicas_that_miss_a_tightened_slo_are_replaced_at_once() -> None:
    # Half a GPU takes 10 ms and may use its time from 20 ms on; of 15 ms only the whole GPU's 5 ms are less than half.
    problem = running(
        a_problem(a_service("chat", rate_rps=40.0, slo_ms=15.0)),
        gpu("gpu", "chat", count=2),
    )
    plan, _, _ = tick(problem)
    assert replica_counts(plan) == {("chat", "gpu", 100.0): 1}
    assert plan.unserved == ()


def test_replicas_of_removed_services_and_on_removed_gpus_are_gone() -> None:
    problem = a_problem(
        a_service("a", rate_rps=30.0), types=(a_type(count=1),), rows=HALF
    )
    plan, _, _ = tick(
        running(problem, gpu("gpu", "a", "b"), gpu("gpu", "b"), gpu("lost", "a"))
    )
    assert replica_counts(plan) == {("a", "gpu", 50.0): 1}


# Limits.


def test_least_and_largest_numbers_do_not_wait_for_the_trigger() -> None:
    assert sizes([tick(chat(0.0, min_replicas=2))[0]]) == [2]
    raised = running(chat(30.0, min_replicas=3), gpu("gpu", "chat"))
    assert sizes([tick(raised)[0]]) == [3]
    lowered = running(chat(30.0, max_replicas=2), gpu("gpu", "chat", count=5))
    assert sizes([tick(lowered)[0]]) == [2]


def test_it_never_scales_in_below_the_least_number() -> None:
    assert sizes(
        course(
            chat(0.0, min_replicas=2), [(0, 90), (60, 0), (120, 0), (180, 0), (240, 0)]
        )
    ) == [3, 3, 2, 2, 2]
    # A replica that went and came again would come on the cheap type.
    problem = running(
        a_problem(a_service("chat", min_replicas=1), types=CHEAP_AND_DEAR),
        gpu("dear", "chat"),
    )
    assert by_type(course(problem, [(0, 0), (60, 0), (120, 0)])[-1]) == {"dear": 1}


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (
            a_problem(a_service("chat", rate_rps=70.0, slo_ms=9.9)),
            ("chat", 70.0, "slo", 0),
        ),
        (
            a_problem(a_service("chat", rate_rps=70.0, slo_ms=9.9, min_replicas=1)),
            ("chat", 70.0, "slo", 1),
        ),
        (
            a_problem(a_service("chat", rate_rps=250.0), types=(a_type(count=2),)),
            ("chat", 50.0, "stock", 0),
        ),
        (
            a_problem(a_service("chat", rate_rps=250.0, max_replicas=2)),
            ("chat", 50.0, "replicas", 0),
        ),
        (
            a_problem(a_service("chat", min_replicas=3), types=(a_type(count=2),)),
            ("chat", 0.0, "stock", 1),
        ),
    ],
)
def test_what_cannot_be_served_names_its_rule(
    problem: Problem, expected: tuple[str, float, str, int]
) -> None:
    name, rate_rps, reason, missing = expected
    assert unserved(tick(problem)[0]) == [
        (name, pytest.approx(rate_rps, abs=1e-6), reason, missing)
    ]


def test_when_gpus_are_short_the_important_services_are_served() -> None:
    # By their totals two GPUs hold three replicas of 60 %, but each of them holds one.
    services = (
        a_service("a", rate_rps=80.0),
        *(a_service(name, rate_rps=80.0, priority=5.0) for name in "yz"),
    )
    plan, _, _ = tick(
        a_problem(*services, types=(a_type(count=2),), rows=(a_row(60.0, 5.0),))
    )
    assert [by_type(plan, name) for name in "ayz"] == [{}, {"gpu": 1}, {"gpu": 1}]
    assert unserved(plan) == [("a", pytest.approx(80.0), "stock", 0)]


def test_what_runs_is_not_displaced_by_a_more_important_service() -> None:
    services = (
        a_service("a", rate_rps=80.0),
        a_service("z", rate_rps=80.0, priority=5.0),
    )
    problem = a_problem(*services, types=(a_type(count=1),), rows=(a_row(60.0, 5.0),))
    plan, _, _ = tick(running(problem, gpu("gpu", "a", sm_percent=60.0)))
    assert [by_type(plan, name) for name in "az"] == [{"gpu": 1}, {}]
    assert unserved(plan) == [("z", 80.0, "sm", 0)]


def test_where_counted_replicas_find_no_place_other_types_make_up_for_them() -> None:
    # 100 rps want a capacity of 125. By its totals the cheap GPU holds one more half, but no second one of a service.
    types = (a_type("small", count=1), a_type("large", price_usd_per_hour=3.0))
    problem = a_problem(a_service("chat", rate_rps=100.0), types=types, rows=HALF)
    plan = course(running(problem, gpu("small", "chat")), [(0, 100), (30, 100)])[-1]
    assert by_type(plan) == {"large": 2, "small": 1}


@pytest.mark.thorough
def test_figures_beyond_all_measure_end_at_the_most_replicas() -> None:
    plan, _, _ = tick(chat(1e12))
    assert sizes([plan]) == [MAX_REPLICAS]
    assert [entry[2] for entry in unserved(plan)] == ["budget"]
    huge = running(
        chat(10.0), gpu("gpu", "chat", count=10**12), gpu("gpu", "chat", count=10**12)
    )
    assert sizes([tick(huge)[0]]) == [MAX_REPLICAS]
    another = replace(
        huge, services=(*huge.services, a_service("late", rate_rps=100.0))
    )
    nearly = running(another, gpu("gpu", "chat", count=MAX_REPLICAS - 1))
    assert sizes([tick(nearly)[0]]) == [MAX_REPLICAS]


# Random problems.


def saturation(problem: Problem, plan: Plan, service: str) -> float:
    """Rate over capacity, by the capacity law that is written apart from the policy's."""
    capacity = sum(
        gpu.count * capacity_rps(problem, gpu, index)
        for gpu in plan.gpus
        for index, replica in enumerate(gpu.replicas)
        if replica.service == service
    )
    return problem.service(service).arrival_rate_rps / capacity if capacity else 0.0


@pytest.mark.parametrize("seed", seeds(8))
def test_from_the_start_whatever_is_served_stays_below_the_threshold_while_gpus_last(
    seed: int,
) -> None:
    problem = random_problem(seed, gpus=40)
    plan, _, _ = tick(problem)
    limited = {entry.service for entry in plan.unserved} | {
        each.name for each in problem.services if each.max_replicas is not None
    }
    assert len(limited) < len(problem.services)
    for service in problem.services:
        now = saturation(problem, plan, service.name)
        assert service.name in limited or now <= 0.8 * (1 + 1e-6)


@pytest.mark.parametrize("seed", seeds(6))
def test_a_day_of_changing_load_restarts_nothing_that_runs(seed: int) -> None:
    """Between two ticks a service either gains replicas or loses one, and nothing else."""
    base, memory, before = random_problem(seed, gpus=30), None, Plan(policy="none")
    for number, factor in enumerate(
        (1.0, 1.6, 1.6, 1.6, 0.5, 0.5, 0.5, 0.5, 0.5, 1.2, 1.2, 1.2)
    ):
        problem = replace(with_rates(base, factor), current=before)
        plan, _, memory = tick(problem, at_s=30.0 * number, memory=memory)
        for service in base.services:
            old, new = (
                {
                    key: count
                    for key, count in replica_counts(each).items()
                    if key[0] == service.name
                }
                for each in (before, plan)
            )
            gone = sum(max(0, count - new.get(key, 0)) for key, count in old.items())
            come = sum(max(0, count - old.get(key, 0)) for key, count in new.items())
            assert gone <= 1 and not (gone and come)
        before = plan


@settings(max_examples=examples(25), derandomize=True)
@given(planned_problems())
def test_every_tick_is_lawful_and_the_order_of_the_input_changes_nothing(
    case: tuple[Problem, Plan],
) -> None:
    problem, drawn = case
    turned = {
        "services": problem.services[::-1],
        "gpu_types": problem.gpu_types[::-1],
        "points": tuple(
            replace(each, rows=each.rows[::-1]) for each in problem.points[::-1]
        ),
    }
    for start in (None, drawn):
        current, memory = start, None
        for number, factor in enumerate((1.0, 0.2, 0.2, 1.0, 1.0)):
            posed = replace(with_rates(problem, factor), current=current)
            at_s = 45.0 * number
            other = {"services": posed.services[::-1]}
            plan, report, remembered = tick(posed, at_s=at_s, memory=memory)
            assert tick(posed, at_s=at_s, memory=memory, seed=7) == (
                plan,
                report,
                remembered,
            )
            assert (
                tick(replace(posed, **turned | other), at_s=at_s, memory=memory)[0]
                == plan
            )  # type: ignore[arg-type]
            current, memory = plan, remembered


@pytest.mark.seeded
def test_nothing_starts_while_the_rates_stay() -> None:
    for seed in range(tried(6)):
        problem = random_problem(seed, gpus=30)
        first, _, memory = tick(problem)
        for number in range(1, 6):
            later, _, memory = tick(
                replace(problem, current=first), at_s=15.0 * number, memory=memory
            )
            assert started(first, later) == 0
