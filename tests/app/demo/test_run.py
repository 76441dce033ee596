"""The demo's baseline: the loop that it runs in beside the real control plane."""

import asyncio
import math
from dataclasses import replace

import pytest

from agents.sim.truth.truth import load_truth
from app.base.clock import ManualControlClock
from app.demo.baseline import baseline_cluster, baseline_solver
from app.demo.run import run_baseline
from app.demo.scenario import OPENING
from app.simulate.run.closed_loop import ClosedLoop


class TimeIsUp(Exception):
    """The test has seen enough."""


class EndingClock(ManualControlClock):
    """Ends whoever sleeps for longer than the test lasts."""

    end_s = math.inf

    async def sleep(self, seconds: float) -> None:
        if self.now_s() >= self.end_s:
            raise TimeIsUp
        await super().sleep(seconds)


def test_rising_load_wakes_the_baseline_before_its_next_period() -> None:
    plan = baseline_cluster(1)
    clock = EndingClock()
    start_s = clock.now_s()
    clock.end_s = start_s + 120.0
    baseline = ClosedLoop(
        # Two minutes have one tick of the period: whatever else is decided, the traffic that opens asked for.
        replace(plan, settings=replace(plan.settings, period_s=600.0)),
        world=load_truth(),
        clock=clock,
        solver=baseline_solver(),
        promises_may_break=True,
    )
    with pytest.raises(TimeIsUp):
        asyncio.run(run_baseline(baseline, plan.agent_period_s))
    pushed_s = [at.timestamp() - start_s for at, _ in baseline.store.pushed]
    assert any(at_s > OPENING.length_s for at_s in pushed_s), pushed_s
