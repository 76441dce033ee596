"""Policy `hetsev`: count replicas per GPU type by HetSev's program, share GPUs, place with anti-affinity.

    1. configure   one operating row per (service, GPU type), whose capacity holds next to any neighbours
    2. autoscale   replicas per (service, GPU type), all services together (CP-SAT, else greedy)
    3. sharing     the smallest SM percent with which each new replica carries its part (CVXPY, else closed form)
    4. placement   who shares a GPU with whom (bounds, CP-SAT, else HetSev's worst fit over fair queues)
    5. routing     the rate of every replica

It prefers to change the running arrangement by as little as the counts ask for. A fresh arrangement replaces it when
it serves more, or when it has been cheaper by `consolidation_gain` for `consolidation_hold_s` (`choice.py`).

Source: HetSev (Electronics 2023, 12, 240), sections 4.1 and 4.2. Changed: replicas get a capped SM percent (HetSev
shares without a cap); memory, SM and power totals are per GPU type; all services are solved together.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from solvers.greedy.arrange import (
    Key,
    arrange,
    replica_counts,
    running_carriers,
    top_up,
)
from solvers.greedy.configure import Configuration, TypeNeighbours
from solvers.greedy.report import heuristic_report
from solvers.greedy.routing import route
from solvers.laws.colocation import max_execution_ms
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.papers.hetsev.choice import Choice, ChoiceKind, Draft, choose, describe
from solvers.papers.hetsev.counts import (
    Configurations,
    configurations_of,
    decide_counts,
)
from solvers.papers.hetsev.instance_scheduling import (
    SchedulingState,
    schedule_instances,
)
from solvers.papers.hetsev.parameters import HetsevParameters
from solvers.papers.hetsev.past import dump_past, load_past
from solvers.sharing.problem import LimitedCurve, ShareCurve, SharingProblem
from solvers.sharing.solve import solve as solve_sharing
from solvers.types.outcome import (
    Budget,
    PlanReport,
    Reason,
    SolveReport,
    SolveStatus,
)
from solvers.types.plan import WANT_OF_GPUS, Plan, diff
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import Json, Observed

NAME = "hetsev"
FRAGMENTATION_ROUNDS = 3
"""Times that the counts are decided again with the room that fragmentation took away."""

MAX_SHARERS = 4
"""Configurations of at most this number on a GPU are tried where GPUs are short."""

SOLVE_SHARE = 0.2
"""Part of the budget's work for one solve: a plan takes up to five of them."""


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan, its report, since when a consolidation has looked worthwhile, and since when services wait for GPUs."""
    problem = with_network_labels(problem)
    past, now_s = load_past(memory), observed.at_s
    state = _state(problem, past.waited_s(now_s), observed.launch_s)
    budget = replace(budget, work=budget.work * SOLVE_SHARE)
    chosen = _choose(problem, budget, state, since_s=past.since_s, now_s=now_s)
    kept = past.after(chosen.draft.plan, chosen.since_s, now_s)
    return chosen.draft.plan, _report(problem, chosen), dump_past(kept)


def with_network_labels(problem: Problem) -> Problem:
    """The problem in which a service's network is one of its labels, besides those that its team gave it.

    Section 3.2: identical networks hurt each other most, so that no two of them share a GPU.
    """
    services = (
        # A label of a team's own has no blank.
        replace(each, anti_affinity=each.anti_affinity | {f"network {each.network}"})
        for each in problem.services
    )
    return replace(problem, services=tuple(services))


def _state(
    problem: Problem, waited_s: Mapping[str, float], launch_s: Mapping[str, float]
) -> SchedulingState:
    # What runs waits for nothing: of a service that has waited, only the replicas beyond those have. Where none has,
    # which is nearly always so, the fleet need not be gone through.
    running = replica_counts(running_carriers(problem)) if waited_s else Counter()
    return SchedulingState(running=running, waited_s=waited_s, launch_s=launch_s)


def _choose(
    problem: Problem,
    budget: Budget,
    state: SchedulingState,
    *,
    since_s: float | None,
    now_s: float,
) -> Choice:
    # The changed arrangement comes first: it is what the next seconds depend on, should the time run out.
    changed = _changed(problem, budget, state)
    if changed is None:
        return Choice(
            draft=_fresh(problem, budget, state), reason=Reason(kind=ChoiceKind.FRESH)
        )
    if budget.remaining_s() <= 0.0:
        # Having had no time says nothing against the consolidation, so that its hold goes on.
        reason = Reason(kind=ChoiceKind.NO_TIME)
        return Choice(draft=changed, reason=reason, since_s=since_s)
    return choose(
        problem,
        changed,
        _fresh(problem, budget, state),
        parameters=budget.parameters_as(HetsevParameters),
        since_s=since_s,
        now_s=now_s,
    )


def _fresh(problem: Problem, budget: Budget, state: SchedulingState) -> Draft:
    """A plan from nothing, with smallest SM percents; where GPUs are short also with narrower configurations."""
    best = _fresh_of(problem, budget, state, sharers=1)
    max_sharers = min(MAX_SHARERS, problem.max_replicas_per_gpu, len(problem.services))
    for sharers in range(2, max_sharers + 1):
        is_short = any(entry.reason in WANT_OF_GPUS for entry in best.plan.unserved)
        # One draft may take as long as all before it: with less than half the time left it might not end in time.
        if not is_short or budget.remaining_s() < 0.5 * budget.seconds:
            break
        narrower = _fresh_of(problem, budget, state, sharers=sharers)
        best = max(best, narrower, key=lambda draft: _merit(problem, draft.plan))
    return best


def _fresh_of(
    problem: Problem, budget: Budget, state: SchedulingState, *, sharers: int
) -> Draft:
    """The best of some drafts, each counted without the room that fragmentation took from those before it."""
    configurations = configurations_of(problem, keep_running=False, sharers=sharers)
    lost: Counter[Key] = Counter()
    drafts: list[Draft] = []
    for _ in range(FRAGMENTATION_ROUNDS):
        draft, left_out = _draft(problem, configurations, budget, lost, state)
        drafts.append(draft)
        lost.update(left_out)
        if not left_out or budget.remaining_s() < 0.5 * budget.seconds:
            break
    # A later draft need not be better: giving up a replica may also cost more than its fragment was worth.
    return max(drafts, key=lambda draft: _merit(problem, draft.plan))


def _draft(
    problem: Problem,
    configurations: Configurations,
    budget: Budget,
    lost: Mapping[Key, int],
    state: SchedulingState,
) -> tuple[Draft, list[Key]]:
    """All five steps once, and the keys of replicas that found no place."""
    counts, reasons, count_report = decide_counts(
        problem, configurations, budget, launch_s=state.launch_s, lost=lost
    )
    rows, share_report = _shrink(problem, configurations, counts, budget)
    carriers, left_out, place_report = schedule_instances(
        problem, counts, rows, state, budget
    )
    # Counting saw totals, and shares before they were shrunk: placed replicas may leave room for more.
    carriers = top_up(problem, carriers, tuple(configurations.values()))
    # What counting knew of a service comes before what placing found.
    reasons = {key[0]: reason for key, reason in reversed(left_out)} | reasons
    plan = route(problem, NAME, carriers, reasons)
    steps = (count_report, share_report, place_report)
    return Draft(plan=plan, steps=steps), [key for key, _ in left_out]


def _merit(problem: Problem, plan: Plan) -> tuple[float, float]:
    """Served weight, to a millionth of all weight, then cheapness."""
    everything = sum(
        service.priority * service.arrival_rate_rps for service in problem.services
    )
    served = served_weight(problem, plan) / everything if everything > 0.0 else 1.0
    # Rounded, so that plans that serve all there is are compared by their cost and not by rounding.
    return round(served, 6), -cost_usd_per_hour(problem, plan)


def _changed(problem: Problem, budget: Budget, state: SchedulingState) -> Draft | None:
    """The running arrangement, changed to what the counts ask for; None when nothing runs."""
    running = running_carriers(problem)
    if not running:
        return None
    configurations = configurations_of(problem, keep_running=True)
    counts, reasons, report = decide_counts(
        problem,
        configurations,
        budget,
        launch_s=state.launch_s,
        running=replica_counts(running),
    )
    # Shares are not shrunk here: another share would restart what runs, and the configurations prefer its rows.
    rows = {key: one.row for key, one in configurations.items()}
    carriers = arrange(
        problem,
        running,
        counts,
        rows,
        waited_s=state.waited_s,
        is_worst_fit=budget.parameters_as(HetsevParameters).placement == "as printed",
    )
    carriers = top_up(problem, carriers, tuple(configurations.values()))
    kept, plan = (route(problem, NAME, each, reasons) for each in (running, carriers))
    is_vain = _starts_in_vain(problem, kept, plan)
    return Draft(plan=kept if is_vain else plan, steps=(report,))


def _starts_in_vain(problem: Problem, kept: Plan, changed: Plan) -> bool:
    """Whether `changed` starts replicas although `kept`, without any start, serves as much and costs no more."""
    if not any(change.after > change.before for change in diff(kept, changed)):
        return False
    counts = Counter[str]()
    for gpu in kept.gpus:
        counts.update({replica.service: gpu.count for replica in gpu.replicas})
    # Limits are rules even where they bring nothing: replicas may have to start or stop for their number alone.
    is_allowed = all(
        each.max_replicas is None or counts[each.name] <= each.max_replicas
        for each in problem.services
    )
    missing, changed_missing = (
        sum(entry.replicas_missing for entry in plan.unserved)
        for plan in (kept, changed)
    )
    return (
        is_allowed
        and missing <= changed_missing
        and _merit(problem, kept) >= _merit(problem, changed)
    )


def _shrink(
    problem: Problem,
    configurations: Configurations,
    counts: Mapping[Key, int],
    budget: Budget,
) -> tuple[dict[Key, OperatingPoint], SolveReport]:
    """The smallest row per key with which its replicas carry their part of the rate with the worst neighbours."""
    neighbour_sets = {
        each.name: TypeNeighbours(problem, each) for each in problem.gpu_types
    }
    capacity_rps = _capacity_rps(configurations, counts)
    keys = sorted(counts)
    pairs = [(neighbour_sets[key[1]], configurations[key]) for key in keys]
    limited = tuple(_limited(problem, *pair, capacity_rps) for pair in pairs)
    solution, report = solve_sharing(SharingProblem(replicas=limited), budget)
    rows = {
        key: _row_with_share(*pair, sm_percent)
        for key, pair, sm_percent in zip(keys, pairs, solution.sm_percent, strict=True)
    }
    return rows, report


def _capacity_rps(
    configurations: Configurations,
    counts: Mapping[Key, int],
) -> Mapping[str, float]:
    """By service, what its replicas carry together."""
    capacity_rps: dict[str, float] = defaultdict(float)
    for key, count in counts.items():
        capacity_rps[key[0]] += configurations[key].capacity_rps * count
    return capacity_rps


def _row_with_share(
    neighbour_sets: TypeNeighbours,
    configuration: Configuration,
    sm_percent: float | None,
) -> OperatingPoint:
    """The configuration's row with a smaller share; as it is where there is none, or the share is no smaller."""
    row = configuration.row
    if sm_percent is None or sm_percent >= row.sm_percent:
        return row
    # Batch and clock stay: the curve whose shares were searched is that of one batch.
    wanted = (sm_percent, row.batch, row.clock_mhz)
    return next(
        each
        for each in neighbour_sets.rows(configuration.service)
        if each[:3] == wanted
    )


def _limited(
    problem: Problem,
    neighbour_sets: TypeNeighbours,
    configuration: Configuration,
    capacity_rps: Mapping[str, float],
) -> LimitedCurve:
    """The worst-neighbours curve at the configuration's batch, with the longest time that still carries its part."""
    service = problem.service(configuration.service)
    return LimitedCurve(
        name=f"{service.name} on {configuration.gpu_type}",
        curve=_curve(problem, neighbour_sets, configuration),
        limit_ms=_longest_ms(
            problem, service, configuration, capacity_rps[service.name]
        ),
    )


def _curve(
    problem: Problem,
    neighbour_sets: TypeNeighbours,
    configuration: Configuration,
) -> ShareCurve:
    name = configuration.service
    points = problem.points_of(problem.service(name).network, configuration.gpu_type)
    assert points is not None, "a configuration has operating points"
    batch = configuration.row.batch
    # Rows sort by SM percent first, as the shares of a curve must ascend.
    rows = sorted(row for row in neighbour_sets.rows(name) if row.batch == batch)
    executions = neighbour_sets.of(name).executions_ms(
        rows, sensitivity=points.sensitivity
    )
    return ShareCurve(
        sm_percent=tuple(row.sm_percent for row in rows),
        execution_ms=tuple(executions.tolist()),
    )


def _longest_ms(
    problem: Problem,
    service: ServiceDemand,
    configuration: Configuration,
    capacity_rps: float,
) -> float:
    """The longest execution with which a replica carries its part; `capacity_rps`: what all of them carry."""
    load = min(1.0, service.arrival_rate_rps / capacity_rps)
    return max_execution_ms(
        problem.capacity_law,
        percentile=service.percentile,
        batch=configuration.row.batch,
        slo_ms=service.slo_ms,
        # Never 0, for which the law allows any execution time, beyond the SLO too.
        rate_rps=max(load * configuration.capacity_rps, 1e-6),
    )


def _report(problem: Problem, chosen: Choice) -> PlanReport:
    draft = chosen.draft
    # A plan is called feasible where its counts are proven, the only step that decides what it costs and serves.
    is_exact = any(
        step.status is SolveStatus.OPTIMAL and step.method != "greedy"
        for step in draft.steps[:1]
    )
    step_messages = (message for step in draft.steps for message in step.messages)
    return heuristic_report(
        problem,
        draft.plan,
        status="feasible" if is_exact else "greedy",
        method=" + ".join(f"{step.technique} {step.method}" for step in draft.steps),
        messages=(describe(chosen.reason), *step_messages),
        steps=draft.steps,
    )
