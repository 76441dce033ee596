"""Random planner problems whose GPUs are shared without SM limits, made of `bench.synthetic_problems`.

Every network keeps its rows with all SMs. Its pressure is its duty, the part of a batch's time in which its kernels
run: it rises with the batch to 1, from a part that is the network's own. Watts are in proportion to it, half of what a
busy GPU may draw. Sensitivities are those that the simulated truth leaves once duties are known (`bench.catalogue.
uncapped_belief`: 0.05 to 0.2), and so is the overload.
"""

import random
from dataclasses import replace

from bench.synthetic_problems import rate_factor, synthetic_problem
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import GpuType

OVERLOAD = 0.85
_LEAST_DUTY = (0.05, 0.5)
"""At batch 1, by network."""
_HALF_BATCH = (8.0, 64.0)
"""The batch at which half of the way to 1 is gone."""
_SENSITIVITY = (0.05, 0.2)
_SPENT = 0.5
"""Of the price of the whole fleet, were no GPU shared: rates fit the fleet however badly it is shared."""


def uncapped_problem(gpus: int, services: int, seed: int) -> Problem:
    """The problem of that seed: the same in every process."""
    problem = synthetic_problem(gpus, services, seed)
    draw = random.Random(f"uncapped {gpus} {services} {seed}")
    types = {
        each.name: replace(each, overload=OVERLOAD, sm_percent_step=100.0)
        for each in problem.gpu_types
    }
    problem = replace(
        problem,
        gpu_types=tuple(types.values()),
        points=tuple(
            _without_limits(each, types[each.gpu_type], draw) for each in problem.points
        ),
    )
    fleet = sum(one.price_usd_per_hour * (one.count or 0) for one in problem.gpu_types)
    factor = rate_factor(problem, _SPENT * fleet)
    return replace(
        problem,
        services=tuple(
            replace(each, arrival_rate_rps=round(factor * each.arrival_rate_rps, 3))
            for each in problem.services
        ),
    )


def _without_limits(
    points: OperatingPoints, gpu_type: GpuType, draw: random.Random
) -> OperatingPoints:
    least, half = draw.uniform(*_LEAST_DUTY), draw.uniform(*_HALF_BATCH)
    max_w = 0.5 * (gpu_type.power_cap_w - gpu_type.idle_w)
    rows = []
    for row in points.rows:
        if row.sm_percent < 100.0:
            continue
        duty = least + (1.0 - least) * row.batch / (row.batch + half)
        rows.append(
            row._replace(pressure=round(duty, 4), power_w=round(duty * max_w, 3))
        )
    return replace(
        points, sensitivity=round(draw.uniform(*_SENSITIVITY), 4), rows=tuple(rows)
    )
