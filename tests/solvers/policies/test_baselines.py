"""What all baselines of shared GPUs keep, whatever they believe: physical rules, honest figures, one answer."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.check_report import report_violations
from solvers.greedy.configure import MAX_REPLICAS
from solvers.policies.registry import policy
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed, ServiceObservation
from tests.examples import seeds
from tests.solvers.instances import (
    a_problem,
    a_service,
    a_type,
    random_problem,
    with_rates,
)
from tests.solvers.small_plans import example

NAMES = ("gpulets", "gslice", "igniter", "morak")
INSS = ("inss", "inss_1e", "inss_ni", "gpulets_bda")
PROMISING = {
    "hetsev",
    "hetsev_greedy",
    "k8s_hpa",
    "oltunes",
    "inss",
    "inss_1e",
    "gpulets_bda",
}
"""Their plans keep the capacity law, too."""
PERIODS = 5

every_baseline = pytest.mark.parametrize("name", NAMES)


def decide(
    name: str,
    problem: Problem,
    memory: Json = None,
    *,
    at_s: float = 0.0,
    readings: Sequence[ServiceObservation] = (),
) -> tuple[Plan, PlanReport, Json]:
    """One plan, which breaks no physical rule, lists what it does not serve, and reports what is true."""
    observed = Observed(at_s=at_s, readings=tuple(readings))
    plan, report, memory = policy(name).make_plan(problem, observed, memory, Budget())
    assert plan.policy == name
    broken = {entry.rule for entry in violations(problem, plan)}
    assert broken <= (set() if name in PROMISING else {"capacity"})
    assert report_violations(problem, plan, report) == ()
    return plan, report, json.loads(json.dumps(memory))


def some_readings(problem: Problem, draw: random.Random) -> list[ServiceObservation]:
    """Late ones, early ones, ones that cannot keep up."""
    return [
        ServiceObservation(
            service=service.name,
            arrival_rate_rps=service.arrival_rate_rps,
            served_rps=service.arrival_rate_rps * draw.choice((0.7, 1.0, 1.0)),
            latency_ms=draw.choice((None, service.slo_ms * draw.uniform(0.2, 1.5))),
            attainment=None,
            age_s=1.0,
        )
        for service in problem.services
    ]


def with_one_gpu_less(problem: Problem) -> Problem:
    fewer = (
        replace(each, count=max(0, (each.count or 0) - 1)) for each in problem.gpu_types
    )
    return replace(problem, gpu_types=tuple(fewer))


@pytest.mark.parametrize("name", [*NAMES, *INSS])
@pytest.mark.parametrize("seed", seeds(6))
def test_physical_rules_hold_through_changing_rates_and_lost_gpus(
    name: str, seed: int
) -> None:
    draw = random.Random(seed)
    services = 2 + seed % 4 if name in INSS else 4 + seed % 9
    problem = random_problem(
        seed, services=services, types=1 + seed % 3, gpus=1 + seed % 4
    )
    if seed % 5 == 0:
        problem = replace(problem, objective="max_goodput")
    memory: Json = None
    for period in range(PERIODS):
        readings = some_readings(problem, draw) if period else ()
        plan, _, memory = decide(
            name, problem, memory, at_s=120.0 * period, readings=readings
        )
        problem = replace(with_rates(problem, draw.uniform(0.7, 1.4)), current=plan)
        if period == PERIODS // 2:
            problem = with_one_gpu_less(problem)


@pytest.mark.parametrize("name", [*NAMES, "inss", "oltunes"])
@pytest.mark.parametrize("seed", seeds(2))
def test_the_order_of_what_a_problem_lists_changes_nothing(
    name: str, seed: int
) -> None:
    problem = random_problem(seed, services=6, types=2, gpus=2)
    turned = replace(
        problem,
        services=problem.services[::-1],
        gpu_types=problem.gpu_types[::-1],
        points=tuple(
            replace(each, rows=each.rows[::-1]) for each in problem.points[::-1]
        ),
    )
    assert decide(name, turned)[0] == decide(name, problem)[0]
    assert decide(name, problem) == decide(name, problem)


@pytest.mark.parametrize("name", [*NAMES, "hetsev_greedy"])
def test_nothing_to_serve_needs_no_gpu(name: str) -> None:
    assert decide(name, a_problem())[0] == Plan(policy=name)
    assert decide(name, a_problem(a_service(rate_rps=0.0)))[0] == Plan(policy=name)


@pytest.mark.parametrize("name", [*NAMES, "hetsev_greedy"])
def test_without_gpus_everything_is_unserved(name: str) -> None:
    (entry,) = decide(name, a_problem(a_service(rate_rps=7.0), types=()))[0].unserved
    assert (entry.service, entry.rate_rps, entry.reason) == ("chat", 7.0, "slo")


@every_baseline
def test_a_service_that_left_is_forgotten(name: str) -> None:
    both = a_problem(
        a_service("chat", rate_rps=40.0), a_service("photo", rate_rps=40.0)
    )
    plan, _, memory = decide(name, both)
    later, _, _ = decide(
        name, replace(both, services=both.services[:1], current=plan), memory, at_s=60.0
    )
    assert {replica.service for gpu in later.gpus for replica in gpu.replicas} == {
        "chat"
    }


@pytest.mark.parametrize(
    "name",
    [
        "gslice",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("gpulets", "igniter", "morak")
        ),
    ],
)
def test_figures_beyond_all_measure_end_at_the_most_replicas(name: str) -> None:
    problem = a_problem(a_service(rate_rps=1e12))
    plan, _, memory = decide(name, problem)
    assert sum(gpu.count * len(gpu.replicas) for gpu in plan.gpus) == MAX_REPLICAS
    assert [entry.reason for entry in plan.unserved] == ["budget"]
    huge = replace(plan, gpus=tuple(replace(gpu, count=10**12) for gpu in plan.gpus))
    later, _, _ = decide(name, replace(problem, current=huge), memory, at_s=60.0)
    assert sum(gpu.count for gpu in later.gpus) <= MAX_REPLICAS


MEMORIES: tuple[Json, ...] = (
    [],
    3,
    "junk",
    {"version": 99},
    {"version": 1, "services": {"chat": {"steps": "x"}}},
    {"version": 1, "services": {"chat": {"draws": "x"}}},
    {"version": 1, "services": {"chat": {"version": 9}}},
    {"version": 1, "services": 3},
    {"version": 1, "wider": 3},
    {"version": 1, "wider": {"chat": "x"}},
    {"version": 1, "consolidation_since_s": 9e9},
    {"version": 1, "surplus_since_s": {"chat": "x"}},
    {"version": 1, "gpus": [["gpu", [["chat"]], 4]]},
    {"version": 1, "gpus": [], "tried": {"chat": 30.0}},
    {"version": 1, "gpus": [], "tried": {"fingerprint": "", "rates_rps": 3}},
)


@pytest.mark.parametrize(
    "name", [*NAMES, *INSS, "hetsev", "hetsev_greedy", "k8s_hpa", "muxflow"]
)
def test_unknown_memory_starts_afresh(name: str) -> None:
    problem = a_problem(a_service(rate_rps=60.0), types=(a_type(count=4),))
    fresh = decide(name, problem)
    for memory in MEMORIES:
        assert decide(name, problem, memory) == fresh, memory


@pytest.mark.parametrize("name", [*NAMES, "hetsev_greedy", "k8s_hpa"])
def test_the_contracts_example_is_served_under_both_objectives(name: str) -> None:
    problem, _, _ = example()
    for objective in ("min_cost", "max_goodput"):
        counted = tuple(replace(gpu_type, count=4) for gpu_type in problem.gpu_types)
        plan, report, _ = decide(
            name, replace(problem, objective=objective, gpu_types=counted)
        )
        assert plan.unserved == ()
        assert (report.served_weight is None) == (objective == "min_cost")
