"""Policy `inss`: what stays when rates change, when it provisions again, and by whom."""

import json
from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.check_report import report_violations
from solvers.papers.inss.greedy_provisioning import provision_greedily
from solvers.papers.inss.policy import moved_share
from solvers.papers.inss.provisioning import (
    BatchDecider,
    Provisioned,
    ProvisioningRules,
    Settled,
    Share,
    lawful,
)
from solvers.papers.inss.training.actor import actor_to_bytes
from solvers.policies.registry import policy
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import Json, Observed, ServiceObservation
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    with_rates,
)
from tests.solvers.papers.inss.actors import random_actor

NOW = Observed(at_s=0.0)
TWO = (a_type(count=2),)
BATCHES = tuple(
    a_row(
        percent,
        batch * 1000.0 / percent,
        batch=batch,
        memory_mib=3000.0 + 1000.0 * batch,
    )
    for percent in (50.0, 100.0)
    for batch in (1, 4)
)
"""Batch 1 takes 20 ms on half a GPU and 10 ms on a whole one, batch 4 four times as long."""


def decide(
    problem: Problem,
    memory: Json = None,
    *,
    name: str = "inss",
    observed: Observed = NOW,
    seed: int = 0,
) -> tuple[Plan, PlanReport, Json]:
    plan, report, memory = policy(name).make_plan(
        problem, observed, memory, Budget(seed=seed)
    )
    assert plan.policy == name
    assert report_violations(problem, plan, report) == ()
    return plan, report, json.loads(json.dumps(memory))


def shares(plan: Plan) -> list[tuple[str, list[tuple[str, float]]]]:
    return sorted(
        (
            gpu.gpu_type,
            sorted((replica.service, replica.sm_percent) for replica in gpu.replicas),
        )
        for gpu in plan.gpus
        for _ in range(gpu.count)
    )


def batches(plan: Plan) -> list[int]:
    return sorted(replica.batch for gpu in plan.gpus for replica in gpu.replicas)


def test_one_service_gets_a_share_and_the_batch_that_carries_most() -> None:
    # SLO 200 ms. On half a GPU batch 4 takes 80 ms: 4 / 80 ms · 0.8 = 40/s; batch 1 takes 20 ms: 50 · 0.5 = 25/s.
    problem = a_problem(
        a_service(rate_rps=30.0, slo_ms=200.0), types=(a_type(count=1),), rows=BATCHES
    )
    plan, report, _ = decide(problem)
    assert violations(problem, plan) == ()
    assert batches(plan) == [4]
    assert plan.unserved == ()
    assert report.messages[0] == "batches do not suffice for chat"


def test_a_rate_that_batches_can_serve_moves_nothing() -> None:
    problem = a_problem(a_service(rate_rps=30.0, slo_ms=200.0), types=TWO, rows=BATCHES)
    first, _, memory = decide(problem)
    again, report, remembered = decide(with_rates(problem, 1.2), memory)
    assert shares(again) == shares(first)
    assert report.status == "kept"
    assert report.messages == ("batches: what is provisioned serves all rates",)
    assert remembered == {**memory, "short_since_s": None}
    assert sum(
        gpu.replicas[0].arrival_rate_rps for gpu in again.gpus for _ in range(gpu.count)
    ) == pytest.approx(36.0)


def test_batches_shrink_at_once_where_the_slo_gets_tighter() -> None:
    # 90 ms: batch 4 on half a GPU (80 ms, twice that is over 90) is out, batch 1 (20 ms) stays.
    problem = a_problem(
        a_service(rate_rps=10.0, slo_ms=200.0),
        types=(a_type(count=1),),
        rows=BATCHES[:2],
    )
    _, _, memory = decide(problem)
    tighter = replace(problem, services=(a_service(rate_rps=10.0, slo_ms=90.0),))
    plan, report, _ = decide(tighter, memory)
    assert report.status == "kept"
    assert batches(plan) == [1]


def test_a_rate_that_no_batch_serves_is_provisioned_anew() -> None:
    problem = a_problem(
        a_service(rate_rps=60.0, slo_ms=200.0), types=TWO, rows=BATCHES[:2]
    )
    plan, report, _ = decide(
        problem, {"version": 1, "gpus": [["gpu", [["chat", 50.0]]]]}
    )
    # One half carries 40/s, two halves on two GPUs 80/s.
    assert len(shares(plan)) == 2
    assert plan.unserved == ()
    assert report.status != "kept"


def test_under_1e_a_network_stays_on_one_gpu() -> None:
    problem = a_problem(
        a_service(rate_rps=60.0, slo_ms=200.0), types=TWO, rows=BATCHES[:2]
    )
    plan, _, _ = decide(problem, name="inss_1e")
    assert len(shares(plan)) == 1
    assert plan.unserved[0].rate_rps == pytest.approx(20.0, rel=1e-6)


def test_nothing_moves_for_less_than_a_clear_gain() -> None:
    # The whole fleet carries 80/s. At 100/s no provision is better than the present one.
    problem = a_problem(
        a_service(rate_rps=60.0, slo_ms=200.0), types=TWO, rows=BATCHES[:2]
    )
    first, _, memory = decide(problem)
    over = a_problem(
        a_service(rate_rps=100.0, slo_ms=200.0), types=TWO, rows=BATCHES[:2]
    )
    plan, report, remembered = decide(replace(over, current=first), memory)
    assert shares(plan) == shares(first)
    assert report.status == "kept"
    assert (
        report.messages[-1] == "no provision serves clearly more than the present one"
    )
    # At a rate like that it is not looked for again; at another one it is.
    _, report, remembered = decide(
        replace(with_rates(over, 1.02), current=first), remembered
    )
    assert report.messages == (
        "no provision served clearly more when rates were last like these",
    )
    _, report, _ = decide(replace(with_rates(over, 1.2), current=first), remembered)
    assert (
        report.messages[-1] == "no provision serves clearly more than the present one"
    )


WORDS_OF_TRIED = ("no provision served clearly more when rates were last like these",)


def overloaded() -> Problem:
    """One GPU; batch 4 on the whole of it carries 4 / 40 ms · 0.8 = 80 rps of 200."""
    return a_problem(
        a_service(rate_rps=200.0, slo_ms=200.0), types=(a_type(count=1),), rows=BATCHES
    )


def test_gpus_that_come_are_used_although_rates_stay() -> None:
    _, _, memory = decide(overloaded())
    plan, report, memory = decide(overloaded(), memory)
    assert report.messages == WORDS_OF_TRIED
    assert [entry.rate_rps for entry in plan.unserved] == [pytest.approx(120.0)]
    more = replace(overloaded(), gpu_types=(a_type(count=6),))
    plan, report, _ = decide(more, memory)
    assert violations(more, plan) == ()
    assert (plan.unserved, report.messages != WORDS_OF_TRIED) == ((), True)


def changed_service(**changes: object) -> Problem:
    return replace(
        overloaded(), services=(replace(overloaded().services[0], **changes),)
    )  # type: ignore[arg-type]


def changed_points(**changes: object) -> Problem:
    return replace(overloaded(), points=(replace(overloaded().points[0], **changes),))  # type: ignore[arg-type]


def slower(factor: float) -> Problem:
    return changed_points(rows=tuple(row.slower(factor) for row in BATCHES))


@pytest.mark.parametrize(
    "changed",
    [
        changed_service(slo_ms=210.0),
        changed_service(priority=2.0),
        changed_service(max_replicas=5),
        changed_service(allowed_gpu_types=("gpu",)),
        replace(
            overloaded(),
            services=(a_service("new", slo_ms=200.0), *overloaded().services),
        ),
        replace(overloaded(), gpu_types=(a_type(count=1, memory_mib=20_000.0),)),
        replace(overloaded(), max_replicas_per_gpu=3),
        changed_points(rows=(*BATCHES, a_row(25.0, 40.0))),
        changed_points(sensitivity=0.1),
        slower(0.9),
    ],
    ids=[
        "slo",
        "priority",
        "limit",
        "types",
        "service",
        "memory",
        "replicas",
        "rows",
        "sensitivity",
        "times",
    ],
)
def test_whatever_proposals_depend_on_makes_them_be_looked_for_again(
    changed: Problem,
) -> None:
    _, _, memory = decide(overloaded())
    assert decide(overloaded(), memory)[1].messages == WORDS_OF_TRIED
    assert decide(changed, memory)[1].messages != WORDS_OF_TRIED


def test_a_trained_actor_and_another_seed_are_asked_although_rates_stay() -> None:
    problem = overloaded()
    _, _, memory = decide(problem)
    _, report, after = decide(problem, memory, observed=with_actor(problem))
    assert not any(line.startswith("no actor") for line in report.messages)
    assert report.messages != WORDS_OF_TRIED
    assert (
        decide(problem, after, observed=with_actor(problem))[1].messages
        == WORDS_OF_TRIED
    )
    assert decide(problem, memory, seed=1)[1].messages != WORDS_OF_TRIED


def test_times_that_are_learned_a_little_better_are_no_change() -> None:
    _, _, memory = decide(overloaded())
    assert decide(slower(1.03), memory)[1].messages == WORDS_OF_TRIED
    assert (
        decide(changed_points(rows=BATCHES[::-1]), memory)[1].messages == WORDS_OF_TRIED
    )


def test_what_moves_must_gain_a_tenth_of_what_it_is_worth() -> None:
    held, half, other = (
        Settled(provision=provision, batches=(), carried_rps={})
        for provision in (
            (Provisioned("gpu", (Share("a", 50.0), Share("b", 50.0))),),
            (
                Provisioned("gpu", (Share("a", 50.0), Share("b", 25.0))),
                Provisioned("gpu", (Share("a", 50.0),)),
            ),
            (Provisioned("other", (Share("a", 50.0), Share("b", 50.0))),),
        )
    )
    # One of two replicas has another SM percent; on another GPU type both are moved; what is added moves nothing.
    assert [moved_share(held, one) for one in (held, half, other)] == [0.0, 0.5, 1.0]
    assert moved_share(Settled(provision=(), batches=(), carried_rps={}), held) == 0.0


def test_a_lost_gpu_is_provisioned_for() -> None:
    problem = a_problem(a_service(rate_rps=60.0, slo_ms=200.0), types=TWO, rows=BATCHES)
    _, _, memory = decide(problem)
    one = replace(problem, gpu_types=(a_type(count=1),))
    plan, _, _ = decide(one, memory)
    assert violations(one, plan) == ()
    assert len(shares(plan)) == 1


def test_replicas_that_must_run_do_although_nothing_is_asked() -> None:
    problem = a_problem(
        a_service(rate_rps=0.0, min_replicas=2, slo_ms=200.0), types=TWO, rows=BATCHES
    )
    plan, _, _ = decide(problem)
    assert sum(gpu.count * len(gpu.replicas) for gpu in plan.gpus) == 2
    assert plan.unserved == ()


# ---- the actor ----


def with_actor(problem: Problem) -> Observed:
    return Observed(at_s=0.0, actor=actor_to_bytes(random_actor(problem, seed=1)))


def actors_problem() -> Problem:
    """Two networks on two GPUs."""
    services = (
        a_service("one", rate_rps=20.0, slo_ms=200.0),
        a_service("two", rate_rps=5.0, slo_ms=300.0),
    )
    problem = a_problem(*services, types=TWO, rows=BATCHES)
    other = OperatingPoints(
        network="other", gpu_type="gpu", sensitivity=0.0, rows=BATCHES
    )
    renamed = (services[0], replace(services[1], network="other"))
    return replace(problem, services=renamed, points=(*problem.points, other))


def test_a_valid_actor_speaks_first() -> None:
    problem = actors_problem()
    plan, report, _ = decide(problem, observed=with_actor(problem))
    assert violations(problem, plan) == ()
    assert any("the actor provisioned (a test)" in line for line in report.messages)
    assert not any("no actor" in line for line in report.messages)


def test_an_actor_of_another_fleet_is_refused_and_named() -> None:
    problem = actors_problem()
    observed = with_actor(replace(problem, gpu_types=(a_type(count=5),)))
    plan, report, _ = decide(problem, observed=observed)
    refused = next(line for line in report.messages if line.startswith("no actor"))
    assert "5 × gpu" in refused
    assert "2 × gpu" in refused
    assert plan.unserved == ()


def test_an_actor_of_other_services_is_refused() -> None:
    problem = actors_problem()
    observed = with_actor(problem)
    stranger = replace(problem, services=(replace(problem.services[0], slo_ms=150.0),))
    _, report, _ = decide(stranger, observed=observed)
    assert any("no net with 150 ms" in line for line in report.messages)


def test_some_of_the_actors_services_are_enough() -> None:
    problem = actors_problem()
    few = replace(problem, services=problem.services[:1])
    _, report, _ = decide(few, observed=with_actor(problem))
    assert any("the actor provisioned" in line for line in report.messages)


def test_bytes_that_are_no_actor_are_refused_with_a_remedy() -> None:
    problem = actors_problem()
    _, report, _ = decide(problem, observed=Observed(at_s=0.0, actor=b"nonsense"))
    assert any("plimsoll policy train inss" in line for line in report.messages)


# ---- provisions ----


def test_a_provision_keeps_what_may_still_be() -> None:
    problem = a_problem(a_service(rate_rps=1.0), types=(a_type(count=1),))
    decider = BatchDecider(problem=problem, rules=ProvisioningRules())
    held = (
        Provisioned("gpu", (Share("chat", 50.0), Share("gone", 50.0))),
        Provisioned("gpu", (Share("chat", 100.0),)),
        Provisioned("lost", (Share("chat", 50.0),)),
    )
    # One GPU is in stock, and the fuller one stays; `gone` and the type `lost` are not known.
    assert lawful(decider, held) == (Provisioned("gpu", (Share("chat", 100.0),)),)


def test_greedy_gives_the_least_share_that_serves_and_then_what_is_free() -> None:
    # 40 rps need half a GPU (50 · 0.5 = 25 is too little: 100 · 0.5 = 50 needs the whole one).
    problem = a_problem(a_service(rate_rps=40.0), types=(a_type(count=1),))
    settled = provision_greedily(
        BatchDecider(problem=problem, rules=ProvisioningRules())
    )
    assert settled.provision == (Provisioned("gpu", (Share("chat", 100.0),)),)
    assert settled.carried_rps == {"chat": pytest.approx(100.0)}


def test_a_measured_backlog_counts_in_the_batch_decision() -> None:
    problem = a_problem(
        a_service(rate_rps=30.0, slo_ms=200.0),
        types=(a_type(count=1),),
        rows=BATCHES[:2],
    )
    _, _, memory = decide(problem)
    late = ServiceObservation(
        service="chat",
        arrival_rate_rps=30.0,
        served_rps=25.0,
        latency_ms=260.0,
        attainment=0.8,
        age_s=1.0,
    )
    plan, _, _ = decide(problem, memory, observed=Observed(at_s=0.0, readings=(late,)))
    assert batches(plan) == [4]
    assert violations(problem, plan) == ()
