"""Tiny problems that can be solved by trying everything."""

import random
from collections.abc import Iterator
from dataclasses import replace

from solvers.types.problem import OperatingPoint, OperatingPoints, Problem
from tests.solvers.instances import RANDOM_LAW, a_service, a_type, with_types


def tiny_problem(seed: int, *, services: int = 3, gpus: int = 2) -> Problem:
    """Two GPU types of one or two GPUs, two networks, three rows each; limits of all kinds, some of them too tight."""
    draw = random.Random(seed)
    types = tuple(
        a_type(
            name,
            price_usd_per_hour=price,
            count=draw.randint(1, gpus),
            memory_mib=draw.choice((5_000.0, 16_000.0)),
            power_cap_w=draw.choice((130.0, 250.0)),
            launch_per_neighbour=draw.choice((0.0, 0.2)),
        )
        for name, price in (("big", 2.0), ("small", draw.choice((0.7, 1.0))))
    )
    return Problem(
        energy_price_usd_per_kwh=draw.choice((0.0, 0.3)),
        max_replicas_per_gpu=draw.choice((1, 2, 3)),
        capacity_law=RANDOM_LAW,
        gpu_types=types,
        services=tuple(
            a_service(
                f"s{number}",
                network=f"net{number % 2}",
                slo_ms=draw.choice((20.0, 60.0, 200.0)),
                rate_rps=draw.choice((0.0, 20.0, 60.0)) * draw.uniform(0.5, 1.5),
                priority=draw.choice((1.0, 1.0, 4.0)),
                min_replicas=draw.choice((0, 0, 0, 1)),
                max_replicas=draw.choice((None, None, 2)),
                allowed_gpu_types=draw.choice((None, None, None, ("big",))),
            )
            for number in range(services)
        ),
        points=tuple(
            OperatingPoints(
                network=f"net{number}",
                gpu_type=gpu_type.name,
                sensitivity=draw.choice((0.2, 0.9)),
                rows=tuple(_rows(draw, speed)),
            )
            for number in range(2)
            for gpu_type, speed in zip(types, (2.0, 1.0), strict=True)
        ),
    )


def _rows(draw: random.Random, speed: float) -> list[OperatingPoint]:
    work_ms = draw.uniform(3.0, 9.0) / speed
    shapes = draw.sample(
        [(25.0, 1), (50.0, 1), (50.0, 4), (75.0, 4), (100.0, 1), (100.0, 8)], 3
    )
    return [
        OperatingPoint(
            *(sm_percent, batch, 1000.0, 0.1 * batch, 0.4),
            work_ms * (1.0 + 0.3 * batch) * (100.0 / sm_percent) ** 0.8,
            1500.0 + 300.0 * batch,
            sm_percent * draw.uniform(0.5, 1.2),
            sm_percent / 200.0,
        )
        for sm_percent, batch in shapes
    ]


def uncapped(problem: Problem, seed: int) -> Problem:
    """The problem whose GPUs are shared without SM limits; every network has one row for each batch that it had."""
    draw = random.Random(seed)
    return replace(
        with_types(problem, overload=draw.choice((0.3, 0.9))),
        points=tuple(
            replace(each, rows=tuple(_without_limits(draw, each.rows)))
            for each in problem.points
        ),
    )


def _without_limits(
    draw: random.Random, rows: tuple[OperatingPoint, ...]
) -> Iterator[OperatingPoint]:
    for row in {(each.batch, each.clock_mhz): each for each in rows}.values():
        # Less than linear, since two small processes fill a GPU better than one.
        run_ms = row.run_ms * (row.sm_percent / 100.0) ** 0.6
        yield row._replace(
            sm_percent=100.0, run_ms=run_ms, pressure=draw.uniform(0.2, 1.1)
        )
