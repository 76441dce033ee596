"""Governors in the whole loop: a cap that the predictions would break is kept on the node, also without answers."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from agents.sim.gpu import SimGpu
from agents.sim.spec import Fault
from app.simulate.run.closed_loop import ClusterPlan
from bench.governors import CAP_W, half_known
from tests.simulation.scenes import PERIOD_S, TYPE, Scene, a_scene

NET_W = pytest.approx(1.1 * CAP_W)
STEADY_S = 30
"""A plan, a launch of 5 s, the queue of all that waited, and the way down from the highest clock: over by then."""


def under_a_cap(governor: str | None) -> Callable[[ClusterPlan], ClusterPlan]:
    """One watt in two is not predicted, so that plans take the cap for further away than it is."""
    return lambda plan: replace(
        half_known(plan), settings=replace(plan.settings, governor=governor)
    )


def a_busy_gpu(governor: str | None, *faults: Fault, rate_rps: float = 600.0) -> Scene:
    """One GPU with more load than it can carry under the cap, if not told otherwise."""
    return a_scene(
        nodes=1,
        gpus=1,
        rates_rps={"resnet50": rate_rps},
        faults=faults,
        change_plan=under_a_cap(governor),
    )


def play(scene: Scene, periods: int, *, step_s: float = 1.0) -> list[float]:
    """Mean watts of the GPU in each step."""
    return asyncio.run(_play(scene, periods, step_s))


async def _play(scene: Scene, periods: int, step_s: float) -> list[float]:
    closed, watts = scene.closed, []
    for _ in range(periods):
        energy_j = [_energy_j(scene)]
        for _ in range(round(PERIOD_S / step_s)):
            await closed.pass_time(step_s)
            energy_j.append(_energy_j(scene))
        idle_w = closed.cluster.world.idle_w(TYPE)
        watts += [
            idle_w + (after - before) / step_s for before, after in pairwise(energy_j)
        ]
        await closed.step()
        scene.outcomes.append(await closed.tick())
    return watts


def _energy_j(scene: Scene) -> float:
    """Of this period so far, above idle."""
    scene.closed.cluster.advance()
    return sum(
        each.queue.energy_j for gpu in gpus(scene) for each in gpu.replicas.values()
    )


def gpus(scene: Scene) -> list[SimGpu]:
    return [gpu for node in scene.closed.cluster.nodes.values() for gpu in node.gpus]


def test_batch_dvfs_keeps_a_cap_that_the_plan_would_break_and_leaves_the_board_nothing_to_do() -> (
    None
):
    scene = a_busy_gpu("batch_dvfs")
    watts = play(scene, 24)
    (gpu,) = gpus(scene)
    assert max(watts[:STEADY_S]) > 1.05 * CAP_W
    assert 0.98 * CAP_W <= min(watts[STEADY_S:]) <= max(watts[STEADY_S:]) <= CAP_W
    planned = scene.target.gpus[0]
    assert gpu.clock_mhz is not None and gpu.clock_mhz < planned.clock_mhz
    assert gpu.effective_clock_mhz == gpu.clock_mhz
    assert gpu.power_limit_w == NET_W


@pytest.mark.thorough
def test_where_batches_vary_from_second_to_second_the_cap_is_broken_rarely_and_by_little() -> (
    None
):
    steady = play(a_busy_gpu("batch_dvfs", rate_rps=300.0), 36)[STEADY_S:]
    assert max(steady) <= 1.02 * CAP_W
    assert sum(each > CAP_W for each in steady) <= 0.02 * len(steady)
    assert sum(steady) / len(steady) >= 0.93 * CAP_W


def test_a_node_that_hears_nobody_goes_on_governing() -> None:
    scene = a_busy_gpu("dfs", Fault(kind="silent", node="n1", start_s=12.0))
    watts = play(scene, 16)
    assert scene.outcomes[-1].state is None  # stale telemetry: the loop holds
    assert max(watts[STEADY_S:]) <= 1.01 * CAP_W < max(watts)


@pytest.mark.thorough
def test_clipper_power_gives_throughput_away_and_does_not_even_come_down_to_the_cap() -> (
    None
):
    served = {}
    for governor in ("batch_dvfs", "clipper_power"):
        scene = a_busy_gpu(governor)
        watts = play(scene, 12)
        served[governor] = scene.closed.cluster.totals()[0].served
    assert (
        min(watts[STEADY_S:]) > CAP_W
    )  # a batch of one draws hardly less than one of eight
    assert served["batch_dvfs"] > 3 * served["clipper_power"]


def test_without_a_governor_the_board_holds_the_cap_at_the_planned_knobs() -> None:
    scene = a_busy_gpu(None)
    watts = play(scene, 8)
    (gpu,) = gpus(scene)
    assert (gpu.clock_mhz, gpu.power_limit_w) == (scene.target.gpus[0].clock_mhz, CAP_W)
    assert gpu.effective_clock_mhz < scene.target.gpus[0].clock_mhz
    assert max(watts) <= CAP_W


@pytest.mark.thorough
def test_a_governed_course_depends_on_its_seed_and_not_on_how_time_is_cut() -> None:
    whole, cut = a_busy_gpu("batch_dvfs"), a_busy_gpu("batch_dvfs")
    play(whole, 8, step_s=PERIOD_S)
    play(cut, 8, step_s=0.5)
    assert whole.closed.cluster.totals() == cut.closed.cluster.totals()
    assert whole.closed.store.pushed == cut.closed.store.pushed
    assert [gpu.clock_mhz for gpu in gpus(whole)] == [
        gpu.clock_mhz for gpu in gpus(cut)
    ]


@pytest.mark.thorough
def test_power_latency_comes_from_below_and_serves_as_much_as_those_that_come_from_above() -> (
    None
):
    served = {}
    for governor in ("batch_dvfs", "power_latency"):
        scene = a_busy_gpu(governor)
        watts = play(scene, 24)
        served[governor] = scene.closed.cluster.totals()[0].served
    assert 0.98 * CAP_W <= min(watts[STEADY_S:]) <= max(watts[STEADY_S:]) <= CAP_W
    assert max(watts) <= 1.02 * CAP_W
    assert served["power_latency"] >= 0.97 * served["batch_dvfs"]


@pytest.mark.thorough
@pytest.mark.parametrize("rate_rps", [60.0, 120.0, 200.0])
def test_power_latency_keeps_slo_and_cap_at_less_load_and_loses_little_while_it_begins(
    rate_rps: float,
) -> None:
    scenes = {
        governor: a_busy_gpu(governor, rate_rps=rate_rps)
        for governor in ("dfs", "power_latency")
    }
    watts = {governor: play(scene, 24) for governor, scene in scenes.items()}
    in_slo = {
        governor: scene.closed.cluster.totals()[0].in_slo
        for governor, scene in scenes.items()
    }
    assert max(watts["power_latency"]) <= CAP_W
    assert in_slo["power_latency"] >= 0.98 * in_slo["dfs"]
