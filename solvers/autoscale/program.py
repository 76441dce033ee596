"""Program: the autoscaling problem in numbers, sorted and bounded; and what a vector of counts is worth in it.

Both exact methods and the greedy read the same Program, so they agree on order, limits and tolerances.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solvers.autoscale.problem import (
    UNLIMITED,
    AutoscaleProblem,
    AutoscaleSolution,
    ReplicaCount,
    ScalingOption,
    ServiceTarget,
    TypeTotals,
    check_problem,
)
from solvers.types.outcome import SolveStatus
from solvers.types.plan import Unserved, UnservedReason

# The contract allows 1e-6 relative on demand, memory and power, for rounding.
TOLERANCE = 1e-6
# Two costs nearer than this are equal; the solvers work to about 1e-9 of the largest coefficient.
COST_TOLERANCE = 1e-6
# Keeps a quotient such as 0.3 / 0.1 = 2.9999999999999996 from losing a whole replica.
ROUNDING = 1e-9
# Counts stop here: the quotient of two extreme figures may be infinite.
BEYOND_COUNTING = 1e12

_TYPE_NEEDS: tuple[tuple[UnservedReason, str], ...] = (
    ("sm", "sm_percent"),
    ("memory", "memory_mib"),
    ("power", "power_w"),
)
_CLUSTER_NEEDS: tuple[tuple[UnservedReason, str], ...] = (
    ("stock", "cpu_cores"),
    ("memory", "cpu_memory_mib"),
)
"""The rule that a resource is under, and its field in an option and in the totals alike."""

Counts = tuple[int, ...]
"""Replicas wanted, one per option of the Program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Σ need · n over some options ≤ total."""

    rule: UnservedReason
    where: str
    """The GPU type, or `cluster`."""
    needs: tuple[tuple[int, float], ...]
    """(option index, need of one replica > 0)."""
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingProgram:
    """The integer program over n[i], one per option."""

    services: tuple[ServiceTarget, ...]
    """Sorted by name."""
    options: tuple[ScalingOption, ...]
    """Sorted by service, then GPU type."""
    options_of: tuple[tuple[int, ...], ...]
    """Per service, the indices of its options."""
    launch_cost: tuple[float, ...]
    """Per option, C · κ · L: what launching one replica adds to the objective."""
    limits: tuple[Limit, ...]
    limits_of: tuple[tuple[tuple[Limit, float], ...], ...]
    """Per option, the limits that it counts in, each with its need."""
    stock: tuple[int | None, ...]
    """Per option, the number of GPUs of its type."""
    max_counts: tuple[int, ...]
    """Per option, a count that some optimum never exceeds."""

    @property
    def services_with_options(self) -> Iterator[tuple[ServiceTarget, tuple[int, ...]]]:
        """Every service with the indices of its options."""
        return zip(self.services, self.options_of, strict=True)

    @property
    def weight_wanted(self) -> float:
        """Σ priority · arrival rate: the served weight of a plan that serves everything."""
        return sum(self.weights)

    @property
    def weights(self) -> list[float]:
        """Per service, priority · arrival rate."""
        return [
            service.priority * service.arrival_rate_rps for service in self.services
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingScore:
    """The three levels of the objective."""

    served_weight: float
    missing_weight: float
    cost_usd_per_hour: float
    """Level 3: Σ C · (X + κ · L · max(X, 0))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactAnswer:
    """What an exact method found; `counts` is None when it has no solution."""

    status: SolveStatus
    counts: Counts | None = None
    bound: float | None = None
    """Proven lower bound on level 3 among plans that serve at least as much."""
    messages: tuple[str, ...] = ()


def make_program(problem: AutoscaleProblem) -> ScalingProgram:
    """The Program of a problem. Raises InvalidInput."""
    check_problem(problem)
    # Sorted, so that the same problem in another order gives the same program and the same counts.
    services = tuple(sorted(problem.services, key=lambda service: service.name))
    options = tuple(
        sorted(problem.options, key=lambda option: (option.service, option.gpu_type))
    )
    limits = _limits(problem, options)
    limits_of = _limits_by_option(limits, len(options))
    gpus = {total.gpu_type: total.gpus for total in problem.totals}
    by_name = {service.name: service for service in services}
    return ScalingProgram(
        services=services,
        options=options,
        options_of=_options_by_service(services, options),
        launch_cost=tuple(
            option.cost_usd_per_hour * problem.launch_weight_per_s * option.launch_s
            for option in options
        ),
        limits=limits,
        limits_of=limits_of,
        stock=tuple(gpus[option.gpu_type] for option in options),
        max_counts=tuple(
            _max_count(option, by_name[option.service], gpus[option.gpu_type], own)
            for option, own in zip(options, limits_of, strict=True)
        ),
    )


def replicas_needed(rate_rps: float, capacity_rps: float) -> int:
    """The smallest number of replicas of that capacity that serve the rate."""
    return math.ceil(min(BEYOND_COUNTING, rate_rps / capacity_rps * (1 - ROUNDING)))


def replicas_that_fit(free: float, need: float) -> int:
    """How often `need` > 0 fits into `free`."""
    return max(0, math.floor(min(BEYOND_COUNTING, free / need * (1 + ROUNDING))))


def replicas_of(program: ScalingProgram, counts: Sequence[int], service: int) -> int:
    """How many replicas the service with that index has."""
    return sum(counts[index] for index in program.options_of[service])


def capacity_rps(program: ScalingProgram, counts: Sequence[int], service: int) -> float:
    """The rate that the replicas of the service with that index could serve."""
    return sum(
        program.options[index].capacity_rps * counts[index]
        for index in program.options_of[service]
    )


def served_rps(program: ScalingProgram, counts: Sequence[int], service: int) -> float:
    """The rate that the counts serve of the service with that index; a shortage within tolerance counts as none."""
    wanted = program.services[service].arrival_rate_rps
    capacity = capacity_rps(program, counts, service)
    return wanted if capacity >= wanted * (1 - TOLERANCE) else capacity


def replicas_missing(
    program: ScalingProgram, counts: Sequence[int], service: int
) -> int:
    """How many replicas the counts lack to the service's `min_replicas`."""
    target = program.services[service]
    return max(0, target.min_replicas - replicas_of(program, counts, service))


def option_cost(program: ScalingProgram, index: int, count: int) -> float:
    """What `count` replicas of one option add to level 3."""
    option = program.options[index]
    change = count - option.running
    launched = max(change, 0)
    return option.cost_usd_per_hour * change + program.launch_cost[index] * launched


def score(program: ScalingProgram, counts: Sequence[int]) -> ScalingScore:
    """The three levels of the objective at these counts."""
    indexed = tuple(enumerate(program.services))
    return ScalingScore(
        served_weight=sum(
            service.priority * served_rps(program, counts, index)
            for index, service in indexed
        ),
        missing_weight=sum(
            service.priority * replicas_missing(program, counts, index)
            for index, service in indexed
        ),
        cost_usd_per_hour=sum(
            option_cost(program, index, count) for index, count in enumerate(counts)
        ),
    )


def serves_all(program: ScalingProgram, counts: Sequence[int]) -> bool:
    """Whether the counts serve every rate and reach every `min_replicas`."""
    rated = score(program, counts)
    return rated.served_weight >= program.weight_wanted and rated.missing_weight == 0


def serves_more(
    program: ScalingProgram, left: ScalingScore, right: ScalingScore
) -> bool | None:
    """Whether `left` is better on levels 1 and 2; None when they are equal there."""
    # Absolute, since a solver that holds level 1 at its best value does so with this very margin.
    margin = TOLERANCE * program.weight_wanted
    if abs(left.served_weight - right.served_weight) > margin:
        return left.served_weight > right.served_weight
    if not math.isclose(left.missing_weight, right.missing_weight, rel_tol=TOLERANCE):
        return left.missing_weight < right.missing_weight
    return None


def is_better(program: ScalingProgram, left: ScalingScore, right: ScalingScore) -> bool:
    """Whether `left` is better than `right` by more than the tolerances."""
    more = serves_more(program, left, right)
    if more is not None:
        return more
    # The cost counts changes against what runs, so that it may be 0 or negative: hence the 1.
    margin = COST_TOLERANCE * max(1.0, abs(right.cost_usd_per_hour))
    return left.cost_usd_per_hour < right.cost_usd_per_hour - margin


def fits(program: ScalingProgram, counts: Sequence[int]) -> bool:
    """Whether counts from a solver keep every limit, to 1e-6 relative and a thousandth of a unit per replica."""
    for limit in program.limits:
        used = sum(need * counts[index] for index, need in limit.needs)
        replicas = sum(counts[index] for index, _ in limit.needs)
        # CP-SAT rounds every need down to thousandths.
        if used > limit.total * (1 + TOLERANCE) + 1e-3 * replicas:
            return False
    for index, service in enumerate(program.services):
        replicas = replicas_of(program, counts, index)
        if service.max_replicas is not None and replicas > service.max_replicas:
            return False
    pairs = zip(counts, program.max_counts, strict=True)
    return all(0 <= count <= max_count for count, max_count in pairs)


def decode(program: ScalingProgram, counts: Sequence[int]) -> AutoscaleSolution:
    """The solution that these counts stand for."""
    unserved = (
        _unserved(program, counts, service) for service in range(len(program.services))
    )
    return AutoscaleSolution(
        counts=tuple(
            ReplicaCount(
                service=option.service,
                gpu_type=option.gpu_type,
                count=count,
                change=count - option.running,
            )
            for option, count in zip(program.options, counts, strict=True)
        ),
        unserved=tuple(entry for entry in unserved if entry is not None),
    )


def _limits(
    problem: AutoscaleProblem, options: tuple[ScalingOption, ...]
) -> tuple[Limit, ...]:
    everywhere = list(enumerate(options))
    limits: list[Limit] = []
    for total in sorted(problem.totals, key=lambda total: total.gpu_type):
        where = total.gpu_type
        own = [pair for pair in everywhere if pair[1].gpu_type == where]
        limits += [_limit(rule, where, own, name, total) for rule, name in _TYPE_NEEDS]
    limits += [
        _limit(rule, "cluster", everywhere, name, problem)
        for rule, name in _CLUSTER_NEEDS
    ]
    return tuple(limit for limit in limits if limit.needs and limit.total != UNLIMITED)


def _limit(
    rule: UnservedReason,
    where: str,
    options: list[tuple[int, ScalingOption]],
    name: str,
    totals: TypeTotals | AutoscaleProblem,
) -> Limit:
    needs = ((index, getattr(option, name)) for index, option in options)
    return Limit(
        rule=rule,
        where=where,
        needs=tuple((index, need) for index, need in needs if need > 0),
        total=getattr(totals, name),
    )


def _limits_by_option(
    limits: tuple[Limit, ...], options: int
) -> tuple[tuple[tuple[Limit, float], ...], ...]:
    limits_of: list[list[tuple[Limit, float]]] = [[] for _ in range(options)]
    for limit in limits:
        for index, need in limit.needs:
            limits_of[index].append((limit, need))
    return tuple(map(tuple, limits_of))


def _options_by_service(
    services: tuple[ServiceTarget, ...], options: tuple[ScalingOption, ...]
) -> tuple[tuple[int, ...], ...]:
    options_of: dict[str, list[int]] = {service.name: [] for service in services}
    for index, option in enumerate(options):
        options_of[option.service].append(index)
    # In the order of the services: every name was put in before.
    return tuple(map(tuple, options_of.values()))


def _max_count(
    option: ScalingOption,
    service: ServiceTarget,
    gpus: int | None,
    own_limits: Sequence[tuple[Limit, float]],
) -> int:
    # One replica beyond what serves the entire rate alone, and beyond min_replicas, could be dropped at no loss.
    needed = replicas_needed(service.arrival_rate_rps, option.capacity_rps)
    bounds = [max(needed, service.min_replicas)]
    bounds += [count for count in (gpus, service.max_replicas) if count is not None]
    bounds += [replicas_that_fit(limit.total, need) for limit, need in own_limits]
    return min(bounds)


def _unserved(
    program: ScalingProgram, counts: Sequence[int], service: int
) -> Unserved | None:
    target = program.services[service]
    shortage = target.arrival_rate_rps - served_rps(program, counts, service)
    missing = replicas_missing(program, counts, service)
    if shortage == 0 and missing == 0:
        return None
    reason = _blocking_rule(program, counts, service)
    return Unserved(
        service=target.name, rate_rps=shortage, reason=reason, replicas_missing=missing
    )


def _blocking_rule(
    program: ScalingProgram, counts: Sequence[int], service: int
) -> UnservedReason:
    """The rule that forbids one more replica: that of the largest option; `budget` when one more was possible."""
    own = program.options_of[service]
    # Options are the GPU types on which the service meets its SLO alone: without one, no count helps.
    if not own:
        return "slo"
    max_replicas = program.services[service].max_replicas
    if (
        max_replicas is not None
        and replicas_of(program, counts, service) >= max_replicas
    ):
        return "replicas"
    rules = [
        _rule_against(program, counts, index)
        for index in sorted(own, key=lambda index: -program.options[index].capacity_rps)
    ]
    return "budget" if None in rules else rules[0] or "budget"


def _rule_against(
    program: ScalingProgram, counts: Sequence[int], index: int
) -> UnservedReason | None:
    stock = program.stock[index]
    if stock is not None and counts[index] >= stock:
        return "stock"
    for limit, need in program.limits_of[index]:
        used = sum(other_need * counts[other] for other, other_need in limit.needs)
        if replicas_that_fit(limit.total - used, need) < 1:
            return limit.rule
    return None
