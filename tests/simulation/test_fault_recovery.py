"""How long faults are felt, and by whom: every service's attainment in steps of one period, and bounds on recovery.

Recovery time: from the fault until the first step from which on every service has its SLO's percentile again.
"""

from collections.abc import Mapping
from itertools import pairwise

import pytest

from agents.sim.load.load_balancer import DETECTION_S
from agents.sim.spec import Fault
from tests.simulation.scenes import LAUNCH_S, PERIOD_S, Scene, a_scene

PERCENTILE = 0.98
STALE_AFTER_S = 3 * PERIOD_S
"""After so long without a word a node counts as silent (`scenes`)."""
POLICIES = [
    "joint",
    *(pytest.param(name, marks=pytest.mark.thorough) for name in ("hetsev", "k8s_hpa")),
]
BEFORE_S = 40.0


def attainments(scene: Scene, service: str, since_s: float) -> Mapping[float, float]:
    """Share of finished requests in SLO of each step, by the step's beginning; 0 where none was served."""
    shares = {}
    for number, (first, last) in enumerate(pairwise(scene.counts), start=1):
        before, after = first[service], last[service]
        finished = after.served + after.rejected - before.served - before.rejected
        if number * PERIOD_S >= since_s:
            shares[number * PERIOD_S] = (after.in_slo - before.in_slo) / max(
                1, finished
            )
    return shares


def recovery_s(scene: Scene, fault_s: float) -> float:
    """Seconds from the fault to the first step from which on everybody is served as promised."""
    missed = [
        start_s
        for service in scene.counts[-1]
        for start_s, share in attainments(scene, service, fault_s - PERIOD_S).items()
        if share < PERCENTILE
    ]
    return max(missed, default=fault_s - PERIOD_S) + PERIOD_S - fault_s


def services_on(scene: Scene, node: str, gpu_index: int | None = None) -> set[str]:
    """Services of the target with a replica there."""
    gpus = [
        gpu
        for gpu in scene.target.gpus
        if gpu.node == node and gpu_index in (None, int(gpu.id[-1]))
    ]
    return {replica.service for gpu in gpus for replica in gpu.replicas}


@pytest.mark.parametrize(
    "lost_s", [40.5, pytest.param(44.5, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_lost_node_is_made_up_for_once_its_silence_is_noticed(
    policy: str, lost_s: float
) -> None:
    scene = a_scene(
        policy=policy, faults=(Fault(kind="node_lost", node="n1", start_s=lost_s),)
    )
    scene.play(BEFORE_S)
    assert services_on(scene, "n1")
    scene.play(60.0)
    assert not services_on(scene, "n1")
    # At the first tick after it has been silent for so long others are started; when they are ready, all that waited
    # too long is turned away, and that spoils the step in which it happens.
    assert (
        LAUNCH_S
        < recovery_s(scene, lost_s)
        <= STALE_AFTER_S + PERIOD_S + LAUNCH_S + PERIOD_S
    )


@pytest.mark.parametrize(
    "lost_s", [40.5, pytest.param(44.5, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_lost_gpu_is_made_up_for_once_its_agent_has_told(
    policy: str, lost_s: float
) -> None:
    scene = a_scene(
        policy=policy,
        faults=(Fault(kind="gpu_lost", node="n1", gpu_index=0, start_s=lost_s),),
    )
    scene.play(BEFORE_S)
    assert services_on(scene, "n1", 0)
    scene.play(40.0)
    assert not services_on(scene, "n1", 0)
    assert LAUNCH_S < recovery_s(scene, lost_s) <= PERIOD_S + LAUNCH_S + PERIOD_S


def test_a_service_with_room_on_other_nodes_is_served_as_promised_but_for_the_second_of_detection() -> (
    None
):
    scene = a_scene(
        policy="k8s_hpa", faults=(Fault(kind="node_lost", node="n1", start_s=42.0),)
    )
    scene.play(BEFORE_S)
    survivors = services_on(scene, "n1") & services_on(scene, "n2")
    assert survivors == {
        "resnet50"
    }  # 300 rps on two whole GPUs, one of which could carry twice as much
    scene.play(60.0)
    struck, *later = attainments(scene, "resnet50", BEFORE_S).values()
    # Of the 5 s of the first step half the requests of one second go to the lost node: 150 of 1,500; five standard
    # deviations are 60.
    assert struck >= 1.0 - 0.5 * DETECTION_S / 5.0 - 0.04
    assert min(later) >= PERCENTILE
    assert recovery_s(scene, 42.0) > PERIOD_S  # others had nowhere to go


@pytest.mark.parametrize(
    "kind", ["gpu_lost", pytest.param("straggler", marks=pytest.mark.thorough)]
)
def test_services_on_other_gpus_notice_nothing_until_the_next_plan(kind: str) -> None:
    factor = 3.0 if kind == "straggler" else 1.0
    fault = Fault(kind=kind, node="n1", gpu_index=0, start_s=41.0, factor=factor)  # type: ignore[arg-type]
    calm, struck = (a_scene(policy="inss", faults=faults) for faults in ((), (fault,)))
    for scene in (calm, struck):
        scene.play(BEFORE_S + PERIOD_S)
    touched = services_on(calm, "n1", 0)
    assert touched and services_on(calm, "n1", 1) - touched
    for service, totals in struck.counts[-1].items():
        before = calm.counts[-1][service]
        assert (totals != before) is (service in touched)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_slow_node_is_felt_while_it_is_slow_and_one_step_longer_at_most(
    policy: str,
) -> None:
    end_s = 61.0
    fault = Fault(kind="straggler", node="n1", start_s=42.0, end_s=end_s, factor=3.0)
    scene = a_scene(policy=policy, faults=(fault,))
    scene.play(BEFORE_S)
    touched = services_on(scene, "n1")
    scene.play(40.0)
    assert (
        min(
            share
            for service in touched
            for share in attainments(scene, service, BEFORE_S).values()
        )
        < PERCENTILE
    )
    assert recovery_s(scene, end_s) <= PERIOD_S


def test_telemetry_that_is_late_but_not_stale_changes_nothing() -> None:
    fault = Fault(kind="stale", node="n1", start_s=42.0, end_s=62.0, delay_s=8.0)
    calm, late = (a_scene(faults=faults) for faults in ((), (fault,)))
    for scene in (calm, late):
        scene.play(75.0)
    assert services_on(late, "n1")
    assert late.counts == calm.counts
    assert late.closed.store.pushed == calm.closed.store.pushed


@pytest.mark.parametrize("policy", POLICIES)
def test_stale_telemetry_moves_replicas_away_and_nobody_waits_meanwhile(
    policy: str,
) -> None:
    fault = Fault(kind="stale", node="n1", start_s=42.0, end_s=82.0, delay_s=25.0)
    scene = a_scene(policy=policy, faults=(fault,))
    scene.play(BEFORE_S)
    assert services_on(scene, "n1")
    scene.play(40.0)
    assert not services_on(scene, "n1")
    scene.play(35.0)
    assert recovery_s(scene, 42.0) <= 0.0
    kinds = [event.kind for event in scene.closed.store.events]
    assert kinds.count("NodeSilent") == kinds.count("NodeHeard") == 1
