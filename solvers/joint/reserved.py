"""Reserved GPUs: a type of which some are paid for anyway is two types to the formulation, one owned and one rented.

That is exact. A plan pays `price · max(0, used − paid)` for a type, and a program that may take at most `paid` GPUs of
the owned half for nothing takes those first, since the halves are alike in everything else. The bound stays a bound.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import GpuType

PAID = " (paid)"
"""Ends the name of the owned half: no type's name has a blank. A report's prices name both halves."""


def split(problem: Problem) -> Problem:
    """The problem with two types for each of which some GPUs are paid for; the same where there is none."""
    partly = _partly_paid(problem)
    if not partly:
        return problem
    types = [half for one in problem.gpu_types for half in _halves(one)]
    points = [
        each
        for entry in problem.points
        for each in (
            (entry, replace(entry, gpu_type=entry.gpu_type + PAID))
            if entry.gpu_type in partly
            else (entry,)
        )
    ]
    services = tuple(_allowed_on_halves(one, partly) for one in problem.services)
    return replace(
        problem,
        gpu_types=tuple(types),
        services=services,
        points=tuple(points),
        current=None
        if problem.current is None
        else split_plan(problem, problem.current),
    )


def _partly_paid(problem: Problem) -> set[str]:
    """Names of the types to divide; none under `max_goodput`, where all GPUs are paid for anyway."""
    if problem.objective == "max_goodput":
        return set()
    return {
        one.name for one in problem.gpu_types if one.paid_count and not one.is_owned
    }


def _allowed_on_halves(service: ServiceDemand, partly: set[str]) -> ServiceDemand:
    allowed = service.allowed_gpu_types
    if allowed is None:
        return service
    halves = tuple(name + PAID for name in allowed if name in partly)
    return replace(service, allowed_gpu_types=(*allowed, *halves))


def _halves(gpu_type: GpuType) -> Iterator[GpuType]:
    if not gpu_type.paid_count or gpu_type.is_owned:
        yield gpu_type
        return
    paid = gpu_type.paid_count
    rest = None if gpu_type.count is None else gpu_type.count - paid
    yield replace(gpu_type, name=gpu_type.name + PAID, count=paid)
    yield replace(gpu_type, count=rest, paid_count=0)


def split_plan(problem: Problem, plan: Plan) -> Plan:
    """A plan of the problem in the types of `split(problem)`, the first GPUs of each type on its owned half."""
    partly = _partly_paid(problem)
    free = Counter({name: problem.gpu_type(name).paid_count for name in partly})
    gpus: list[GpuPlan] = []
    for gpu in plan.gpus:
        paid = min(free[gpu.gpu_type], gpu.count)
        free[gpu.gpu_type] -= paid
        if paid:
            gpus.append(replace(gpu, gpu_type=gpu.gpu_type + PAID, count=paid))
        if gpu.count > paid:
            gpus.append(replace(gpu, count=gpu.count - paid))
    return replace(plan, gpus=tuple(gpus))


def merged(plan: Plan) -> Plan:
    """The plan in the types that there are."""
    gpus = tuple(replace(gpu, gpu_type=merged_name(gpu.gpu_type)) for gpu in plan.gpus)
    return replace(plan, gpus=gpus)


def merged_name(gpu_type: str) -> str:
    """The name of the type that there is, of either half."""
    return gpu_type.removesuffix(PAID)
