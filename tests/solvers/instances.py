"""Problems for policies: a tiny one by hand, and random ones from a seed."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from solvers.types.plan import GpuPlan, Plan, ReplicaPlan
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType

# At batch 1 half of the time may be used from ratio 2 on, at batch 4 four fifths, below ratio 2 nothing.
LAW = CapacityLaw(
    percentiles=(0.95,),
    batches=(1, 4),
    slo_ratios=(2.0, 9.0),
    max_utilisation=(((0.5, 0.5), (0.8, 0.8)),),
)
RANDOM_LAW = CapacityLaw(
    percentiles=(0.95, 0.99),
    batches=(1, 4, 8),
    slo_ratios=(1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
    max_utilisation=(
        (
            (0.0, 0.1, 0.3, 0.5, 0.7, 0.8),
            (0.0, 0.2, 0.6, 0.8, 0.9, 0.95),
            (0.0, 0.2, 0.7, 0.85, 0.92, 0.96),
        ),
        (
            (0.0, 0.05, 0.2, 0.4, 0.6, 0.7),
            (0.0, 0.1, 0.4, 0.7, 0.8, 0.9),
            (0.0, 0.1, 0.5, 0.75, 0.85, 0.92),
        ),
    ),
)


def a_type(name: str = "gpu", **changes: Any) -> GpuType:
    """16 GB and 200 W above idle, as many as wanted, no launch delay by neighbours."""
    facts: dict[str, Any] = {
        "name": name,
        "price_usd_per_hour": 1.0,
        "memory_mib": 16_000.0,
        "sm_percent_step": 25.0,
        "idle_w": 50.0,
        "power_cap_w": 250.0,
        "clocks_mhz": (1000.0,),
    }
    return GpuType(**facts | changes)


def a_row(
    sm_percent: float, run_ms: float, *, batch: int = 1, **changes: float
) -> OperatingPoint:
    """4 GB, 1 W per SM percent, no pressure."""
    row = OperatingPoint(
        sm_percent, batch, 1000.0, 0.0, 0.0, run_ms, 4000.0, sm_percent, 0.0
    )
    return row._replace(**changes)


def a_service(
    name: str = "chat", *, rate_rps: float = 0.0, **changes: Any
) -> ServiceDemand:
    facts: dict[str, Any] = {
        "network": "net",
        "slo_ms": 100.0,
        "percentile": 0.95,
        "arrival_rate_rps": rate_rps,
    }
    return ServiceDemand(name=name, **facts | changes)


# 10 ms on half a GPU and 5 ms on the whole one: 50 and 100 rps, so that the same GPU does the same work either way.
HALVES = (a_row(50.0, 10.0), a_row(100.0, 5.0))


def a_problem(
    *services: ServiceDemand,
    types: Sequence[GpuType] = (a_type(),),
    rows: Sequence[OperatingPoint] = HALVES,
    sensitivity: float = 0.0,
    **changes: Any,
) -> Problem:
    """The same rows for network `net` on every type."""
    facts: dict[str, Any] = {
        "max_replicas_per_gpu": 4,
        "capacity_law": LAW,
        "services": services,
    }
    points = tuple(
        OperatingPoints(
            network="net", gpu_type=each.name, sensitivity=sensitivity, rows=tuple(rows)
        )
        for each in types
    )
    return Problem(gpu_types=tuple(types), points=points, **facts | changes)


def random_problem(
    seed: int, *, services: int = 8, types: int = 2, gpus: int = 6
) -> Problem:
    """Services of three networks on up to three types; some SLOs are tight, about half of the fleet is needed."""
    draw = random.Random(seed)
    fleet = tuple(
        a_type(
            f"type{number}",
            price_usd_per_hour=price,
            count=gpus,
            sm_percent_step=10.0,
            power_cap_w=draw.choice((180.0, 250.0)),
            clocks_mhz=(800.0, 1000.0),
            launch_per_neighbour=draw.choice((0.0, 0.2)),
            launch_base=0.1,
        )
        for number, price in enumerate((1.0, 2.5, 4.0)[:types])
    )
    return Problem(
        energy_price_usd_per_kwh=0.15,
        max_replicas_per_gpu=5,
        capacity_law=RANDOM_LAW,
        gpu_types=fleet,
        services=tuple(
            a_service(
                f"s{number:02}",
                network=f"net{number % 3}",
                slo_ms=draw.choice((30.0, 80.0, 200.0, 600.0)),
                percentile=draw.choice(RANDOM_LAW.percentiles),
                rate_rps=draw.choice((0.0, 5.0, 40.0, 120.0)) * draw.uniform(0.5, 1.5),
                priority=draw.choice((1.0, 1.0, 10.0)),
                min_replicas=draw.choice((0, 0, 1, 2)),
                max_replicas=draw.choice((None, None, 3)),
                allowed_gpu_types=draw.choice((None, None, None, ("type0",))),
            )
            for number in range(services)
        ),
        points=tuple(
            _random_points(draw, f"net{number}", gpu_type, speed=1.0 + 1.5 * index)
            for number in range(3)
            for index, gpu_type in enumerate(fleet)
        ),
    )


def _random_points(
    draw: random.Random, network: str, gpu_type: GpuType, *, speed: float
) -> OperatingPoints:
    work_ms, knee = draw.uniform(1.0, 6.0) / speed, draw.uniform(0.4, 1.0)
    rows = tuple(
        OperatingPoint(
            sm_percent,
            batch,
            clock_mhz,
            0.05 * batch,
            0.5,
            work_ms
            * (1.0 + 0.4 * batch)
            * (100.0 / sm_percent) ** knee
            * 1000.0
            / clock_mhz,
            1500.0 + 120.0 * batch,
            0.8 * sm_percent * clock_mhz / 1000.0,
            0.006 * sm_percent,
        )
        for sm_percent, batch, clock_mhz in itertools.product(
            (10.0, 20.0, 40.0, 60.0, 80.0, 100.0),
            RANDOM_LAW.batches,
            gpu_type.clocks_mhz,
        )
    )
    return OperatingPoints(
        network=network,
        gpu_type=gpu_type.name,
        sensitivity=draw.choice((0.1, 0.5, 1.0)),
        rows=rows,
    )


def with_rates(problem: Problem, factor: float) -> Problem:
    services = (
        replace(each, arrival_rate_rps=each.arrival_rate_rps * factor)
        for each in problem.services
    )
    return replace(problem, services=tuple(services))


def priced(problem: Problem, factor: float) -> Problem:
    """The problem with every price times the factor."""
    types = tuple(
        replace(each, price_usd_per_hour=factor * each.price_usd_per_hour)
        for each in problem.gpu_types
    )
    return replace(
        problem,
        gpu_types=types,
        energy_price_usd_per_kwh=factor * problem.energy_price_usd_per_kwh,
        migration_cost_usd_per_hour=factor * problem.migration_cost_usd_per_hour,
        start_usd_per_second_and_gpu=factor * problem.start_usd_per_second_and_gpu,
    )


def replica_counts(plan: Plan | None) -> Counter[tuple[str, str, float]]:
    """Replicas by (service, GPU type, SM percent): what must be started again when it changes."""
    counts: Counter[tuple[str, str, float]] = Counter()
    for gpu in plan.gpus if plan else ():
        for replica in gpu.replicas:
            counts[replica.service, gpu.gpu_type, replica.sm_percent] += gpu.count
    return counts


def started(before: Plan, after: Plan) -> int:
    """Replicas of `after` that do not run in `before`."""
    return (replica_counts(after) - replica_counts(before)).total()


def with_types(problem: Problem, **changes: Any) -> Problem:
    """The problem with the same change to every GPU type."""
    types = (replace(each, **changes) for each in problem.gpu_types)
    return replace(problem, gpu_types=tuple(types))


def with_services(problem: Problem, **changes: Any) -> Problem:
    """The problem with the same change to every service."""
    services = (replace(each, **changes) for each in problem.services)
    return replace(problem, services=tuple(services))


def replica_on(
    service: str, sm_percent: float, rate_rps: float = 0.0, *, batch: int = 1
) -> ReplicaPlan:
    return ReplicaPlan(
        service=service,
        sm_percent=sm_percent,
        batch=batch,
        arrival_rate_rps=rate_rps,
    )


def gpu_plan(
    *replicas: ReplicaPlan,
    gpu_type: str = "gpu",
    count: int = 1,
    clock_mhz: float = 1000.0,
) -> GpuPlan:
    return GpuPlan(
        gpu_type=gpu_type, count=count, clock_mhz=clock_mhz, replicas=replicas
    )


def problem_of_networks(
    *services: ServiceDemand,
    networks: Mapping[str, Sequence[OperatingPoint]],
    sensitivity: float = 1.0,
    **of_type: Any,
) -> Problem:
    """Networks with rows of their own on one GPU type."""
    gpu_type = a_type(**of_type)
    return Problem(
        max_replicas_per_gpu=4,
        capacity_law=LAW,
        gpu_types=(gpu_type,),
        services=services,
        points=tuple(
            OperatingPoints(
                network=name,
                gpu_type=gpu_type.name,
                sensitivity=sensitivity,
                rows=tuple(rows),
            )
            for name, rows in networks.items()
        ),
    )


def shares_by_gpu(plan: Plan) -> list[dict[str, float]]:
    """SM percent by service, one entry per GPU."""
    return [
        {replica.service: replica.sm_percent for replica in gpu.replicas}
        for gpu in plan.gpus
        for _ in range(gpu.count)
    ]


def unserved_cases(short_rps: float, limited_rps: float, rate_rps: float) -> list[Any]:
    """(service, stock, reason, rps left out, replicas missing) where two GPUs leave out a part of `rate_rps`."""
    return [
        (a_service(rate_rps=rate_rps), 2, "stock", short_rps, 0),
        (
            a_service(rate_rps=rate_rps, max_replicas=2),
            None,
            "replicas",
            limited_rps,
            0,
        ),
        (a_service(rate_rps=5.0, slo_ms=19.0), None, "slo", 5.0, 0),
        (a_service(rate_rps=0.0, min_replicas=2), 1, "stock", 0.0, 1),
    ]


def assert_unserved(plan: Plan, reason: str, rate_rps: float, missing: int) -> None:
    (entry,) = plan.unserved
    assert (entry.reason, entry.replicas_missing) == (reason, missing)
    assert round(entry.rate_rps, 3) == rate_rps
