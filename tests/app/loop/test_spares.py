"""Spares after a decision: what is pushed, what is kept, and what is dropped."""

from dataclasses import replace

import pytest
from _pytest.monkeypatch import MonkeyPatch

from app.loop import spares
from app.loop.make_commands import make_commands
from app.loop.plan import Decision
from app.loop.planning.reschedule import (
    AvoidedGpus,
    avoided_gpus,
    without_avoided,
)
from app.loop.spares import with_spares_of
from app.store.store import PolicyGroup, PolicySettings, Snapshot
from solvers.tick.spares import spares_of
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundGpu, BoundPlan, anonymous
from solvers.types.state import ClusterState, GpuId, Mode, Node, NodeId
from tests.app.fleets import a_service
from tests.app.snapshots import a_snapshot
from tests.solvers.factories import (
    PROBLEM,
    a_gpu,
    a_plan,
    bound_gpu,
)

GPU, OTHER = a_gpu(0), a_gpu(1)
TARGET = a_plan(bound_gpu(GPU, rate_rps=60.0))
OWNED = replace(
    PROBLEM,
    gpu_types=tuple(replace(each, paid_count=2) for each in PROBLEM.gpu_types),
)
STATE = ClusterState(
    gpu_types=OWNED.gpu_types,
    nodes=(Node(id=NodeId("n1")),),
    gpus=(GPU, OTHER),
    services=(a_service("web"),),
    tasks=(),
    catalogue_revision=1,
)


def decided(bound: BoundPlan | None, state: str = "proposed") -> Decision:
    return Decision(
        state=state,  # type: ignore[arg-type]
        plan=anonymous(TARGET),
        report=PlanReport(status="greedy", cost_usd_per_hour=1.0),
        bound=bound,
    )


def spared(
    decision: Decision,
    *,
    policy: str = "joint",
    target: BoundPlan | None = TARGET,
    avoided: AvoidedGpus | None = None,
) -> Decision:
    return with_spares_of(
        decision,
        OWNED,
        STATE,
        policy=policy,
        target=target,
        avoided=avoided or AvoidedGpus(),
    )


def test_a_new_plan_carries_a_spare_that_its_node_is_told_of() -> None:
    decision = spared(decided(replace(TARGET, generation=2, parent=1)))
    assert decision.bound is not None
    ((gpu, spare),) = spares_of(decision.bound)
    assert (gpu, spare.id, decision.bound.generation) == (OTHER.id, "web-g2-0", 2)
    (command,) = make_commands(decision.bound, STATE)
    told = {each.id: each.is_spare for each in command.gpus[1].replicas}
    assert told == {"web-g2-0": True}
    (route,) = command.routes
    assert route.arrival_rate_rps == 60.0


def test_a_spare_alone_makes_a_new_target_once() -> None:
    first = spared(decided(None, "kept"))
    assert first.bound is not None
    assert (first.state, first.bound.generation, first.bound.parent) == (
        "proposed",
        2,
        1,
    )
    again = spared(decided(None, "kept"), target=first.bound)
    assert (again.state, again.bound) == ("kept", None)
    assert anonymous(first.bound) == anonymous(TARGET)


@pytest.mark.parametrize("policy", ["k8s_hpa", "igniter", "nobody"])
def test_a_baseline_has_none(policy: str) -> None:
    decision = decided(TARGET)
    assert spared(decision, policy=policy) is decision


def test_a_baseline_ends_what_the_policy_before_it_left() -> None:
    first = spared(decided(None, "kept"))
    after = spared(decided(None, "kept"), target=first.bound, policy="k8s_hpa")
    assert after.state == "proposed"
    assert after.bound is not None
    assert spares_of(after.bound) == frozenset()


@pytest.mark.parametrize("state", ["refused", "lost"])
def test_a_plan_that_is_not_to_be_pushed_gets_none(state: str) -> None:
    decision = decided(None, state)
    assert spared(decision) is decision


def test_a_spare_that_does_not_start_on_a_gpu_leaves_it() -> None:
    first = spared(decided(None, "kept"))
    fails = {"web": {GpuId(OTHER.id)}}
    after = spared(
        decided(None, "kept"),
        target=first.bound,
        avoided=AvoidedGpus(failing=fails, closed=fails),
    )
    assert after.bound is not None
    assert spares_of(after.bound) == frozenset()
    assert [gpu.id for gpu in after.bound.gpus] == [GPU.id]


def test_a_spare_that_fails_leaves_its_gpu_to_the_replicas_of_its_service() -> None:
    first = spared(decided(None, "kept"))
    fails = AvoidedGpus(failing_spares={"web": {GpuId(OTHER.id)}})
    after = spared(decided(None, "kept"), target=first.bound, avoided=fails)
    assert after.bound is not None
    assert spares_of(after.bound) == frozenset()
    replicas = replace(TARGET, gpus=(*TARGET.gpus, bound_gpu(OTHER, rate_rps=1.0)))
    kept = without_avoided(replicas, fails)
    assert kept == replicas


def test_a_service_that_gets_no_new_spare_keeps_the_one_that_runs() -> None:
    avoided = AvoidedGpus(no_new_spares={"web"})
    new = spared(decided(None, "kept"), avoided=avoided)
    assert (new.state, new.bound) == ("kept", None)
    first = spared(decided(None, "kept"))
    assert first.bound is not None
    kept = spared(decided(None, "kept"), target=first.bound, avoided=avoided)
    assert (kept.state, kept.bound) == ("kept", None)
    following = replace(TARGET, generation=3, parent=2)
    pushed = spared(decided(following), target=first.bound, avoided=avoided)
    assert pushed.bound is not None
    assert spares_of(pushed.bound) == spares_of(first.bound)


def modes(
    policy: Mode = Mode.AUTO, *, service: Mode = Mode.AUTO, group: Mode = Mode.AUTO
) -> Snapshot:
    """Of the services chat and other; chat has that mode and group."""
    services = (replace(a_service("chat"), mode=service), a_service("other"))
    services = (replace(services[0], labels=(("tier", "gold"),)), services[1])
    grouped = PolicyGroup(
        name="gold", policy="joint", labels=(("tier", "gold"),), mode=group
    )
    return replace(
        a_snapshot(state=replace(STATE, services=services)),
        settings=PolicySettings(mode=policy, groups=(grouped,)),
    )


@pytest.mark.parametrize(
    ("snapshot", "without"),
    [
        (modes(), set()),
        (modes(service=Mode.APPROVE), {"chat"}),
        (modes(service=Mode.ADVISE), {"chat"}),
        (modes(group=Mode.APPROVE), {"chat"}),
        # The whole plan waits for the person anyway.
        (modes(Mode.APPROVE, service=Mode.ADVISE), set()),
    ],
    ids=["auto", "approve", "advise", "group", "all wait"],
)
def test_a_service_that_a_person_decides_on_gets_no_new_spare(
    snapshot: Snapshot, without: set[str]
) -> None:
    assert avoided_gpus(snapshot).no_new_spares == without


def test_what_the_checker_refuses_is_left_out(monkeypatch: MonkeyPatch) -> None:
    def too_large(*_: object, **__: object) -> BoundPlan:
        spare = replace(TARGET.gpus[0].replicas[0], id="x", sm_percent=60.0)
        return replace(
            TARGET,
            gpus=tuple(_with(gpu, spare) for gpu in (*TARGET.gpus, bound_gpu(OTHER))),
        )

    def _with(gpu: BoundGpu, spare: object) -> BoundGpu:
        return replace(gpu, spares=(spare,))  # type: ignore[arg-type]

    monkeypatch.setattr(spares, "with_spares", too_large)
    decision = spared(decided(TARGET))
    assert decision.bound is not None
    assert spares_of(decision.bound) == frozenset()
