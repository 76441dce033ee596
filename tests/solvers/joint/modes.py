"""Small random GPU types with all that pricing can meet on them, and all their patterns by trial, in plain Python."""

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.types import Effort, Worth
from solvers.joint.patterns.tables import Tables
from solvers.laws.colocation import Neighbours, capacity_rps, execution_ms
from solvers.types.problem import OperatingPoint, OperatingPoints, Problem
from solvers.types.state import GpuType
from tests.solvers.instances import RANDOM_LAW, a_service, a_type

QUICK = Effort(steps=2, nodes=0, halvings=0, tolerance=0.0)
THOROUGH = Effort(steps=8, nodes=10**9, halvings=3, tolerance=0.0)

Gpu = tuple[tuple[int, OperatingPoint], ...]
"""What runs on one GPU: (service, row)."""


class Prices(NamedTuple):
    """What is earned: by one rps of each service, by its mere presence, and what a GPU costs."""

    rps: tuple[float, ...]
    bonus: tuple[float, ...]
    threshold: float

    def worth(self, tables: Tables) -> list[Worth]:
        """By mode."""
        bonus = np.array(self.bonus)
        return [
            Worth(rate=tables.rate, rps=np.array(self.rps), bonus=bonus[mode.service])
            for mode in tables.modes
        ]


def random_problem(draw: random.Random, **changes: object) -> Problem:
    """One GPU type at one clock, up to four services of three networks; each side limit binds in some of them."""
    step = draw.choice((10.0, 12.5, 25.0, 30.0, 40.0, 60.0))
    idle_w = draw.choice((0.0, 50.0))
    facts: dict[str, object] = {
        "sm_percent_step": step,
        "memory_mib": draw.choice((4_000.0, 6_500.0, 16_000.0)),
        "idle_w": idle_w,
        "power_cap_w": idle_w + draw.choice((40.0, 80.0, 300.0)),
        "launch_per_neighbour": draw.choice((0.0, 0.3)),
        "launch_base": draw.choice((0.0, 0.1)),
    }
    gpu_type = a_type("gpu", **facts | changes)
    return Problem(
        energy_price_usd_per_kwh=draw.choice((0.0, 0.5)),
        max_replicas_per_gpu=draw.choice((1, 2, 3, 4, 6)),
        capacity_law=RANDOM_LAW,
        gpu_types=(gpu_type,),
        services=tuple(
            a_service(
                f"s{number}",
                network=f"net{number % 3}",
                slo_ms=draw.choice((15.0, 40.0, 120.0)),
                max_replica_rps=draw.choice((None, None, 20.0)),
                percentile=draw.choice(RANDOM_LAW.percentiles),
                rate_rps=draw.choice((0.0, 15.0, 60.0, 200.0)),
                min_replicas=draw.choice((0, 0, 1)),
            )
            for number in range(draw.randint(1, 4))
        ),
        points=tuple(
            _points(draw, f"net{number}", gpu_type)
            for number in range(draw.randint(2, 3))
        ),
    )


def _points(draw: random.Random, network: str, gpu_type: GpuType) -> OperatingPoints:
    steps = int(100.0 / gpu_type.sm_percent_step + 1e-6)
    room_w, work_ms = gpu_type.power_cap_w - gpu_type.idle_w, draw.uniform(1.0, 8.0)
    shapes = {
        (draw.randint(1, steps), draw.choice(RANDOM_LAW.batches)) for _ in range(4)
    }
    rows = tuple(
        OperatingPoint(
            *(
                width * gpu_type.sm_percent_step,
                batch,
                1000.0,
                draw.choice((0.0, 0.2)),
                draw.choice((0.0, 1.0)),
            ),
            work_ms * (1.0 + 0.4 * batch) / (width / steps) ** 0.7,
            draw.choice((800.0, 2500.0)) + 200.0 * batch,
            min(room_w, 80.0) * draw.uniform(0.2, 0.9),
            draw.choice((0.0, 0.6)) * width / steps,
        )
        for width, batch in sorted(shapes)
    )
    return OperatingPoints(
        network=network,
        gpu_type=gpu_type.name,
        sensitivity=draw.choice((0.0, 0.8)),
        rows=rows,
    )


def random_prices(draw: random.Random, problem: Problem) -> Prices:
    """Some services earn nothing; presence may earn or cost; thresholds from nothing to more than anything earns."""
    count = len(problem.services)
    return Prices(
        rps=tuple(draw.choice((0.0, 0.01, 0.02, 0.05)) for _ in range(count)),
        bonus=tuple(draw.choice((0.0, 0.0, -0.3, 0.4)) for _ in range(count)),
        threshold=draw.choice((0.0, 0.2, 1.0, 3.0)),
    )


def gpus(problem: Problem) -> Iterator[Gpu]:
    """Whatever may run on one GPU of the only type: within all limits, no SLO missed."""
    gpu_type, choices = problem.gpu_types[0], []
    for number, service in enumerate(problem.services):
        points = problem.points_of(service.network, gpu_type.name)
        choices.append(
            [None, *((number, row) for row in (points.rows if points else ()))]
        )
    for mix in itertools.product(*choices):
        gpu = tuple(each for each in mix if each is not None)
        if gpu and is_lawful(problem, gpu):
            yield gpu


def is_lawful(problem: Problem, gpu: Gpu) -> bool:
    """Whether the GPU keeps all limits and every replica its SLO, but for those that count by being there."""
    gpu_type, rows = problem.gpu_types[0], [row for _, row in gpu]
    return (
        len(gpu) <= problem.max_replicas_per_gpu
        and len({service for service, _ in gpu}) == len(gpu)
        and sum(row.sm_percent for row in rows) <= 100.0 + 1e-6
        and sum(row.memory_mib for row in rows) <= gpu_type.memory_mib * (1.0 + 1e-9)
        and sum(row.power_w for row in rows)
        <= (gpu_type.power_cap_w - gpu_type.idle_w) * (1.0 + 1e-9)
        and all(
            carried > 0.0 or may_idle(problem, number)
            for number, carried in capacities(problem, gpu).items()
        )
    )


def may_idle(problem: Problem, number: int) -> bool:
    """Whether a replica of the service counts though it carries nothing."""
    return problem.services[number].min_replicas > 0


def capacities(problem: Problem, gpu: Gpu) -> Mapping[int, float]:
    """rps that each service's replica can carry there."""
    found = {}
    for at, (number, row) in enumerate(gpu):
        service, gpu_type = problem.services[number], problem.gpu_types[0]
        points = problem.points_of(service.network, gpu_type.name)
        assert points is not None
        others = [other.pressure for index, (_, other) in enumerate(gpu) if index != at]
        carried = capacity_rps(
            problem.capacity_law,
            percentile=service.percentile,
            batch=row.batch,
            slo_ms=service.slo_ms,
            execution_ms=execution_ms(
                row,
                Neighbours(count=len(others), pressure=sum(others)),
                sensitivity=points.sensitivity,
                gpu_type=gpu_type,
            ),
        )
        found[number] = min(carried, service.max_replica_rps or carried)
    return found


def worth_of(problem: Problem, prices: Prices, gpu: Gpu) -> float:
    """What the GPU earns, its watts paid."""
    watts = sum(row.power_w for _, row in gpu)
    earned = sum(
        prices.rps[number] * min(carried, problem.services[number].arrival_rate_rps)
        + prices.bonus[number]
        for number, carried in capacities(problem, gpu).items()
    )
    return earned - problem.energy_price_usd_per_kwh / 1000.0 * watts


def best_worth(problem: Problem, prices: Prices) -> float:
    """The most that any GPU earns; 0 is always possible."""
    return max((worth_of(problem, prices, gpu) for gpu in gpus(problem)), default=0.0)
