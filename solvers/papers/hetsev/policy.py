"""Policy `hetsev`: count replicas per GPU type by HetSev's program, share GPUs, place with anti-affinity.

    1. configure   one operating row per (service, GPU type), whose capacity holds beside any neighbours
    2. autoscale   replicas per (service, GPU type), all services together (CP-SAT, else greedy)
    3. sharing     the smallest SM percent with which each new replica carries its part (CVXPY, else closed form)
    4. placement   who shares a GPU with whom (bounds, CP-SAT, else HetSev's worst fit over fair queues)
    5. routing     the rate of every replica

It prefers to change the running arrangement by as little as the counts ask for. A fresh arrangement replaces it when
it serves more, or when it has been cheaper by CONSOLIDATION_GAIN for CONSOLIDATION_HOLD_S (`choice.py`).

Source: HetSev (Future Internet 2023), sections 4.1 and 4.2. Changed: replicas get a capped SM percent (HetSev shares
without a cap); memory, SM and power totals are per GPU type; all services are solved together.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from solvers.autoscale.problem import AutoscaleProblem
from solvers.autoscale.solve import solve as solve_autoscale
from solvers.greedy.arrange import Key, arrange, running_carriers, top_up
from solvers.greedy.autoscale_inputs import (
    LAUNCH_WEIGHT_PER_S,
    Taken,
    cut,
    option,
    service_target,
    type_totals,
)
from solvers.greedy.configure import Configuration, TypeNeighbours, configure
from solvers.greedy.routing import ArrangedReplica, Carrier, route
from solvers.laws.colocation import max_execution_ms
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.papers.hetsev.choice import Choice, ChoiceKind, Draft, choose, describe
from solvers.papers.hetsev.fair_queues import WaitingReplica, fair_order
from solvers.placement.problem import GpuStock, PendingReplica, PlacementProblem
from solvers.placement.solve import solve as solve_placement
from solvers.sharing.problem import LimitedCurve, ShareCurve, SharingProblem
from solvers.sharing.solve import solve as solve_sharing
from solvers.types.outcome import (
    Budget,
    PlanReport,
    PlanStatus,
    Reason,
    SolveReport,
    SolveStatus,
)
from solvers.types.plan import WANT_OF_GPUS, Plan, UnservedReason, diff
from solvers.types.problem import OperatingPoint, Problem
from solvers.types.state import Json, Observed

NAME = "hetsev"
MEMORY_VERSION = 1

FRAGMENTATION_ROUNDS = 3
"""Times that the counts are decided again with the room that fragmentation took away."""

MAX_SHARERS = 4
"""Configurations of at most so many on a GPU are tried where GPUs are short."""

SOLVE_SHARE = 0.2
"""Part of the budget's work for one solve: a plan takes up to five of them."""

QUEUES = 4
PICKS_PER_ROUND = 4


def make_plan(
    problem: Problem, observed: Observed, memory: Json, budget: Budget
) -> tuple[Plan, PlanReport, Json]:
    """The plan, its report, and since when a consolidation has looked worthwhile."""
    budget = replace(budget, work=budget.work * SOLVE_SHARE)
    since_s = _since_s(memory)
    changed = _changed(problem, budget)  # First: it is what the next seconds depend on.
    if changed is None:
        chosen = Choice(
            draft=_fresh(problem, budget), reason=Reason(kind=ChoiceKind.FRESH)
        )
    elif budget.remaining_s() <= 0.0:
        reason = Reason(kind=ChoiceKind.NO_TIME)
        chosen = Choice(draft=changed, reason=reason, since_s=since_s)
    else:
        fresh = _fresh(problem, budget)
        chosen = choose(problem, changed, fresh, since_s=since_s, now_s=observed.at_s)
    return (
        chosen.draft.plan,
        _report(problem, chosen),
        {"version": MEMORY_VERSION, "consolidation_since_s": chosen.since_s},
    )


def _fresh(problem: Problem, budget: Budget) -> Draft:
    """A plan from nothing, with smallest SM percents; where GPUs are short also with narrower configurations."""
    best = _fresh_of(problem, budget, sharers=1)
    for sharers in range(
        2, min(MAX_SHARERS, problem.max_replicas_per_gpu, len(problem.services)) + 1
    ):
        is_short = any(entry.reason in WANT_OF_GPUS for entry in best.plan.unserved)
        if not is_short or budget.remaining_s() < 0.5 * budget.seconds:
            break
        narrower = _fresh_of(problem, budget, sharers=sharers)
        best = max(best, narrower, key=lambda draft: _merit(problem, draft.plan))
    return best


def _fresh_of(problem: Problem, budget: Budget, *, sharers: int) -> Draft:
    configured = configure(problem, keep_running=False, sharers=sharers)
    configurations = {(one.service, one.gpu_type): one for one in configured}
    lost: Counter[Key] = Counter()
    drafts: list[Draft] = []
    for _ in range(FRAGMENTATION_ROUNDS):
        counts, reasons, count_report = _count(
            problem, configurations, budget, lost=lost, running={}
        )
        rows, share_report = _shrink(problem, configurations, counts, budget)
        carriers, left_out, place_report = _place(problem, counts, rows, budget)
        carriers = top_up(problem, carriers, tuple(configurations.values()))
        for key, reason in left_out:
            lost[key] += 1
            reasons.setdefault(key[0], reason)
        plan = route(problem, NAME, carriers, reasons)
        drafts.append(
            Draft(plan=plan, steps=(count_report, share_report, place_report))
        )
        if not left_out or budget.remaining_s() < 0.5 * budget.seconds:
            break
    return max(drafts, key=lambda draft: _merit(problem, draft.plan))


def _merit(problem: Problem, plan: Plan) -> tuple[float, float]:
    """Served weight, to a millionth of all weight, then cheapness."""
    everything = sum(
        service.priority * service.arrival_rate_rps for service in problem.services
    )
    served = served_weight(problem, plan) / everything if everything > 0.0 else 1.0
    return round(served, 6), -cost_usd_per_hour(problem, plan)


def _changed(problem: Problem, budget: Budget) -> Draft | None:
    """The running arrangement, changed to what the counts ask for; None when nothing runs."""
    running = running_carriers(problem)
    if not running:
        return None
    configurations = {
        (one.service, one.gpu_type): one
        for one in configure(problem, keep_running=True)
    }
    seats = Counter(
        (seat.service, carrier.gpu_type)
        for carrier in running
        for seat in carrier.seats
    )
    counts, reasons, report = _count(
        problem, configurations, budget, lost={}, running=seats
    )
    carriers = arrange(
        problem, running, counts, {key: one.row for key, one in configurations.items()}
    )
    carriers = top_up(problem, carriers, tuple(configurations.values()))
    kept, plan = (route(problem, NAME, each, reasons) for each in (running, carriers))
    return Draft(
        plan=kept if _starts_in_vain(problem, kept, plan) else plan, steps=(report,)
    )


def _starts_in_vain(problem: Problem, kept: Plan, changed: Plan) -> bool:
    """Whether `changed` starts replicas although `kept`, without any start, serves as much and costs no more."""
    starts = any(change.after > change.before for change in diff(kept, changed))
    missing, changed_missing = (
        sum(entry.replicas_missing for entry in plan.unserved)
        for plan in (kept, changed)
    )
    counts = Counter[str]()
    for gpu in kept.gpus:
        counts.update({replica.service: gpu.count for replica in gpu.replicas})
    allowed = all(
        each.max_replicas is None or counts[each.name] <= each.max_replicas
        for each in problem.services
    )
    return (
        starts
        and allowed
        and missing <= changed_missing
        and _merit(problem, kept) >= _merit(problem, changed)
    )


def _count(
    problem: Problem,
    configurations: Mapping[Key, Configuration],
    budget: Budget,
    *,
    lost: Mapping[Key, int],
    running: Mapping[Key, int],
) -> tuple[dict[Key, int], dict[str, UnservedReason], SolveReport]:
    """Replicas per (service, GPU type), why services fall short, and how it was found.

    `lost` counts the replicas per key that earlier counts could not place: that many fewer GPUs of the type count.
    """
    taken = (
        Taken(gpu_type=key[1], row=configurations[key].row, replicas=times)
        for key, times in sorted(lost.items())
        if key in configurations
    )
    solution, report = solve_autoscale(
        AutoscaleProblem(
            services=tuple(service_target(service) for service in problem.services),
            options=tuple(
                option(one, running.get(key, 0))
                for key, one in sorted(configurations.items())
            ),
            totals=type_totals(problem, taken),
            launch_weight_per_s=LAUNCH_WEIGHT_PER_S,
        ),
        budget,
    )
    counts = {
        (entry.service, entry.gpu_type): entry.count
        for entry in solution.counts
        if entry.count > 0
    }
    reasons = {entry.service: entry.reason for entry in solution.unserved}
    return cut(problem, counts, reasons), reasons, report


def _shrink(
    problem: Problem,
    configurations: Mapping[Key, Configuration],
    counts: Mapping[Key, int],
    budget: Budget,
) -> tuple[dict[Key, OperatingPoint], SolveReport]:
    """The smallest row per key with which its replicas carry their part of the rate beside the worst neighbours."""
    neighbour_sets = {
        gpu_type.name: TypeNeighbours(problem, gpu_type)
        for gpu_type in problem.gpu_types
    }
    capacity: dict[str, float] = defaultdict(float)
    for (service, gpu_type), count in counts.items():
        capacity[service] += configurations[service, gpu_type].capacity_rps * count
    keys = sorted(counts)
    limited = tuple(
        _limited(problem, neighbour_sets[key[1]], configurations[key], capacity[key[0]])
        for key in keys
    )
    solution, report = solve_sharing(SharingProblem(replicas=limited), budget)
    rows = {}
    for key, sm_percent in zip(keys, solution.sm_percent, strict=True):
        chosen = configurations[key].row
        if sm_percent is not None and sm_percent < chosen.sm_percent:
            wanted = (sm_percent, chosen.batch, chosen.clock_mhz)
            chosen = next(
                row for row in neighbour_sets[key[1]].rows(key[0]) if row[:3] == wanted
            )
        rows[key] = chosen
    return rows, report


def _limited(
    problem: Problem,
    neighbour_sets: TypeNeighbours,
    configuration: Configuration,
    capacity_rps: float,
) -> LimitedCurve:
    """The worst-neighbours curve at the configuration's batch, with the longest time that still carries its part."""
    service = problem.service(configuration.service)
    points = problem.points_of(service.network, configuration.gpu_type)
    assert points is not None, "a configuration has operating points"
    rows = sorted(
        row
        for row in neighbour_sets.rows(service.name)
        if row.batch == configuration.row.batch
    )
    executions = neighbour_sets.of(service.name).executions_ms(
        rows, sensitivity=points.sensitivity
    )
    load = min(1.0, service.arrival_rate_rps / capacity_rps)
    limit_ms = max_execution_ms(
        problem.capacity_law,
        percentile=service.percentile,
        batch=configuration.row.batch,
        slo_ms=service.slo_ms,
        rate_rps=max(load * configuration.capacity_rps, 1e-6),
    )
    return LimitedCurve(
        name=f"{service.name} on {configuration.gpu_type}",
        curve=ShareCurve(
            sm_percent=tuple(row.sm_percent for row in rows),
            execution_ms=tuple(executions.tolist()),
        ),
        limit_ms=limit_ms,
    )


def _place(
    problem: Problem,
    counts: Mapping[Key, int],
    rows: Mapping[Key, OperatingPoint],
    budget: Budget,
) -> tuple[list[Carrier], list[tuple[Key, UnservedReason]], SolveReport]:
    """Carriers for all replicas, key and reason of each one that found no place, and how it was found."""
    waiting = [key for key, count in sorted(counts.items()) for _ in range(count)]
    names = {f"{number:06d}": key for number, key in enumerate(waiting)}
    order = fair_order(
        [
            WaitingReplica(
                name=name,
                network=problem.service(key[0]).network,
                memory_mib=rows[key].memory_mib,
                waiting_s=0.0,
            )
            for name, key in names.items()
        ],
        queues=QUEUES,
        per_round=PICKS_PER_ROUND,
    )
    solution, report = solve_placement(
        PlacementProblem(
            replicas=tuple(
                _pending(problem, name, key, rows[key]) for name, key in names.items()
            ),
            gpus=tuple(
                GpuStock(
                    gpu_type=gpu_type.name,
                    count=gpu_type.count,
                    price_usd_per_hour=gpu_type.price_usd_per_hour,
                    memory_mib=gpu_type.memory_mib,
                    power_w=gpu_type.power_cap_w - gpu_type.idle_w,
                    max_replicas=problem.max_replicas_per_gpu,
                )
                for gpu_type in problem.gpu_types
            ),
            order=order,
        ),
        budget,
    )
    carriers = [
        Carrier(
            gpu_type=gpu.gpu_type,
            seats=tuple(
                ArrangedReplica(service=names[name][0], row=rows[names[name]])
                for name in gpu.replicas
            ),
        )
        for gpu in solution.gpus
    ]
    return (
        carriers,
        [(names[entry.replica], entry.reason) for entry in solution.unplaced],
        report,
    )


def _pending(
    problem: Problem, name: str, key: Key, row: OperatingPoint
) -> PendingReplica:
    return PendingReplica(
        name=name,
        gpu_type=key[1],
        sm_percent=row.sm_percent,
        memory_mib=row.memory_mib,
        power_w=row.power_w,
        value=problem.service(key[0]).priority,
        labels=(key[0],),
    )


def _report(problem: Problem, chosen: Choice) -> PlanReport:
    draft = chosen.draft
    exact = any(
        step.status is SolveStatus.OPTIMAL and step.method != "greedy"
        for step in draft.steps[:1]
    )
    status: PlanStatus = "feasible" if exact else "greedy"
    weight = (
        served_weight(problem, draft.plan)
        if problem.objective == "max_goodput"
        else None
    )
    return PlanReport(
        status=status,
        cost_usd_per_hour=cost_usd_per_hour(problem, draft.plan),
        method=" + ".join(f"{step.technique} {step.method}" for step in draft.steps),
        messages=(
            describe(chosen.reason),
            *(message for step in draft.steps for message in step.messages),
        ),
        served_weight=weight,
        steps=draft.steps,
    )


def _since_s(memory: Json) -> float | None:
    if not isinstance(memory, Mapping) or memory.get("version") != MEMORY_VERSION:
        return None
    since = memory.get("consolidation_since_s")
    return float(since) if isinstance(since, int | float) else None
