"""Policy `oltunes`: services by OLTunes' tuning score; jobs are dispatched beside its plans, by `schedule`.

1. What runs stays, but for replicas that the service does without: the rest still carries SPARE of its rate.
2. Services by urgency, SLO latency over mean execution time, the smallest first. Each gets replicas until its rate is
   carried: of the operating rows with which it keeps its SLO, in the order of the tuning score, the first that finds a
   place. First on GPUs that carry something: at most four share one, affinity is high enough, and nobody there may
   lose what he carries. Then on an idle GPU. The two GPU types with the best scores come before all others.

A service is latency-critical, λ = 0.75: its latency is that of a batch, its throughput its capacity.

Source: Kim, Ha, Kim, "OLTunes" (Cluster Computing 2025), sections 3.3.3 and 3.4.2; it knows jobs only, of which
services are a stream. Ours: capacities by the contract's laws, so that its plans keep the promise of a percentile;
step 1, since a plan that is made anew every few seconds would move replicas for nothing.

Good where offline jobs share the fleet with services. Limits: it looks at one service at a time and never moves what
runs, so that it uses more GPUs than `joint`; its affinity has the defects of the printed form (`affinity`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.greedy.arrange import obeys, running_carriers
from solvers.greedy.configure import (
    MAX_REPLICAS,
    MIN_CAPACITY_RPS,
    fitting_rows,
    planning_clock_mhz,
)
from solvers.greedy.routing import (
    ROUNDING,
    ArrangedReplica,
    Carrier,
    reasons_short,
    route,
    total_capacity_rps,
)
from solvers.laws.colocation import ALONE, capacities_rps, executions_ms
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.papers.oltunes.affinity import Character, sensitivity_ratio, suits
from solvers.papers.oltunes.tuning_score import (
    BASE_W,
    ScoredSettings,
    estimated_power_consumption,
    scores,
)
from solvers.types.jobs import MAX_JOBS, JobDemand
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import Json, Observed

NAME = "oltunes"

SPARE = 1.2
"""A replica goes when the others carry so many times the rate: no new one is needed for the next little rise."""
WEIGHT = 0.75
MAX_HOSTS = 64
"""GPUs in use that are looked at for one replica, the fullest first."""


def make_plan(
    problem: Problem, observed: Observed, memory: Json, budget: Budget
) -> tuple[Plan, PlanReport, Json]:
    """The services' plan and its report; it remembers nothing."""
    del observed, memory
    begun = budget.elapsed()
    carriers = _without_surplus(problem, running_carriers(problem))
    choices = _choices(problem, len(carriers))
    for service in sorted(
        problem.services,
        key=lambda one: (-one.priority, _urgency(one, choices), one.name),
    ):
        _serve(problem, carriers, service, choices.get(service.name, ()))
    plan = route(problem, NAME, carriers, reasons_short(problem, carriers, choices))
    report = PlanReport(
        status="greedy",
        cost_usd_per_hour=cost_usd_per_hour(problem, plan),
        seconds=budget.elapsed() - begun,
        method=NAME,
        served_weight=served_weight(problem, plan)
        if problem.objective == "max_goodput"
        else None,
    )
    return plan, report, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One row of a service on one GPU type."""

    gpu_type: str
    row: OperatingPoint
    execution_ms: float


def _choices(problem: Problem, used: int) -> dict[str, tuple[_Choice, ...]]:
    """By service its rows that keep the SLO alone, best first, those of its two best GPU types before all others."""
    load = _load(problem, used)
    found = {
        service.name: _ranked(problem, service, load) for service in problem.services
    }
    return {name: ranked for name, ranked in found.items() if ranked}


def _load(problem: Problem, used: int) -> float:
    """Share of the stock that carries something; 0 where the stock knows no end."""
    stock = [gpu_type.count for gpu_type in problem.gpu_types]
    total = sum(count for count in stock if count is not None)
    return min(1.0, used / total) if total and None not in stock else 0.0


def _ranked(
    problem: Problem, service: ServiceDemand, load: float
) -> tuple[_Choice, ...]:
    rows = [
        found
        for gpu_type in problem.gpu_types
        for found in _rows(problem, service, gpu_type.name)
    ]
    if not rows:
        return ()
    types = [problem.gpu_type(choice.gpu_type) for choice, _ in rows]
    latency_s = np.array([choice.execution_ms for choice, _ in rows]) / 1000.0
    percent = np.array([choice.row.sm_percent for choice, _ in rows])
    epc = estimated_power_consumption(
        base_w=BASE_W,
        tdp_w=np.array([max(BASE_W, one.power_cap_w) for one in types]),
        sm_percent=percent,
        memory_share=[
            choice.row.memory_mib / one.memory_mib
            for (choice, _), one in zip(rows, types, strict=True)
        ],
        latency_s=latency_s,
    )
    per_gpu_rps = np.array([rate for _, rate in rows]) * np.minimum(
        MAX_JOBS, 100.0 / percent
    )
    demand = JobDemand(
        weight=WEIGHT, inputs=1, left_s=service.slo_ms / 1000.0, load=load
    )
    score = scores(
        demand, ScoredSettings(latency_s=latency_s, per_gpu_rps=per_gpu_rps, epc=epc)
    )
    ordered = [rows[at][0] for at in np.argsort(-score, kind="stable").tolist()]
    best = tuple(dict.fromkeys(choice.gpu_type for choice in ordered))[:2]
    return tuple(sorted(ordered, key=lambda choice: choice.gpu_type not in best))


def _rows(
    problem: Problem, service: ServiceDemand, gpu_type: str
) -> Iterator[tuple[_Choice, float]]:
    """The rows on one GPU type that keep the SLO alone, each with its capacity."""
    points = problem.points_of(service.network, gpu_type)
    if points is None or not service.allows(gpu_type):
        return
    kind = problem.gpu_type(gpu_type)
    rows = sorted(
        fitting_rows(problem, service, kind, planning_clock_mhz(problem, kind))
    )
    if not rows:
        return
    times_ms = executions_ms(rows, ALONE, sensitivity=points.sensitivity, gpu_type=kind)
    rates = capacities_rps(
        problem.capacity_law,
        rows,
        times_ms,
        percentile=service.percentile,
        slo_ms=service.slo_ms,
    )
    for row, time_ms, rate in zip(rows, times_ms.tolist(), rates.tolist(), strict=True):
        if rate >= MIN_CAPACITY_RPS:
            yield _Choice(gpu_type=gpu_type, row=row, execution_ms=time_ms), rate


def _urgency(service: ServiceDemand, choices: Mapping[str, Sequence[_Choice]]) -> float:
    own = choices.get(service.name)
    return (
        service.slo_ms / float(np.mean([choice.execution_ms for choice in own]))
        if own
        else np.inf
    )


def _without_surplus(problem: Problem, running: Sequence[Carrier]) -> list[Carrier]:
    """What runs, without replicas that their services do without; of each service the ones beside most neighbours go
    first."""
    carriers = list(running)
    for service in problem.services:
        holders = [
            at
            for at, one in enumerate(carriers)
            if any(seat.service == service.name for seat in one.seats)
        ]
        count = len(holders)
        for at in sorted(holders, key=lambda at: (-len(carriers[at].seats), at)):
            kept = tuple(
                seat for seat in carriers[at].seats if seat.service != service.name
            )
            fewer = [
                *carriers[:at],
                Carrier(gpu_type=carriers[at].gpu_type, seats=kept),
                *carriers[at + 1 :],
            ]
            is_over = service.max_replicas is not None and count > service.max_replicas
            carried_rps = total_capacity_rps(problem, fewer, service.name)
            is_spare = (
                count > service.min_replicas
                and carried_rps >= SPARE * service.arrival_rate_rps
            )
            if is_over or is_spare:
                carriers, count = fewer, count - 1
    return [carrier for carrier in carriers if carrier.seats]


def _serve(
    problem: Problem,
    carriers: list[Carrier],
    service: ServiceDemand,
    choices: Sequence[_Choice],
) -> None:
    """Add replicas of a service, in place, until its rate is carried or no row finds a place."""
    count = sum(
        seat.service == service.name for carrier in carriers for seat in carrier.seats
    )
    room = MAX_REPLICAS - sum(len(carrier.seats) for carrier in carriers)
    most = (
        room
        if service.max_replicas is None
        else min(room, service.max_replicas - count)
    )
    for _ in range(max(0, most)):
        carried_rps = total_capacity_rps(problem, carriers, service.name)
        is_carried = carried_rps * (1.0 - ROUNDING) >= service.arrival_rate_rps
        if (is_carried and count >= service.min_replicas) or not _add(
            problem, carriers, service, choices
        ):
            return
        count += 1


def _add(
    problem: Problem,
    carriers: list[Carrier],
    service: ServiceDemand,
    choices: Sequence[_Choice],
) -> bool:
    """One more replica, at the best row that finds a place; whether there is any."""
    used = Counter(carrier.gpu_type for carrier in carriers)
    order = sorted(range(len(carriers)), key=lambda at: (-len(carriers[at].seats), at))[
        :MAX_HOSTS
    ]
    for choice in choices:
        seat = ArrangedReplica(service=service.name, row=choice.row)
        for at in order:
            if carriers[at].gpu_type == choice.gpu_type and _may_join(
                problem, carriers, at, seat
            ):
                carriers[at] = Carrier(
                    gpu_type=choice.gpu_type, seats=(*carriers[at].seats, seat)
                )
                return True
        alone = Carrier(gpu_type=choice.gpu_type, seats=(seat,))
        stock = problem.gpu_type(choice.gpu_type).count
        if (stock is None or used[choice.gpu_type] < stock) and obeys(problem, alone):
            carriers.append(alone)
            return True
    return False


def _may_join(
    problem: Problem, carriers: Sequence[Carrier], at: int, seat: ArrangedReplica
) -> bool:
    """Whether the newcomer suits those on a GPU, keeps the rules there, and nobody's service loses what it carries."""
    host = carriers[at]
    joined = Carrier(gpu_type=host.gpu_type, seats=(*host.seats, seat))
    if len(joined.seats) > MAX_JOBS or not obeys(problem, joined):
        return False
    neighbours, load = (
        [_character(problem, host, each) for each in host.seats],
        _load(problem, len(carriers)),
    )
    if not suits(_character(problem, host, seat), neighbours, load):
        return False
    after = [*carriers[:at], joined, *carriers[at + 1 :]]
    newcomer = total_capacity_rps(problem, [joined], seat.service)
    return newcomer >= MIN_CAPACITY_RPS and all(
        total_capacity_rps(problem, after, each.service)
        >= min(
            problem.service(each.service).arrival_rate_rps * (1.0 + ROUNDING),
            total_capacity_rps(problem, carriers, each.service),
        )
        for each in host.seats
    )


def _character(problem: Problem, carrier: Carrier, seat: ArrangedReplica) -> Character:
    """By its sensitivity: a problem says nothing of kernels, and has no second variant of a service."""
    points = problem.points_of(problem.service(seat.service).network, carrier.gpu_type)
    known = sorted(
        entry.sensitivity
        for entry in problem.points
        if entry.gpu_type == carrier.gpu_type
    )
    sensitivity = points.sensitivity if points is not None else 0.0
    return Character(
        sensitivity_ratio(sensitivity, known[len(known) // 2] if known else 0.0),
        is_high=False,
    )
