"""Random planner problems of any size, of the same kind as the shared ones `synthetic_{GPUs}x{services}`.

Run: `python -m bench.synthetic_problems GPUS SERVICES SEED -o PROBLEM.json`. Benches call `synthetic_problem`.

T4, L4, A10G and A100 make up 35, 30, 20 and 15 % of the fleet. At most 48 networks; services beyond that share one,
with another limit, percentile and rate. On one GPU type, at full clock, a batch of b runs for

    (fixed + per_item · b) / speed(share, b),    speed = share to the knee of the batch, then 0.08 per 1 of share

slowed by clock^-gamma, with watts that rise with the share, the batch and clock^2.2. Ranges of all parameters were read
off the shared problems. Rates are log-normal, scaled so that serving them takes 54 to 72 % of the price of the fleet:
a transport program says what they take of GPUs without gaps and neighbours, `_GAPS` how much more real plans do.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from solvers.joint.kernels.types import Reals
from solvers.laws.capacity_law import make_capacity_law
from solvers.types.documents.problem_json import problem_to_json
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType

NETWORKS = 48
BATCHES = (1, 2, 4, 8, 16, 32, 64)
PERCENTILES = (0.95, 0.98, 0.99)
REPLICAS_PER_GPU = 6
USD_PER_KWH = 0.15
SPENT = (0.54, 0.72)
"""Of the price of the whole fleet."""
_GAPS, _GAPS_IN_GPUS = 1.025, 2.0
"""What neighbours, and GPUs that are not full, cost over the transport program: a factor, and some GPUs."""
_SLOPE_BEYOND_KNEE = 0.08
_WATTS_BY_CLOCK = 2.2


class _Kind(NamedTuple):
    """What all GPUs of a type have in common."""

    gpu_type: GpuType
    fleet_share: float
    max_w: float
    """Of a GPU that is busy and not capped."""
    slowness: float
    """Run time over the A100's, of a typical network."""
    transfer: float
    """Transfer time over the A100's."""
    base_pressure: float
    slope_pressure: float
    """The highest of any network."""


def _kind(
    name: str,
    usd: float,
    memory_mib: float,
    step: float,
    watts: Sequence[float],
    clock: float,
) -> GpuType:
    idle_w, cap_w = watts
    clocks = tuple(float(round(clock * part)) for part in (0.6, 0.8, 1.0))
    return GpuType(
        name=name,
        price_usd_per_hour=usd,
        memory_mib=memory_mib,
        sm_percent_step=step,
        idle_w=idle_w,
        power_cap_w=cap_w,
        clocks_mhz=clocks,
    )


_KINDS = (
    _Kind(
        _kind("T4", 0.526, 16384, 10.0, (17, 60.2), 1590),
        0.35,
        70,
        6.5,
        2.4,
        0.12,
        0.66,
    ),
    _Kind(
        _kind("L4", 0.805, 24576, 10.0, (18, 61.9), 2040),
        0.30,
        72,
        3.5,
        1.2,
        0.09,
        0.49,
    ),
    _Kind(
        _kind("A10G", 1.212, 24576, 10.0, (30, 120.0), 1710),
        0.20,
        150,
        2.7,
        1.2,
        0.10,
        0.55,
    ),
    _Kind(
        _kind("A100", 3.673, 40960, 5.0, (55, 300.0), 1410),
        0.15,
        400,
        1.0,
        1.0,
        0.07,
        0.39,
    ),
)


class _Network(NamedTuple):
    """What a network brings to every GPU type; times are an A100's at full clock and share, in ms."""

    name: str
    per_item_ms: float
    fixed_ms: float
    knee_percent: float
    knee_percent_per_item: float
    gamma: float
    launch_ms: float
    transfer_ms: float
    memory_mib: float
    memory_mib_per_item: float
    activity: float


def synthetic_problem(gpus: int, services: int, seed: int) -> Problem:
    """The problem of that seed: the same in every process. Every type gets at least one GPU."""
    draw = random.Random(f"{gpus} {services} {seed}")
    networks = [_network(number, draw) for number in range(min(services, NETWORKS))]
    types = [
        replace(
            kind.gpu_type,
            count=max(1, round(kind.fleet_share * gpus)),
            launch_per_neighbour=round(draw.uniform(0.03, 0.06), 4),
            launch_base=round(draw.uniform(0.0, 0.05), 4),
        )
        for kind in _KINDS
    ]
    points = [_points(network, kind, draw) for network in networks for kind in _KINDS]
    alone_ms = {
        one.network: one.rows[-len(BATCHES)].solo_ms
        for one in points
        if one.gpu_type == "A10G"
    }
    problem = Problem(
        energy_price_usd_per_kwh=USD_PER_KWH,
        max_replicas_per_gpu=REPLICAS_PER_GPU,
        capacity_law=_law(),
        gpu_types=tuple(types),
        services=tuple(
            _service(number, networks[number % NETWORKS].name, alone_ms, draw)
            for number in range(services)
        ),
        points=tuple(points),
    )
    fleet = sum(one.price_usd_per_hour * (one.count or 0) for one in types)
    spent = fleet * draw.uniform(*SPENT) / (_GAPS + _GAPS_IN_GPUS / gpus)
    factor = rate_factor(problem, spent)
    return replace(
        problem,
        services=tuple(
            replace(each, arrival_rate_rps=round(factor * each.arrival_rate_rps, 3))
            for each in problem.services
        ),
    )


@cache
def _law() -> CapacityLaw:
    return make_capacity_law(PERCENTILES, BATCHES)


def _network(number: int, draw: random.Random) -> _Network:
    per_item_ms = draw.lognormvariate(-0.3, 0.75)
    return _Network(
        name=f"net{number}",
        per_item_ms=per_item_ms,
        fixed_ms=per_item_ms * draw.uniform(0.3, 2.0),
        knee_percent=draw.uniform(3.0, 11.0),
        knee_percent_per_item=draw.uniform(0.7, 4.0),
        gamma=draw.uniform(0.6, 1.0),
        launch_ms=draw.uniform(0.3, 2.5),
        transfer_ms=draw.uniform(0.002, 0.0625),
        memory_mib=draw.uniform(700.0, 4600.0),
        memory_mib_per_item=draw.uniform(10.0, 165.0),
        activity=draw.uniform(0.55, 1.0),
    )


def _points(network: _Network, kind: _Kind, draw: random.Random) -> OperatingPoints:
    """Rows by clock, share, batch."""
    gpu_type = kind.gpu_type
    # Networks differ in what they make of a GPU; one that is slower there needs more of it to be slow no more.
    slowness = kind.slowness * draw.lognormvariate(0.0, 0.18)
    base, slope = (
        kind.base_pressure * draw.uniform(0.1, 1.0),
        kind.slope_pressure * draw.uniform(0.15, 1.0),
    )
    rows = []
    for clock_mhz in gpu_type.clocks_mhz:
        clock = clock_mhz / gpu_type.clocks_mhz[-1]
        for step in range(1, round(100.0 / gpu_type.sm_percent_step) + 1):
            percent = step * gpu_type.sm_percent_step
            for batch in BATCHES:
                knee = slowness * (
                    network.knee_percent + network.knee_percent_per_item * batch
                )
                speed = min(percent, knee) + _SLOPE_BEYOND_KNEE * max(
                    0.0, percent - knee
                )
                work_ms = slowness * (network.fixed_ms + network.per_item_ms * batch)
                watts = (
                    (kind.max_w - gpu_type.idle_w)
                    * network.activity
                    * (0.7 + 0.3 * batch / (batch + 3.0))
                )
                rows.append(
                    OperatingPoint(
                        sm_percent=percent,
                        batch=batch,
                        clock_mhz=clock_mhz,
                        transfer_ms=round(
                            kind.transfer * network.transfer_ms * batch, 5
                        ),
                        launch_ms=round(network.launch_ms, 4),
                        run_ms=round(100.0 * work_ms / speed / clock**network.gamma, 4),
                        memory_mib=round(
                            network.memory_mib + network.memory_mib_per_item * batch, 1
                        ),
                        power_w=round(
                            0.01 * percent * watts * clock**_WATTS_BY_CLOCK, 3
                        ),
                        pressure=round(base + 0.01 * percent * slope, 5),
                    )
                )
    return OperatingPoints(
        network=network.name,
        gpu_type=gpu_type.name,
        sensitivity=round(draw.uniform(0.08, 0.7), 4),
        rows=tuple(rows),
    )


def _service(
    number: int, network: str, alone_ms: dict[str, float], draw: random.Random
) -> ServiceDemand:
    """alone_ms: of one item on a whole A10G, by network."""
    return ServiceDemand(
        name=f"s{number}",
        network=network,
        slo_ms=round(max(25.0, alone_ms[network] * draw.uniform(7.0, 24.0)), 2),
        percentile=draw.choice(PERCENTILES),
        arrival_rate_rps=draw.lognormvariate(0.0, 1.0),
        priority=draw.choices((1.0, 2.0, 5.0), (0.6, 0.2, 0.2))[0],
    )


def rate_factor(problem: Problem, usd_per_hour: float) -> float:
    """The factor on all rates with which the transport program takes so much; inf where there is no rate.

    Of each type a service takes the row that carries most rps for the largest of its parts of SMs, memory and watts.
    """
    types, services = problem.gpu_types, problem.services
    gpus, usd = np.full((2, len(services), len(types)), np.inf)
    for row, service in enumerate(services):
        for kind, gpu_type in enumerate(types):
            gpus[row, kind], usd[row, kind] = _min_per_rps(problem, service, gpu_type)
    at, column = np.nonzero(np.isfinite(gpus))
    flows, taken, costs = len(at), gpus[at, column], usd[at, column]
    rates = np.array([service.arrival_rate_rps for service in services])
    # Variables: rps of each (service, type) that can run, and the factor.
    served = np.zeros((len(services), flows + 1))
    served[at, np.arange(flows)] = 1.0
    served[:, -1] = -rates
    stock = np.zeros((len(types) + 1, flows + 1))
    stock[column, np.arange(flows)] = taken
    stock[-1, :flows] = costs
    counts = [np.inf if one.count is None else float(one.count) for one in types]
    found = linprog(
        np.append(np.zeros(flows), -1.0),
        A_ub=stock,
        b_ub=np.append(np.minimum(counts, 1e9), usd_per_hour),
        A_eq=served,
        b_eq=np.zeros(len(services)),
        method="highs",
    )
    return np.inf if found.x is None else float(found.x[-1])


def _min_per_rps(
    problem: Problem, service: ServiceDemand, gpu_type: GpuType
) -> tuple[float, float]:
    """GPUs, and USD per hour with energy, that one rps of the service takes on the type; infinite where none can be."""
    points = problem.points_of(service.network, gpu_type.name)
    if points is None or not service.allows(gpu_type.name):
        return np.inf, np.inf
    rows = np.array(points.rows)
    percent, batch, _, transfer, launch, run, memory, power, *_ = rows.T
    duration_ms = transfer + launch + run
    carried = (
        1000.0
        * batch
        / duration_ms
        * _utilisation(problem.capacity_law, service, batch, duration_ms)
    )
    room_w = max(gpu_type.power_cap_w - gpu_type.idle_w, 1e-9)
    part = np.maximum(
        np.maximum(percent / 100.0, memory / gpu_type.memory_mib), power / room_w
    )
    usd = part * gpu_type.price_usd_per_hour
    usd += problem.energy_price_usd_per_kwh * (part * gpu_type.idle_w + power) / 1000.0
    usable = (carried > 0.0) & (part <= 1.0)
    if not usable.any():
        return np.inf, np.inf
    best = np.flatnonzero(usable)[
        np.argmin((usd / np.where(usable, carried, 1.0))[usable])
    ]
    return float(part[best] / carried[best]), float(usd[best] / carried[best])


def _utilisation(
    law: CapacityLaw, service: ServiceDemand, batch: Reals, duration_ms: Reals
) -> Reals:
    table, found = (
        law.max_utilisation[law.percentiles.index(service.percentile)],
        np.zeros(len(batch)),
    )
    for size in np.unique(batch):
        own = batch == size
        values = table[law.batches.index(int(size))]
        found[own] = np.interp(
            service.slo_ms / duration_ms[own], law.slo_ratios, values, left=0.0
        )
    return found


def main() -> int:
    """Write one problem as the contract's JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.synthetic_problems", description=__doc__
    )
    parser.add_argument("gpus", type=int)
    parser.add_argument("services", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="PROBLEM.json"
    )
    options = parser.parse_args()
    problem = synthetic_problem(options.gpus, options.services, options.seed)
    options.output.write_text(problem_to_json(problem), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
