"""The checker: the contract's worked example, and every mutation of every rule of a valid plan."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from solvers.check import violations
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, Unserved
from solvers.types.problem import OperatingPoints, Problem, ServiceDemand
from solvers.types.state import GpuType
from tests.examples import examples
from tests.solvers.instances import replica_on
from tests.solvers.small_plans import capacity_rps, example, planned_problems

Case = tuple[Problem, Plan]

A_BIT = 1e-5
"""Ten times the relative tolerance: must be seen."""
A_TRIFLE = 1e-7
"""A tenth of the relative tolerance: must be forgiven."""


def rules(problem: Problem, plan: Plan) -> set[str]:
    return {violation.rule for violation in violations(problem, plan)}


def with_type(
    problem: Problem, name: str, change: Callable[[GpuType], GpuType]
) -> Problem:
    types = tuple(
        change(each) if each.name == name else each for each in problem.gpu_types
    )
    return replace(problem, gpu_types=types)


def with_service(
    problem: Problem, name: str, change: Callable[[ServiceDemand], ServiceDemand]
) -> Problem:
    return replace(
        problem,
        services=tuple(
            change(each) if each.name == name else each for each in problem.services
        ),
    )


def with_points(
    problem: Problem, change: Callable[[OperatingPoints], OperatingPoints]
) -> Problem:
    return replace(problem, points=tuple(change(each) for each in problem.points))


def with_gpu(plan: Plan, index: int, **changes: object) -> Plan:
    gpus = list(plan.gpus)
    gpus[index] = replace(gpus[index], **changes)
    return replace(plan, gpus=tuple(gpus))


def with_replica(plan: Plan, gpu: int, index: int, **changes: object) -> Plan:
    replicas = list(plan.gpus[gpu].replicas)
    replicas[index] = replace(replicas[index], **changes)
    return with_gpu(plan, gpu, replicas=tuple(replicas))


class Spot(NamedTuple):
    """Where a valid plan with tight limits is changed so that it breaks one rule."""

    problem: Problem
    plan: Plan
    gpu: int
    replica: int

    @property
    def on_gpu(self) -> GpuPlan:
        return self.plan.gpus[self.gpu]

    @property
    def chosen(self) -> ReplicaPlan:
        return self.on_gpu.replicas[self.replica]

    def gpu_with(self, **changes: object) -> Case:
        return self.problem, with_gpu(self.plan, self.gpu, **changes)

    def replica_with(self, **changes: object) -> Case:
        changed = with_replica(self.plan, self.gpu, self.replica, **changes)
        return self.problem, changed

    def unserved_with(self, *entries: Unserved) -> Case:
        return self.problem, replace(self.plan, unserved=entries)


Mutation = Callable[[Spot], Case]


def sm_given_twice(at: Spot) -> Case:
    spare = 100.0 - sum(each.sm_percent for each in at.on_gpu.replicas)
    more = at.chosen.sm_percent + spare + 1e-3
    return at.replica_with(sm_percent=more)


def sm_beyond_all(at: Spot) -> Case:
    return at.replica_with(sm_percent=math.inf)


def less_memory(at: Spot) -> Case:
    def heavier(points: OperatingPoints) -> OperatingPoints:
        return replace(
            points,
            rows=tuple(
                row._replace(memory_mib=row.memory_mib * (1 + A_BIT))
                for row in points.rows
            ),
        )

    return with_points(at.problem, heavier), at.plan


def lower_power_cap(at: Spot) -> Case:
    def hungrier(points: OperatingPoints) -> OperatingPoints:
        return replace(
            points,
            rows=tuple(
                row._replace(power_w=row.power_w * (1 + 1e-3)) for row in points.rows
            ),
        )

    return with_points(at.problem, hungrier), at.plan


def clock_not_of_the_type(at: Spot) -> Case:
    return with_type(
        at.problem,
        at.on_gpu.gpu_type,
        lambda each: replace(each, clocks_mhz=(777.0,)),
    ), at.plan


def clock_off_by_a_hundredth(at: Spot) -> Case:
    return at.gpu_with(clock_mhz=at.on_gpu.clock_mhz + 0.01)


def clock_not_a_number(at: Spot) -> Case:
    return at.gpu_with(clock_mhz=math.nan)


def second_replica_on_the_gpu(at: Spot) -> Case:
    replicas = at.on_gpu.replicas
    return at.gpu_with(replicas=(*replicas, replicas[at.replica]))


def fewer_replicas_per_gpu(at: Spot) -> Case:
    return replace(
        at.problem, max_replicas_per_gpu=at.problem.max_replicas_per_gpu - 1
    ), at.plan


def fewer_replicas_per_service(at: Spot) -> Case:
    def fewer(service: ServiceDemand) -> ServiceDemand:
        assert service.max_replicas is not None
        return replace(service, max_replicas=service.max_replicas - 1)

    return with_service(at.problem, at.chosen.service, fewer), at.plan


def gpu_without_replicas(at: Spot) -> Case:
    return at.gpu_with(replicas=())


def type_not_allowed(at: Spot) -> Case:
    def barred(service: ServiceDemand) -> ServiceDemand:
        allowed = service.allowed_gpu_types or ()
        return replace(
            service,
            allowed_gpu_types=tuple(
                each for each in allowed if each != at.on_gpu.gpu_type
            ),
        )

    return with_service(at.problem, at.chosen.service, barred), at.plan


def unknown_type(at: Spot) -> Case:
    return at.gpu_with(gpu_type="abacus")


def one_gpu_fewer_in_stock(at: Spot) -> Case:
    def fewer(gpu_type: GpuType) -> GpuType:
        assert gpu_type.count is not None
        return replace(gpu_type, count=gpu_type.count - 1)

    return with_type(at.problem, at.on_gpu.gpu_type, fewer), at.plan


def one_gpu_more_in_use(at: Spot) -> Case:
    return at.gpu_with(count=at.on_gpu.count + 1)


def count_of_nothing(at: Spot) -> Case:
    return at.gpu_with(count=0)


def row_taken_away(at: Spot) -> Case:
    chosen = at.chosen
    wanted = (chosen.sm_percent, chosen.batch, at.on_gpu.clock_mhz)

    def without(points: OperatingPoints) -> OperatingPoints:
        if points.gpu_type != at.on_gpu.gpu_type:
            return points
        return replace(
            points, rows=tuple(row for row in points.rows if row[:3] != wanted)
        )

    return with_points(at.problem, without), at.plan


def network_without_points(at: Spot) -> Case:
    network = at.problem.service(at.chosen.service).network
    return replace(
        at.problem,
        points=tuple(each for each in at.problem.points if each.network != network),
    ), at.plan


def batch_without_a_row(at: Spot) -> Case:
    return at.replica_with(batch=3)


def sm_percent_off_the_step(at: Spot) -> Case:
    return at.replica_with(sm_percent=at.chosen.sm_percent - A_BIT)


def unknown_service(at: Spot) -> Case:
    return at.replica_with(service="nobody")


def rate_above_capacity(at: Spot) -> Case:
    rate_rps = capacity_rps(at.problem, at.on_gpu, at.replica) * (1 + A_BIT) + A_BIT
    return at.replica_with(arrival_rate_rps=rate_rps)


def rate_not_a_number(at: Spot) -> Case:
    return at.replica_with(arrival_rate_rps=math.nan)


def rate_endless(at: Spot) -> Case:
    return at.replica_with(arrival_rate_rps=math.inf)


def rate_below_nothing(at: Spot) -> Case:
    return at.replica_with(arrival_rate_rps=-1.0)


def more_to_serve(at: Spot) -> Case:
    def busier(service: ServiceDemand) -> ServiceDemand:
        return replace(
            service, arrival_rate_rps=service.arrival_rate_rps * (1 + A_BIT) + A_BIT
        )

    return with_service(at.problem, at.chosen.service, busier), at.plan


def more_replicas_wanted(at: Spot) -> Case:
    def wider(service: ServiceDemand) -> ServiceDemand:
        return replace(service, min_replicas=service.min_replicas + 1)

    return with_service(at.problem, at.chosen.service, wider), at.plan


def gpu_left_out(at: Spot) -> Case:
    return at.problem, replace(
        at.plan, gpus=at.plan.gpus[: at.gpu] + at.plan.gpus[at.gpu + 1 :]
    )


def unserved_of_nobody(at: Spot) -> Case:
    entry = Unserved(service="nobody", rate_rps=0.0, reason="slo")
    return at.problem, replace(at.plan, unserved=(*at.plan.unserved, entry))


def unserved_below_nothing(at: Spot) -> Case:
    entry = Unserved(service=at.chosen.service, rate_rps=-1.0, reason="slo")
    return at.unserved_with(entry)


def unserved_endless(at: Spot) -> Case:
    entry = Unserved(
        service=at.chosen.service,
        rate_rps=math.inf,
        reason="slo",
    )
    return at.unserved_with(entry)


def unserved_twice(at: Spot) -> Case:
    entry = Unserved(service=at.chosen.service, rate_rps=1000.0, reason="slo")
    return at.unserved_with(entry, entry)


ONE_RULE: tuple[tuple[Mutation, str], ...] = (
    (less_memory, "memory"),
    (lower_power_cap, "power"),
    (clock_not_of_the_type, "clock"),
    (fewer_replicas_per_gpu, "replicas"),
    (fewer_replicas_per_service, "replicas"),
    (type_not_allowed, "gpu_type"),
    (one_gpu_fewer_in_stock, "stock"),
    (row_taken_away, "point"),
    (network_without_points, "point"),
    (sm_percent_off_the_step, "point"),
    (rate_above_capacity, "capacity"),
    (rate_endless, "capacity"),
    (more_to_serve, "demand"),
    (more_replicas_wanted, "demand"),
    (gpu_left_out, "demand"),
    (unserved_of_nobody, "demand"),
    (unserved_below_nothing, "demand"),
    (unserved_endless, "demand"),
    (unserved_twice, "demand"),
)
"""Mutations that break this rule and no other."""

AMONG_OTHERS: tuple[tuple[Mutation, str], ...] = (
    (sm_given_twice, "sm"),
    (sm_beyond_all, "sm"),
    (clock_off_by_a_hundredth, "clock"),
    (clock_not_a_number, "clock"),
    (second_replica_on_the_gpu, "anti_affinity"),
    (gpu_without_replicas, "replicas"),
    (unknown_type, "gpu_type"),
    (one_gpu_more_in_use, "stock"),
    (count_of_nothing, "stock"),
    (batch_without_a_row, "point"),
    (unknown_service, "point"),
    (rate_not_a_number, "capacity"),
    (rate_below_nothing, "capacity"),
)
"""Mutations that cannot help breaking other rules too (no row lies off the clocks, for example)."""


def mutated(case: Case, mutate: Mutation, data: st.DataObject) -> Case:
    problem, plan = case
    gpu = data.draw(st.integers(0, len(plan.gpus) - 1), label="gpu")
    replica = data.draw(
        st.integers(0, len(plan.gpus[gpu].replicas) - 1), label="replica"
    )
    return mutate(Spot(problem, plan, gpu, replica))


@given(case=planned_problems())
@settings(max_examples=examples(60), derandomize=True)
def test_a_valid_plan_with_tight_limits_breaks_no_rule(case: Case) -> None:
    assert violations(*case) == ()


@pytest.mark.parametrize(("mutate", "rule"), ONE_RULE)
@given(case=planned_problems(), data=st.data())
@settings(max_examples=examples(12), derandomize=True)
def test_a_mutation_is_caught_under_the_one_rule_that_it_breaks(
    mutate: Mutation, rule: str, case: Case, data: st.DataObject
) -> None:
    assert rules(*mutated(case, mutate, data)) == {rule}


@pytest.mark.parametrize(("mutate", "rule"), AMONG_OTHERS)
@given(case=planned_problems(), data=st.data())
@settings(max_examples=examples(12), derandomize=True)
def test_a_mutation_is_caught_under_its_rule_among_others(
    mutate: Mutation, rule: str, case: Case, data: st.DataObject
) -> None:
    assert rule in rules(*mutated(case, mutate, data))


@given(case=planned_problems(), data=st.data())
@settings(max_examples=examples(12), derandomize=True)
def test_services_with_a_common_label_may_not_share_a_gpu(
    case: Case, data: st.DataObject
) -> None:
    problem, plan = case
    names = [each.name for each in problem.services]
    labelled = data.draw(st.sets(st.sampled_from(names), min_size=2), label="labelled")
    services = tuple(
        replace(
            each, anti_affinity=frozenset({"edge"} if each.name in labelled else ())
        )
        for each in problem.services
    )
    together = sum(
        max(0, len(labelled & {replica.service for replica in gpu.replicas}) - 1)
        for gpu in plan.gpus
    )
    found = violations(replace(problem, services=services), plan)
    assert {each.rule for each in found} == ({"anti_affinity"} if together else set())
    assert len(found) >= together


def test_every_rule_of_the_contract_has_a_mutation() -> None:
    contract = {
        "sm",
        "memory",
        "power",
        "clock",
        "anti_affinity",
        "replicas",
        "gpu_type",
        "stock",
        "point",
        "capacity",
    }
    assert {rule for _, rule in ONE_RULE + AMONG_OTHERS} == contract | {"demand"}


@given(case=planned_problems(), data=st.data())
@settings(max_examples=examples(30), derandomize=True)
def test_a_new_neighbour_breaks_the_capacity_of_a_replica_at_its_limit(
    case: Case, data: st.DataObject
) -> None:
    problem, plan = case
    gpu = data.draw(st.integers(0, len(plan.gpus) - 1), label="gpu")
    free = [
        each.name
        for each in problem.services
        if all(r.service != each.name for r in plan.gpus[gpu].replicas)
    ]
    at_limit = [
        i for i, each in enumerate(plan.gpus[gpu].replicas) if each.arrival_rate_rps > 0
    ]
    assume(free and any(_is_full(problem, plan.gpus[gpu], index) for index in at_limit))
    newcomer = replica_on(free[0], 20.0)
    assert "capacity" in rules(
        problem, with_gpu(plan, gpu, replicas=(*plan.gpus[gpu].replicas, newcomer))
    )


def _is_full(problem: Problem, gpu: GpuPlan, index: int) -> bool:
    return gpu.replicas[index].arrival_rate_rps > 0.999 * capacity_rps(
        problem, gpu, index
    )


@given(case=planned_problems())
@settings(max_examples=examples(30), derandomize=True)
def test_rounding_within_the_tolerance_is_forgiven(case: Case) -> None:
    problem, plan = case
    tight = replace(
        problem,
        gpu_types=tuple(
            replace(
                each,
                memory_mib=each.memory_mib * (1 - A_TRIFLE),
                power_cap_w=each.power_cap_w * (1 - A_TRIFLE),
                clocks_mhz=tuple(clock + 1e-4 for clock in each.clocks_mhz),
            )
            for each in problem.gpu_types
        ),
        services=tuple(
            replace(each, arrival_rate_rps=each.arrival_rate_rps * (1 + A_TRIFLE))
            for each in problem.services
        ),
    )
    assert violations(tight, plan) == ()


# The worked example of the contract's README: `chat` next to `camera` on `big`.
#   execution_ms = 0.2 + 1.0 · (1 + 0.1 · 2 + 0.1) + 18.67 · (1 + 0.8 · 0.2) = 23.1572
#   ratio        = 120 / 23.1572 = 5.18197;  ρ = 0.9 + 0.05 · (5.18197 − 5) / 5 = 0.90182
#   capacity     = 4000 / 23.1572 · 0.90182 = 155.774 rps
# `camera`: 0.1 + 0.5 · 1.3 + 3.33 · (1 + 0.5 · 0.25) = 4.49625 ms, ratio 13.34, ρ = 0.8, 177.926 rps
# `photo` alone on `small`: 5.6 ms, ratio 5.357, ρ = 0.70714, 126.276 rps
WORKED_CAPACITIES = ((0, 0, 126.276), (1, 0, 177.926), (1, 1, 155.774))


@pytest.mark.parametrize(("gpu", "replica", "capacity"), WORKED_CAPACITIES)
def test_the_worked_capacities_are_the_line_between_valid_and_not(
    gpu: int, replica: int, capacity: float
) -> None:
    problem, plan, _ = example()
    assert (
        rules(
            problem, with_replica(plan, gpu, replica, arrival_rate_rps=capacity - 1e-3)
        )
        == set()
    )
    assert rules(
        problem, with_replica(plan, gpu, replica, arrival_rate_rps=capacity + 1e-3)
    ) == {"capacity"}


def test_severities_split_promises_from_physics() -> None:
    problem, plan, _ = example()
    broken = with_replica(plan, 1, 0, batch=4, arrival_rate_rps=1e6)
    broken = replace(
        broken,
        gpus=(replace(broken.gpus[1], count=1, clock_mhz=1000.0, gpu_type="small"),),
    )
    severities = {
        violation.rule: violation.severity for violation in violations(problem, broken)
    }
    assert severities["clock"] == severities["point"] == "physical"
    assert severities["demand"] == "promise"


def test_a_shortfall_that_is_listed_as_unserved_breaks_nothing() -> None:
    problem, plan, _ = example()
    short = replace(
        plan,
        gpus=plan.gpus[1:],
        unserved=(Unserved(service="photo", rate_rps=120.0, reason="stock"),),
    )
    assert violations(problem, short) == ()
    wanting = with_service(problem, "photo", lambda each: replace(each, min_replicas=2))
    assert rules(wanting, short) == {"demand"}
    told = replace(short, unserved=(replace(short.unserved[0], replicas_missing=2),))
    assert violations(wanting, told) == ()


def test_a_violation_says_where_it_is() -> None:
    problem, plan, _ = example()
    (violation,) = violations(problem, with_replica(plan, 1, 1, arrival_rate_rps=200.0))
    assert violation.where == "gpus[1].replicas[1]"
    assert "200" in violation.detail and "155.774" in violation.detail
