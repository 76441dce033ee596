"""Policy `k8s_hpa`: what a Kubernetes cluster with the HorizontalPodAutoscaler does; the baseline.

* One replica per GPU, which it has to itself: the widest SM percent that was profiled (100 %), at the batch and clock
  with the highest capacity under the SLO.
* The metric is a service's arrival rate over the summed profiled capacity of its replicas; the target is 0.8. The rate
  is the observed one, or the Problem's where nothing was observed.
* desired = ceil(current · metric / target), 10 % tolerance, 300 s scale-down window, at least one replica
(`greedy.scaling_rules`).
* The GPU type of a new replica is drawn at random by `budget.seed` among the allowed types that meet the SLO and have a
  free GPU. Draws are numbered per service and the number is remembered, so that one seed gives one course of events.
* Running replicas stay where they are; the newest go first. Scarce GPUs go to the greater priority.

In the baseline's favour: a service of which nothing runs starts with as many replicas as its target needs, not with
one; and its rate is spread evenly but never beyond what a replica can serve. What nobody can serve is `unserved`.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from solvers.baselines.one_per_gpu import by_law
from solvers.greedy.configure import MAX_REPLICAS, MIN_CAPACITY_RPS
from solvers.greedy.report import heuristic_report
from solvers.greedy.scaling_rules import HpaRule, decide_hpa, remembered_services
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import (
    GpuPlan,
    Plan,
    ReplicaPlan,
    Unserved,
    UnservedReason,
    replicas_of,
)
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import GpuType, Json, Observed

NAME = "k8s_hpa"
TARGET = 0.8
"""The target metric, as a part of the profiled capacity."""

_VERSION = 1
# A shortage below this share of the rate is rounding (the contract's allowance is 1e-6).
_SHORTAGE_TOLERANCE = 1e-9


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan that Kubernetes would reach in this period, its report and the memory for the next."""
    begun = budget.elapsed()
    fleets = _running_fleets(problem, memory)
    for fleet in fleets:
        _decide(fleet, observed)
        # The list is oldest first, so that the newest go.
        del fleet.gpu_types[fleet.wanted :]
    # All scale down before any scales up, so that GPUs that one gives back serve the others in the same period.
    free = _free_gpus(problem, fleets)
    for fleet in fleets:
        _grow(fleet, free, seed=budget.seed)
    plan = _plan(fleets)
    report = heuristic_report(
        problem,
        plan,
        seconds=budget.elapsed() - begun,
        method=NAME,
        messages=_messages(fleets),
    )
    services = {fleet.service.name: _remember(fleet) for fleet in fleets}
    return plan, report, {"version": _VERSION, "services": services}


def _messages(fleets: Iterable["_Fleet"]) -> Iterator[str]:
    for fleet in fleets:
        if fleet.ways and not _is_enough(fleet):
            yield (
                f"{fleet.service.name}: more than {len(fleet.gpu_types)} replicas wanted, "
                "but no GPU is free for them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EntireGpu:
    """How a service runs alone on one GPU type."""

    row: OperatingPoint
    capacity_rps: float


@dataclass(slots=True, kw_only=True)
class _Fleet:
    """One service's replicas while the plan is made."""

    service: ServiceDemand
    ways: Mapping[str, _EntireGpu]
    """By GPU type, in the order of names: those that meet the SLO."""
    gpu_types: list[str] = field(default_factory=list)
    """One entry per replica, oldest first."""
    wanted: int | None = None
    """What the autoscaler wants; None = what the target needs, because nothing runs yet."""
    draws: int = 0
    """GPU types drawn so far, ever."""
    hpa: Json = None
    """The autoscaler's memory."""

    @property
    def capacity_rps(self) -> float:
        return sum(self.ways[name].capacity_rps for name in self.gpu_types)

    @property
    def rule(self) -> HpaRule:
        """Kubernetes runs at least one replica, unless even one is more than the service allows."""
        limit = self.service.max_replicas
        replicas = max(1, self.service.min_replicas)
        if limit is not None:
            replicas = min(replicas, limit)
        return HpaRule(min_replicas=replicas, max_replicas=limit)


def _running_fleets(problem: Problem, memory: Json) -> list[_Fleet]:
    """The fleets as they run now, by falling priority, with as many replicas as there are GPUs for."""
    remembered = remembered_services(memory, _VERSION)
    # Stock may have shrunk: replicas of lost GPUs are not counted as running.
    free = _free_gpus(problem, ())
    fleets = []
    for service in sorted(
        problem.services, key=lambda service: (-service.priority, service.name)
    ):
        entry = remembered.get(service.name)
        fields = entry if isinstance(entry, Mapping) else {}
        fleet = _empty_fleet(problem, service, fields)
        for name in _oldest_first(problem, service.name, fields.get("gpu_types")):
            if name in fleet.ways and free[name] > 0:
                fleet.gpu_types.append(name)
                free[name] -= 1
        fleets.append(fleet)
    return fleets


def _empty_fleet(
    problem: Problem,
    service: ServiceDemand,
    remembered: Mapping[str, Json],
) -> _Fleet:
    draws = remembered.get("draws")
    return _Fleet(
        service=service,
        ways=_ways(problem, service),
        # Numbered for ever: a draw that was made again would give every new replica the same type.
        draws=draws if isinstance(draws, int) else 0,
        hpa=remembered.get("hpa"),
    )


def _oldest_first(problem: Problem, service: str, remembered: Json) -> list[str]:
    """The GPU types of the replicas that run; those that the memory does not know count as the oldest."""
    running: Counter[str] = Counter()
    if problem.current is not None:
        for gpu, _ in replicas_of(problem.current, service):
            running[gpu.gpu_type] += min(gpu.count, MAX_REPLICAS)
    known = []
    for name in remembered if isinstance(remembered, list | tuple) else ():
        if isinstance(name, str) and running[name] > 0:
            running[name] -= 1
            known.append(name)
    return sorted(running.elements()) + known


def _ways(problem: Problem, service: ServiceDemand) -> dict[str, _EntireGpu]:
    allowed = [each for each in problem.gpu_types if service.allows(each.name)]
    ways = {}
    for gpu_type in sorted(allowed, key=lambda gpu_type: gpu_type.name):
        best = max(
            _able(problem, service, gpu_type),
            key=lambda way: (way.capacity_rps, -way.row.power_w, -way.row.batch),
            default=None,
        )
        if best is not None and best.capacity_rps >= MIN_CAPACITY_RPS:
            ways[gpu_type.name] = best
    return ways


def _able(
    problem: Problem,
    service: ServiceDemand,
    gpu_type: GpuType,
) -> Iterator[_EntireGpu]:
    """The rows of the widest share that fit on one GPU."""
    points = problem.points_of(service.network, gpu_type.name)
    rows = points.rows if points else ()
    # Kubernetes gives out GPUs undivided; where 100 % was not profiled, the widest share stands for it.
    widest = max((row.sm_percent for row in rows), default=100.0)
    for row in rows:
        if row.sm_percent == widest and _fits(row, gpu_type):
            yield _EntireGpu(row=row, capacity_rps=by_law(problem, service, row))


def _fits(row: OperatingPoint, gpu_type: GpuType) -> bool:
    return (
        row.memory_mib <= gpu_type.memory_mib
        and gpu_type.idle_w + row.power_w <= gpu_type.power_cap_w
        and row.clock_mhz in gpu_type.clocks_mhz
    )


def _decide(fleet: _Fleet, observed: Observed) -> None:
    """Set what is wanted, by the autoscaler's rule where something runs."""
    # Without replicas there is no metric, and what was recommended for earlier ones says nothing.
    if not fleet.gpu_types:
        fleet.hpa = None
        return
    reading = observed.reading(fleet.service.name)
    rate_rps = (
        fleet.service.arrival_rate_rps if reading is None else reading.arrival_rate_rps
    )
    decision, fleet.hpa = decide_hpa(
        len(fleet.gpu_types),
        rate_rps / fleet.capacity_rps / TARGET,
        fleet.rule,
        now_s=observed.at_s,
        memory=fleet.hpa,
    )
    fleet.wanted = decision.replicas


def _free_gpus(problem: Problem, fleets: Sequence[_Fleet]) -> dict[str, int]:
    """GPUs per type that carry no replica, of as many as a plan may use."""
    used = Counter(name for fleet in fleets for name in fleet.gpu_types)
    return {
        gpu_type.name: (
            MAX_REPLICAS
            if gpu_type.count is None
            else min(gpu_type.count, MAX_REPLICAS)
        )
        - used[gpu_type.name]
        for gpu_type in problem.gpu_types
    }


def _grow(fleet: _Fleet, free: dict[str, int], *, seed: int) -> None:
    """Add replicas on types drawn at random until there are enough or no GPU is free."""
    while not _is_enough(fleet):
        types = [name for name in fleet.ways if free[name] > 0]
        if not types:
            return
        # A string seeds the generator alike on every platform and in every process.
        drawn = random.Random(f"{seed}/{fleet.service.name}/{fleet.draws}").choice(
            types
        )
        fleet.draws += 1
        fleet.gpu_types.append(drawn)
        free[drawn] -= 1


def _is_enough(fleet: _Fleet) -> bool:
    replicas = len(fleet.gpu_types)
    rule = fleet.rule
    if fleet.wanted is not None:
        return replicas >= fleet.wanted
    if rule.max_replicas is not None and replicas >= rule.max_replicas:
        return True
    return (
        replicas >= rule.min_replicas
        and fleet.service.arrival_rate_rps <= TARGET * fleet.capacity_rps
    )


def _plan(fleets: Sequence[_Fleet]) -> Plan:
    return Plan(
        policy=NAME,
        gpus=tuple(gpu for fleet in fleets for gpu in _gpu_plans(fleet)),
        unserved=tuple(entry for fleet in fleets for entry in _unserved(fleet)),
    )


def _gpu_plans(fleet: _Fleet) -> Iterator[GpuPlan]:
    """One GpuPlan per GPU type; the rate is spread evenly, but no replica gets more than it can serve."""
    rates = _even_rates(fleet)
    for name, count in sorted(Counter(fleet.gpu_types).items()):
        row = fleet.ways[name].row
        replica = ReplicaPlan(
            service=fleet.service.name,
            sm_percent=row.sm_percent,
            batch=row.batch,
            arrival_rate_rps=rates[name],
        )
        yield GpuPlan(
            gpu_type=name, count=count, clock_mhz=row.clock_mhz, replicas=(replica,)
        )


def _even_rates(fleet: _Fleet) -> dict[str, float]:
    """Rate of one replica by GPU type: the weakest are filled first, the others share evenly what is left."""
    left_rps, left_replicas = fleet.service.arrival_rate_rps, len(fleet.gpu_types)
    counts = Counter(fleet.gpu_types)
    rates = {}
    # Weakest first: what they cannot take falls to the stronger ones, which come after them.
    for name in sorted(counts, key=lambda name: (fleet.ways[name].capacity_rps, name)):
        rates[name] = min(
            max(0.0, left_rps) / left_replicas, fleet.ways[name].capacity_rps
        )
        left_rps -= counts[name] * rates[name]
        left_replicas -= counts[name]
    return rates


def _unserved(fleet: _Fleet) -> Iterator[Unserved]:
    service = fleet.service
    shortage = service.arrival_rate_rps - fleet.capacity_rps
    if shortage <= _SHORTAGE_TOLERANCE * service.arrival_rate_rps:
        shortage = 0.0
    missing = max(0, service.min_replicas - len(fleet.gpu_types))
    if shortage or missing:
        yield Unserved(
            service=service.name,
            rate_rps=shortage,
            reason=_reason(fleet),
            replicas_missing=missing,
        )


def _reason(fleet: _Fleet) -> UnservedReason:
    if not fleet.ways:
        return "slo"
    # Where GPUs are left, it is the autoscaler that holds the count.
    return "replicas" if _is_enough(fleet) else "stock"


def _remember(fleet: _Fleet) -> Json:
    return {"draws": fleet.draws, "gpu_types": list(fleet.gpu_types), "hpa": fleet.hpa}
