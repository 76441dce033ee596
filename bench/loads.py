"""`joint` on four other loads than the demo's, against Kubernetes' autoscaler as it is set up by hand.

    python -m bench.loads --seeds 3

Twelve minutes each, of which the first two are not counted, with measured truth; launches take 10 s, handovers 15:

* `steady`: eight services of even load on T4 and V100;
* `tight`: the same with SLOs of 30 to 120 ms at 99 %, a day's curve and bursts of a real trace;
* `prices`: eight services on T4, L4, A30, V100 and A100;
* `fifty`: fifty services of different sizes on 60 T4 and 20 V100.

The opponents are five settings that an operator would try: of each service the type that is cheapest for its capacity,
whole, half and quarter GPUs, and a target of 0.9 or 1.1 of what a part was profiled to carry. `joint_to_cheapest`
compares `joint` with the cheapest of them that keeps every SLO with every seed. Handovers are billed for everybody.
Prints a row for each load and policy and writes bench/results/loads.json; a part (`--loads`) is printed only.
"""

import argparse
import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from statistics import fmean

import numpy as np

from agents.sim.cluster import ClusterScript
from agents.sim.load.arrivals import ArrivalProcess, LoadShape
from agents.sim.spec import make_node
from app.base.clock import ManualControlClock
from app.catalogue.catalogue import load_gpu_types, load_profiles
from app.demo.baseline import with_quarters
from app.loop.make_problem import make_problem
from app.simulate.run.closed_loop import ClusterPlan, make_store
from app.store.store import PolicySettings
from bench.closed_runs import ClosedRun, run_closed
from bench.flash_crowds import SERVICES
from bench.report import Figures, print_table, write_results
from solvers.baselines.k8s_hpa import NAME as HPA
from solvers.baselines.k8s_hpa import KubernetesHpa
from solvers.baselines.k8s_pods import PodOptions, pod_ways
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import Demand, Scaling, Service, Slo

OURS = "joint"
WARM_UP_S = 120.0
PERIOD_S, WINDOW_S = 15.0, 5.0
DOWNSCALE_S = 90.0
SETTINGS = ((1, 0.9), (2, 1.1), (2, 0.9), (4, 1.1), (4, 0.9))
"""Parts of a GPU, and the target."""
SOLVE_WORK = 0.1
RATE = 4.0
"""The eight services are those of `bench.flash_crowds`, each at that multiple of its rate."""
TIGHT_MS = (60.0, 80.0, 90.0, 120.0, 100.0, 80.0, 90.0, 30.0)
NETWORKS = ("googlenet", "mobilenet_v2", *(each[0] for each in SERVICES.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One service of a load."""

    name: str
    network: str
    slo_ms: float
    mean_rps: float
    percentile: float = 0.98
    phase_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Who asks for what, on which GPUs."""

    services: tuple[Asked, ...]
    gpus: Mapping[str, int]
    """By type, two to a node."""
    duration_s: float = 720.0
    day_amplitude: float = 0.3
    burst_weight: float = 0.5


def _steady() -> Load:
    return Load(
        services=_eight(),
        gpus={"T4": 16, "V100-32GB": 8},
        day_amplitude=0.0,
        burst_weight=0.0,
    )


def _tight() -> Load:
    services = (
        replace(each, slo_ms=slo_ms, percentile=0.99)
        for each, slo_ms in zip(_eight(), TIGHT_MS, strict=True)
    )
    return Load(services=tuple(services), gpus={"T4": 16, "V100-32GB": 16})


def _prices() -> Load:
    services = (
        replace(each, slo_ms=0.6 * each.slo_ms, phase_s=90.0 * number)
        for number, each in enumerate(_eight())
    )
    gpus = {"T4": 8, "L4": 8, "A30": 4, "V100-32GB": 8, "A100-40GB": 8}
    return Load(services=tuple(services), gpus=gpus)


def _fifty() -> Load:
    draw = np.random.default_rng(7)
    services = (
        Asked(
            name=f"s{number:02d}",
            network=NETWORKS[number % len(NETWORKS)],
            slo_ms=float(draw.uniform(150.0, 900.0)),
            mean_rps=float(np.exp(draw.normal(3.6, 0.9))),
            phase_s=float(draw.uniform(0.0, 600.0)),
        )
        for number in range(50)
    )
    return Load(services=tuple(services), gpus={"T4": 60, "V100-32GB": 20})


def _eight() -> tuple[Asked, ...]:
    return tuple(
        Asked(name=name, network=network, slo_ms=slo_ms, mean_rps=RATE * mean_rps)
        for name, (network, slo_ms, mean_rps) in SERVICES.items()
    )


LOADS: Mapping[str, Callable[[], Load]] = {
    "steady": _steady,
    "tight": _tight,
    "prices": _prices,
    "fifty": _fifty,
}


def cluster_of(load: Load, seed: int, policy: str = OURS) -> ClusterPlan:
    """The load on its GPUs, under a policy."""
    types = tuple(load.gpus)
    known = load_gpu_types(types)
    memory_mib = {each.name: each.memory_mib for each in known}
    return ClusterPlan(
        nodes=tuple(
            make_node(
                f"{name.lower()}-{number}",
                name,
                gpus=2,
                memory_mib=memory_mib[name],
                launch_s=10.0,
            )
            for name, count in load.gpus.items()
            for number in range(1, count // 2 + 1)
        ),
        gpu_types=known,
        points=load_profiles(sorted({each.network for each in load.services}), types),
        services=tuple(
            Service(
                name=each.name,
                project="shop",
                network=each.network,
                slo=Slo(latency_ms=each.slo_ms, percentile=each.percentile),
                scaling=Scaling(min_replicas=1, downscale_delay_s=DOWNSCALE_S),
            )
            for each in load.services
        ),
        scenario=ClusterScript(loads=_loads(load, seed), seed=seed),
        settings=PolicySettings(
            policy=policy,
            period_s=PERIOD_S,
            window_s=WINDOW_S,
            stale_after_s=4.0 * PERIOD_S,
            max_replicas_per_gpu=6,
            solve_work=SOLVE_WORK,
            seed=seed,
        ),
        agent_period_s=WINDOW_S,
    )


def _loads(load: Load, seed: int) -> dict[str, ArrivalProcess]:
    return {
        each.name: ArrivalProcess(
            shape=LoadShape(
                mean_rps=each.mean_rps,
                day_amplitude=load.day_amplitude,
                day_period_s=load.duration_s,
                day_phase_s=each.phase_s,
                burst_service="conv",
                burst_weight=load.burst_weight,
            ),
            duration_s=int(load.duration_s),
            seed=seed,
            stream=stream,
        )
        for stream, each in enumerate(load.services)
    }


def hand_set(plan: ClusterPlan) -> Iterator[tuple[str, Mapping[str, PodOptions]]]:
    """Each of SETTINGS with the options of every service, the type that is cheapest for its capacity."""
    problem = _problem_of(plan)
    for parts, target in SETTINGS:
        options = {
            each.name: _cheapest(problem, each, parts) for each in problem.services
        }
        yield (
            f"{HPA}, 1/{parts}, target {target:g}",
            {
                name: PodOptions(
                    gpu_type=gpu_type,
                    parts=own_parts,
                    target=target,
                    scale_down_s=DOWNSCALE_S,
                )
                for name, (gpu_type, own_parts) in options.items()
            },
        )


def _problem_of(plan: ClusterPlan) -> Problem:
    clock = ManualControlClock()
    snapshot = asyncio.run(make_store(plan, clock).load_snapshot(clock.now()))
    demands = [
        Demand(service=each.name, arrival_rate_rps=50.0) for each in plan.services
    ]
    return make_problem(
        snapshot.state, plan.points, demands, plan.settings, target=None
    )


def _cheapest(problem: Problem, service: ServiceDemand, parts: int) -> tuple[str, int]:
    """GPU type and parts: the parts that are asked for, or larger ones where no such part keeps the SLO."""
    while True:
        ways = pod_ways(problem, service, PodOptions(parts=parts), parts)
        prices = {each.name: each.price_usd_per_hour for each in problem.gpu_types}
        found = sorted(
            (prices[gpu_type] / parts / way.capacity_rps, gpu_type)
            for gpu_type, way in ways.items()
        )
        if found or parts == 1:
            return found[0][1], parts
        parts //= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """One policy on one seed of a load."""

    load: str
    policy: str
    run: ClosedRun
    counted_h: float


def run_load(name: str, seed: int) -> list[LoadRun]:
    """Every policy on a load."""
    load = LOADS[name]()
    counted_h = (load.duration_s - WARM_UP_S) / 3600.0
    plan = cluster_of(load, seed)
    runs = [(OURS, run_closed(plan, load.duration_s, warm_up_s=WARM_UP_S))]
    parted = replace(cluster_of(load, seed, HPA), points=with_quarters(plan.points))
    for label, pods in hand_set(parted):
        run = run_closed(
            parted,
            load.duration_s,
            {HPA: KubernetesHpa(pods=pods)},
            warm_up_s=WARM_UP_S,
        )
        runs.append((label, run))
    return [
        LoadRun(load=name, policy=policy, run=run, counted_h=counted_h)
        for policy, run in runs
    ]


def rows_of(runs: list[LoadRun]) -> list[Figures]:
    """One row per load and policy: means over the seeds."""
    rows: list[Figures] = []
    for load in dict.fromkeys(each.load for each in runs):
        of_load: dict[str, list[LoadRun]] = {}
        for each in runs:
            if each.load == load:
                of_load.setdefault(each.policy, []).append(each)
        keeping = [
            _usd_per_hour(mine)
            for policy, mine in of_load.items()
            if policy != OURS and not any(each.run.missed for each in mine)
        ]
        cheapest = min(keeping, default=None)
        rows.extend(_row(mine, cheapest) for mine in of_load.values())
    return rows


def _row(mine: list[LoadRun], cheapest: float | None) -> Figures:
    usd_per_hour = _usd_per_hour(mine)
    margins = [each.run.worst_margin_points for each in mine]
    return {
        "load": mine[0].load,
        "policy": mine[0].policy,
        "usd_per_hour": usd_per_hour,
        "worst_minus_percentile_points": fmean(margins),
        "worst_seed_points": min(margins),
        "slos_missed": sum(len(each.run.missed) for each in mine),
        "late_percent": fmean(each.run.late_percent for each in mine),
        "joint_to_cheapest": usd_per_hour / cheapest
        if cheapest and mine[0].policy == OURS
        else None,
        "seeds": len(mine),
    }


def _usd_per_hour(mine: list[LoadRun]) -> float:
    return fmean(each.run.cost_usd / each.counted_h for each in mine)


def main() -> None:
    """Simulate, print, write."""
    options = _options()
    names = options.loads.split(",")
    jobs = [(name, seed) for name in names for seed in range(1, options.seeds + 1)]
    # Spawned: a forked child of a process with compiled kernels may hang.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as executor:
        found = executor.map(run_load, *zip(*jobs, strict=True))
        rows = rows_of([run for runs in found for run in runs])
    print_table(rows)
    # A part must not take the place of the whole.
    if names == list(LOADS):
        write_results("loads", rows, settings={"seeds": options.seeds})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.loads",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="requests (default: %(default)s)"
    )
    parser.add_argument(
        "--loads", default=",".join(LOADS), help="a part (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="runs at once (default: %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
