"""From the running demo to its pictures: frames while it runs, a summary at its end."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from agents.base.protocol import Observation
from agents.sim.cluster import SimulatedCluster
from agents.sim.queues.tally import ServiceTotals
from app.demo.view import Frame, GpuLine, ServiceLine
from app.loop.events import describe_change
from app.loop.observe import bucket_percentile_ms
from app.simulate.run.accounting import hourly_cost_usd, make_bill
from app.simulate.run.record import Migrations
from solvers.types.plan import BoundPlan
from solvers.types.state import GpuType, Service, gpu_id

READING_S = 60.0
"""Rates and latencies in the live view are over the last minute of trace time."""

Pushed = list[tuple[datetime, BoundPlan]]


@dataclass(slots=True, kw_only=True)
class DemoFeed:
    """What the live view remembers between frames."""

    cluster: SimulatedCluster
    services: tuple[Service, ...]
    gpu_types: tuple[GpuType, ...]
    duration_s: float
    start: datetime
    """When the trace began, by the demo's clock."""
    pushed: Pushed
    """Targets of the control plane with the time from which each was in force; shared with its store."""
    power_w: dict[tuple[str, int], float] = field(default_factory=dict)
    """Newest reading by (node, GPU index), as the agents report it."""
    past: deque[tuple[float, dict[str, ServiceTotals]]] = field(default_factory=deque)
    _migrations: Migrations = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is handed over yet."""
        self._migrations = Migrations(cluster=self.cluster, pushed=self.pushed)

    def look(self, now: datetime) -> None:
        """Something was decided or done."""
        self._migrations.look(now)

    def migration_usd(self, now: datetime) -> float:
        """What the GPUs have cost that plans left while a replica served on there."""
        return make_bill(self._migrations.changes, self.gpu_types, now).total_usd

    def note_power(self, observation: Observation) -> None:
        """An agent reported what its GPUs draw."""
        self.power_w.update(
            {
                (observation.node, gpu.index): gpu.power_w or 0.0
                for gpu in observation.gpus
            }
        )

    def frame(self, now: datetime, *, speed: float) -> Frame:
        """The picture of this moment; `speed`: trace seconds per second so far."""
        trace_s = (now - self.start).total_seconds()
        totals = {entry.service: entry for entry in self.cluster.totals()}
        self._remember(trace_s, totals)
        target = self.pushed[-1][1] if self.pushed else None
        return Frame(
            trace_s=trace_s,
            duration_s=self.duration_s,
            speed=speed,
            generation=target.generation if target else 0,
            last_change=self._last_change(),
            services=[
                self._service(service, totals, target, trace_s)
                for service in self.services
            ],
            gpus=list(self._gpus(target)),
            cost_now_usd_per_hour=hourly_cost_usd(target, self.gpu_types),
            cost_usd=make_bill(self.pushed, self.gpu_types, now).total_usd
            + self.migration_usd(now),
        )

    def _remember(self, trace_s: float, totals: dict[str, ServiceTotals]) -> None:
        self.past.append((trace_s, totals))
        # One is always left to compare with, also where a frame came late.
        while trace_s - self.past[0][0] > READING_S and len(self.past) > 1:
            self.past.popleft()

    def _last_change(self) -> str:
        if not self.pushed:
            return "none yet"
        before = self.pushed[-2][1] if len(self.pushed) > 1 else None
        return describe_change(before, self.pushed[-1][1])

    def _service(
        self,
        service: Service,
        totals: Mapping[str, ServiceTotals],
        target: BoundPlan | None,
        trace_s: float,
    ) -> ServiceLine:
        total = totals[service.name]
        since_s, then = self.past[0]
        earlier = then[service.name]
        counts = {
            bucket: count - earlier.latency_buckets[bucket]
            for bucket, count in enumerate(total.latency_buckets)
            if count > earlier.latency_buckets[bucket]
        }
        # The first frame compares the totals with themselves.
        seconds = max(1.0, trace_s - since_s)
        planned = [
            replica.sm_percent
            for gpu in (target.gpus if target else ())
            for replica in gpu.replicas
            if replica.service == service.name
        ]
        return ServiceLine(
            name=service.name,
            arrival_rate_rps=(total.arrivals - earlier.arrivals) / seconds,
            latency_ms=bucket_percentile_ms(counts, service.slo.percentile),
            slo_ms=service.slo.latency_ms,
            percentile=service.slo.percentile,
            attainment=attainment(total),
            replicas=total.replicas,
            planned_replicas=len(planned),
            sm_percent=sum(planned),
        )

    def _gpus(self, target: BoundPlan | None) -> Iterable[GpuLine]:
        # GPUs that the plan does not name stay empty: the picture shows the entire fleet.
        shares: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for bound in target.gpus if target else ():
            shares[bound.id] = [
                (replica.service, replica.sm_percent) for replica in bound.replicas
            ]
        caps = {gpu_type.name: gpu_type.power_cap_w for gpu_type in self.gpu_types}
        for name, node in self.cluster.nodes.items():
            for gpu in node.gpus:
                yield GpuLine(
                    name=f"{name}/{gpu.index}",
                    gpu_type=gpu.spec.gpu_type,
                    # Sorted, so that a service keeps its place from frame to frame.
                    shares=tuple(sorted(shares[gpu_id(name, gpu.index)])),
                    power_w=self.power_w.get((name, gpu.index), 0.0),
                    power_cap_w=caps[gpu.spec.gpu_type],
                )


def attainment(total: ServiceTotals) -> float | None:
    """Share of the finished requests that met the SLO; None before the first one."""
    finished = total.served + total.rejected
    return total.in_slo / finished if finished else None
