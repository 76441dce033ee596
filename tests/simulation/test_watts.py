"""A cluster's watts in the whole loop: the budget holds second by second, as caps under a governor and as a plan."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from app.simulate.run.closed_loop import ClusterPlan
from tests.simulation.scenes import PERIOD_S, TYPE, Scene, a_scene

RATES_RPS = {"alexnet": 300.0, "resnet50": 500.0}
CLOCKS_MHZ = tuple(float(clock) for clock in range(600, 1531, 30))
SETTLED_S = 40


def limited(
    budget_w: float | None, governor: str | None, policy: str
) -> Callable[[ClusterPlan], ClusterPlan]:
    def change(plan: ClusterPlan) -> ClusterPlan:
        settings = replace(
            plan.settings, power_budget_w=budget_w, governor=governor, policy=policy
        )
        # Clocks that governors need; profiles know their own.
        types = tuple(
            replace(each, clocks_mhz=tuple(sorted({*CLOCKS_MHZ, *each.clocks_mhz})))
            for each in plan.gpu_types
        )
        return replace(plan, settings=settings, gpu_types=types)

    return change


def a_fleet(
    budget_w: float | None, *, governor: str | None = None, policy: str = "hetsev"
) -> Scene:
    """Two GPUs on one node."""
    return a_scene(
        nodes=1,
        gpus=2,
        rates_rps=RATES_RPS,
        change_plan=limited(budget_w, governor, policy),
    )


def watts_of(scene: Scene, periods: int) -> list[float]:
    """Mean watts of all GPUs that carry replicas, second by second."""
    return asyncio.run(_watts(scene, periods))


async def _watts(scene: Scene, periods: int) -> list[float]:
    closed, watts = scene.closed, []
    for _ in range(periods):
        before_j = 0.0
        for _ in range(round(PERIOD_S)):
            await closed.pass_time(1.0)
            closed.cluster.advance()
            used = [
                gpu
                for node in closed.cluster.nodes.values()
                for gpu in node.gpus
                if gpu.replicas
            ]
            energy_j = sum(
                each.queue.energy_j for gpu in used for each in gpu.replicas.values()
            )
            watts.append(
                len(used) * closed.cluster.world.idle_w(TYPE) + energy_j - before_j
            )
            before_j = energy_j
        await closed.step()
        scene.outcomes.append(await closed.tick())
    return watts


def served(scene: Scene) -> int:
    return sum(total.in_slo for total in scene.closed.cluster.totals())


def test_under_a_governor_the_fleet_stays_within_a_budget_that_its_plan_would_break() -> (
    None
):
    free = a_fleet(None)
    max_w = max(watts_of(free, 16)[SETTLED_S:])
    budget_w = 0.85 * max_w
    scene = a_fleet(budget_w, governor="power_latency")
    watts = watts_of(scene, 16)
    assert max(watts[SETTLED_S:]) <= 1.01 * budget_w
    assert sum(gpu.power_cap_w for gpu in scene.target.gpus) <= budget_w + 1e-6
    assert served(scene) >= 0.75 * served(free)


def test_without_a_governor_a_plan_that_would_break_it_never_becomes_the_target() -> (
    None
):
    scene = a_fleet(100.0)
    watts_of(scene, 6)
    assert scene.closed.store.pushed == []
    assert {outcome.state for outcome in scene.outcomes} == {"refused"}
    assert "power_budget_w is 100" in scene.outcomes[-1].reason


@pytest.mark.parametrize("policy", ["joint", "morak"])
def test_a_policys_plan_within_the_budget_serves_and_keeps_it(policy: str) -> None:
    scene = a_fleet(450.0, policy=policy)
    watts = watts_of(scene, 12)
    assert max(watts) <= 450.0
    assert served(scene) >= 0.8 * sum(
        total.arrivals for total in scene.closed.cluster.totals()
    )
