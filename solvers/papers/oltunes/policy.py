"""Policy `oltunes`: services by OLTunes' tuning score; jobs are dispatched next to its plans, by `schedule`.

1. What runs stays, but for replicas that the service does without: the rest still carries `spare` of its rate.
2. Services by urgency, SLO latency over mean execution time, the smallest first. Each gets replicas until its rate is
   carried: of the operating rows with which it keeps its SLO, in the order of the tuning score, the first that finds a
   place. First on GPUs that carry something: at most four share one, affinity is high enough, and none there may
   lose what it carries. Then on an idle GPU. The two GPU types with the best scores come before all others.

A service's latency is that of a batch, its throughput its capacity.

Source: Kim, Ha, Kim, "OLTunes" (Cluster Computing 2025), sections 3.3.3 and 3.4.2; it knows jobs only, of which
services are a stream. Ours: capacities by the contract's laws, so that its plans keep the promise of a percentile;
step 1, since a plan that is remade every few seconds would move replicas for nothing.

Good where offline jobs share the fleet with services. Limits: it looks at one service at a time and never moves what
runs, so that it uses more GPUs than `joint`; its affinity has the defects of the printed form (`affinity`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.greedy.arrange import (
    obeys,
    running_carriers,
    total_sm_percent,
    without,
)
from solvers.greedy.configure import (
    MAX_REPLICAS,
    MIN_CAPACITY_RPS,
    fitting_rows,
    planning_clock_mhz,
)
from solvers.greedy.report import heuristic_report
from solvers.greedy.routing import (
    ROUNDING,
    ArrangedReplica,
    Carrier,
    reasons_short,
    route,
    total_capacity_rps,
)
from solvers.laws.colocation import capacities_rps, executions_ms
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE
from solvers.papers.oltunes.joining import joined, load_of, may_join
from solvers.papers.oltunes.parameters import OltunesParameters
from solvers.papers.oltunes.tuning_score import (
    ScoredSettings,
    first_types,
    jobs_per_gpu,
    power_consumption_at_base,
    scores,
)
from solvers.types.jobs import JobDemand
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import GpuType, Json, Observed

NAME = "oltunes"

MAX_HOSTS = 64
"""GPUs in use that are looked at for one replica, the fullest first."""


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The services' plan and its report; it remembers nothing."""
    del observed, memory
    begun = budget.elapsed()
    parameters = budget.parameters_as(OltunesParameters)
    running = running_carriers(problem)
    carriers = _without_surplus(problem, running, parameters.spare)
    choices = _choices(problem, len(carriers), parameters)
    for service in _by_urgency(problem, choices):
        _serve(problem, parameters, carriers, service, choices.get(service.name, ()))
    plan = route(problem, NAME, carriers, reasons_short(problem, carriers, choices))
    report = heuristic_report(
        problem, plan, method=NAME, seconds=budget.elapsed() - begun
    )
    return plan, report, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One row of a service on one GPU type."""

    gpu_type: str
    row: OperatingPoint
    execution_ms: float
    capacity_rps: float


def _choices(
    problem: Problem, used: int, parameters: OltunesParameters
) -> dict[str, tuple[_Choice, ...]]:
    """By service its rows that keep the SLO alone, best first, those of its two best GPU types before all others."""
    load = load_of(problem, used)
    found = {
        service.name: _ranked(problem, service, load, parameters)
        for service in problem.services
    }
    return {name: ranked for name, ranked in found.items() if ranked}


def _ranked(
    problem: Problem,
    service: ServiceDemand,
    load: float,
    parameters: OltunesParameters,
) -> tuple[_Choice, ...]:
    rows = [
        choice
        for gpu_type in problem.gpu_types
        if service.allows(gpu_type.name)
        for choice in _rows(problem, service, gpu_type)
    ]
    if not rows:
        return ()
    # A stream has no last input: its latency is that of one batch, due within the SLO.
    demand = JobDemand(
        weight=parameters.latency_weight,
        inputs=1,
        left_s=service.slo_ms / 1000.0,
        load=load,
    )
    weights = {"alpha": parameters.alpha, "beta": parameters.beta}
    score = scores(demand, _scored(problem, rows), **weights)
    ordered = [rows[at] for at in np.argsort(-score, kind="stable").tolist()]
    # Equation 5 keeps no others. Here these come after the best two: a service must be served, a job may wait.
    best = first_types(choice.gpu_type for choice in ordered)
    return tuple(sorted(ordered, key=lambda choice: choice.gpu_type not in best))


def _scored(problem: Problem, rows: Sequence[_Choice]) -> ScoredSettings:
    """What equation 4 asks of each row."""
    types = [problem.gpu_type(choice.gpu_type) for choice in rows]
    latency_s = np.array([choice.execution_ms for choice in rows]) / 1000.0
    percents = np.array([choice.row.sm_percent for choice in rows])
    memory_mib = np.array([choice.row.memory_mib for choice in rows])
    epc = power_consumption_at_base(
        # The cap stands for the TDP, which a Problem lacks.
        tdp_w=[each.power_cap_w for each in types],
        sm_percent=percents,
        memory_share=memory_mib / [each.memory_mib for each in types],
        latency_s=latency_s,
    )
    return ScoredSettings(
        latency_s=latency_s,
        per_gpu_rps=np.array([choice.capacity_rps for choice in rows])
        * jobs_per_gpu(percents),
        epc=epc,
    )


def _rows(
    problem: Problem,
    service: ServiceDemand,
    gpu_type: GpuType,
) -> Iterator[_Choice]:
    """The rows on one GPU type that keep the SLO alone."""
    points = problem.points_of(service.network, gpu_type.name)
    if points is None:
        return
    # One clock for all of a type: OLTunes tunes none, and replicas that share a GPU share its clock.
    clock_mhz = planning_clock_mhz(problem, gpu_type)
    rows = sorted(fitting_rows(problem, service, gpu_type, clock_mhz))
    times_ms = executions_ms(rows, sensitivity=points.sensitivity, gpu_type=gpu_type)
    rates_rps = capacities_rps(
        problem.capacity_law,
        rows,
        times_ms,
        percentile=service.percentile,
        slo_ms=service.slo_ms,
    )
    for row, time_ms, rate_rps in zip(
        rows, times_ms.tolist(), rates_rps.tolist(), strict=True
    ):
        if rate_rps >= MIN_CAPACITY_RPS:
            yield _Choice(
                gpu_type=gpu_type.name,
                row=row,
                execution_ms=time_ms,
                capacity_rps=rate_rps,
            )


def _by_urgency(
    problem: Problem,
    choices: Mapping[str, Sequence[_Choice]],
) -> list[ServiceDemand]:
    # Priority is the operator's and comes before the paper's urgency, which knows none.
    return sorted(
        problem.services,
        key=lambda one: (-one.priority, _urgency(one, choices), one.name),
    )


def _urgency(service: ServiceDemand, choices: Mapping[str, Sequence[_Choice]]) -> float:
    own = choices.get(service.name)
    # One that nothing can serve takes no GPU either way, so that its place does not matter.
    if not own:
        return np.inf
    return service.slo_ms / float(np.mean([choice.execution_ms for choice in own]))


def _without_surplus(
    problem: Problem, running: Sequence[Carrier], spare: float
) -> list[Carrier]:
    """What runs, without replicas that their services do without."""
    carriers = list(running)
    for service in problem.services:
        _drop_surplus(problem, carriers, service, spare)
    return [carrier for carrier in carriers if carrier.seats]


def _drop_surplus(
    problem: Problem,
    carriers: list[Carrier],
    service: ServiceDemand,
    spare: float,
) -> None:
    """Take away what one service does without, next to most neighbours first: those get faster by it. In place."""
    holders = [
        at
        for at, carrier in enumerate(carriers)
        if any(seat.service == service.name for seat in carrier.seats)
    ]
    count = len(holders)
    for at in sorted(holders, key=lambda at: (-len(carriers[at].seats), at)):
        before = carriers[at]
        carriers[at] = without(before, service.name)
        if _does_without(problem, carriers, service, count, spare=spare):
            count -= 1
        else:
            carriers[at] = before


def _does_without(
    problem: Problem,
    rest: Sequence[Carrier],
    service: ServiceDemand,
    count: int,
    *,
    spare: float,
) -> bool:
    """Whether a service with these replicas may lose the one that the rest of the carriers lacks."""
    # One too many goes whatever it carries: the largest number is a limit.
    if service.max_replicas is not None and count > service.max_replicas:
        return True
    carried_rps = total_capacity_rps(problem, rest, service.name)
    return (
        count > service.min_replicas and carried_rps >= spare * service.arrival_rate_rps
    )


def _serve(
    problem: Problem,
    parameters: OltunesParameters,
    carriers: list[Carrier],
    service: ServiceDemand,
    choices: Sequence[_Choice],
) -> None:
    """Add replicas of a service, in place, until its rate is carried or no row finds a place."""
    counts = Counter(seat.service for carrier in carriers for seat in carrier.seats)
    count = counts[service.name]
    room = MAX_REPLICAS - counts.total()
    if service.max_replicas is not None:
        room = min(room, service.max_replicas - count)
    for _ in range(max(0, room)):
        # Measured each time, since what the new replica carries depends on the neighbours that it got.
        carried_rps = total_capacity_rps(problem, carriers, service.name)
        is_carried = carried_rps * (1.0 - ROUNDING) >= service.arrival_rate_rps
        if (is_carried and count >= service.min_replicas) or not _add(
            problem, parameters, carriers, service, choices
        ):
            return
        count += 1


def _add(
    problem: Problem,
    parameters: OltunesParameters,
    carriers: list[Carrier],
    service: ServiceDemand,
    choices: Sequence[_Choice],
) -> bool:
    """One more replica, at the best row that finds a place; whether there is any."""
    hosts = _hosts(problem, carriers, service.name)
    types_left = _types_left(problem, carriers)
    for choice in choices:
        seat = ArrangedReplica(service.name, choice.row)
        for at, left_percent in hosts[choice.gpu_type]:
            # Whether it may join is costly to find out, so the room is compared first.
            if choice.row.sm_percent <= left_percent and may_join(
                problem, parameters, carriers, at, seat
            ):
                carriers[at] = joined(carriers[at], seat)
                return True
        alone = Carrier(gpu_type=choice.gpu_type, seats=(seat,))
        if choice.gpu_type in types_left and obeys(problem, alone):
            carriers.append(alone)
            return True
    return False


def _hosts(
    problem: Problem, carriers: Sequence[Carrier], service: str
) -> Mapping[str, list[tuple[int, float]]]:
    """By GPU type, the places of those GPUs among the MAX_HOSTS with most replicas that have none of the service, and
    the SM percent that they have left.
    """
    # Not all of a large fleet: to find out whether a replica may join is costly.
    by_seats = sorted(
        range(len(carriers)), key=lambda at: (-len(carriers[at].seats), at)
    )
    hosts: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for at in by_seats[:MAX_HOSTS]:
        seats = carriers[at].seats
        if all(seat.service != service for seat in seats):
            left_percent = _left_percent(problem, carriers[at])
            hosts[carriers[at].gpu_type].append((at, left_percent))
    return hosts


def _left_percent(problem: Problem, carrier: Carrier) -> float:
    """The SM percent that one replica more may have."""
    gpu_type = problem.gpu_type(carrier.gpu_type)
    limit = gpu_type.max_sm_percent(len(carrier.seats) + 1)
    return limit + SM_PERCENT_TOLERANCE - total_sm_percent(carrier)


def _types_left(problem: Problem, carriers: Sequence[Carrier]) -> set[str]:
    """The GPU types with a GPU that carries nothing."""
    used = Counter(carrier.gpu_type for carrier in carriers)
    return {
        gpu_type.name
        for gpu_type in problem.gpu_types
        if gpu_type.count is None or used[gpu_type.name] < gpu_type.count
    }
