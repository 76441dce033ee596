"""One service per GPU: how many GPUs, what stays, what goes; `mudi`'s and `muxflow`'s plans."""

import json
import random
from dataclasses import replace

import pytest

from solvers.baselines.one_per_gpu import HOLD_S
from solvers.check import violations
from solvers.check_report import report_violations
from solvers.papers.mudi.policy import make_plan
from solvers.policies.registry import policy
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed
from tests.examples import seeds
from tests.solvers.instances import gpu_plan, random_problem, replica_on
from tests.solvers.training_beside import (
    A_TYPE,
    CLOCK_MHZ,
    a_problem,
    a_service,
)


def planned(
    problem: Problem, *, at_s: float = 0.0, memory: Json = None
) -> tuple[Plan, Json]:
    plan, report, after = make_plan(problem, Observed(at_s=at_s), memory, Budget())
    assert report_violations(problem, plan, report) == ()
    return plan, after


def running(*gpus: tuple[str, float, int]) -> Plan:
    """GPUs with (service, SM percent, batch)."""
    return Plan(
        policy="mudi",
        gpus=tuple(
            gpu_plan(replica_on(service, share, 1.0, batch=batch), clock_mhz=CLOCK_MHZ)
            for service, share, batch in gpus
        ),
    )


def replicas(plan: Plan) -> list[tuple[str, float, int]]:
    """The same of a plan, GPU by GPU."""
    found = []
    for gpu in plan.gpus:
        (replica,) = gpu.replicas
        found += [(replica.service, replica.sm_percent, replica.batch)] * gpu.count
    return sorted(found)


# A whole GPU carries 1000 · 4 / 11 = 363.6 rps with batch 4.
@pytest.mark.parametrize(
    ("rate_rps", "gpus"),
    [(0.0, 0), (1.0, 1), (363.0, 1), (364.0, 2), (1000.0, 3), (2900.0, 8)],
)
def test_each_service_gets_as_many_gpus_as_its_rate_needs(
    rate_rps: float, gpus: int
) -> None:
    problem = a_problem(a_service(rate_rps=rate_rps))
    plan, _ = planned(problem)
    assert replicas(plan) == [("web", 100.0, 4)] * gpus
    assert violations(problem, plan) == ()


def test_what_no_gpu_is_left_for_is_unserved() -> None:
    plan, _ = planned(a_problem(a_service(rate_rps=3000.0)))
    (entry,) = plan.unserved
    assert (entry.reason, entry.rate_rps) == (
        "stock",
        pytest.approx(3000.0 - 8 * 4000.0 / 11.0, rel=1e-6),
    )


def test_services_never_share_a_gpu_and_each_gets_one_before_any_a_second() -> None:
    types = (replace(A_TYPE, count=3),)
    services = (
        a_service("a", 1000.0, priority=2.0),
        a_service("b", 50.0),
        a_service("c", 50.0, network="slow"),
    )
    plan, _ = planned(a_problem(*services, gpu_types=types))
    assert [service for service, *_ in replicas(plan)] == ["a", "b", "c"]
    assert [entry.service for entry in plan.unserved] == ["a"]


def test_what_a_fill_has_tuned_stays_as_long_as_it_serves() -> None:
    # 30 % with batch 4 carry 109 rps alone, 40 % with batch 2 114.
    current = running(("web", 30.0, 4), ("web", 40.0, 2))
    plan, _ = planned(a_problem(a_service(rate_rps=220.0), current=current))
    assert replicas(plan) == [("web", 30.0, 4), ("web", 40.0, 2)]


def test_then_another_batch_does_it_if_it_can_and_then_the_whole_gpu() -> None:
    # With batch 4 the second carries 145 rps: 254 together. For 260 the first gets its whole GPU, 364 + 145.
    current = running(("web", 30.0, 4), ("web", 40.0, 2))
    plan, _ = planned(a_problem(a_service(rate_rps=250.0), current=current))
    assert replicas(plan) == [("web", 30.0, 4), ("web", 40.0, 4)]
    plan, _ = planned(a_problem(a_service(rate_rps=260.0), current=current))
    assert replicas(plan) == [("web", 40.0, 4), ("web", 100.0, 4)]


def test_a_gpu_goes_after_it_was_not_needed_for_a_minute() -> None:
    problem = a_problem(
        a_service(rate_rps=300.0), current=running(("web", 100.0, 4), ("web", 30.0, 4))
    )
    plan, memory = planned(problem, at_s=100.0)
    assert len(replicas(plan)) == 2
    plan, memory = planned(
        problem, at_s=100.0 + HOLD_S - 1.0, memory=json.loads(json.dumps(memory))
    )
    assert len(replicas(plan)) == 2
    plan, memory = planned(problem, at_s=100.0 + HOLD_S, memory=memory)
    assert replicas(plan) == [("web", 100.0, 4)]
    # 340 rps would leave less than a tenth of room: it is needed.
    busy = replace(problem, services=(a_service(rate_rps=340.0),))
    plan, memory = planned(
        busy, at_s=1000.0, memory={"version": 1, "surplus_since_s": {"web": 0.0}}
    )
    assert (len(replicas(plan)), memory) == (2, {"version": 1, "surplus_since_s": {}})


def test_least_and_most_replicas_are_kept() -> None:
    plan, _ = planned(a_problem(a_service(rate_rps=0.0, min_replicas=2)))
    assert len(replicas(plan)) == 2
    plan, _ = planned(a_problem(a_service(rate_rps=1000.0, max_replicas=1)))
    assert (len(replicas(plan)), plan.unserved[0].reason) == (1, "replicas")


@pytest.mark.parametrize("seed", seeds(16))
def test_plans_of_random_problems_break_no_rule_whatever_the_order(seed: int) -> None:
    problem = random_problem(seed)
    plan, memory = planned(problem)
    assert violations(problem, plan) == ()
    assert all(len(gpu.replicas) == 1 for gpu in plan.gpus)
    draw = random.Random(seed)
    services, points = (
        draw.sample(items, len(items)) for items in (problem.services, problem.points)
    )
    assert planned(
        replace(problem, services=tuple(services), points=tuple(points))
    ) == (plan, memory)
    again, _ = planned(replace(problem, current=plan))
    assert violations(replace(problem, current=plan), again) == ()
    assert {gpu.replicas[0].service for gpu in again.gpus} == {
        gpu.replicas[0].service for gpu in plan.gpus
    }


def test_muxflow_counts_by_half_the_slo_and_knows_no_queue() -> None:
    # Within half of 100 ms a whole GPU executes 364 rps: half the SLO is no limit here. The law of this problem agrees;
    # at an SLO of 20 ms a batch of 4 (11 ms) is too long, and batch 2 (7 ms) carries 285.7 rps.
    muxflow = policy("muxflow")
    for slo_ms, batch in ((100.0, 4), (20.0, 2)):
        problem = a_problem(a_service(rate_rps=200.0, slo_ms=slo_ms))
        plan, _, _ = muxflow.make_plan(problem, Observed(at_s=0.0), None, Budget())
        assert replicas(plan) == [("web", 100.0, batch)]
