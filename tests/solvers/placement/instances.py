"""Random placement problems and their optima by trying everything."""

import itertools
import random
from collections.abc import Iterator

from solvers.placement.problem import (
    GpuStock,
    PackedGpu,
    PendingReplica,
    PlacementProblem,
    broken_rules,
)

Best = tuple[float, float, float]
"""(placed value, −price, −sum over types of the peak SM percent)."""


def stock(
    gpu_type: str = "big",
    *,
    count: int | None = 4,
    price: float = 1.0,
    max_replicas: int = 6,
) -> GpuStock:
    return GpuStock(
        gpu_type=gpu_type,
        count=count,
        price_usd_per_hour=price,
        memory_mib=16_000.0,
        power_w=200.0,
        max_replicas=max_replicas,
    )


def replica(
    name: str,
    sm_percent: float,
    *,
    gpu_type: str = "big",
    memory_mib: float = 100.0,
    power_w: float = 1.0,
    value: float = 1.0,
    labels: tuple[str, ...] | None = None,
) -> PendingReplica:
    """Labelled with its service: what stands before the slash."""
    return PendingReplica(
        name=name,
        gpu_type=gpu_type,
        sm_percent=sm_percent,
        memory_mib=memory_mib,
        power_w=power_w,
        value=value,
        labels=(name.split("/")[0],) if labels is None else labels,
    )


def random_problem(seed: int, *, replicas: int, gpus: int) -> PlacementProblem:
    """One type of GPUs, scarce now in SM percent, now in memory or watts; some labels shared, some missing."""
    draw = random.Random(seed)
    pending = []
    for number in range(replicas):
        labels = draw.choice(
            ((), (f"s{draw.randint(0, 2)}",), (f"s{draw.randint(0, 2)}", "shared"))
        )
        pending.append(
            replica(
                f"r{number}",
                5.0 * draw.randint(2, 14),
                memory_mib=draw.uniform(500.0, 9000.0),
                power_w=draw.uniform(10.0, 120.0),
                value=float(draw.randint(1, 4)),
                labels=labels,
            )
        )
    return PlacementProblem(
        replicas=tuple(pending),
        gpus=(stock(count=gpus, max_replicas=draw.choice((2, 3, 6))),),
    )


def objective(problem: PlacementProblem, gpus: tuple[PackedGpu, ...]) -> Best:
    values = {one.name: one.value for one in problem.replicas}
    widths = {one.name: one.sm_percent for one in problem.replicas}
    prices = {one.gpu_type: one.price_usd_per_hour for one in problem.gpus}
    peaks: dict[str, float] = {}
    for gpu in gpus:
        load = sum(widths[name] for name in gpu.replicas)
        peaks[gpu.gpu_type] = max(load, peaks.get(gpu.gpu_type, 0.0))
    return (
        sum(values[name] for gpu in gpus for name in gpu.replicas),
        -sum(prices[gpu.gpu_type] for gpu in gpus),
        -sum(peaks.values()),
    )


def best_by_trying_everything(problem: PlacementProblem) -> Best:
    """Of every way to put the replicas of a one-type problem on its GPUs or leave them out, the best objective."""
    (only,) = problem.gpus
    names = [one.name for one in problem.replicas]
    best: Best = (0.0, 0.0, 0.0)
    for assignment in _assignments(len(names), only.count or 0):
        gpus = tuple(
            PackedGpu(
                gpu_type=only.gpu_type,
                replicas=tuple(itertools.compress(names, [a == j for a in assignment])),
            )
            for j in range(max(assignment, default=-1) + 1)
        )
        reached = objective(problem, gpus)
        if reached > best and not broken_rules(problem, gpus):
            best = reached
    return best


def _assignments(replicas: int, gpus: int, used: int = 0) -> Iterator[tuple[int, ...]]:
    """GPU numbers, −1 for left out; GPUs are alike, so a new one is always the next number."""
    if replicas == 0:
        yield ()
        return
    for gpu in range(-1, min(used + 1, gpus)):
        for rest in _assignments(replicas - 1, gpus, max(used, gpu + 1)):
            yield (gpu, *rest)
