"""Type by type: how a policy that knows one GPU type plans for several.

Every GPU type is filled with what is still unserved, as if it were the only one; the type that leaves least unserved
is taken, of equals the one whose GPUs cost least. What that one leaves (a service that may not run there, a stock that
is used up) goes to the next type in the same way.

Source: iGniter (TPDS 2023), section 4, which runs its algorithm per instance type and takes the cheapest outcome. Ours:
what happens to the rest; and a plan of the same policy that runs, and still serves as much for no more GPUs, stays.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from solvers.baselines.half_slo import SoloProfile, profiles
from solvers.greedy.arrange import running_carriers
from solvers.greedy.configure import MAX_REPLICAS
from solvers.greedy.report import heuristic_report
from solvers.greedy.routing import Capacities, Carrier, reasons_short, route
from solvers.types.outcome import Budget, PlanReport, PlanStatus
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import GpuType

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeStage:
    """One GPU type, and the services that it can serve."""

    gpu_type: GpuType
    profiles: Mapping[str, SoloProfile]
    room: int
    """Replicas that the plan may still have."""


Fill = Callable[[Problem, TypeStage], Sequence[Carrier]]
"""GPUs of one type for the services of a Problem, as far as stock and room go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypePolicy:
    """A policy that fills one GPU type, and what it believes its replicas to serve."""

    name: str
    fill: Fill
    capacities: Capacities


def plan_type_by_type(
    problem: Problem,
    rules: TypePolicy,
    budget: Budget,
) -> tuple[Plan, PlanReport]:
    """The plan of the GPU types filled one after the other, or the one that runs; and its report."""
    begun = budget.elapsed()
    by_type = {
        gpu_type.name: profiles(problem, gpu_type) for gpu_type in problem.gpu_types
    }
    able = {service for found in by_type.values() for service in found}
    plan = _plan(problem, rules, _fill(problem, rules, by_type), able)
    status: PlanStatus = "greedy"
    # Of equals what runs: these policies know no price of a move, and would rearrange without need.
    running = _running_plan(problem, rules, able)
    if running is not None and _rank(problem, running) <= _rank(problem, plan):
        plan, status = running, "kept"
    report = heuristic_report(
        problem,
        plan,
        status=status,
        seconds=budget.elapsed() - begun,
        method=rules.name,
    )
    return plan, report


def _fill(
    problem: Problem,
    rules: TypePolicy,
    by_type: Mapping[str, Mapping[str, SoloProfile]],
) -> list[Carrier]:
    carriers: list[Carrier] = []
    left, types = problem, sorted(name for name, found in by_type.items() if found)
    while types and left.services:
        room = MAX_REPLICAS - sum(len(carrier.seats) for carrier in carriers)
        stages = (
            TypeStage(
                gpu_type=problem.gpu_type(name), profiles=by_type[name], room=room
            )
            for name in types
        )
        trials = {stage.gpu_type.name: _trial(left, rules, stage) for stage in stages}
        best = min(types, key=lambda name: (_rank(left, trials[name][1]), name))
        filled, plan = trials[best]
        carriers.extend(filled)
        types.remove(best)
        left = _without_served(left, filled, plan)
    return carriers


def _trial(
    problem: Problem,
    rules: TypePolicy,
    stage: TypeStage,
) -> tuple[Sequence[Carrier], Plan]:
    """The filled GPUs of one type and their plan."""
    filled = rules.fill(problem, stage)
    # Judged by what the policy believes its replicas to serve, which the capacity law may not confirm.
    plan = route(problem, rules.name, filled, {}, capacities=rules.capacities)
    return filled, plan


def replace_one(gpus: Counter[_T], old: _T | None, new: _T) -> None:
    """Turn one of equal GPUs, which are counted, into another; `old` None: one that was empty."""
    if old is not None:
        gpus[old] -= 1
        # An entry without a GPU would be tried for the next replica all the same.
        if not gpus[old]:
            del gpus[old]
    gpus[new] += 1


def _without_served(
    problem: Problem,
    carriers: Sequence[Carrier],
    plan: Plan,
) -> Problem:
    """The problem of what a plan leaves unserved."""
    replicas = _counts(carriers)
    services = []
    for entry in plan.unserved:
        service = problem.service(entry.service)
        limit = service.max_replicas
        if limit is not None:
            limit -= replicas[service.name]
        # A service that has all the replicas it may have would only take GPUs away from the others.
        if limit is None or limit > 0:
            residual = replace(
                service,
                arrival_rate_rps=entry.rate_rps,
                min_replicas=entry.replicas_missing,
                max_replicas=limit,
            )
            services.append(residual)
    return replace(problem, services=tuple(services))


def _running_plan(
    problem: Problem,
    rules: TypePolicy,
    able: Container[str],
) -> Plan | None:
    """What runs, with the present rates; None where another policy made it or its counts are over the limits."""
    if problem.current is None or problem.current.policy != rules.name:
        return None
    running = running_carriers(problem)
    counts = _counts(running)
    if counts.total() > MAX_REPLICAS:
        return None
    if any(
        one.max_replicas is not None and counts[one.name] > one.max_replicas
        for one in problem.services
    ):
        return None
    return _plan(problem, rules, running, able)


def _plan(
    problem: Problem,
    rules: TypePolicy,
    carriers: Sequence[Carrier],
    able: Container[str],
) -> Plan:
    reasons = reasons_short(problem, carriers, able)
    return route(problem, rules.name, carriers, reasons, capacities=rules.capacities)


def _rank(problem: Problem, plan: Plan) -> tuple[float, int, float]:
    """Weighted rate that is unserved, replicas that are missing, price of the GPUs: less is better."""
    return (
        sum(
            problem.service(entry.service).priority * entry.rate_rps
            for entry in plan.unserved
        ),
        sum(entry.replicas_missing for entry in plan.unserved),
        sum(
            gpu.count * problem.gpu_type(gpu.gpu_type).price_usd_per_hour
            for gpu in plan.gpus
        ),
    )


def _counts(carriers: Sequence[Carrier]) -> Counter[str]:
    return Counter(seat.service for carrier in carriers for seat in carrier.seats)
