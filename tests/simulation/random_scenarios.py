"""Small random scenarios, one per seed, that between them have every policy, load, fault, governor, truth and task."""

from random import Random
from typing import Any, get_args

from agents.sim.spec import FaultKind
from app.simulate.scenario.scenario import SimulationScenario
from solvers.governors.registry import GOVERNORS
from solvers.policies.registry import policies
from tests.app.runs import a_scenario

NETWORKS = ("resnet50", "inception_v3", "vgg16", "mobilenet_v2")
TYPES = ("V100-32GB", "T4")


def a_random_scenario(seed: int) -> SimulationScenario:
    """One to eight GPUs, one to three services and up to four tasks for 90 s.

    Seven seeds in a row have every policy, six every fault.
    """
    random = Random(seed)
    fleet = [_a_pool(random, name) for name in ("a", "b")[: random.randint(1, 2)]]
    nodes = [
        f"{pool['name']}-{number}"
        for pool in fleet
        for number in range(1, pool["nodes"] + 1)
    ]
    kinds = get_args(FaultKind)
    governor = (None, *sorted(GOVERNORS))[seed % (1 + len(GOVERNORS))]
    faults = [
        _a_fault(random, kinds[(seed + other) % len(kinds)], random.choice(nodes))
        for other in (0, 2)
    ]
    return a_scenario(
        duration_s=90,
        warm_up_s=30,
        step_s=20,
        seeds=[seed],
        policies=[policies()[seed % len(policies())]],
        truth=random.choice(["measured", "planned"]),
        agent_period_s=random.choice([2.0, 5.0]),
        handover_s=random.choice([0.0, 3.0, 15.0]),
        loop={
            "period_s": random.choice([5.0, 7.0]),
            "window_s": 5,
            "stale_after_s": 12,
            "solve_work": 0.05,
            "solve_seconds": 600,
            "governor": governor,
            "energy_price_usd_per_kwh": 5.0,  # so that plans leave the governors something to turn
        },
        fleet=fleet,
        services=[
            _a_service(random, network)
            for network in random.sample(NETWORKS, random.randint(1, 3))
        ],
        faults=faults,
        tasks=[_a_task(random, number) for number in range(random.randint(0, 4))],
    )


def _a_pool(random: Random, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "gpu_type": random.choice(TYPES),
        "nodes": random.randint(1, 2),
        "gpus_per_node": random.randint(1, 2),
        "launch_s": random.choice([0.0, 3.3, 8.0]),
    }


def _a_service(random: Random, network: str) -> dict[str, Any]:
    spike = {
        "start_s": random.uniform(0.0, 60.0),
        "length_s": 10,
        "factor": random.uniform(2.0, 8.0),
        "ramp_s": 5,
    }
    loads: list[dict[str, Any]] = [
        {"rate_rps": random.uniform(5.0, 300.0)},
        {"rate_rps": random.uniform(5.0, 100.0), "spikes": [spike]},
        {"levels": {"rates_rps": [10, 400], "mean_stays_s": [10, 5]}},
        {
            "clients": [
                {"start_s": 0, "clients": random.randint(1, 4)},
                {"start_s": 40, "clients": random.randint(0, 30)},
            ]
        },
    ]
    return {
        "name": network.replace("_", "-"),
        "network": network,
        "slo": {
            "latency_ms": random.choice([150, 300, 600]),
            "percentile": random.choice([0.9, 0.98]),
        },
        "scaling": {"min_replicas": random.randint(0, 2), "downscale_delay_s": 10},
        "load": random.choice(loads),
    }


def _a_task(random: Random, number: int) -> dict[str, Any]:
    works = [
        ("training", "resnet18-training", 128),
        ("training", "lm-training", 20),
        ("offline", "resnet50", 8),
    ]
    kind, network, batch = random.choice(works)
    submit_s = random.uniform(0.0, 60.0)
    return {
        "name": f"task-{number}",
        "kind": kind,
        "network": network,
        "batch": batch,
        "iterations": random.choice([20, 200, 100_000]),
        "submit_s": submit_s,
        "deadline_s": random.choice([None, submit_s + random.uniform(10.0, 60.0)]),
        "priority": random.choice([1.0, 3.0]),
    }


def _a_fault(random: Random, kind: str, node: str) -> dict[str, Any]:
    start_s = random.uniform(5.0, 60.0)
    fault = {
        "kind": kind,
        "node": node,
        "start_s": start_s,
        "end_s": start_s + random.uniform(1.0, 40.0),
    }
    return fault | {"straggler": {"factor": 2.5}, "stale": {"delay_s": 8.0}}.get(
        kind, {}
    )
