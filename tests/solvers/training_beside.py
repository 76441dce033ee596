"""One GPU type, services and training whose laws can be worked out by hand.

A replica of `web` with batch b at p percent takes (300 + 200 · b) / p ms alone, and 1 + Π times as long with pressure
Π; the law lets it work all the time, so it carries 1000 · b / execution rps: at 50 % 100 with batch 1, 181.8 with
batch 4. A step of `train` takes 10,000 / p ms and presses with p / 200; one of `light` takes 1,000 ms at any share, and
presses with p / 1000. Replicas and tasks have rows at every 10 %.
"""

from collections.abc import Sequence
from typing import Any

from solvers.backfill.problem import FillProblem
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica, BoundTask
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import Gpu, GpuId, GpuType, NodeId, ReplicaId, Task

SHARES = tuple(10.0 * step for step in range(1, 11))
BATCHES = (1, 2, 4)
CLOCK_MHZ = 1000.0
A_TYPE = GpuType(
    name="gpu",
    price_usd_per_hour=1.0,
    memory_mib=10240.0,
    count=8,
    sm_percent_step=10.0,
    idle_w=50.0,
    power_cap_w=300.0,
    clocks_mhz=(CLOCK_MHZ,),
)
LAW = CapacityLaw(
    percentiles=(0.99,),
    batches=BATCHES,
    slo_ratios=(1.0, 1.001),
    max_utilisation=(((0.0, 1.0),) * len(BATCHES),),
)


def web_points(network: str = "web", *, slowness: float = 1.0) -> OperatingPoints:
    """1 GiB, 100 W at any share."""
    rows = tuple(
        OperatingPoint(
            p,
            b,
            CLOCK_MHZ,
            0.0,
            0.0,
            slowness * (300.0 + 200.0 * b) / p,
            1024.0,
            100.0,
            0.0,
        )
        for p in SHARES
        for b in BATCHES
    )
    return OperatingPoints(network=network, gpu_type="gpu", sensitivity=1.0, rows=rows)


def task_points(network: str = "train") -> OperatingPoints:
    """2 GiB, 30 W."""
    rows = tuple(
        OperatingPoint(
            p,
            64,
            CLOCK_MHZ,
            0.0,
            0.0,
            10_000.0 / p if network == "train" else 1000.0,
            2048.0,
            30.0,
            p / (200.0 if network == "train" else 1000.0),
        )
        for p in SHARES
    )
    return OperatingPoints(network=network, gpu_type="gpu", sensitivity=0.0, rows=rows)


POINTS = (task_points(), task_points("light"))


def a_service(
    name: str = "web", rate_rps: float = 60.0, **changes: Any
) -> ServiceDemand:
    facts: dict[str, Any] = {"network": "web", "slo_ms": 1000.0, "percentile": 0.99}
    return ServiceDemand(name=name, arrival_rate_rps=rate_rps, **facts | changes)


def a_problem(*services: ServiceDemand, **changes: Any) -> Problem:
    """Every network is as fast as `web`, but `slow`, which takes twice as long."""
    networks = sorted({service.network for service in services} | {"web"})
    facts: dict[str, Any] = {
        "max_replicas_per_gpu": 1,
        "capacity_law": LAW,
        "gpu_types": (A_TYPE,),
        "points": tuple(
            web_points(name, slowness=2.0 if name == "slow" else 1.0)
            for name in networks
        ),
    }
    return Problem(services=services or (a_service(),), **facts | changes)


def a_gpu(number: int = 0) -> Gpu:
    return Gpu(
        id=GpuId(f"n1/gpu-{number}"), node=NodeId("n1"), gpu_type="gpu", index=number
    )


def a_task(name: str = "nightly", network: str = "train", **changes: Any) -> Task:
    facts: dict[str, Any] = {"kind": "training", "batch": 64, "iterations": 1000}
    return Task(name=name, network=network, **facts | changes)


def bound_task(
    name: str = "nightly",
    sm_percent: float = 50.0,
    network: str = "train",
    **changes: Any,
) -> BoundTask:
    facts: dict[str, Any] = {
        "kind": "training",
        "batch": 64,
        "iterations": 1000,
        "memory_mib": 2048.0,
    }
    return BoundTask(
        name=name, network=network, sm_percent=sm_percent, **facts | changes
    )


def bound_gpu(
    number: int = 0,
    *tasks: BoundTask,
    rate_rps: float | None = 60.0,
    sm_percent: float = 100.0,
    batch: int = 1,
    service: str = "web",
    network: str = "web",
) -> BoundGpu:
    """GPU `n1/gpu-<number>` with a replica (rate None: without one), and these tasks."""
    replica = BoundReplica(
        id=ReplicaId(f"{service}-{number}"),
        service=service,
        network=network,
        sm_percent=sm_percent,
        batch=batch,
        arrival_rate_rps=rate_rps or 0.0,
        memory_mib=1024.0,
    )
    return BoundGpu(
        id=a_gpu(number).id,
        node=NodeId("n1"),
        gpu_type="gpu",
        clock_mhz=CLOCK_MHZ,
        power_cap_w=300.0,
        replicas=() if rate_rps is None else (replica,),
        tasks=tasks,
    )


def a_plan(*gpus: BoundGpu) -> BoundPlan:
    return BoundPlan(generation=1, parent=0, policy="mudi", gpus=gpus)


def to_fill(
    bound: BoundPlan,
    tasks: Sequence[Task],
    *,
    gpus: int = 1,
    running: BoundPlan | None = None,
    problem: Problem | None = None,
) -> FillProblem:
    """The plan's left-over and these tasks; a fleet of some GPUs."""
    return FillProblem(
        problem=problem or a_problem(),
        bound=bound,
        tasks=tasks,
        points=POINTS,
        gpus=[a_gpu(number) for number in range(gpus)],
        running=running,
    )


def settings(gpu: BoundGpu) -> tuple[float, int]:
    """SM percent and batch of its replica."""
    (replica,) = gpu.replicas
    return replica.sm_percent, replica.batch


def shares(gpus: Sequence[BoundGpu]) -> dict[str, tuple[str, float]]:
    """Where each resident task is, with which SM percent."""
    return {
        task.name: (gpu.id, task.sm_percent)
        for gpu in gpus
        for task in gpu.tasks
        if task.is_resident
    }


def swapped(gpus: Sequence[BoundGpu]) -> list[str]:
    """Tasks that are swapped out."""
    return sorted(
        task.name for gpu in gpus for task in gpu.tasks if not task.is_resident
    )
