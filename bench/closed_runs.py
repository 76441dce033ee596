"""A cluster under one policy from the beginning of its load to the end: what it cost, and how the SLOs were kept.

On a clock that jumps, with a store in memory; solvers count work units instead of seconds, so that a seed gives one
result on every machine.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from agents.sim.queues.tally import ServiceTotals
from agents.sim.truth.truth import load_truth
from app.base.clock import ManualControlClock
from app.base.logs import nothing_logged
from app.demo.feed import attainment
from app.simulate.run.accounting import Bill, make_bill, within
from app.simulate.run.closed_loop import ClosedLoop, ClusterPlan
from app.simulate.run.foresight import foreseen, with_true_times
from app.simulate.run.record import Migrations
from app.solver.inline import InlineSolver
from solvers.types.policy_spec import PolicyModule


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedRun:
    """One policy over the whole load."""

    bill: Bill
    """The GPUs that plans use."""
    handover_usd: float
    """The GPUs that plans have left while a replica serves on there."""
    totals: tuple[ServiceTotals, ...]
    plans_pushed: int
    starts: int
    """Replicas that plans had started, the first ones among them."""
    wall_s: float
    percentiles: Mapping[str, float]
    """What the SLOs ask for, by service."""

    @property
    def cost_usd(self) -> float:
        """All that was paid for."""
        return self.bill.total_usd + self.handover_usd

    @property
    def attained(self) -> dict[str, float]:
        """Share of the finished requests that met the SLO, by service."""
        return {each.service: attainment(each) or 0.0 for each in self.totals}

    @property
    def worst(self) -> float:
        """Attainment of the service that is worst off."""
        # Not the mean: an SLO is a promise to each service, which the others cannot make up for.
        return min(self.attained.values())

    @property
    def worst_margin_points(self) -> float:
        """By how much the service that is worst off is above its percentile; below it where negative."""
        attained = self.attained
        return min(
            100.0 * (attained[name] - percentile)
            for name, percentile in self.percentiles.items()
        )

    @property
    def late_percent(self) -> float:
        """Of all services' finished requests."""
        finished = sum(each.served + each.rejected for each in self.totals)
        in_slo = sum(each.in_slo for each in self.totals)
        return 100.0 * (1.0 - in_slo / finished) if finished else 0.0

    @property
    def missed(self) -> tuple[str, ...]:
        """The services whose SLO was not kept."""
        return tuple(
            name
            for name, share in self.attained.items()
            if share < self.percentiles[name]
        )


def run_closed(
    plan: ClusterPlan,
    duration_s: float,
    policies: Mapping[str, PolicyModule] | None = None,
    *,
    warm_up_s: float = 0.0,
    is_clairvoyant: bool = False,
) -> ClosedRun:
    """The cluster for so long, under the registered policies or those in their place; what is paid and served in the
    first `warm_up_s` does not count. is_clairvoyant: true rates until what starts is ready, and true times.

    What would be an alarm on a real cluster is in the figures, not in the log.
    """
    clock, began, world = ManualControlClock(), time.perf_counter(), load_truth()
    if is_clairvoyant:
        points = tuple(with_true_times(each, world) for each in plan.points)
        plan = replace(plan, points=points)
    loop = ClosedLoop(
        plan,
        world=world,
        clock=clock,
        solver=InlineSolver(policies),
        # Baselines promise no percentile; one that breaks its promise pays for it in attainment.
        promises_may_break=True,
    )

    if is_clairvoyant:
        loop.loop.forecast = foreseen(plan, clock.now_s(), None)
    migrations = Migrations(cluster=loop.cluster, pushed=loop.store.pushed)
    begun_at = clock.now() + timedelta(seconds=warm_up_s)
    # Half a step, so that rounding moves no step across.
    counted_from = begun_at + timedelta(seconds=0.5 * plan.agent_period_s)
    before: dict[str, ServiceTotals] = {}

    async def play() -> None:
        # The same steps as the demo's own baseline takes: agents first, so that a tick knows the newest rates.
        for _ in range(round(duration_s / plan.agent_period_s)):
            await loop.pass_time(plan.agent_period_s)
            await loop.step()
            migrations.look(clock.now())
            await loop.tick_if_due()
            migrations.look(clock.now())
            if warm_up_s and clock.now() <= counted_from:
                before.update({each.service: each for each in loop.cluster.totals()})

    with nothing_logged():
        asyncio.run(play())
    bill, handovers = (
        make_bill(within(targets, begun_at, clock.now()), plan.gpu_types, clock.now())
        for targets in (loop.store.pushed, migrations.changes)
    )
    return ClosedRun(
        bill=bill,
        handover_usd=handovers.total_usd,
        totals=tuple(
            _since(each, before.get(each.service)) for each in loop.cluster.totals()
        ),
        plans_pushed=len(loop.store.pushed),
        starts=len(
            {
                replica.id
                for _, target in loop.store.pushed
                for gpu in target.gpus
                for replica in gpu.replicas
            }
        ),
        wall_s=time.perf_counter() - began,
        percentiles={each.name: each.slo.percentile for each in plan.services},
    )


def _since(totals: ServiceTotals, before: ServiceTotals | None) -> ServiceTotals:
    """What came and finished since then; who is there, and the latencies, as they are."""
    if before is None:
        return totals
    return replace(
        totals,
        arrivals=totals.arrivals - before.arrivals,
        served=totals.served - before.served,
        in_slo=totals.in_slo - before.in_slo,
        rejected=totals.rejected - before.rejected,
    )
