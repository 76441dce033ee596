"""Whether plans keep their promise: every replica of a plan of `joint`, simulated at the rate that it was planned for.

Run: `python -m bench.promise [--problems N] [--requests N] [--work W] [--jobs N]`. For random problems of 100 GPUs × 30
services: plan, then serve Poisson arrivals at the whole planned rate in a world where everything takes exactly the
planned time (`app.simulate.run.planned_world`). Requests that will be late are served all the same. The share in time
of each service must not be below its SLO's percentile by more than 0.2 points.

Ten million requests of every service are not too many: a replica that is planned at 97 % utilisation forgets its queue
only in about a thousand batches, so of two million requests the late ones still vary by a point.
Prints a row per problem and writes bench/results/promise.json.
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

from agents.sim.queues.replica_queue import ExecutionPace, ReplicaQueue
from agents.sim.queues.tally import ServiceTally
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from app.simulate.run.planned_world import PlannedWorld
from bench.report import Figures, print_table, write_results
from bench.synthetic_problems import synthetic_problem
from solvers.joint.solve import solve
from solvers.types.outcome import Budget
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import Problem

GPUS, SERVICES = 100, 30
ALLOWED_POINTS = 0.2
CHUNK = 1_000_000
"""Requests drawn at a time."""


class Station(NamedTuple):
    """Equal replicas: any one of them stands for all."""

    service: str
    share: float
    """Of the service's rate that they carry together."""
    arrival_rate_rps: float
    """Of one of them."""
    pace: ExecutionPace


def main() -> None:
    """Plan, simulate, and say how far the worst service is above its percentile."""
    options = _options()
    seeds = range(1, options.problems + 1)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(partial(_measure, options=options), seeds))
    print_table(rows)
    write_results("promise", rows, settings=vars(options))


def _measure(seed: int, *, options: argparse.Namespace) -> Figures:
    problem = synthetic_problem(GPUS, SERVICES, seed)
    plan = solve(problem, Budget(seconds=np.inf, work=options.work, seed=seed))[0].plan
    attained = attainment(problem, plan, options.requests, seed=seed)
    margins = {
        service.name: 100.0 * (attained[service.name] - service.percentile)
        for service in problem.services
        if service.name in attained
    }
    worst = min(margins, key=margins.__getitem__)
    return {
        "seed": seed,
        "services": len(margins),
        "requests_millions": len(margins) * options.requests / 1e6,
        "worst_service": worst,
        "worst_margin_points": round(margins[worst], 3),
        "mean_margin_points": round(sum(margins.values()) / len(margins), 3),
        "kept": "yes" if margins[worst] >= -ALLOWED_POINTS else "no",
    }


def attainment(
    problem: Problem, plan: Plan, requests: int, *, seed: int
) -> dict[str, float]:
    """By service with a rate: the share of `requests` that are in time."""
    tallies: dict[str, ServiceTally] = defaultdict(ServiceTally)
    for number, station in enumerate(stations(problem, plan)):
        random = np.random.default_rng([seed, number])
        _serve(
            station,
            max(1, round(station.share * requests)),
            tallies[station.service],
            random,
        )
    return {name: tally.in_slo / tally.served for name, tally in tallies.items()}


def stations(problem: Problem, plan: Plan) -> Iterator[Station]:
    """Every replica of a plan that gets requests, equal ones once."""
    world = PlannedWorld(problem.gpu_types, problem.points)
    for gpu in plan.gpus:
        for place, replica in enumerate(gpu.replicas):
            service = problem.service(replica.service)
            if replica.arrival_rate_rps > 0.0:
                times_s = world.batch_ms(_placed(problem, gpu, place)) / 1000.0
                yield Station(
                    service=service.name,
                    share=gpu.count
                    * replica.arrival_rate_rps
                    / service.arrival_rate_rps,
                    arrival_rate_rps=replica.arrival_rate_rps,
                    pace=ExecutionPace(
                        batch=replica.batch,
                        batch_s=times_s,
                        batch_w=np.zeros(len(times_s)),
                        slo_s=service.slo_ms / 1000.0,
                        sheds_late=False,
                    ),
                )


def _placed(problem: Problem, gpu: GpuPlan, place: int) -> RunningPart:
    seats = [
        SimulatedNeighbour(
            problem.service(each.service).network, each.sm_percent, each.batch
        )
        for each in gpu.replicas
    ]
    network, sm_percent, batch = seats.pop(place)
    return RunningPart(
        network=network,
        gpu_type=gpu.gpu_type,
        sm_percent=sm_percent,
        batch=batch,
        clock_mhz=gpu.clock_mhz,
        neighbours=tuple(seats),
    )


def _serve(
    station: Station, requests: int, tally: ServiceTally, random: np.random.Generator
) -> None:
    """Let one replica serve a number of Poisson arrivals."""
    queue, now_s = ReplicaQueue(capacity=1_000_000, noise=np.ones(1)), 0.0
    while requests > 0:
        drawn = min(requests, CHUNK)
        arrivals = now_s + np.cumsum(
            random.exponential(1.0 / station.arrival_rate_rps, drawn)
        )
        end_s = np.nextafter(arrivals[-1], np.inf)
        queue.advance((now_s, end_s), (arrivals, arrivals), station.pace, tally)
        now_s, requests = end_s, requests - drawn
    # What still waits is served, too.
    rest_s = now_s + 1e6 * float(station.pace.batch_s[-1])
    queue.advance((now_s, rest_s), (arrivals[:0], arrivals[:0]), station.pace, tally)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.promise", description=__doc__
    )
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument(
        "--requests", type=int, default=10_000_000, help="of every service"
    )
    parser.add_argument(
        "--work", type=float, default=2.0, help="work of the planner for each problem"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="problems at a time"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
