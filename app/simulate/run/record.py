"""What is noted while a simulation runs: counts of every step, and at the end the results of the run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

from agents.sim.cluster import SimulatedCluster
from agents.sim.load.load_balancer import ArrivalSource
from agents.sim.queues.tally import ServiceTally, ServiceTotals
from app.base.clock import ControlClock
from app.loop.tick import TickOutcome
from app.simulate.run.accounting import Bill, Targets, make_bill, sum_bills, within
from app.simulate.run.results import (
    PlanChanges,
    RunResult,
    RunSeries,
    ServiceResult,
    ServiceSeries,
    TaskPhase,
)
from app.simulate.run.task_notes import UNFINISHED, TaskNotes
from app.simulate.scenario.carbon import GridIntensity
from app.store.memory_store import MemoryStore
from solvers.types.plan import BoundGpu, BoundPlan, planned_rates_rps
from solvers.types.state import GpuId, GpuType, Service, gpu_id

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p98": 0.98, "p99": 0.99}


# Generation 0 is that of no target: what a run has before its first one.
_EMPTY = BoundPlan(generation=0, parent=0, policy="")


class LawBroken(AssertionError):
    """The simulation lost or invented requests; a fault of the simulator, never of a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One step of the time series."""

    tallies: Mapping[str, ServiceTally]
    replicas: Mapping[str, int]
    planned_rps: Mapping[str, float]
    """Mean over the step."""
    bill: Bill
    """The targets and the handovers are billed."""
    handover_usd: float
    energy_j: float
    busy_s: float
    tasks: Mapping[TaskPhase, int]


@dataclass(slots=True, kw_only=True)
class Migrations:
    """Who serves on, and since when. Call `look` whenever a target is pushed or agents may have stopped replicas."""

    cluster: SimulatedCluster
    pushed: Targets
    """Those of the run so far, to which later ones are added."""
    changes: list[tuple[datetime, BoundPlan]] = field(default_factory=list)
    """Like targets: the GPUs that serve on, each set with the time from which it was so."""
    _planned: BoundPlan | None = None
    _left: dict[GpuId, BoundGpu] = field(default_factory=dict)
    """As the last plan had them that used them."""

    def look(self, at: datetime) -> None:
        """Note who serves on now next to the target in force."""
        target = self.pushed[-1][1] if self.pushed else None
        # By identity: a target never changes, and comparing entire plans at every look would cost more than the run.
        if target is not None and target is not self._planned:
            used = {gpu.id for gpu in target.gpus}
            before = self._planned.gpus if self._planned else ()
            self._left = {
                key: gpu for key, gpu in self._left.items() if key not in used
            }
            self._left |= {gpu.id: gpu for gpu in before if gpu.id not in used}
            self._planned = target
        self._left = {
            key: gpu for key, gpu in self._left.items() if self._carries(key, gpu)
        }
        gpus = tuple(self._left[key] for key in sorted(self._left))
        # In the shape of targets, so that the same accounting bills both.
        if gpus != (self.changes[-1][1].gpus if self.changes else ()):
            self.changes.append((at, replace(_EMPTY, gpus=gpus)))

    def _carries(self, key: GpuId, gpu: BoundGpu) -> bool:
        """Whether a replica is still there; one that failed does not serve on."""
        gpus = self.cluster.node(gpu.node).gpus
        simulated = next(each for each in gpus if gpu_id(gpu.node, each.index) == key)
        return any(each.state != "failed" for each in simulated.carried)


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Notes of one run. Call `look` whenever something was decided or done, and, from the end of the warm-up on, `note`
    after every step of the series."""

    cluster: SimulatedCluster
    store: MemoryStore
    clock: ControlClock
    services: tuple[Service, ...]
    loads: Mapping[str, ArrivalSource]
    """Where requests come from, by service; of those whose clients do not wait for answers."""
    gpu_types: tuple[GpuType, ...]
    start: datetime
    """Second 0 of the simulated clock."""
    begun_at: datetime
    """When the time that counts begins."""
    step_s: float
    reference_ms: Mapping[tuple[str, int], float]
    """An iteration takes so long on the first GPU type that is known, by network and batch of the tasks."""
    grid: GridIntensity | None = None
    """By which energy becomes carbon."""
    outcomes: list[TickOutcome] = field(default_factory=list)
    _migrations: Migrations = field(init=False)
    _tasks: TaskNotes = field(init=False)
    _steps: list[_Step] = field(default_factory=list)
    _before: dict[str, ServiceTally] = field(default_factory=dict)
    _begun: dict[str, ServiceTotals] = field(default_factory=dict)
    _energy_j: float = 0.0
    _busy_s: float = 0.0

    def __post_init__(self) -> None:
        self._migrations = Migrations(cluster=self.cluster, pushed=self.store.pushed)
        self._tasks = TaskNotes(
            book=self.store.tasks,
            start=self.start,
            reference_ms=self.reference_ms,
        )

    def look(self) -> None:
        """Something may have changed in who serves, or how tasks stand."""
        self._migrations.look(self.clock.now())
        self._tasks.look(self.clock.now())

    def begin(self) -> None:
        """From now on it counts."""
        # What came before is taken off: counters of the cluster run from second 0 on.
        self._before = self._tallies()
        self._begun = self._totals()
        self._tasks.begin()
        self._energy_j, self._busy_s = self.cluster.used_energy_j, self.cluster.busy_s

    def note(self) -> None:
        """A step is over."""
        begin = self.begun_at + timedelta(seconds=self.step_s * len(self._steps))
        until = begin + timedelta(seconds=self.step_s)
        now = self._tallies()
        totals = self._totals()
        targets = within(self.store.pushed, begin, until)
        # GPUs that serve on though no target uses them any more are paid for as well.
        changes = within(self._migrations.changes, begin, until)
        migrations = make_bill(changes, self.gpu_types, until)
        self._steps.append(
            _Step(
                tallies={
                    name: tally.since(self._before[name]) for name, tally in now.items()
                },
                replicas={name: total.replicas for name, total in totals.items()},
                planned_rps=_mean_rates_rps(targets, until, self.step_s),
                bill=sum_bills([make_bill(targets, self.gpu_types, until), migrations]),
                handover_usd=migrations.total_usd,
                energy_j=self.cluster.used_energy_j - self._energy_j,
                busy_s=self.cluster.busy_s - self._busy_s,
                tasks=self._tasks.counts(),
            )
        )
        self._before = now
        self._energy_j, self._busy_s = self.cluster.used_energy_j, self.cluster.busy_s

    def result(self, policy: str, seed: int) -> RunResult:
        """What the run came to. Raises LawBroken where requests were lost or invented."""
        bill = sum_bills([step.bill for step in self._steps])
        totals = self._totals()
        # Results of a simulator that lost requests must not be read by anybody.
        for total in totals.values():
            check_laws(total)
        return RunResult(
            policy=policy,
            seed=seed,
            counted_s=self.step_s * len(self._steps),
            services=tuple(
                self._service(service, totals[service.name], bill)
                for service in self.services
            ),
            cost_usd=bill.total_usd,
            handover_usd=sum(step.handover_usd for step in self._steps),
            tasks_usd=sum(bill.tasks_usd.values()),
            memory_usd=sum(bill.memory_usd.values()),
            gpu_hours=bill.gpu_hours,
            energy_kwh=sum(step.energy_j for step in self._steps) / 3.6e6,
            moves=self._moves(),
            holds=sum(outcome.state is None for outcome in self.outcomes),
            refused=sum(outcome.state == "refused" for outcome in self.outcomes),
            series=self._series(),
            tasks=self._tasks.results(self.clock.now()),
            carbon_g=self._carbon_g(),
            decision_seconds=tuple(
                outcome.seconds["total"]
                for outcome in self.outcomes
                if outcome.state is not None
            ),
        )

    def _carbon_g(self) -> float | None:
        """Every step's energy counts by the grid's intensity in the middle of the step."""
        if self.grid is None:
            return None
        # Grids change by the hour, steps are minutes: the middle stands for all of a step.
        first_s = (self.begun_at - self.start).total_seconds() + self.step_s / 2.0
        return sum(
            self.grid.grams(step.energy_j, first_s + self.step_s * place)
            for place, step in enumerate(self._steps)
        )

    def _moves(self) -> PlanChanges:
        """Moves in the time that counts; what was in force at its beginning is no move."""
        before = [plan for at, plan in self.store.pushed if at <= self.begun_at][-1:]
        later = [plan for at, plan in self.store.pushed if at > self.begun_at]
        return count_moves([*(before or [_EMPTY]), *later])

    def _tallies(self) -> dict[str, ServiceTally]:
        names = (service.name for service in self.services)
        return {name: self.cluster.tally(name) for name in names}

    def _totals(self) -> dict[str, ServiceTotals]:
        return {total.service: total for total in self.cluster.totals()}

    def _service(
        self,
        service: Service,
        total: ServiceTotals,
        bill: Bill,
    ) -> ServiceResult:
        begun = self._begun[service.name]
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
            queued_before=begun.queued,
            queued_after=total.queued,
            overdue=count_overdue(self.cluster, service, self.loads.get(service.name)),
            latency_ms={
                name: counted.latency_ms(share) for name, share in PERCENTILES.items()
            },
            worst_step=min(
                (share for share in steps if share is not None), default=None
            ),
            cost_usd=bill.whole_gpu_usd.get(service.name, 0.0),
            memory_usd=bill.memory_usd.get(service.name, 0.0),
            present_s=total.present_s - begun.present_s,
            sojourn_s=total.sojourn_s - begun.sojourn_s,
            itl_ms=service.llm.itl_ms if service.llm else None,
            output_tokens=counted.output_tokens,
        )

    def _series(self) -> RunSeries:
        types = sorted({name for step in self._steps for name in step.bill.gpu_hours})
        step_h = self.step_s / 3600.0
        return RunSeries(
            step_s=self.step_s,
            cost_usd_per_hour=[step.bill.total_usd / step_h for step in self._steps],
            power_w=[step.energy_j / self.step_s for step in self._steps],
            gpus={
                name: [
                    step.bill.gpu_hours.get(name, 0.0) / step_h for step in self._steps
                ]
                for name in types
            },
            services={
                service.name: self._service_series(service.name)
                for service in self.services
            },
            busy_gpus=[step.busy_s / self.step_s for step in self._steps],
            tasks={
                phase: [step.tasks[phase] for step in self._steps]
                for phase in UNFINISHED
                if self.store.tasks.records
            },
        )

    def _service_series(self, name: str) -> ServiceSeries:
        tallies = [step.tallies[name] for step in self._steps]
        return ServiceSeries(
            arrival_rate_rps=[tally.arrivals / self.step_s for tally in tallies],
            planned_rps=[step.planned_rps.get(name, 0.0) for step in self._steps],
            attainment=[_attainment(tally) for tally in tallies],
            p99_ms=[tally.latency_ms(0.99) for tally in tallies],
            replicas=[step.replicas[name] for step in self._steps],
            served_rps=[tally.served / self.step_s for tally in tallies],
            missed=[tally.served + tally.rejected - tally.in_slo for tally in tallies],
        )


def check_laws(total: ServiceTotals) -> None:
    """Every request is somewhere, and Little's law holds. Raises LawBroken."""
    if total.arrivals != total.served + total.rejected + total.queued:
        raise LawBroken(
            f"{total.service}: {total.arrivals} requests arrived, but {total.served} were served, {total.rejected} "
            f"rejected and {total.queued} wait"
        )
    # Little's law: requests present, integrated over time, are the times that requests spent. Both are summed in
    # different orders, so they agree but for rounding.
    if abs(total.present_s - total.sojourn_s) > 1e-6 * max(1.0, total.present_s):
        raise LawBroken(
            f"{total.service}: {total.present_s} request-seconds present, {total.sojourn_s} spent"
        )


def _attainment(tally: ServiceTally) -> float | None:
    finished = tally.served + tally.rejected
    return tally.in_slo / finished if finished else None


def _mean_rates_rps(
    targets: Targets,
    until: datetime,
    step_s: float,
) -> Mapping[str, float]:
    """The rates that targets planned, each until the next one, as means over a step."""
    means: dict[str, float] = defaultdict(float)
    ends = [*(at for at, _ in targets), until][1:]
    for (begin, plan), end in zip(targets, ends, strict=True):
        for service, rate_rps in planned_rates_rps(plan).items():
            means[service] += rate_rps * (end - begin).total_seconds() / step_s
    return means


def count_moves(targets: Sequence[BoundPlan]) -> PlanChanges:
    """Changes from each target to the next."""
    started = stopped = batches = clocks = 0
    for before, after in pairwise(targets):
        old = _batches(before)
        new = _batches(after)
        old_mhz = _clocks_mhz(before)
        new_mhz = _clocks_mhz(after)
        started += len(new.keys() - old.keys())
        stopped += len(old.keys() - new.keys())
        batches += sum(new[each] != old[each] for each in new.keys() & old.keys())
        clocks += sum(
            new_mhz[each] != old_mhz[each] for each in new_mhz.keys() & old_mhz.keys()
        )
    return PlanChanges(
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


def count_overdue(
    cluster: SimulatedCluster,
    service: Service,
    source: ArrivalSource | None,
) -> int:
    """How many of a service's requests have waited for longer than its SLO; `source`: where they came from, if open."""
    # Queues are computed only as far as somebody asked for: first up to now.
    now_s = cluster.advance()
    before_s = now_s - service.slo.latency_ms / 1000.0
    queues = (
        each.queue
        for node in cluster.nodes.values()
        for _, each in node.replicas()
        if each.command.service == service.name
    )
    at_replicas = sum(queue.count_older(before_s) for queue in queues)
    if source is None:
        return at_replicas
    # At the front door wait the newest ones: all that came since the service lost its last replica, but the oldest.
    newest = len(source.arrivals(before_s, now_s))
    return at_replicas + max(0, cluster.waiting(service.name) - newest)
