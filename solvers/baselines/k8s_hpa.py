"""Policy `k8s_hpa`: what a Kubernetes cluster with the HorizontalPodAutoscaler does; the baseline.

* A replica is a pod that asks for one device: a GPU, or one of `PodOptions.parts` equal parts of it. It runs at the
  widest profiled SM percent of at most 100 / parts, in 1 / parts of the memory and of the watts, at the batch (and,
  alone on its GPU, the clock) with the highest capacity under the SLO. Neighbours are not reckoned with.
* The metric is a service's arrival rate over the summed profiled capacity of its replicas; its target is 0.8, or what
  `PodOptions.target` says. The rate is the observed one, or the Problem's where nothing was observed.
* desired = ceil(current · metric / target), 10 % tolerance, 300 s scale-down window, at least one replica
(`greedy.scaling_rules`).
* The GPU type of a new replica is that of `PodOptions.gpu_type`; without one it is drawn at random by `budget.seed`
  among the allowed types that meet the SLO and have room. Draws are numbered per service and the number is remembered,
  so that one seed gives one course of events.
* Running replicas stay where they are; the newest go first. Scarce GPUs go to the greater priority.

Equal parts are NVIDIA's device plugin with `sharing.mps`: it sets an active thread percentage of 100 / replicas and a
memory limit of the GPU's memory / replicas (NVIDIA/k8s-device-plugin, cmd/mps-control-daemon/mps/daemon.go). Its other
way to share, `sharing.timeSlicing`, limits neither and is not represented: replicas here have a share of the SMs each.

In the baseline's favour: a service of which nothing runs starts with as many replicas as its target needs, not with
one; its rate is spread evenly but never beyond what a replica can serve; new replicas fill the GPUs that are shared
already, the fullest first, where the plugin and the scheduler would spread them; and the replicas that go are those
with the fewest neighbours. Against it: no GPU carries two replicas of a service, as the contract asks. What no pod can
serve is `unserved`.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from solvers.baselines.k8s_pods import (
    PodCluster,
    PodFleet,
    PodOptions,
    pod_ways,
)
from solvers.greedy.configure import (
    MAX_REPLICAS,
)
from solvers.greedy.report import heuristic_report
from solvers.greedy.scaling_rules import decide_hpa, remembered_services
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import (
    GpuPlan,
    Plan,
    ReplicaPlan,
    Unserved,
    UnservedReason,
)
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import Json, Observed

NAME = "k8s_hpa"
_VERSION = 1
# A shortage below this share of the rate is rounding (the contract's allowance is 1e-6).
_SHORTAGE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesHpa:
    """The policy as the operator of one cluster has set it up."""

    pods: Mapping[str, PodOptions] = field(default_factory=dict)
    """By service; a service that is not named has the defaults."""

    def make_plan(
        self, problem: Problem, observed: Observed, memory: Json, budget: Budget
    ) -> tuple[Plan, PlanReport, Json]:
        """The plan that Kubernetes would reach in this period, its report and the memory for the next."""
        begun = budget.elapsed()
        cluster = PodCluster(problem)
        fleets = _running_fleets(cluster, self.pods, memory)
        for fleet in fleets:
            _decide(fleet, observed)
            _shrink(fleet, cluster)
        # All scale down before any scales up, so that GPUs that one gives back serve the others in the same period.
        for fleet in fleets:
            _grow(fleet, cluster, seed=budget.seed)
        plan = _plan(fleets)
        report = heuristic_report(
            problem,
            plan,
            seconds=budget.elapsed() - begun,
            method=NAME,
            messages=_messages(fleets),
        )
        return plan, report, _remember(fleets)


make_plan = KubernetesHpa().make_plan
"""Entire GPUs, drawn types and a target of 0.8, as it is registered."""


class _Place(NamedTuple):
    """One GPU of the current plan."""

    gpu_type: str
    entry: int
    """Which entry of the plan."""
    number: int
    """Which of the GPUs that the entry stands for."""


def _running_fleets(
    cluster: PodCluster, pods: Mapping[str, PodOptions], memory: Json
) -> list[PodFleet]:
    """The fleets as they run now, by falling priority, with as many replicas as there are GPUs for."""
    remembered = remembered_services(memory, _VERSION)
    fleets = []
    for service in cluster.problem.services_by_priority():
        entry = remembered.get(service.name)
        fields = entry if isinstance(entry, Mapping) else {}
        options = pods.get(service.name, PodOptions())
        fleet = _idle_fleet(cluster.problem, service, options, fields)
        _keep(fleet, cluster, _oldest_first(cluster.problem, service.name, fields))
        fleets.append(fleet)
    return fleets


def _keep(fleet: PodFleet, cluster: PodCluster, places: Sequence[_Place]) -> None:
    """Let the service's replicas stay where they are."""
    for place in places:
        name = place.gpu_type
        if name in fleet.ways:
            # Stock may have shrunk: replicas of lost GPUs are not counted as running.
            gpu = cluster.place(place, name, fleet) or cluster.room(name, fleet)
            if gpu is not None:
                cluster.add(fleet, gpu)


def _idle_fleet(
    problem: Problem,
    service: ServiceDemand,
    pods: PodOptions,
    remembered: Mapping[str, Json],
) -> PodFleet:
    """A service's fleet without replicas."""
    draws = remembered.get("draws")
    parts = min(pods.parts, problem.max_replicas_per_gpu)
    return PodFleet(
        service=service,
        pods=pods,
        parts=parts,
        ways=pod_ways(problem, service, pods, parts),
        # Numbered for ever: a draw that was made again would give every new replica the same type.
        draws=draws if isinstance(draws, int) else 0,
        hpa=remembered.get("hpa"),
    )


def _oldest_first(
    problem: Problem, service: str, remembered: Mapping[str, Json]
) -> list[_Place]:
    """Where the service's replicas run; those that the memory does not know count as the oldest."""
    running: defaultdict[str, deque[_Place]] = defaultdict(deque)
    for place in _places(problem, service):
        running[place.gpu_type].append(place)
    known = []
    gpu_types = remembered.get("gpu_types")
    for name in gpu_types if isinstance(gpu_types, list | tuple) else ():
        if isinstance(name, str) and running[name]:
            known.append(running[name].pop())
    unknown = [place for places in running.values() for place in places]
    return sorted(unknown) + known


def _places(problem: Problem, service: str) -> Iterator[_Place]:
    for entry, gpu in enumerate(problem.current.gpus if problem.current else ()):
        if any(replica.service == service for replica in gpu.replicas):
            for number in range(min(gpu.count, MAX_REPLICAS)):
                yield _Place(gpu.gpu_type, entry, number)


def _decide(fleet: PodFleet, observed: Observed) -> None:
    """Set what is wanted, by the autoscaler's rule where something runs."""
    # Without replicas there is no metric, and what was recommended for earlier ones says nothing.
    if not fleet.gpus:
        fleet.hpa = None
        return
    reading = observed.reading(fleet.service.name)
    rate_rps = (
        fleet.service.arrival_rate_rps if reading is None else reading.arrival_rate_rps
    )
    decision, fleet.hpa = decide_hpa(
        len(fleet.gpus),
        rate_rps / fleet.capacity_rps / fleet.pods.target,
        fleet.rule,
        now_s=observed.at_s,
        memory=fleet.hpa,
    )
    fleet.wanted = decision.replicas


def _shrink(fleet: PodFleet, cluster: PodCluster) -> None:
    """Take away the replicas that are more than wanted."""
    surplus = 0 if fleet.wanted is None else max(0, len(fleet.gpus) - fleet.wanted)
    newest_first = fleet.gpus[::-1]
    # Those with the fewest neighbours go first, of equals the newest: a GPU that empties is paid for no longer.
    newest_first.sort(key=lambda gpu: len(gpu.services))
    for gpu in newest_first[:surplus]:
        cluster.remove(fleet, gpu)


def _grow(fleet: PodFleet, cluster: PodCluster, *, seed: int) -> None:
    """Add replicas on types drawn at random until there are enough or no GPU has room."""
    while not _is_enough(fleet):
        rooms = {name: cluster.room(name, fleet) for name in fleet.ways}
        found = [gpu for gpu in rooms.values() if gpu is not None]
        if not found:
            return
        # A string seeds the generator alike on every platform and in every process.
        drawn = random.Random(f"{seed}/{fleet.service.name}/{fleet.draws}").choice(
            found
        )
        fleet.draws += 1
        cluster.add(fleet, drawn)


def _is_enough(fleet: PodFleet) -> bool:
    replicas = len(fleet.gpus)
    rule = fleet.rule
    if fleet.wanted is not None:
        return replicas >= fleet.wanted
    if rule.max_replicas is not None and replicas >= rule.max_replicas:
        return True
    return (
        replicas >= rule.min_replicas
        and fleet.service.arrival_rate_rps <= fleet.pods.target * fleet.capacity_rps
    )


def _plan(fleets: Sequence[PodFleet]) -> Plan:
    return Plan(
        policy=NAME,
        gpus=tuple(_gpu_plans(fleets)),
        unserved=tuple(entry for fleet in fleets for entry in _unserved(fleet)),
    )


def _gpu_plans(fleets: Sequence[PodFleet]) -> Iterator[GpuPlan]:
    """One GpuPlan per GPU type and set of services, at the place of the most important of them."""
    by_name = {fleet.service.name: fleet for fleet in fleets}
    rates = {name: _even_rates(fleet) for name, fleet in by_name.items()}
    for name, fleet in by_name.items():
        for (gpu_type, services), count in _shared_alike(fleet, list(by_name)):
            # The other ones' turn would name the same GPUs again.
            if services[0] != name:
                continue
            yield GpuPlan(
                gpu_type=gpu_type,
                count=count,
                clock_mhz=fleet.ways[gpu_type].row.clock_mhz,
                replicas=tuple(
                    _replica(by_name[each], gpu_type, rates[each]) for each in services
                ),
            )


def _shared_alike(
    fleet: PodFleet, names: list[str]
) -> list[tuple[tuple[str, tuple[str, ...]], int]]:
    """How many of a fleet's GPUs are of one type and shared by the same services, ordered as in `names`."""
    alike = Counter(
        (gpu.gpu_type, tuple(sorted(gpu.services, key=names.index)))
        for gpu in fleet.gpus
    )
    return sorted(alike.items())


def _replica(fleet: PodFleet, gpu_type: str, rates: Mapping[str, float]) -> ReplicaPlan:
    row = fleet.ways[gpu_type].row
    return ReplicaPlan(
        service=fleet.service.name,
        sm_percent=row.sm_percent,
        batch=row.batch,
        arrival_rate_rps=rates[gpu_type],
    )


def _even_rates(fleet: PodFleet) -> dict[str, float]:
    """Rate of one replica by GPU type, spread evenly, but none gets more than it can serve."""
    left_rps, left_replicas = fleet.service.arrival_rate_rps, len(fleet.gpus)
    counts = Counter(gpu.gpu_type for gpu in fleet.gpus)
    rates = {}
    # Weakest first: what they cannot take falls to the stronger ones, which come after them.
    for name in sorted(counts, key=lambda name: (fleet.ways[name].capacity_rps, name)):
        rates[name] = min(
            max(0.0, left_rps) / left_replicas, fleet.ways[name].capacity_rps
        )
        left_rps -= counts[name] * rates[name]
        left_replicas -= counts[name]
    return rates


def _unserved(fleet: PodFleet) -> Iterator[Unserved]:
    service = fleet.service
    shortage = service.arrival_rate_rps - fleet.capacity_rps
    if shortage <= _SHORTAGE_TOLERANCE * service.arrival_rate_rps:
        shortage = 0.0
    missing = max(0, service.min_replicas - len(fleet.gpus))
    if shortage or missing:
        yield Unserved(
            service=service.name,
            rate_rps=shortage,
            reason=_reason(fleet),
            replicas_missing=missing,
        )


def _reason(fleet: PodFleet) -> UnservedReason:
    if not fleet.ways:
        return "slo"
    # Where GPUs are left, it is the autoscaler that holds the count.
    return "replicas" if _is_enough(fleet) else "stock"


def _messages(fleets: Sequence[PodFleet]) -> Iterator[str]:
    for fleet in fleets:
        if fleet.ways and not _is_enough(fleet):
            yield (
                f"{fleet.service.name}: more than {len(fleet.gpus)} replicas wanted, "
                "but no GPU is free for them"
            )


def _remember(fleets: Sequence[PodFleet]) -> Json:
    services: Json = {
        fleet.service.name: {
            "draws": fleet.draws,
            "gpu_types": [gpu.gpu_type for gpu in fleet.gpus],
            "hpa": fleet.hpa,
        }
        for fleet in fleets
    }
    return {"version": _VERSION, "services": services}
