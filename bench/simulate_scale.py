"""How long simulations of large fleets take, which parts of them take it, and how much memory they need.

Run: `python -m bench.simulate_scale --gpus 1000 --services 100 --minutes 60`. Prints a table, writes
bench/results/simulate_scale.json.

Half of the fleet are V100s, half T4s, eight to a node. Services take turns with the networks; each asks for an equal
part of `--busy` times what the whole fleet could serve, were all its GPUs V100s that run nothing but their fastest
points, with a day curve of half an hour and the measured bursts. The loop decides every 10 s and looks for something
cheaper once a minute.

Seconds are those of this process's cores (`time.process_time`); each is counted for the innermost part alone.
"""

import argparse
import asyncio
import cProfile
import functools
import math
import pstats
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.sim.cluster import SimulatedCluster
from app.simulate.run.build import Catalogue, shipped_catalogue
from app.simulate.run.closed_loop import ClosedLoop
from app.simulate.run.record import Recorder
from app.simulate.run.run import SimulationRun, simulate
from app.simulate.scenario.scenario import SimulationScenario
from app.solver.inline import InlineSolver
from app.store.memory_store import MemoryStore
from bench.report import Figures, print_table, write_results
from solvers.types.problem import OperatingPoint

NETWORKS = (
    "resnet50",
    "inception_v3",
    "vgg16",
    "efficientnet_b4",
    "densenet121",
    "resnet101",
    "regnet_x_8gf",
)
TYPES = ("V100-32GB", "T4")
GPUS_PER_NODE = 8
_SLO_TIMES = 12.0
"""The limit on latency over the time of one request alone on a whole V100."""

PARTS: dict[str, tuple[tuple[type, str], ...]] = {
    "engine": ((SimulatedCluster, "_step"),),
    "agents": (
        (ClosedLoop, "step"),
        (ClosedLoop, "pass_time"),
        (ClosedLoop, "_hand_over"),
    ),
    "store": tuple(
        (MemoryStore, name)
        for name in ("ingest", "load_snapshot", "record_plan", "push_target")
    ),
    "planner": ((InlineSolver, "make_plan"),),
    "loop": ((ClosedLoop, "tick"),),
    "recorder": ((Recorder, "note"), (Recorder, "result")),
}
"""What is timed, by the part that it counts for: little that is called often, since to read the clock takes time."""


class Watch:
    """Seconds by part, each for the innermost part that is under way."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = ["rest"]
        self._since_s = time.process_time()

    @contextmanager
    def inside(self, part: str) -> Iterator[None]:
        """Count for a part."""
        self._lap()
        self._open.append(part)
        try:
            yield
        finally:
            self._lap()
            self._open.pop()

    def _lap(self) -> None:
        now_s = time.process_time()
        self.seconds[self._open[-1]] += now_s - self._since_s
        self._since_s = now_s

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted."""
        if asyncio.iscoroutinefunction(function):

            @functools.wraps(function)
            async def asynchronous(*args: object, **kwargs: object) -> object:
                with self.inside(part):
                    return await function(*args, **kwargs)

            return asynchronous

        @functools.wraps(function)
        def synchronous(*args: object, **kwargs: object) -> object:
            with self.inside(part):
                return function(*args, **kwargs)

        return synchronous


@contextmanager
def watched() -> Iterator[Watch]:
    """Time the parts of whatever is simulated meanwhile."""
    watch = Watch()
    before = {
        (owner, name): getattr(owner, name)
        for part in PARTS.values()
        for owner, name in part
    }
    for part, entries in PARTS.items():
        for owner, name in entries:
            setattr(owner, name, watch.timed(part, before[owner, name]))
    try:
        yield watch
    finally:
        for (owner, name), function in before.items():
            setattr(owner, name, function)
        with watch.inside("rest"):  # the last lap
            pass


def make_scenario(
    *,
    gpus: int,
    services: int,
    minutes: float,
    policy: str = "joint",
    work: float = 1.0,
    busy: float = 0.3,
) -> SimulationScenario:
    """A fleet of `gpus` GPUs (a multiple of 16 is met exactly) under load; one policy, one seed."""
    nodes = math.ceil(gpus / GPUS_PER_NODE / len(TYPES))
    fleet = [
        {
            "name": kind.split("-")[0].lower(),
            "gpu_type": kind,
            "nodes": nodes,
            "gpus_per_node": GPUS_PER_NODE,
        }
        for kind in TYPES
    ]
    return SimulationScenario.model_validate(
        {
            "kind": "Scenario",
            "metadata": {"name": "scale"},
            "spec": {
                "duration_s": 60.0 * minutes + 60.0,
                "warm_up_s": 60.0,
                "seeds": [1],
                "policies": [policy],
                "loop": {
                    "period_s": 10,
                    "min_dwell_s": 60,
                    "window_s": 5,
                    "max_replicas_per_gpu": 6,
                    "solve_work": work,
                    "stale_after_s": 30,
                },
                "fleet": fleet,
                "services": [
                    _service(number, busy * gpus / services)
                    for number in range(services)
                ],
            },
        }
    )


def _service(number: int, gpus: float) -> dict[str, Any]:
    network = NETWORKS[number % len(NETWORKS)]
    fastest_rps, alone_ms = _speed(network)
    return {
        "name": f"s{number:03}",
        "network": network,
        "slo": {"latency_ms": round(_SLO_TIMES * alone_ms, 1), "percentile": 0.98},
        "scaling": {"min_replicas": 1, "downscale_delay_s": 60},
        "load": {
            "rate_rps": round(gpus * fastest_rps, 3),
            "day": {
                "amplitude": 0.4,
                "period_s": 1800,
                "phase_s": 60.0 * (number % 30),
            },
            "bursts": {"weight": 0.5},
        },
    }


@functools.cache
def _speed(network: str) -> tuple[float, float]:
    """The most requests per second of a whole V100, and milliseconds of one request alone on it."""
    known = _catalogue_of(network)
    rows = [
        row
        for entry in known.points
        for row in entry.rows
        if entry.gpu_type == TYPES[0]
    ]
    alone = min(row.solo_ms for row in rows if row.batch == 1)
    return max(
        _rps(row) for row in rows if row.solo_ms <= _SLO_TIMES * alone / 3.0
    ), alone


def _rps(row: OperatingPoint) -> float:
    return 1000.0 * row.batch / row.solo_ms * 100.0 / max(row.sm_percent, 25.0)


def _catalogue_of(network: str) -> Catalogue:
    from app.catalogue.catalogue import load_gpu_types, load_profiles

    return Catalogue(
        gpu_types=load_gpu_types(TYPES), points=load_profiles([network], TYPES)
    )


def measure(scenario: SimulationScenario) -> Figures:
    """One run: its seconds by part, its memory, and what it simulated."""
    spec = scenario.spec
    job = SimulationRun(
        scenario=scenario,
        run=spec.policies[0],
        seed=1,
        catalogue=shipped_catalogue(scenario),
        folder=Path(),
    )
    began_s = time.perf_counter()
    with watched() as watch:
        result = simulate(job)
    wall_s, used_s = time.perf_counter() - began_s, sum(watch.seconds.values())
    requests = sum(service.arrived for service in result.services)
    return {
        "gpus": sum(pool.nodes * pool.gpus_per_node for pool in spec.fleet),
        "services": len(spec.services),
        "minutes": spec.duration_s / 60.0,
        "policy": result.policy,
        "work": spec.loop.solve_work,
        "wall_s": wall_s,
        "process_s": used_s,
        **{f"{part}_s": watch.seconds[part] for part in (*PARTS, "rest")},
        "wall_s_per_virtual_hour": wall_s / spec.duration_s * 3600.0,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
        "million_requests": requests / 1e6,
        "in_slo_percent": 100.0
        * sum(service.in_slo for service in result.services)
        / max(1, requests),
        "cost_usd": result.cost_usd,
        "replicas_started": result.moves.replicas_started,
        "largest_replicas": max(
            sum(row)
            for row in zip(
                *(one.replicas for one in result.series.services.values()), strict=True
            )
        ),
    }


def main() -> int:
    """Measure what the arguments ask for, print a table, write it down."""
    options = _options()
    scenario = make_scenario(
        gpus=options.gpus,
        services=options.services,
        minutes=options.minutes,
        policy=options.policy,
        work=options.work,
        busy=options.busy,
    )
    if options.profile:
        with cProfile.Profile() as profile:
            row = measure(scenario)
        pstats.Stats(profile).sort_stats(options.profile).print_stats(45)
    else:
        row = measure(scenario)
    print_table([{"figure": name, "value": value} for name, value in row.items()])
    if not options.profile:
        write_results("simulate_scale", [row], settings=vars(options))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=48)
    parser.add_argument("--services", type=int, default=10)
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="of virtual time, after a minute of warm-up",
    )
    parser.add_argument("--policy", default="joint")
    parser.add_argument(
        "--work", type=float, default=1.0, help="solve_work of the loop"
    )
    parser.add_argument(
        "--busy",
        type=float,
        default=0.3,
        help="load over what the fleet could serve at best",
    )
    parser.add_argument(
        "--profile",
        choices=("tottime", "cumtime"),
        help="print the costliest functions instead",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
