"""The rules that must hold with tasks next to a GPU's replicas, by the same checker as the plan's own."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from solvers.check import RowLookup, gpu_violations
from solvers.types.outcome import Violation
from solvers.types.plan import (
    BoundGpu,
    BoundTask,
    GpuPlan,
    ReplicaPlan,
    anonymous_gpu,
)
from solvers.types.problem import OperatingPoints, Problem, ServiceDemand

_TASK = "task "
"""This prefix tells a task from a service of the same name: no service's name has a blank."""


def task_violations(
    problem: Problem, gpus: Sequence[BoundGpu], points: Iterable[OperatingPoints]
) -> tuple[Violation, ...]:
    """Every rule that GPUs with tasks break, in their order; `points`: of the tasks' networks.

    A resident task is judged as a replica that is asked for nothing; one that is swapped out holds nothing.
    """
    # What the problem knows of a network that services run, too, is what the replicas were planned with.
    known = {
        (entry.network, entry.gpu_type): entry for entry in (*points, *problem.points)
    }
    found: list[Violation] = []
    for gpu in gpus:
        resident = [task for task in gpu.tasks if task.is_resident]
        if resident:
            lookup = RowLookup(_with_services(problem, resident, known.values()))
            shared = _with_tasks(gpu, resident)
            found.extend(gpu_violations(lookup, shared, f"gpu {gpu.id}"))
    return tuple(found)


def _with_services(
    problem: Problem, tasks: Sequence[BoundTask], points: Iterable[OperatingPoints]
) -> Problem:
    """The problem in which every task is a service, too."""
    # Tasks share a GPU without using up the services' slots, so each brings a slot of its own.
    return replace(
        problem,
        services=(*problem.services, *map(_as_service, tasks)),
        points=tuple(points),
        max_replicas_per_gpu=problem.max_replicas_per_gpu + len(tasks),
    )


def _as_service(task: BoundTask) -> ServiceDemand:
    # Infinitely slow answers are in time and nothing is asked for: a task breaks no promise of its own.
    return ServiceDemand(
        name=_TASK + task.name,
        network=task.network,
        slo_ms=math.inf,
        percentile=0.0,
        arrival_rate_rps=0.0,
    )


def _with_tasks(gpu: BoundGpu, tasks: Sequence[BoundTask]) -> GpuPlan:
    services = anonymous_gpu(gpu)
    return replace(services, replicas=(*services.replicas, *map(_as_replica, tasks)))


def _as_replica(task: BoundTask) -> ReplicaPlan:
    return ReplicaPlan(
        service=_TASK + task.name,
        sm_percent=task.sm_percent,
        batch=task.batch,
        arrival_rate_rps=0.0,
    )
