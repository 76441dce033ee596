"""What is noted while a simulation runs: counts of every step, and at the end the results of the run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from agents.sim.cluster import ServiceTotals, SimulatedCluster
from agents.sim.tally import ServiceTally
from app.control.loop import TickOutcome
from app.control.memory_store import MemoryStore
from app.simulate.accounting import hourly_cost_usd, make_bill
from app.simulate.results import Moves, RunResult, Series, ServiceResult, ServiceSeries
from solvers.plan import BoundPlan, planned_rates_rps
from solvers.state import GpuType, Service

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p98": 0.98, "p99": 0.99}


class LawBroken(AssertionError):
    """The simulation lost or invented requests; a fault of the simulator, never of a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One step of the time series."""

    tallies: Mapping[str, ServiceTally]
    replicas: Mapping[str, int]
    planned_rps: Mapping[str, float]
    cost_usd_per_hour: float
    gpus: Mapping[str, int]
    energy_j: float
    busy_s: float


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Notes of one run. Call `note` after every step of the series, from the end of the warm-up on."""

    cluster: SimulatedCluster
    store: MemoryStore
    services: tuple[Service, ...]
    gpu_types: tuple[GpuType, ...]
    begun_at: datetime
    """When the time that counts begins."""
    step_s: float
    outcomes: list[TickOutcome] = field(default_factory=list)
    _steps: list[_Step] = field(default_factory=list)
    _before: dict[str, ServiceTally] = field(default_factory=dict)
    _queued: dict[str, int] = field(default_factory=dict)
    _energy_j: float = 0.0
    _busy_s: float = 0.0

    def begin(self) -> None:
        """From now on it counts."""
        self._before = {service.name: self.cluster.tally(service.name) for service in self.services}
        self._queued = {total.service: total.queued for total in self._totals()}
        self._energy_j, self._busy_s = self.cluster.used_energy_j, self.cluster.busy_s

    def note(self) -> None:
        """A step is over."""
        target = self.store.pushed[-1][1] if self.store.pushed else None
        now = {service.name: self.cluster.tally(service.name) for service in self.services}
        planned = planned_rates_rps(target)
        self._steps.append(
            _Step(
                tallies={name: tally.since(self._before[name]) for name, tally in now.items()},
                replicas={total.service: total.replicas for total in self._totals()},
                planned_rps={service.name: planned[service.name] for service in self.services},
                cost_usd_per_hour=hourly_cost_usd(target, self.gpu_types),
                gpus=Counter(gpu.gpu_type for gpu in target.gpus) if target else Counter[str](),
                energy_j=self.cluster.used_energy_j - self._energy_j,
                busy_s=self.cluster.busy_s - self._busy_s,
            )
        )
        self._before, self._energy_j, self._busy_s = now, self.cluster.used_energy_j, self.cluster.busy_s

    def result(self, policy: str, seed: int) -> RunResult:
        """What the run came to. Raises LawBroken where requests were lost or invented."""
        until = self.begun_at + timedelta(seconds=self.step_s * len(self._steps))
        pushed = [(max(at, self.begun_at), plan) for at, plan in self.store.pushed]
        bill = make_bill(pushed, self.gpu_types, until)
        totals = {total.service: total for total in self._totals()}
        for total in totals.values():
            check_laws(total)
        return RunResult(
            policy=policy,
            seed=seed,
            counted_s=self.step_s * len(self._steps),
            services=tuple(
                self._service(
                    service,
                    totals[service.name],
                    whole_usd=bill.whole_gpu_usd.get(service.name, 0.0),
                    memory_usd=bill.memory_usd.get(service.name, 0.0),
                )
                for service in self.services
            ),
            cost_usd=bill.total_usd,
            memory_usd=sum(bill.memory_usd.values()),
            gpu_hours=bill.gpu_hours,
            energy_kwh=sum(step.energy_j for step in self._steps) / 3.6e6,
            moves=self._moves(),
            holds=sum(outcome.state is None for outcome in self.outcomes),
            refused=sum(outcome.state == "refused" for outcome in self.outcomes),
            series=self._series(),
            decision_seconds=tuple(outcome.seconds["total"] for outcome in self.outcomes if outcome.state is not None),
        )

    def _moves(self) -> Moves:
        """Of the time that counts; what was in force at its beginning is no move."""
        before = [plan for at, plan in self.store.pushed if at <= self.begun_at][-1:]
        later = [plan for at, plan in self.store.pushed if at > self.begun_at]
        return count_moves([*(before or [BoundPlan(generation=0, parent=0, policy="")]), *later])

    def _totals(self) -> tuple[ServiceTotals, ...]:
        return self.cluster.totals()

    def _service(self, service: Service, total: ServiceTotals, *, whole_usd: float, memory_usd: float) -> ServiceResult:
        counted = ServiceTally()
        for step in self._steps:
            counted.add(step.tallies[service.name])
        steps = [_attainment(step.tallies[service.name]) for step in self._steps]
        return ServiceResult(
            service=service.name,
            network=service.network,
            slo_ms=service.slo.latency_ms,
            percentile=service.slo.percentile,
            arrived=counted.arrivals,
            served=counted.served,
            in_slo=counted.in_slo,
            rejected=counted.rejected,
            queued_before=self._queued[service.name],
            queued_after=total.queued,
            latency_ms={name: counted.latency_ms(share) for name, share in PERCENTILES.items()},
            worst_step=min((share for share in steps if share is not None), default=None),
            cost_usd=whole_usd,
            memory_usd=memory_usd,
            present_s=total.present_s,
            sojourn_s=total.sojourn_s,
        )

    def _series(self) -> Series:
        types = sorted({name for step in self._steps for name in step.gpus})
        return Series(
            step_s=self.step_s,
            cost_usd_per_hour=[step.cost_usd_per_hour for step in self._steps],
            power_w=[step.energy_j / self.step_s for step in self._steps],
            gpus={name: [step.gpus.get(name, 0) for step in self._steps] for name in types},
            services={service.name: self._service_series(service.name) for service in self.services},
            busy_gpus=[step.busy_s / self.step_s for step in self._steps],
        )

    def _service_series(self, name: str) -> ServiceSeries:
        tallies = [step.tallies[name] for step in self._steps]
        return ServiceSeries(
            arrival_rate_rps=[tally.arrivals / self.step_s for tally in tallies],
            planned_rps=[step.planned_rps[name] for step in self._steps],
            attainment=[_attainment(tally) for tally in tallies],
            p99_ms=[tally.latency_ms(0.99) for tally in tallies],
            replicas=[step.replicas[name] for step in self._steps],
        )


def check_laws(total: ServiceTotals) -> None:
    """Every request is somewhere, and Little's law holds. Raises LawBroken."""
    if total.arrivals != total.served + total.rejected + total.queued:
        raise LawBroken(
            f"{total.service}: {total.arrivals} requests arrived, but {total.served} were served, {total.rejected} "
            f"rejected and {total.queued} wait"
        )
    if abs(total.present_s - total.sojourn_s) > 1e-6 * max(1.0, total.present_s):
        raise LawBroken(f"{total.service}: {total.present_s} request-seconds present, {total.sojourn_s} spent")


def _attainment(tally: ServiceTally) -> float | None:
    finished = tally.served + tally.rejected
    return tally.in_slo / finished if finished else None


def count_moves(targets: Sequence[BoundPlan]) -> Moves:
    """Changes from each target to the next."""
    started = stopped = batches = clocks = 0
    for before, after in pairwise(targets):
        old, new = _batches(before), _batches(after)
        old_mhz, new_mhz = _clocks_mhz(before), _clocks_mhz(after)
        started += len(new.keys() - old.keys())
        stopped += len(old.keys() - new.keys())
        batches += sum(new[each] != old[each] for each in new.keys() & old.keys())
        clocks += sum(new_mhz[each] != old_mhz[each] for each in new_mhz.keys() & old_mhz.keys())
    return Moves(
        plans=max(0, len(targets) - 1),
        replicas_started=started,
        replicas_stopped=stopped,
        batches_changed=batches,
        clocks_changed=clocks,
    )


def _batches(plan: BoundPlan) -> Mapping[str, int]:
    return {replica.id: replica.batch for gpu in plan.gpus for replica in gpu.replicas}


def _clocks_mhz(plan: BoundPlan) -> Mapping[str, float]:
    return {gpu.id: gpu.clock_mhz for gpu in plan.gpus}
