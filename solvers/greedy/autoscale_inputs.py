"""What policies ask the autoscaling technique, in its own nouns: targets, options and what the GPUs offer."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from solvers.autoscale.problem import (
    AutoscaleProblem,
    AutoscaleSolution,
    ScalingOption,
    ServiceTarget,
    TypeTotals,
)
from solvers.greedy.arrange import Key
from solvers.greedy.configure import MAX_REPLICAS, Configuration
from solvers.greedy.routing import ROUNDING, Carrier, service_counts, total_capacity_rps
from solvers.greedy.scaling_rules import LAUNCH_WEIGHT_PER_S
from solvers.types.plan import UnservedReason
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import GpuType

LAUNCH_S = 20.0
"""From the decision to the first served request, on a GPU type on which no launch was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Replicas whose needs the counts may not use again."""

    gpu_type: str
    row: OperatingPoint
    replicas: int = 1


def service_target(service: ServiceDemand) -> ServiceTarget:
    """The technique's target for a service, with at most MAX_REPLICAS."""
    limit = service.max_replicas
    return ServiceTarget(
        name=service.name,
        arrival_rate_rps=service.arrival_rate_rps,
        priority=service.priority,
        min_replicas=min(MAX_REPLICAS, service.min_replicas),
        max_replicas=MAX_REPLICAS if limit is None else min(MAX_REPLICAS, limit),
    )


def option(
    configuration: Configuration, running: int, launch_s: Mapping[str, float]
) -> ScalingOption:
    """The technique's option for a configuration of which `running` replicas run; launch_s: by GPU type."""
    row = configuration.row
    return ScalingOption(
        service=configuration.service,
        gpu_type=configuration.gpu_type,
        capacity_rps=configuration.capacity_rps,
        cost_usd_per_hour=configuration.cost_usd_per_hour,
        memory_mib=row.memory_mib,
        sm_percent=row.sm_percent,
        power_w=row.power_w,
        running=running,
        launch_s=launch_s.get(configuration.gpu_type, LAUNCH_S),
    )


def type_totals(problem: Problem, taken: Iterable[Taken]) -> tuple[TypeTotals, ...]:
    """What the GPUs of each type offer together, less what the taken replicas need."""
    by_type: dict[str, list[Taken]] = {
        gpu_type.name: [] for gpu_type in problem.gpu_types
    }
    for each in taken:
        by_type[each.gpu_type].append(each)
    return tuple(
        _totals(gpu_type, by_type[gpu_type.name]) for gpu_type in problem.gpu_types
    )


def _totals(gpu_type: GpuType, taken: Sequence[Taken]) -> TypeTotals:
    count = gpu_type.count
    if count is None:
        return TypeTotals(gpu_type=gpu_type.name)
    # Watts above idle, as rows count them.
    watts = gpu_type.power_cap_w - gpu_type.idle_w
    return TypeTotals(
        gpu_type=gpu_type.name,
        gpus=count,
        memory_mib=_left(
            gpu_type.memory_mib * count,
            (each.row.memory_mib * each.replicas for each in taken),
        ),
        sm_percent=_left(
            100.0 * count, (each.row.sm_percent * each.replicas for each in taken)
        ),
        power_w=_left(
            watts * count, (each.row.power_w * each.replicas for each in taken)
        ),
    )


def missing_capacity(
    aims: Problem,
    carriers: Sequence[Carrier],
    configurations: Mapping[Key, Configuration],
    launch_s: Mapping[str, float],
) -> AutoscaleProblem:
    """What the running replicas lack, to be counted in what they leave free; launch_s: by GPU type."""
    taken = Counter(
        (carrier.gpu_type, seat.row) for carrier in carriers for seat in carrier.seats
    )
    totals = type_totals(
        aims,
        (
            Taken(gpu_type=gpu_type, row=row, replicas=count)
            for (gpu_type, row), count in sorted(taken.items())
        ),
    )
    return AutoscaleProblem(
        services=tuple(map(service_target, _missing(aims, carriers))),
        # What runs is subtracted from the totals already, and must not count a second time in the options.
        options=tuple(
            option(one, 0, launch_s) for _, one in sorted(configurations.items())
        ),
        totals=totals,
        launch_weight_per_s=LAUNCH_WEIGHT_PER_S,
    )


def _missing(aims: Problem, carriers: Sequence[Carrier]) -> Iterator[ServiceDemand]:
    """The services with the rate and the limits that are left besides their running replicas."""
    replicas = service_counts(carriers)
    for service in aims.services:
        limit = service.max_replicas
        yield replace(
            service,
            arrival_rate_rps=missing_rps(aims, carriers, service),
            min_replicas=max(0, service.min_replicas - replicas[service.name]),
            max_replicas=None if limit is None else limit - replicas[service.name],
        )


def missing_rps(
    aims: Problem, carriers: Sequence[Carrier], service: ServiceDemand
) -> float:
    """The capacity that a service lacks to what it asks for; 0 where that is rounding."""
    # Most services ask for nothing where only the saturated ones are named: their capacities need not be summed.
    if service.arrival_rate_rps == 0.0:
        return 0.0
    missing_rps = service.arrival_rate_rps - total_capacity_rps(
        aims, carriers, service.name
    )
    return missing_rps if missing_rps > ROUNDING * service.arrival_rate_rps else 0.0


def positive_counts(solution: AutoscaleSolution) -> dict[Key, int]:
    """The replicas by service and GPU type, where there are any."""
    return {
        (entry.service, entry.gpu_type): entry.count
        for entry in solution.counts
        if entry.count > 0
    }


def cut(
    problem: Problem,
    counts: Mapping[Key, int],
    reasons: dict[str, UnservedReason],
    *,
    room: int = MAX_REPLICAS,
) -> dict[Key, int]:
    """The counts up to `room` in all, highest priority first; `reasons` learns who is cut short by that."""
    kept = {}
    for key in sorted(counts, key=lambda key: (-problem.service(key[0]).priority, key)):
        kept[key] = min(counts[key], room)
        room -= kept[key]
        # A count of MAX_REPLICAS was cut before it came here, by the target's own limit.
        if kept[key] < counts[key] or kept[key] == MAX_REPLICAS:
            reasons[key[0]] = "budget"
    return {key: count for key, count in kept.items() if count > 0}


def _left(total: float, taken: Iterable[float]) -> float:
    return max(0.0, total - sum(taken))
