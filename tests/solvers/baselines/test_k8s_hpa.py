"""The Kubernetes baseline: exclusive GPUs, seeded draws, nothing moves, the newest go first."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from solvers.baselines.k8s_hpa import KubernetesHpa, make_plan
from solvers.baselines.k8s_pods import PodOptions
from solvers.check import violations
from solvers.types.outcome import Budget
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType, Json, Observed, ServiceObservation
from tests.solvers.instances import gpu_plan, replica_on

# One batch of 1 takes 10 ms on `fast` and 20 ms on `slow`; at every ratio of at least 2 half of that may be used: 50
# and 25 rps, so that the target is 40 and 20 rps per replica.
LAW = CapacityLaw(
    percentiles=(0.98,),
    batches=(1, 2),
    slo_ratios=(2.0, 9.0),
    max_utilisation=(((0.5, 0.5), (0.4, 0.4)),),
)


def a_type(name: str, count: int | None) -> GpuType:
    return GpuType(
        name=name,
        price_usd_per_hour=1.0,
        memory_mib=16000.0,
        count=count,
        sm_percent_step=10.0,
        idle_w=30.0,
        power_cap_w=200.0,
        clocks_mhz=(1000.0,),
    )


def some_rows(ms: float) -> tuple[OperatingPoint, ...]:
    """Half and whole GPU at batch 1, and a whole GPU at a batch of 2 that pays less."""
    return (
        OperatingPoint(50.0, 1, 1000.0, 0.0, 0.0, 1.5 * ms, 4000.0, 60.0, 0.1),
        OperatingPoint(100.0, 1, 1000.0, 0.0, 0.0, ms, 4000.0, 90.0, 0.1),
        OperatingPoint(100.0, 2, 1000.0, 0.0, 0.0, 2 * ms, 4000.0, 90.0, 0.1),
    )


def a_problem(
    *,
    rate_rps: float,
    fast: int | None = None,
    slow: int | None = None,
    **service: object,
) -> Problem:
    demand = {
        "name": "chat",
        "network": "net",
        "slo_ms": 50.0,
        "percentile": 0.98,
        "arrival_rate_rps": rate_rps,
    }
    return Problem(
        max_replicas_per_gpu=4,
        capacity_law=LAW,
        gpu_types=(a_type("fast", fast), a_type("slow", slow)),
        services=(ServiceDemand(**demand | service),),  # type: ignore[arg-type]
        points=(
            OperatingPoints(
                network="net", gpu_type="fast", sensitivity=1.0, rows=some_rows(10.0)
            ),
            OperatingPoints(
                network="net", gpu_type="slow", sensitivity=1.0, rows=some_rows(20.0)
            ),
        ),
    )


def run(
    problem: Problem, *, rates_rps: list[float], seed: int = 0, period_s: float = 15.0
) -> list[Plan]:
    """The plans of consecutive periods; each becomes the current one, and the memory passes through JSON."""
    plans: list[Plan] = []
    memory: Json = None
    for period, rate_rps in enumerate(rates_rps):
        service = replace(problem.services[0], arrival_rate_rps=rate_rps)
        problem = replace(
            problem,
            services=(service,),
            current=plans[-1] if plans else problem.current,
        )
        plan, _, memory = make_plan(
            problem, Observed(at_s=period * period_s), memory, Budget(seed=seed)
        )
        assert violations(problem, plan) == ()
        memory = json.loads(json.dumps(memory))
        plans.append(plan)
    return plans


def types_of(plan: Plan) -> Counter[str]:
    counts: Counter[str] = Counter()
    for gpu in plan.gpus:
        counts[gpu.gpu_type] += gpu.count
    return counts


def test_each_replica_has_a_whole_gpu_at_its_best_batch() -> None:
    (plan,) = run(a_problem(rate_rps=0, slow=0), rates_rps=[100.0])
    # 100 rps over 40 are 3 replicas of 33.3 rps each; batch 2 would serve 1000 · 2 / 20 · 0.4 = 40 rps, less than 50.
    assert plan.gpus == (
        gpu_plan(
            replica_on("chat", 100.0, pytest.approx(100 / 3)), gpu_type="fast", count=3
        ),
    )


def test_types_are_drawn_by_seed_and_one_seed_gives_one_course() -> None:
    problem, rates = a_problem(rate_rps=0), [100.0, 300.0, 500.0, 900.0]
    courses = [
        [types_of(plan) for plan in run(problem, rates_rps=rates, seed=seed)]
        for seed in range(6)
    ]
    again = [types_of(plan) for plan in run(problem, rates_rps=rates, seed=3)]
    assert again == courses[3]
    assert len({tuple(sorted(course[-1].items())) for course in courses}) > 1
    assert all(course[-1]["fast"] and course[-1]["slow"] for course in courses)


def test_scale_down_waits_for_the_window_and_removes_the_newest() -> None:
    problem = a_problem(rate_rps=0)
    plans = run(problem, rates_rps=[60.0, 400.0, *[60.0] * 22], seed=2)
    first, largest = types_of(plans[0]), types_of(plans[1])
    assert (
        types_of(plans[20]) == largest
    )  # 300 s after the 400 rps of second 15 are not over at second 300.
    last = types_of(plans[-1])
    assert last < largest
    # The oldest are those of the first plan: it holds what is left, or is held by it.
    assert first <= last or last <= first


def test_rate_is_spread_evenly_up_to_each_replicas_capacity() -> None:
    problem = a_problem(rate_rps=120.0, fast=2, slow=2, max_replicas=4)
    current = Plan(policy="k8s_hpa", gpus=(whole_gpu("fast", 2), whole_gpu("slow", 2)))
    plan, _, _ = make_plan(
        replace(problem, current=current), Observed(at_s=0.0), None, Budget()
    )
    # An even 30 rps each is more than the 25 rps of a slow replica; the fast ones take 35.
    assert {
        gpu.gpu_type: gpu.replicas[0].arrival_rate_rps for gpu in plan.gpus
    } == pytest.approx({"fast": 35.0, "slow": 25.0})
    assert violations(replace(problem, current=current), plan) == ()


def whole_gpu(gpu_type: str, count: int) -> GpuPlan:
    replica = replica_on("chat", 100.0)
    return gpu_plan(replica, gpu_type=gpu_type, count=count)


@pytest.mark.parametrize(
    ("problem", "rate_rps", "reason", "missing"),
    [
        (a_problem(rate_rps=200.0, fast=2, slow=0), 100.0, "stock", 0),
        (a_problem(rate_rps=200.0, slow=0, max_replicas=3), 50.0, "replicas", 0),
        (a_problem(rate_rps=200.0, slo_ms=15.0, min_replicas=1), 200.0, "slo", 1),
        (a_problem(rate_rps=10.0, fast=1, slow=0, min_replicas=3), 0.0, "stock", 2),
    ],
)
def test_what_cannot_be_served_names_its_rule(
    problem: Problem, rate_rps: float, reason: str, missing: int
) -> None:
    plan, report, _ = make_plan(problem, Observed(at_s=0.0), None, Budget())
    assert [
        (entry.rate_rps, entry.reason, entry.replicas_missing)
        for entry in plan.unserved
    ] == [(pytest.approx(rate_rps), reason, missing)]
    assert violations(problem, plan) == ()
    assert bool(report.messages) == (reason == "stock")


def test_observed_rate_drives_the_metric() -> None:
    current = Plan(policy="k8s_hpa", gpus=(whole_gpu("fast", 2),))
    problem = replace(a_problem(rate_rps=60.0, slow=0), current=current)
    reading = ServiceObservation(
        service="chat",
        arrival_rate_rps=160.0,
        served_rps=100.0,
        latency_ms=None,
        attainment=None,
        age_s=1.0,
    )
    plan, _, _ = make_plan(
        problem, Observed(at_s=0.0, readings=(reading,)), None, Budget()
    )
    assert types_of(plan) == {"fast": 4}  # ceil(2 · (160 / 100) / 0.8)


def shared_in_halves(*, rates_rps: dict[str, list[float]]) -> list[Plan]:
    """The plans of consecutive periods where `chat` and `photo` get halves of fast GPUs."""
    pods = PodOptions(gpu_type="fast", parts=2, target=1.0, scale_down_s=0.0)
    policy = KubernetesHpa(pods={"chat": pods, "photo": pods})
    problem, plans = a_problem(rate_rps=0.0), list[Plan]()
    memory: Json = None
    chat = problem.services[0]
    for period, rates in enumerate(zip(*rates_rps.values(), strict=True)):
        services = tuple(
            replace(chat, name=name, arrival_rate_rps=rate_rps)
            for name, rate_rps in zip(rates_rps, rates, strict=True)
        )
        problem = replace(
            problem, services=services, current=plans[-1] if plans else None
        )
        plan, _, memory = policy.make_plan(
            problem, Observed(at_s=15.0 * period), memory, Budget()
        )
        broken = {violation.rule for violation in violations(problem, plan)}
        # Capacities are those without neighbours, which a target below 1 makes up for.
        assert broken <= {"capacity"}
        plans.append(plan)
    return plans


def shared_by(plan: Plan) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for gpu in plan.gpus:
        assert {replica.sm_percent for replica in gpu.replicas} == {50.0}
        counts[tuple(replica.service for replica in gpu.replicas)] += gpu.count
    return counts


def test_equal_parts_of_gpus_are_filled_before_another_gpu_is_begun() -> None:
    # Half a GPU takes 15 ms for a batch of 1: 33.3 rps, so that 60 rps are two replicas and 90 rps three.
    first, second = shared_in_halves(
        rates_rps={"chat": [60.0, 60.0], "photo": [30.0, 90.0]}
    )
    assert shared_by(first) == {("chat", "photo"): 1, ("chat",): 1}
    assert shared_by(second) == {("chat", "photo"): 2, ("photo",): 1}


def test_what_no_cluster_can_be_set_up_with_is_refused_by_name() -> None:
    for name, value in (("parts", 0), ("parts", 49), ("target", 80.0)):
        with pytest.raises(ValueError, match=name):
            PodOptions(**{name: value})  # type: ignore[arg-type]
