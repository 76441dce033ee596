"""The baselines that share GPUs, in the same loop: their promises may break, physical rules may not."""

import asyncio

import pytest

from agents.sim.queues.tally import ServiceTotals
from agents.sim.truth.truth import load_truth
from app.base.clock import ManualControlClock
from app.simulate.run.closed_loop import ClosedLoop, ClusterPlan
from app.solver.inline import InlineSolver
from solvers.forecast.room import Room
from solvers.types.plan import BoundPlan
from tests.simulation.scenes import PERIOD_S, a_scene


def a_baseline(policy: str) -> ClosedLoop:
    """The usual small cluster, with a loop that lets broken promises through."""
    plans: list[ClusterPlan] = []

    def keep(plan: ClusterPlan) -> ClusterPlan:
        plans.append(plan)
        return plan

    a_scene(policy=policy, change_plan=keep)
    return ClosedLoop(
        plans[0],
        world=load_truth(),
        clock=ManualControlClock(),
        solver=InlineSolver(),
        promises_may_break=True,
        room=Room(1.2),
    )


def play(closed: ClosedLoop, seconds: float) -> dict[str, ServiceTotals]:
    """Let time pass, tick by tick; the totals at its end."""

    async def run() -> None:
        for _ in range(round(seconds / PERIOD_S)):
            await closed.pass_time(PERIOD_S)
            await closed.step()
            outcome = await closed.tick()
            assert outcome.state in (None, "target", "kept"), outcome.reason

    asyncio.run(run())
    broken = {
        entry.severity
        for plan in closed.store.plans.values()
        for entry in plan.violations
    }
    assert broken <= {"promise"}
    return {totals.service: totals for totals in closed.cluster.totals()}


def sm_percents(bound: BoundPlan) -> dict[str, float]:
    """The widest share by service."""
    found: dict[str, float] = {}
    for gpu in bound.gpus:
        for replica in gpu.replicas:
            found[replica.service] = max(
                replica.sm_percent, found.get(replica.service, 0.0)
            )
    return found


@pytest.mark.parametrize("policy", ["gpulets", "gslice", "igniter"])
def test_steady_load_is_served_once_replicas_have_started(policy: str) -> None:
    closed = a_baseline(policy)
    before, after = play(closed, 60.0), play(closed, 60.0)
    for name, totals in after.items():
        finished = (
            totals.served
            + totals.rejected
            - before[name].served
            - before[name].rejected
        )
        assert totals.in_slo - before[name].in_slo >= 0.98 * finished
    assert len(closed.store.pushed[-1][1].gpus) <= 3


def test_gslice_narrows_its_shares_by_what_is_measured() -> None:
    closed = a_baseline("gslice")
    play(closed, 60.0)
    first = sm_percents(closed.store.pushed[0][1])
    play(closed, 120.0)
    last = sm_percents(closed.store.pushed[-1][1])
    assert sum(last.values()) < sum(first.values())
