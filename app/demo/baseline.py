"""The demo's baseline: Kubernetes' autoscaler, set up with hindsight for the demo's load: a fair opponent.

The settings are those that `bench.tune_kubernetes` finds for the demo's requests with seed 1: of all GPU types, equal
parts of GPUs (1, 2 or 4, as NVIDIA's device plugin makes them by MPS) and targets the cheapest that keep every SLO. A
test holds them to that; the search takes minutes, which the demo has not.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from multiprocessing.connection import Connection

from agents.sim.truth.truth import load_truth
from app.base.clock import ManualControlClock
from app.base.logs import nothing_logged
from app.demo.cluster_process import MINUTE_S, LoadTotals
from app.demo.scenario import demo_cluster
from app.serve.child_process import send, stop_when_closed
from app.serve.plane import on_stop_signals
from app.simulate.run.accounting import make_bill
from app.simulate.run.closed_loop import ClosedLoop, ClusterPlan
from app.simulate.run.record import Migrations
from app.solver.inline import InlineSolver
from solvers.baselines.k8s_hpa import NAME, KubernetesHpa
from solvers.baselines.k8s_pods import PodOptions
from solvers.types.plan import BoundPlan
from solvers.types.problem import OperatingPoint, OperatingPoints

_SCALE_DOWN_S = 90.0
"""The delay that the demo's services have under every policy."""


def _on_t4(parts: int, target: float) -> PodOptions:
    return PodOptions(
        gpu_type="T4", parts=parts, target=target, scale_down_s=_SCALE_DOWN_S
    )


TUNED_PODS: Mapping[str, PodOptions] = {
    "detection": _on_t4(4, 1.2),
    "inception": _on_t4(2, 1.0),
    "resnet50": _on_t4(2, 1.4),
    "translation": _on_t4(4, 1.2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineTarget:
    """A plan of the baseline, and the time from which it was in force."""

    at: datetime
    plan: BoundPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineBody:
    """What the baseline's process runs. Up the pipe it sends each `BaselineTarget`, and `LoadTotals` every minute."""

    seed: int
    duration_s: float
    start: datetime
    """When the load begins, as for the demo's own cluster."""

    def __call__(self, pipe: Connection) -> None:
        """Until the load is over, a signal comes, or the other side of the pipe is gone."""
        with nothing_logged():
            asyncio.run(self._run(pipe))

    async def _run(self, pipe: Connection) -> None:
        stop = asyncio.Event()
        on_stop_signals(stop.set)
        stop_when_closed(pipe, stop.set)
        plan = baseline_cluster(self.seed)
        clock = ManualControlClock(self.start)
        closed = ClosedLoop(
            plan,
            world=load_truth(),
            clock=clock,
            solver=baseline_solver(),
            # It promises no percentile.
            promises_may_break=True,
        )
        migrations = Migrations(cluster=closed.cluster, pushed=closed.store.pushed)
        for step in range(1, 1 + round(self.duration_s / plan.agent_period_s)):
            await closed.pass_time(plan.agent_period_s)
            await closed.step()
            migrations.look(clock.now())
            outcome = await closed.tick_if_due()
            migrations.look(clock.now())
            if outcome is not None and outcome.state == "target":
                at, target = closed.store.pushed[-1]
                send(pipe, BaselineTarget(at=at, plan=target))
            # It is not known yet how far the demo's own simulation, which it is compared with, will come.
            if round(step * plan.agent_period_s) % MINUTE_S == 0:
                now = clock.now()
                migrated = make_bill(migrations.changes, plan.gpu_types, now)
                send(
                    pipe,
                    LoadTotals(
                        totals=closed.cluster.totals(),
                        at=now,
                        migration_usd=migrated.total_usd,
                    ),
                )
            if stop.is_set():
                return


def baseline_cluster(seed: int) -> ClusterPlan:
    """The demo's cluster and requests, for a baseline that may have quarters of GPUs."""
    plan = demo_cluster(NAME, seed)
    return replace(plan, points=with_quarters(plan.points))


def baseline_solver(pods: Mapping[str, PodOptions] = TUNED_PODS) -> InlineSolver:
    """What decides for the baseline."""
    return InlineSolver({NAME: KubernetesHpa(pods=pods)})


def with_quarters(points: Sequence[OperatingPoints]) -> tuple[OperatingPoints, ...]:
    """The same with a row at 25 % of the SMs wherever there are rows at 20 and at 30 %, interpolated.

    Plimsoll's own policies do without; one of four equal parts would otherwise be 20 % wide.
    """
    return tuple(
        replace(each, rows=tuple(sorted({*each.rows, *_quarters(each.rows)})))
        for each in points
    )


def _quarters(rows: Sequence[OperatingPoint]) -> Iterator[OperatingPoint]:
    by_setting = {(row.sm_percent, row.batch, row.clock_mhz): row for row in rows}
    for row in rows:
        wider = by_setting.get((30.0, row.batch, row.clock_mhz))
        if row.sm_percent == 20.0 and wider is not None:
            # Times fall with 1 / share, of which 1/25 lies at 0.4 of the way from 1/30 to 1/20.
            mean = (
                0.4 * low + 0.6 * high for low, high in zip(row, wider, strict=True)
            )
            yield OperatingPoint._make(mean)._replace(
                sm_percent=25.0, batch=row.batch, clock_mhz=row.clock_mhz
            )
