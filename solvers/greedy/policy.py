"""Policy `hetsev_greedy`: HetSev's own greedy controller, one trigger per service and no solver.

* Saturation is a service's rate over the true capacity of its running replicas. The rate is the observed one; the
  Problem's where nothing was observed or nothing runs.
* Above the threshold for the hold period it scales OUT: the autoscaling technique's greedy says how many replicas of
  which GPU type bring saturation back to the threshold, cheapest by the program's own objective.
* When the rest would stay below the threshold for the cool-down, it scales IN by one replica, of the dearest GPU type
  that can be spared.
* Else it HOLDs: the counts stay, and what the replicas cannot carry is `unserved`. A running replica is never swapped
  for another type or row. A service of which nothing runs is sized at once.

Limits do not wait for a trigger: missing replicas to the service's least number start, and those beyond its largest
number go, at once. A replica that cannot meet its SLO where it is carries nothing and goes, too.

New neighbours slow down what runs. A replica that this policy started has that priced in (`configure`); another
policy's may become saturated by it, which its own trigger then finds. Where GPUs are short, the more important service
gets its capacity up to the threshold before a lesser one gets any; but nothing that runs is displaced.

Source: HetSev (Electronics 2023, 12, 240), section 4.1. Changed: the cool-down also is how long slack must last; counts
are for all saturated services together, by falling priority, because they share the GPUs.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from solvers.autoscale.solve import solve as solve_autoscale
from solvers.greedy.arrange import (
    Key,
    arrange,
    removal_order,
    replica_counts,
    running_carriers,
    top_up,
    without,
)
from solvers.greedy.autoscale_inputs import (
    cut,
    missing_capacity,
    missing_rps,
    positive_counts,
)
from solvers.greedy.configure import (
    MAX_REPLICAS,
    MIN_CAPACITY_RPS,
    Configuration,
    configure,
)
from solvers.greedy.report import heuristic_report
from solvers.greedy.routing import Carrier, route, service_counts, total_capacity_rps
from solvers.greedy.scaling_rules import (
    ReplicaLoad,
    SaturationRule,
    ScalingStep,
    decide_saturation,
    remembered_services,
)
from solvers.laws.colocation import beside
from solvers.types.documents.strict_json import MAX_NUMBER
from solvers.types.outcome import Budget, PlanReport, SolveReport
from solvers.types.plan import Plan, UnservedReason
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

NAME = "hetsev_greedy"
MEMORY_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tick:
    """What every decision of one plan reads."""

    problem: Problem
    rule: SaturationRule
    rates_rps: Mapping[str, float]
    """By service: what its saturation is measured with."""
    configurations: Mapping[Key, Configuration]
    """What a new replica would be."""
    now_s: float
    timers: Mapping[str, Json]
    """By service: the trigger's memory."""
    launch_s: Mapping[str, float]
    """By GPU type, where a launch was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """What the trigger says about one service."""

    service: str
    step: ScalingStep
    load: ReplicaLoad
    memory: Json


def make_plan(
    problem: Problem, observed: Observed, memory: Json, budget: Budget
) -> tuple[Plan, PlanReport, Json]:
    """The plan that the triggers ask for, its report, and every service's timers."""
    begun = budget.elapsed()
    carriers = _useful(problem, running_carriers(problem))
    tick = _make_tick(
        problem, observed, memory, carriers, budget.parameters_as(SaturationRule)
    )
    # Limits before triggers: a trigger measures what is left when they are kept.
    carriers = arrange(problem, carriers, _within_limits(tick, carriers), {})
    carriers, decisions = _decide(tick, carriers)
    saturated = {one.service for one in decisions if one.step is ScalingStep.OUT}
    carriers, reasons, step = _grow(tick, carriers, saturated, budget)
    plan = route(problem, NAME, carriers, reasons)
    triggered = (one for one in decisions if one.step is not ScalingStep.HOLD)
    report = heuristic_report(
        problem,
        plan,
        seconds=budget.elapsed() - begun,
        method=f"{step.technique} {step.method}",
        messages=(*map(_message, triggered), *step.messages),
        steps=(step,),
    )
    timers: Json = {one.service: one.memory for one in decisions}
    return plan, report, {"version": MEMORY_VERSION, "services": timers}


def _make_tick(
    problem: Problem,
    observed: Observed,
    memory: Json,
    carriers: Sequence[Carrier],
    rule: SaturationRule,
) -> _Tick:
    rates_rps = _rates_rps(problem, carriers, observed)
    # Rows are chosen for the rate at the threshold, which is what a service is scaled out to.
    options = configure(_aiming(problem, rates_rps, rule), keep_running=True)
    return _Tick(
        problem=problem,
        rule=rule,
        rates_rps=rates_rps,
        configurations={(one.service, one.gpu_type): one for one in options},
        now_s=observed.at_s,
        timers=remembered_services(memory, MEMORY_VERSION),
        launch_s=observed.launch_s,
    )


def _useful(problem: Problem, carriers: Sequence[Carrier]) -> list[Carrier]:
    """The carriers without the replicas that miss their SLO next to their neighbours."""
    # Neighbours may be another policy's, or their rows' points were refitted: what carried something may carry
    # nothing now.
    useful = []
    for carrier in carriers:
        gpu_type = problem.gpu_type(carrier.gpu_type)
        seats = tuple(
            seat
            for position, seat in enumerate(carrier.seats)
            if beside(problem, gpu_type, carrier.seats, position).capacity_rps
            >= MIN_CAPACITY_RPS
        )
        if seats:
            useful.append(Carrier(gpu_type=carrier.gpu_type, seats=seats))
    return useful


def _rates_rps(
    problem: Problem, carriers: Sequence[Carrier], observed: Observed
) -> dict[str, float]:
    running = {seat.service for carrier in carriers for seat in carrier.seats}
    readings = {
        reading.service: reading.arrival_rate_rps
        for reading in observed.readings
        # A reading without replicas counts nothing but what was refused: then the forecast is the better guess.
        if reading.service in running
    }
    return {
        service.name: readings.get(service.name, service.arrival_rate_rps)
        for service in problem.services
    }


def _aiming(
    problem: Problem, rates_rps: Mapping[str, float], rule: SaturationRule
) -> Problem:
    """The problem where every service asks for the capacity that brings it to the threshold; unnamed ones for none."""
    return replace(
        problem,
        services=tuple(
            replace(
                each,
                arrival_rate_rps=min(
                    MAX_NUMBER, rates_rps.get(each.name, 0.0) / rule.threshold
                ),
            )
            for each in problem.services
        ),
    )


def _within_limits(tick: _Tick, carriers: Sequence[Carrier]) -> dict[Key, int]:
    """How many of the running replicas the largest numbers allow; those on the dearest types give way."""
    counts = replica_counts(carriers)
    replicas = service_counts(carriers)
    for key in sorted(counts, key=lambda key: _dearness(tick, key), reverse=True):
        limit = tick.problem.service(key[0]).max_replicas
        if limit is not None:
            gone = min(counts[key], max(0, replicas[key[0]] - limit))
            counts[key] -= gone
            replicas[key[0]] -= gone
    # The reasons of this cut are not kept: the counts to come find the same limit again.
    return cut(tick.problem, counts, {})


def _decide(
    tick: _Tick, carriers: Sequence[Carrier]
) -> tuple[list[Carrier], list[_Decision]]:
    """Every service's decision, by name, and the carriers without the replicas that go."""
    remaining = list(carriers)
    decisions = []
    holders: dict[str, list[int]] = defaultdict(list)
    for index, carrier in enumerate(remaining):
        for seat in carrier.seats:
            holders[seat.service].append(index)
    for name in sorted(tick.rates_rps):
        # Replicas that went before leave their neighbours faster: every service is measured on what is left.
        first, decision = _decide_one(
            tick, name, [remaining[index] for index in holders[name]]
        )
        if decision.step is ScalingStep.IN:
            index = holders[name][first]
            remaining[index] = without(remaining[index], name)
        decisions.append(decision)
    return remaining, decisions


def _decide_one(
    tick: _Tick, name: str, own: Sequence[Carrier]
) -> tuple[int, _Decision]:
    """Which of a service's carriers would give up its replica, and whether one does."""
    first, load = _measure(tick, name, own)
    step, memory = decide_saturation(
        load, tick.rule, now_s=tick.now_s, memory=tick.timers.get(name)
    )
    # The trigger knows no limits; its timers start again as if a replica had gone.
    if step is ScalingStep.IN and len(own) <= tick.problem.service(name).min_replicas:
        step = ScalingStep.HOLD
    return first, _Decision(service=name, step=step, load=load, memory=memory)


def _measure(
    tick: _Tick, service: str, own: Sequence[Carrier]
) -> tuple[int, ReplicaLoad]:
    """Which of the service's carriers would give up its replica first, and the load with and without that replica.

    Of every GPU type the emptiest; of those the one on the dearest type without which the rest stays below the
    threshold, or else the one with the least capacity.
    """
    rate_rps = tick.rates_rps[service]
    capacities = [
        total_capacity_rps(tick.problem, [carrier], service) for carrier in own
    ]
    by_type: dict[str, list[int]] = defaultdict(list)
    for index, carrier in enumerate(own):
        by_type[carrier.gpu_type].append(index)
    emptiest = [removal_order(own, indices)[0] for indices in by_type.values()]
    # Summed again without each, since a difference of large sums would lose the small ones.
    rest_rps = {
        index: math.fsum((*capacities[:index], *capacities[index + 1 :]))
        for index in emptiest
    }

    def preference(index: int) -> tuple[float, tuple[float, Key]]:
        # Capped where it is enough, so that among those that can be spared the price decides.
        enough_rps = min(rest_rps[index], rate_rps / tick.rule.threshold)
        return enough_rps, _dearness(tick, (service, own[index].gpu_type))

    first = max(emptiest, key=preference, default=0)
    return first, ReplicaLoad(
        rate_rps=rate_rps,
        capacity_rps=math.fsum(capacities),
        capacity_without_one_rps=rest_rps.get(first, 0.0),
    )


def _grow(
    tick: _Tick,
    carriers: Sequence[Carrier],
    saturated: AbstractSet[str],
    budget: Budget,
) -> tuple[list[Carrier], dict[str, UnservedReason], SolveReport]:
    """The carriers with what the saturated services and the least numbers ask for, and why services fall short.

    New replicas are counted by the technique's greedy in what the running ones leave free; those that find no place
    as counted are made up for wherever there is one.
    """
    rates_rps = {name: tick.rates_rps[name] for name in saturated}
    aims = _aiming(tick.problem, rates_rps, tick.rule)
    solution, report = solve_autoscale(
        missing_capacity(aims, carriers, tick.configurations, tick.launch_s),
        budget,
        method="greedy",
    )
    reasons = {entry.service: entry.reason for entry in solution.unserved}
    room = MAX_REPLICAS - sum(len(carrier.seats) for carrier in carriers)
    added = cut(tick.problem, positive_counts(solution), reasons, room=room)
    grown = _add_by_priority(tick, carriers, added)
    grown = top_up(aims, grown, tuple(tick.configurations.values()))
    return grown, _reasons(tick, aims, grown, reasons), report


def _add_by_priority(
    tick: _Tick, carriers: Sequence[Carrier], added: Mapping[Key, int]
) -> list[Carrier]:
    # Totals that suffice may be fragmented: the more important must find the larger holes.
    problem = tick.problem
    grown = list(carriers)
    wanted = replica_counts(carriers)
    rows = {key: one.row for key, one in tick.configurations.items()}
    for priority in sorted({each.priority for each in problem.services}, reverse=True):
        # `Counter.update` adds: new replicas come on top of the running ones.
        wanted.update(
            {
                key: count
                for key, count in added.items()
                if problem.service(key[0]).priority == priority
            }
        )
        is_worst_fit = tick.rule.placement == "as printed"
        grown = arrange(problem, grown, wanted, rows, is_worst_fit=is_worst_fit)
    return grown


def _reasons(
    tick: _Tick,
    aims: Problem,
    carriers: Sequence[Carrier],
    counted: Mapping[str, UnservedReason],
) -> dict[str, UnservedReason]:
    """Per service, what stops it from serving more: a limit that the counts met, no place, or its own trigger."""
    configured = {service for service, _ in tick.configurations}
    replicas = service_counts(carriers)
    reasons: dict[str, UnservedReason] = {}
    for service in aims.services:
        name = service.name
        is_short = (
            replicas[name] < service.min_replicas
            or missing_rps(aims, carriers, service) > 0.0
        )
        if is_short and name in counted:
            reasons[name] = counted[name]
        elif name not in configured:
            reasons[name] = "slo"
        else:
            # One that is not short, and yet serves less than its rate, waits for its trigger to add replicas.
            reasons[name] = "stock" if is_short else "replicas"
    return reasons


def _dearness(tick: _Tick, key: Key) -> tuple[float, Key]:
    """Orders GPU types by what a replica costs there; one that could not be started there any more is the dearest."""
    configuration = tick.configurations.get(key)
    return (math.inf if configuration is None else configuration.cost_usd_per_hour), key


def _message(decision: _Decision) -> str:
    load = decision.load
    direction = f"scale {decision.step}"
    if load.capacity_rps <= 0.0:
        return (
            f"{decision.service}: {direction}, {load.rate_rps:.1f} rps and nothing runs"
        )
    return (
        f"{decision.service}: {direction}, {load.rate_rps:.1f} rps are "
        f"{load.rate_rps / load.capacity_rps:.0%} of its capacity"
    )
