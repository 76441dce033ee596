"""Explain: why a plan is as it is, from its stored record. Pure; the API and the CLI show what it returns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from solvers.outcome import PlanReport, Violation
from solvers.plan import Change, GpuPlan, Plan, ReplicaPlan, Unserved, diff, replicas_of
from solvers.predict.colocation import capacity_rps, launch_factor
from solvers.problem import OperatingPoint, Problem
from solvers.rows import OperatingRows
from solvers.state import Demand


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
    """The most that each may take beside its neighbours; None where the record kept no problem."""
    execution_ms: float | None
    """Execution time of one batch beside its neighbours."""
    neighbours: tuple[str, ...]


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
    """What decides the number of its replicas, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that led to one plan."""

    summary: str
    report: PlanReport
    violations: tuple[Violation, ...]
    services: tuple[ServiceExplanation, ...]
    changes: tuple[Change, ...]
    """Against the plan that was in force when this one was made."""


def explain(
    plan: Plan,
    report: PlanReport,
    *,
    problem: Problem | None,
    demands: Sequence[Demand],
    violations: Sequence[Violation],
    reason: str,
) -> Explanation:
    """Why the plan is as it is. Without a problem (a plan that was kept) capacities are unknown."""
    names = {replica.service for gpu in plan.gpus for replica in gpu.replicas}
    names |= {demand.service for demand in demands} | {entry.service for entry in plan.unserved}
    before = Plan(policy="none") if problem is None or problem.current is None else problem.current
    return Explanation(
        summary=_summary(report, reason),
        report=report,
        violations=tuple(violations),
        services=tuple(_service(name, plan, problem, demands) for name in sorted(names)),
        changes=() if report.status == "kept" else diff(before, plan),
    )


def _summary(report: PlanReport, reason: str) -> str:
    if reason:
        return f"{report.status}: {reason}"
    said = f"{report.status} at ${report.cost_usd_per_hour:.4f} per hour, found by {report.method or 'the policy'}"
    if report.gap_percent is not None:
        said += f", at most {report.gap_percent:.2f} % above the least possible cost"
    return f"{said}, in {1000 * report.seconds:.0f} ms"


def _service(name: str, plan: Plan, problem: Problem | None, demands: Sequence[Demand]) -> ServiceExplanation:
    groups = tuple(_group(gpu, replica, problem) for gpu, replica in replicas_of(plan, name))
    unserved = tuple(entry for entry in plan.unserved if entry.service == name)
    known = [group.capacity_rps for group in groups]
    capacity = None if None in known else math.fsum(g.count * (g.capacity_rps or 0.0) for g in groups)
    demand = next((entry.arrival_rate_rps for entry in demands if entry.service == name), None)
    return ServiceExplanation(
        service=name,
        demand_rps=demand,
        planned_rps=math.fsum(group.count * group.arrival_rate_rps for group in groups),
        capacity_rps=capacity,
        replicas=groups,
        unserved=unserved,
        limit=_limit(name, groups, unserved, problem),
    )


def _group(gpu: GpuPlan, replica: ReplicaPlan, problem: Problem | None) -> ReplicaGroup:
    execution = None if problem is None else _execution_ms(problem, gpu, replica)
    return ReplicaGroup(
        gpu_type=gpu.gpu_type,
        count=gpu.count,
        sm_percent=replica.sm_percent,
        batch=replica.batch,
        clock_mhz=gpu.clock_mhz,
        arrival_rate_rps=replica.arrival_rate_rps,
        capacity_rps=None if problem is None or execution is None else _capacity_rps(problem, replica, execution),
        execution_ms=execution,
        neighbours=tuple(sorted(other.service for other in gpu.replicas if other is not replica)),
    )


def _execution_ms(problem: Problem, gpu: GpuPlan, replica: ReplicaPlan) -> float | None:
    """Execution time beside the neighbours; None for a replica at a row that the problem lacks (a refused plan)."""
    own, others = _row(problem, gpu, replica), [_row(problem, gpu, e) for e in gpu.replicas if e is not replica]
    if own is None or None in others:
        return None
    points = problem.points_of(problem.service(replica.service).network, gpu.gpu_type)
    assert points is not None  # It held the row.
    pressure = math.fsum(row.pressure for row in others if row is not None)
    launch_ms = own.launch_ms * launch_factor(problem.gpu_type(gpu.gpu_type), len(gpu.replicas))
    return own.transfer_ms + launch_ms + own.run_ms * (1.0 + points.sensitivity * pressure)


def _row(problem: Problem, gpu: GpuPlan, replica: ReplicaPlan) -> OperatingPoint | None:
    if replica.service not in {service.name for service in problem.services}:
        return None
    network = problem.service(replica.service).network
    return OperatingRows(problem).find(network, gpu.gpu_type, (replica.sm_percent, replica.batch, gpu.clock_mhz))


def _capacity_rps(problem: Problem, replica: ReplicaPlan, execution_ms: float) -> float:
    service = problem.service(replica.service)
    return capacity_rps(
        problem.capacity_law,
        percentile=service.percentile,
        batch=replica.batch,
        slo_ms=service.slo_ms,
        execution_ms=execution_ms,
    )


def _limit(name: str, groups: Sequence[ReplicaGroup], unserved: Sequence[Unserved], problem: Problem | None) -> str:
    if unserved:
        return f"{unserved[0].reason}: {unserved[0].rate_rps:.1f} requests per second stay unserved"
    count = sum(group.count for group in groups)
    if count == 0:
        return "no demand and no least number of replicas"
    service = None if problem is None else next((entry for entry in problem.services if entry.name == name), None)
    if service is None:
        return "the plan in force, which stays"
    if service.max_replicas is not None and count == service.max_replicas:
        return f"max_replicas {service.max_replicas}"
    if count == service.min_replicas:
        return f"min_replicas + buffer_replicas = {service.min_replicas}"
    shares = [group.arrival_rate_rps / group.capacity_rps for group in groups if group.capacity_rps]
    if not shares:
        return "unknown: the plan's operating points are not those of its problem"
    return f"capacity: its fullest replicas take {100 * max(shares):.1f} % of what the SLO allows"
