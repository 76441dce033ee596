"""One GPU type, one service and one training network whose laws can be worked out by hand.

A replica of `web` alone takes 10 ms for one request; the law lets it work all the time, so it carries 100 rps. Next to
tasks of pressure Π it takes 10 · (1 + Π) ms. A step of `train` at p percent of the SMs takes 10,000 / p ms, whatever
is next to it, and presses with p / 100.
"""

from collections.abc import Sequence

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

SHARES = (10.0, 20.0, 30.0, 40.0, 50.0, 100.0)
CLOCK_MHZ = 1000.0


def gpu_type(name: str, price_usd_per_hour: float) -> GpuType:
    """10 GiB, 300 W, 50 W of them when idle."""
    return GpuType(
        name=name,
        price_usd_per_hour=price_usd_per_hour,
        memory_mib=10240.0,
        sm_percent_step=10.0,
        idle_w=50.0,
        power_cap_w=300.0,
        clocks_mhz=(CLOCK_MHZ,),
    )


def train_points(kind: str, *, speed: float = 1.0) -> OperatingPoints:
    """4 GiB and 1 W per percent."""
    rows = tuple(
        OperatingPoint(
            p, 64, CLOCK_MHZ, 0.0, 0.0, 10_000.0 / p / speed, 4096.0, p, p / 100.0
        )
        for p in SHARES
    )
    return OperatingPoints(network="train", gpu_type=kind, sensitivity=0.0, rows=rows)


def web_points(kind: str) -> OperatingPoints:
    """2 GiB and 100 W at half of the SMs."""
    row = OperatingPoint(50.0, 1, CLOCK_MHZ, 0.0, 0.0, 10.0, 2048.0, 100.0, 0.0)
    return OperatingPoints(network="web", gpu_type=kind, sensitivity=1.0, rows=(row,))


PROBLEM = Problem(
    max_replicas_per_gpu=4,
    capacity_law=CapacityLaw(
        percentiles=(0.99,),
        batches=(1,),
        slo_ratios=(1.0, 1.001),
        max_utilisation=(((0.0, 1.0),),),
    ),
    gpu_types=(gpu_type("cheap", 1.0), gpu_type("dear", 3.0)),
    services=(
        ServiceDemand(
            name="web",
            network="web",
            slo_ms=1000.0,
            percentile=0.99,
            arrival_rate_rps=60.0,
        ),
    ),
    points=(web_points("cheap"), web_points("dear")),
)
POINTS = (train_points("cheap"), train_points("dear", speed=2.0))


def a_gpu(number: int, kind: str = "cheap") -> Gpu:
    """GPU `n1/gpu-<number>`."""
    return Gpu(
        id=GpuId(f"n1/gpu-{number}"), node=NodeId("n1"), gpu_type=kind, index=number
    )


def a_task(name: str = "nightly", **changes: object) -> Task:
    """1,000 steps of `train`."""
    fields: dict[str, object] = {
        "kind": "training",
        "network": "train",
        "batch": 64,
        "iterations": 1000,
    }
    return Task(name=name, **{**fields, **changes})  # type: ignore[arg-type]


def bound_task(
    name: str = "nightly", sm_percent: float = 20.0, **changes: object
) -> BoundTask:
    """The same on a GPU."""
    fields: dict[str, object] = {
        "kind": "training",
        "network": "train",
        "batch": 64,
        "iterations": 1000,
    }
    return BoundTask(
        name=name, sm_percent=sm_percent, memory_mib=4096.0, **{**fields, **changes}
    )  # type: ignore[arg-type]


def bound_gpu(gpu: Gpu, *tasks: BoundTask, rate_rps: float | None = None) -> BoundGpu:
    """A GPU with a replica of `web` that gets this rate (None: without one), and these tasks."""
    replica = BoundReplica(
        id=ReplicaId(f"web-{gpu.index}"),
        service="web",
        network="web",
        sm_percent=50.0,
        batch=1,
        arrival_rate_rps=rate_rps or 0.0,
        memory_mib=2048.0,
    )
    return BoundGpu(
        id=gpu.id,
        node=gpu.node,
        gpu_type=gpu.gpu_type,
        clock_mhz=CLOCK_MHZ,
        power_cap_w=300.0,
        replicas=() if rate_rps is None else (replica,),
        tasks=tasks,
    )


def a_plan(*gpus: BoundGpu) -> BoundPlan:
    """A plan of these GPUs."""
    return BoundPlan(generation=1, parent=0, policy="joint", gpus=gpus)


def to_fill(
    bound: BoundPlan,
    tasks: Sequence[Task],
    gpus: Sequence[Gpu],
    *,
    running: BoundPlan | None = None,
) -> FillProblem:
    """The plan's left-over, these tasks and this fleet."""
    return FillProblem(
        problem=PROBLEM,
        bound=bound,
        tasks=tasks,
        points=POINTS,
        gpus=gpus,
        running=running,
    )
