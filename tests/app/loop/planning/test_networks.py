"""Variants in the loop's half: `joint` gets a problem with the cheapest network, others with the one that is named."""

import asyncio
from dataclasses import replace

import pytest
from pydantic import ValidationError

from app.loop.make_problem import PlannedPoints, make_problem
from app.loop.plan import Decision, decide
from app.loop.planning.networks import describe_variants, networks_of, running_networks
from app.manifests import objects as manifests
from app.manifests.to_types import to_service
from app.solver.inline import InlineSolver
from app.store.store import PolicyGroup, PolicySettings
from solvers.types.plan import BoundPlan
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import ClusterState, Demand, Observed, Service, Variant
from tests.app.fleets import POINTS, SETTINGS, a_service
from tests.app.snapshots import a_bound_plan, a_replica, a_snapshot, a_state

# On half a GPU of 2 USD per hour `net` takes 10 ms and 4000 MiB; `lite` half of that on the same half.
LITE = replace(
    POINTS,
    network="lite",
    rows=tuple(
        row._replace(run_ms=row.run_ms / 2.0, memory_mib=1000.0) for row in POINTS.rows
    ),
)
BOTH: tuple[OperatingPoints, ...] = (POINTS, LITE)
VARIANTS = (Variant(network="net", accuracy=0.8), Variant(network="lite", accuracy=0.7))
DEMANDS = (Demand(service="chat", arrival_rate_rps=100.0),)
"""Of either network more than one half GPU carries."""


def chat(*, floor: float = 0.0) -> Service:
    return replace(a_service(), variants=VARIANTS, accuracy_floor=floor)


def problem_of(
    *services: Service,
    settings: PolicySettings = SETTINGS,
    target: BoundPlan | None = None,
) -> Problem:
    return make_problem(
        a_state(services=services), BOTH, DEMANDS, settings, target=target
    )


def network_in(problem: Problem) -> str:
    return problem.service("chat").network


def test_joint_gets_the_cheapest_network_above_the_floor() -> None:
    assert network_in(problem_of(chat())) == "lite"
    assert network_in(problem_of(chat(floor=0.75))) == "net"
    assert network_in(problem_of(a_service())) == "net"


@pytest.mark.parametrize(
    ("policy", "of_group", "network"),
    [("hetsev", None, "net"), ("joint", "hetsev", "net"), ("hetsev", "joint", "lite")],
)
def test_other_policies_serve_what_the_service_names(
    policy: str, of_group: str | None, network: str
) -> None:
    settings = replace(SETTINGS, policy=policy)
    if of_group is not None:
        group = PolicyGroup(name="web", policy=of_group, projects=("default",))
        settings = replace(settings, groups=(group,))
    assert network_in(problem_of(chat(), settings=settings)) == network


def test_the_problem_keeps_the_points_of_all_variants() -> None:
    assert {entry.network for entry in problem_of(chat()).points} == {"net", "lite"}
    assert {entry.network for entry in problem_of(a_service()).points} == {"net"}
    assert networks_of([chat(), a_service("b")]) == {"net", "lite"}


def test_planned_times_are_those_of_all_variants() -> None:
    group_sigma = {("lite", "fast"): (0.5, 0.5)}
    snapshot = replace(
        a_snapshot(state=a_state(services=[chat()])),
        points=BOTH,
        latency_sigma=group_sigma,  # type: ignore[arg-type]
    )
    planned = {entry.network: entry for entry in PlannedPoints().of(snapshot)}
    assert planned["lite"].rows[0].run_ms > LITE.rows[0].run_ms
    assert planned["net"] == POINTS


def test_what_serves_is_what_carries_most_of_the_rate() -> None:
    old, new = (
        a_replica("a", rate_rps=5.0),
        replace(a_replica("b", rate_rps=20.0), network="lite"),
    )
    assert running_networks(a_bound_plan([old], [new])) == {"chat": "lite"}
    assert running_networks(None) == {}


def test_what_serves_goes_on_where_little_would_be_saved() -> None:
    slower = replace(
        LITE, rows=tuple(row._replace(run_ms=0.95 * row.run_ms) for row in POINTS.rows)
    )
    near = a_bound_plan([a_replica("a", rate_rps=100.0)])
    state = a_state(services=[chat()])
    for target, network in ((near, "net"), (None, "lite")):
        found = make_problem(state, (POINTS, slower), DEMANDS, SETTINGS, target=target)
        assert network_in(found) == network


def test_the_report_says_which_variant_serves_and_what_the_others_would_cost() -> None:
    (words,) = describe_variants(problem_of(chat()), [chat()], SETTINGS)
    assert words.startswith("chat: served by lite (accuracy 0.7), for about $")
    assert "; net (accuracy 0.8) would cost $" in words
    assert describe_variants(problem_of(a_service()), [a_service()], SETTINGS) == ()


def decided(state: ClusterState, target: BoundPlan | None) -> Decision:
    problem = make_problem(state, BOTH, DEMANDS, SETTINGS, target=target)
    return asyncio.run(
        decide(
            InlineSolver(),
            problem,
            state,
            Observed(at_s=0.0),
            settings=SETTINGS,
            target=target,
            memory=None,
            promises_may_break=False,
        )
    )


def test_a_switch_starts_the_new_network_before_it_stops_the_old_one() -> None:
    first = decided(a_state(services=[chat(floor=0.75)]), None)
    assert first.bound is not None
    assert {
        replica.network for gpu in first.bound.gpus for replica in gpu.replicas
    } == {"net"}
    second = decided(a_state(services=[chat()]), first.bound)
    assert second.bound is not None
    replicas = {
        replica.id: replica.network
        for gpu in second.bound.gpus
        for replica in gpu.replicas
    }
    assert set(replicas.values()) == {"lite"}
    assert replicas.keys().isdisjoint(
        replica.id for gpu in first.bound.gpus for replica in gpu.replicas
    )
    assert {step.mode for step in second.steps} == {"shadow"}
    assert any(
        message.startswith("chat: served by lite") for message in second.report.messages
    )


def a_manifest(**spec: object) -> manifests.ServiceManifest:
    body = {"network": "net", "slo": {"latency_ms": 100.0}, **spec}
    return manifests.ServiceManifest.model_validate(
        {"kind": "Service", "metadata": {"name": "chat"}, "spec": body}
    )


def test_a_manifest_states_variants_with_its_own_network_among_them() -> None:
    stated = [{"network": each.network, "accuracy": each.accuracy} for each in VARIANTS]
    service = to_service(a_manifest(variants=stated, accuracy_floor=0.75))
    assert (service.variants, service.accuracy_floor) == (VARIANTS, 0.75)
    assert to_service(a_manifest()).variants == ()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"variants": [{"network": "lite", "accuracy": 0.7}]},
            "must include net, with its accuracy",
        ),
        (
            {"variants": [{"network": "net", "accuracy": 0.7}] * 2},
            "have the same network twice",
        ),
        ({"accuracy_floor": 0.5}, "applies only to variants; leave it out without"),
        (
            {"variants": [{"network": "net", "accuracy": 0.7}], "accuracy_floor": 0.8},
            "net has 0.7; take a network above the floor, or lower it",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    spec: dict[str, object], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        a_manifest(**spec)
