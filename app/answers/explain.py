"""Explain: why a plan is as it is, from its stored record. Pure; the API and the CLI show what it returns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from app.answers.losses import Losses, explain_losses
from app.loop.budgets import DEGRADED
from app.solver.findings import Findings, quick_findings
from solvers.explain.neighbours import NeighbourReader
from solvers.explain.types import Binding, GpuExplanation, Relief
from solvers.laws.cost import migration_cost_usd_per_hour
from solvers.types.llm import LlmDemand, LlmReplicaPlan
from solvers.types.outcome import PlanReport, Prices, PriceUnit, Violation
from solvers.types.plan import (
    ALL_SMS,
    BoundPlan,
    GpuPlan,
    Plan,
    PlanChange,
    ReplicaPlan,
    Unserved,
    diff,
    replicas_of,
    used_gpus,
)
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import Demand, GpuType

_DEGRADED = "an exceeded budget: a part of its demand is left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Replicas of one service that are alike: same GPU type, settings and neighbours."""

    gpu_type: str
    count: int
    sm_percent: float
    batch: int
    clock_mhz: float
    arrival_rate_rps: float
    """Rate routed to each."""
    capacity_rps: float | None
    """The most that each may take next to its neighbours; None where the record kept no problem."""
    execution_ms: float | None
    """Execution time of one batch next to its neighbours; None of language models, whose steps differ."""
    neighbours: tuple[str, ...]
    tp: int = 1
    """GPUs of one node that each spans."""
    max_num_batched_tokens: int | None = None
    """Tokens of a step, which only language models have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceExplanation:
    """Why a service got what it got."""

    service: str
    demand_rps: float | None
    planned_rps: float
    capacity_rps: float | None
    replicas: tuple[ReplicaGroup, ...]
    unserved: tuple[Unserved, ...]
    limit: str
    """What determines the number of its replicas, as text."""
    bindings: tuple[Binding, ...] = ()
    """What limits the load of its replicas."""
    worth_per_rps: float | None = None
    """What a request per second is worth, in the explanation's price unit; None where nothing is priced."""
    price_per_rps: float | None = None
    """What one more would cost."""
    price_per_replica: float | None = None
    """Cost of one more replica in min_replicas; below 0: saving of one more in max_replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTypeExplanation:
    """How much of a GPU type is used, and what more of it would be worth."""

    gpu_type: str
    used: int
    count: int | None
    """GPUs that there are; None = as many as wanted."""
    price_usd_per_hour: float
    worth_of_one_more: float | None
    """What it would save at most, its own price paid, in the price unit; 0 while some are unused, None where
    nothing is priced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionCost:
    """What the way from the plan before costs."""

    replicas_started: int
    replicas_stopped: int
    migration_cost_usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that led to one plan."""

    summary: str
    report: PlanReport
    violations: tuple[Violation, ...]
    services: tuple[ServiceExplanation, ...]
    changes: tuple[PlanChange, ...]
    """Against the plan that was in force when this one was made."""
    moves: TransitionCost
    price_unit: PriceUnit | None = None
    """What prices count in; None where nothing is priced."""
    gpu_types: tuple[GpuTypeExplanation, ...] = ()
    gpus: tuple[GpuExplanation, ...] = ()
    """Why these GPUs run what they run, the most expensive kinds first."""
    kinds_left_out: int = 0
    """Kinds of GPUs beyond those."""
    reliefs: tuple[Relief, ...] = ()
    """Limits that could be loosened, largest saving first."""
    losses: Losses | None = None
    """What the loss of one GPU or node would do; None where that cannot be told."""


def explain(
    plan: Plan,
    report: PlanReport,
    *,
    problem: Problem | None,
    demands: Sequence[Demand],
    violations: Sequence[Violation],
    reason: str,
    bound: BoundPlan | None = None,
    findings: Findings | None = None,
) -> Explanation:
    """Why the plan is as it is. Without a problem (a plan that was kept) capacities and prices are unknown.

    What follows from the report's prices at once is told; alternatives and tested reliefs only with `findings`.
    """
    names = {replica.service for gpu in plan.gpus for replica in gpu.replicas}
    names |= {replica.service for replica in plan.llm_replicas}
    names |= {demand.service for demand in demands}
    names |= {entry.service for entry in plan.unserved}
    # A plan that was kept is the one before: it has no changes, whatever its problem's current plan was.
    changes = () if report.status == "kept" else diff(_before(problem), plan)
    reader = None if problem is None else NeighbourReader(problem)
    prices = report.prices if findings is None else findings.prices
    # Without the problem it is unknown what the prices are prices of.
    sources = _Sources(
        plan, demands, problem, reader, None if problem is None else prices
    )
    explanation = Explanation(
        summary=_summary(report, reason),
        report=report,
        violations=tuple(violations),
        services=tuple(_service(name, sources) for name in sorted(names)),
        changes=changes,
        moves=_moves(problem, plan, changes),
    )
    if problem is None or reader is None:
        return explanation
    explanation = replace(
        explanation,
        gpu_types=tuple(
            _gpu_type(gpu_type, plan, prices) for gpu_type in problem.gpu_types
        ),
        losses=explain_losses(problem, plan, bound),
    )
    if prices is None:
        return explanation
    return _with_findings(
        explanation, prices, findings or quick_findings(reader, plan, prices)
    )


def _with_findings(
    explanation: Explanation, prices: Prices, findings: Findings
) -> Explanation:
    return replace(
        explanation,
        price_unit=prices.unit,
        gpus=findings.gpus.kinds,
        kinds_left_out=findings.gpus.left_out,
        reliefs=findings.reliefs,
    )


def _before(problem: Problem | None) -> Plan:
    """The plan that ran when the problem was made; an empty one where none did, so that every replica is new."""
    if problem is None or problem.current is None:
        return Plan(policy="none")
    return problem.current


def _moves(
    problem: Problem | None, plan: Plan, changes: Sequence[PlanChange]
) -> TransitionCost:
    more = [change.after - change.before for change in changes]
    # A first plan has to start everything, which does not count as moves.
    cost = (
        0.0
        if problem is None or problem.current is None
        else migration_cost_usd_per_hour(problem, plan)
    )
    return TransitionCost(
        replicas_started=sum(number for number in more if number > 0),
        replicas_stopped=-sum(number for number in more if number < 0),
        migration_cost_usd_per_hour=cost,
    )


def _gpu_type(
    gpu_type: GpuType, plan: Plan, prices: Prices | None
) -> GpuTypeExplanation:
    used = used_gpus(plan)[gpu_type.name]
    is_used_up = gpu_type.count is not None and used >= gpu_type.count
    worth = None
    if prices is not None:
        # While some are unused, another one would be unused as well.
        worth = prices.of_gpu_type(gpu_type.name) if is_used_up else 0.0
    return GpuTypeExplanation(
        gpu_type=gpu_type.name,
        used=used,
        count=gpu_type.count,
        price_usd_per_hour=gpu_type.price_usd_per_hour,
        worth_of_one_more=worth,
    )


def _summary(report: PlanReport, reason: str) -> str:
    if reason:
        return f"{report.status}: {reason}"
    said = f"{report.status} at ${report.cost_usd_per_hour:.4f} per hour, found by {report.method or 'the policy'}"
    if report.gap_percent is not None:
        # Maximising goodput proves a bound on what is served, not on the cost.
        beyond = (
            "above the lowest possible cost"
            if report.served_weight is None
            else "below the maximum that can be served"
        )
        said += f", at most {report.gap_percent:.2f} % {beyond}"
    return f"{said}, in {1000 * report.seconds:.0f} ms"


class _Sources(NamedTuple):
    """What services are explained from."""

    plan: Plan
    demands: Sequence[Demand]
    problem: Problem | None = None
    reader: NeighbourReader | None = None
    prices: Prices | None = None


def _service(name: str, sources: _Sources) -> ServiceExplanation:
    plan, demands, problem, reader, prices = sources
    groups = (
        *(_group(gpu, replica, reader) for gpu, replica in replicas_of(plan, name)),
        *(
            _llm_group(each, problem)
            for each in plan.llm_replicas
            if each.service == name
        ),
    )
    unserved = tuple(entry for entry in plan.unserved if entry.service == name)
    demand = next((entry for entry in demands if entry.service == name), None)
    limit = _limit(name, groups, unserved, problem)
    if demand is not None and demand.method == DEGRADED:
        limit = f"{_DEGRADED}; {limit}"
    price = None if prices is None else prices.of_service(name)
    return ServiceExplanation(
        service=name,
        demand_rps=None if demand is None else demand.arrival_rate_rps,
        planned_rps=math.fsum(group.count * group.arrival_rate_rps for group in groups),
        capacity_rps=_capacity_rps(groups),
        replicas=groups,
        unserved=unserved,
        limit=limit,
        bindings=() if reader is None else reader.bindings(plan, name, prices),
        worth_per_rps=None if price is None else price.per_rps,
        price_per_rps=None if price is None else price.per_rps_more,
        price_per_replica=None if price is None else price.per_replica,
    )


def _capacity_rps(groups: Sequence[ReplicaGroup]) -> float | None:
    """What all replicas may take; None where some are not known: a part of it would look like all."""
    if any(group.capacity_rps is None for group in groups):
        return None
    return math.fsum(group.count * (group.capacity_rps or 0.0) for group in groups)


def _group(
    gpu: GpuPlan, replica: ReplicaPlan, reader: NeighbourReader | None
) -> ReplicaGroup:
    seat = None if reader is None else reader.seat(gpu, replica)
    return ReplicaGroup(
        gpu_type=gpu.gpu_type,
        count=gpu.count,
        sm_percent=replica.sm_percent,
        batch=replica.batch,
        clock_mhz=gpu.clock_mhz,
        arrival_rate_rps=replica.arrival_rate_rps,
        capacity_rps=None if seat is None else seat.capacity_rps,
        execution_ms=None if seat is None else seat.execution_ms,
        neighbours=tuple(
            sorted(other.service for other in gpu.replicas if other is not replica)
        ),
    )


def _llm_group(replica: LlmReplicaPlan, problem: Problem | None) -> ReplicaGroup:
    row = None if problem is None else problem.llm_row(replica)
    return ReplicaGroup(
        gpu_type=replica.gpu_type,
        count=replica.count,
        sm_percent=ALL_SMS,
        batch=replica.max_num_seqs,
        clock_mhz=replica.clock_mhz,
        arrival_rate_rps=replica.arrival_rate_rps,
        capacity_rps=None if row is None else row.capacity_rps,
        execution_ms=None,
        neighbours=(),
        tp=replica.tp,
        max_num_batched_tokens=replica.max_num_batched_tokens,
    )


def _is_for_losses(
    name: str,
    count: int,
    problem: Problem | None,
) -> bool:
    """Whether this number is above the team's own minimum, which goals that limit something remember."""
    goals = problem.survival if problem else ()
    return any(
        goal.service == name and goal.rate_rps and goal.min_replicas < count
        for goal in goals
    )


def _limit(
    name: str,
    groups: Sequence[ReplicaGroup],
    unserved: Sequence[Unserved],
    problem: Problem | None,
) -> str:
    # The solver's own reason, which is closer than anything that could be found out here.
    if unserved:
        return f"{unserved[0].reason}: {unserved[0].rate_rps:.1f} requests per second stay unserved"
    count = sum(group.count for group in groups)
    service = _demand_of(name, problem)
    if count == 0:
        is_wanted = service is not None and (
            service.arrival_rate_rps > 0.0 or service.min_replicas > 0
        )
        return (
            "none: the plan leaves it out"
            if is_wanted
            else "no demand and no minimum number of replicas"
        )
    if service is None:
        return (
            "the plan in force, which stays"
            if problem is None
            else "unknown: the problem has no such service"
        )
    # Limits on the number before the load: at such a limit the replicas' load decides nothing.
    if service.max_replicas is not None and count == service.max_replicas:
        return f"max_replicas {service.max_replicas}"
    if count == service.min_replicas and _is_for_losses(name, count, problem):
        return f"survive: {count} replicas, so that enough of them is left after a loss"
    if count == service.min_replicas:
        return f"the minimum number of replicas: min_replicas + buffer_replicas = {service.min_replicas}"
    return _fullest(groups)


def _demand_of(name: str, problem: Problem | None) -> ServiceDemand | LlmDemand | None:
    services = () if problem is None else problem.all_services
    return next((entry for entry in services if entry.name == name), None)


def _fullest(groups: Sequence[ReplicaGroup]) -> str:
    shares = [
        group.arrival_rate_rps / group.capacity_rps
        for group in groups
        if group.capacity_rps
    ]
    if not shares:
        return "unknown: the plan's operating points are not those of its problem"
    return f"capacity: its fullest replicas take {100 * max(shares):.1f} % of what the SLO allows"
