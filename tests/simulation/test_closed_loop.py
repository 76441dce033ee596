"""The whole loop on simulated GPUs: the laws hold in every tick, SLOs in steady state, and faults pass."""

import asyncio
from dataclasses import replace

import pytest

from agents.sim.load.arrivals import Spike
from agents.sim.spec import Fault
from app.simulate.run.closed_loop import ClusterPlan
from tests.simulation.scenes import RATES_RPS, Scene, a_scene, a_service

STARTED_S = 40.0
"""First telemetry, a plan, a launch, and the queue of all that waited: over by then."""


def used_gpus(scene: Scene) -> set[str]:
    return {gpu.id for gpu in scene.target.gpus}


def replica_ids(scene: Scene) -> set[str]:
    return {replica.id for gpu in scene.target.gpus for replica in gpu.replicas}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_steady_load_is_served_within_the_slo_by_one_plan(seed: int) -> None:
    scene = a_scene(seed=seed)
    scene.play(100.0)
    assert scene.attainment(STARTED_S, 100.0) >= 0.98
    assert len(scene.closed.store.pushed) <= 3


def test_a_spike_brings_replicas_and_its_end_takes_them_away() -> None:
    scene = a_scene(
        spikes={"resnet50": Spike(start_s=50.0, length_s=40.0, factor=3.0, ramp_s=20.0)}
    )
    scene.play(40.0)
    before = len(used_gpus(scene))
    scene.play(50.0)
    peak = len(used_gpus(scene))
    scene.play(80.0)
    assert peak > before
    assert len(used_gpus(scene)) < peak
    assert scene.attainment(75.0, 90.0) >= 0.9
    assert scene.attainment(130.0, 170.0) >= 0.98


def test_a_lost_gpus_replicas_move_and_the_others_stay_where_they_are() -> None:
    scene = a_scene(
        faults=(Fault(kind="gpu_lost", node="n1", gpu_index=0, start_s=42.0),)
    )
    scene.play(40.0)
    before = scene.target
    assert "n1/gpu-0" in used_gpus(scene)
    others = {
        replica.id
        for gpu in before.gpus
        if gpu.id != "n1/gpu-0"
        for replica in gpu.replicas
    }
    scene.play(60.0)
    assert "n1/gpu-0" not in used_gpus(scene)
    assert others <= replica_ids(scene)
    assert scene.attainment(80.0, 100.0) >= 0.98


def test_a_silent_node_is_planned_without_and_comes_back() -> None:
    scene = a_scene(
        faults=(Fault(kind="silent", node="n1", start_s=62.0, end_s=112.0),)
    )
    scene.play(60.0)
    assert any(gpu.node == "n1" for gpu in scene.target.gpus)
    scene.play(45.0)
    assert not any(gpu.node == "n1" for gpu in scene.target.gpus)
    agent = scene.closed.agents[0]
    assert (
        agent.command is not None and agent.command.generation < scene.target.generation
    )
    scene.play(55.0)
    assert agent.command.generation == scene.target.generation
    kinds = [event.kind for event in scene.closed.store.events]
    assert kinds.count("NodeSilent") == kinds.count("NodeHeard") == 1
    assert scene.attainment(110.0, 160.0) >= 0.98


def test_when_every_node_is_silent_the_loop_holds_and_the_replicas_serve_on() -> None:
    faults = tuple(
        Fault(kind="silent", node=f"n{number}", start_s=42.0, end_s=85.0)
        for number in (1, 2, 3)
    )
    scene = a_scene(faults=faults)
    scene.play(40.0)
    pushed = len(scene.closed.store.pushed)
    scene.play(40.0)
    assert scene.outcomes[-1].state is None and "stale" in scene.outcomes[-1].reason
    assert len(scene.closed.store.pushed) == pushed
    scene.play(30.0)
    assert scene.outcomes[-1].state in ("kept", "target")
    assert scene.attainment(40.0, 110.0) >= 0.98


def test_failing_launches_are_tried_again_until_they_succeed() -> None:
    scene = a_scene(
        faults=tuple(
            Fault(kind="launch_failure", node=f"n{n}", start_s=0.0, end_s=20.0)
            for n in (1, 2, 3)
        )
    )
    scene.play(20.0)
    assert sum(totals.replicas for totals in scene.counts[-1].values()) == 0
    scene.play(70.0)
    assert scene.attainment(70.0, 90.0) >= 0.98


def test_more_load_than_the_fleet_can_carry_shakes_nothing() -> None:
    scene = a_scene(
        nodes=1,
        gpus=1,
        rates_rps={name: 6.0 * rate for name, rate in RATES_RPS.items()},
    )
    scene.play(50.0)
    assert scene.target.unserved
    assert len(scene.closed.store.pushed) <= 3


def test_services_come_and_go_while_the_others_stay() -> None:
    scene = a_scene()
    store = scene.closed.store
    store.delete_service("vgg16")
    scene.play(40.0)
    kept = replica_ids(scene)
    store.put_services([a_service("vgg16")])
    scene.play(50.0)
    now = {
        replica.id: replica.service
        for gpu in scene.target.gpus
        for replica in gpu.replicas
    }
    assert kept <= now.keys()
    assert "vgg16" in {now[each] for each in now.keys() - kept}
    assert scene.attainment(75.0, 90.0) >= 0.98
    store.delete_service("resnet50")
    scene.play(30.0)
    assert "resnet50" not in {
        replica.service for gpu in scene.target.gpus for replica in gpu.replicas
    }
    assert scene.counts[-1]["resnet50"].replicas == 0


@pytest.mark.thorough
def test_a_cordoned_node_starts_nothing_and_a_lower_power_cap_is_obeyed() -> None:
    scene = a_scene()
    scene.play(60.0)
    store, before = scene.closed.store, replica_ids(scene)
    state = asyncio.run(store.load_snapshot(scene.clock.now())).state
    (gpu_type,), node = state.gpu_types, state.nodes[0]
    store.put_gpu_types([replace(gpu_type, power_cap_w=0.8 * gpu_type.power_cap_w)])
    store.put_node(
        replace(node, cordoned=True), [gpu for gpu in state.gpus if gpu.node == node.id]
    )
    scene.play(60.0)
    there = {
        replica.id
        for gpu in scene.target.gpus
        if gpu.node == node.id
        for replica in gpu.replicas
    }
    assert there <= before
    assert {gpu.power_cap_w for gpu in scene.target.gpus} == {
        0.8 * gpu_type.power_cap_w
    }
    assert scene.attainment(100.0, 120.0) >= 0.98


def test_windows_shorter_than_the_agents_period_are_refused() -> None:
    def hasty(plan: ClusterPlan) -> ClusterPlan:
        return replace(plan, settings=replace(plan.settings, window_s=1.0))

    with pytest.raises(ValueError, match="window_s"):
        a_scene(change_plan=hasty)
