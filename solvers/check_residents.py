"""The rules that must hold with tasks and spares beside a GPU's replicas, by the same checker as the plan's own.

A promise is judged without spares, since they rest; what is physical is judged with them, since they are loaded.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from solvers.check import RowLookup, gpu_violations
from solvers.check_base import broken
from solvers.types.outcome import Violation
from solvers.types.plan import (
    BoundGpu,
    BoundReplica,
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


def spare_violations(
    problem: Problem, gpus: Sequence[BoundGpu]
) -> tuple[Violation, ...]:
    """Every physical rule that GPUs with spares break, in their order.

    A spare is judged as a replica of its service that is asked for nothing, under the GPU's own power cap.
    """
    found: list[Violation] = []
    for gpu in gpus:
        if not gpu.spares:
            continue
        where = f"gpu {gpu.id}"
        # What tasks draw is not known here; they are work, and what they leave of a GPU is not offered again.
        if any(task.is_resident for task in gpu.tasks):
            found.append(broken("spares", where, "spares beside tasks that run"))
        lookup = RowLookup(_with_cap(problem, gpu))
        services = anonymous_gpu(gpu)
        shared = replace(
            services, replicas=(*services.replicas, *map(_as_idle, gpu.spares))
        )
        found.extend(
            entry
            for entry in gpu_violations(lookup, shared, where)
            if entry.severity == "physical"
        )
    return tuple(found)


def _with_cap(problem: Problem, gpu: BoundGpu) -> Problem:
    """The problem in which GPUs of that type draw no more than this one may."""
    return replace(
        problem,
        gpu_types=tuple(
            replace(each, power_cap_w=min(each.power_cap_w, gpu.power_cap_w))
            if each.name == gpu.gpu_type
            else each
            for each in problem.gpu_types
        ),
    )


def _as_idle(spare: BoundReplica) -> ReplicaPlan:
    return ReplicaPlan(
        service=spare.service,
        sm_percent=spare.sm_percent,
        batch=spare.batch,
        arrival_rate_rps=0.0,
    )
