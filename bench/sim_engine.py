"""Requests per second of the simulator: the compiled queue alone, and a whole cluster looked at once a second.

Run: python -m bench.sim_engine
"""

import asyncio
import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from agents.clock import ManualClock
from agents.enforce import actions
from agents.perform import perform
from agents.protocol import GpuCommand, NodeCommand, ReplicaCommand, Route
from agents.sim.cluster import Scenario, SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.engine import Pace, ReplicaQueue, draw_noise
from agents.sim.load import Load, LoadShape
from agents.sim.spec import make_node
from agents.sim.tally import ServiceTally
from agents.sim.truth import load_truth

RESULTS = Path(__file__).parent / "results"
SERVICES = 4
NODES = 8
RATE_RPS = 150.0
TRACE_S = 120


def measure_queue(requests: int = 5_000_000) -> float:
    """Requests per second of one replica at 80 % utilisation, batch 16, in windows of a second."""
    random = np.random.default_rng(1)
    batch, execution_s = 16, 0.02
    arrivals = np.cumsum(random.exponential(execution_s / (0.8 * batch), requests))
    pace = Pace(batch=batch, batch_s=np.full(17, execution_s), batch_w=np.full(17, 100.0), slo_s=0.1)
    queue, tally = ReplicaQueue(capacity=512, noise=draw_noise(random, 0.02)), ServiceTally()
    edges = np.searchsorted(arrivals, np.arange(0.0, arrivals[-1] + 1.0))
    queue.advance((0.0, 0.0), (arrivals[:0], arrivals[:0]), pace, tally)  # compiles
    began = time.perf_counter()
    for second, (first, last) in enumerate(pairwise(edges)):
        here = arrivals[first:last]
        queue.advance((float(second), second + 1.0), (here, here), pace, tally)
    return requests / (time.perf_counter() - began)


async def measure_cluster() -> tuple[float, float]:
    """(requests, trace seconds) per second of 8 nodes of 2 GPUs and 4 services, all nodes read each trace second."""
    clock = ManualClock()
    nodes = tuple(make_node(f"n{i}", "V100-32GB", gpus=2, memory_mib=32768.0) for i in range(NODES))
    names = [f"s{i}" for i in range(SERVICES)]
    shape = LoadShape(mean_rps=RATE_RPS, burst_weight=0.5)
    loads = {name: Load(shape=shape, duration_s=TRACE_S, seed=1, stream=i) for i, name in enumerate(names)}
    cluster = SimulatedCluster(nodes, Scenario(loads=loads, seed=1), world=load_truth(), clock=clock)
    devices = {node.name: SimulatedDevice(cluster, node.name) for node in nodes}
    began = time.perf_counter()
    for _ in range(TRACE_S):
        for name, device in devices.items():
            for action in actions(_command(name, names), await device.state()):
                await perform(device, action)
            await device.read()
        clock.advance(1.0)
    elapsed_s = time.perf_counter() - began
    return sum(each.arrivals for each in cluster.totals()) / elapsed_s, TRACE_S / elapsed_s


def _command(node: str, services: list[str]) -> NodeCommand:
    """Two replicas on each GPU, every service on every node."""
    replicas = [
        ReplicaCommand(
            id=f"{node}-{name}",
            service=name,
            network="resnet50",
            sm_percent=50.0,
            batch=8,
            memory_mib=3000.0,
            arrival_rate_rps=RATE_RPS / NODES,
        )
        for name in services
    ]
    gpus = tuple(
        GpuCommand(
            index=index,
            gpu_type="V100-32GB",
            clock_mhz=1530.0,
            power_cap_w=300.0,
            replicas=tuple(replicas[2 * index : 2 * index + 2]),
        )
        for index in (0, 1)
    )
    routes = tuple(Route(service=name, slo_ms=100.0, percentile=0.98, arrival_rate_rps=RATE_RPS) for name in services)
    return NodeCommand(node=node, generation=1, gpus=gpus, routes=routes)


def main() -> int:
    """Measure, print a table, write bench/results/sim_engine.json."""
    queue_rps = measure_queue()
    cluster_rps, trace_speed = asyncio.run(measure_cluster())
    figures = {
        "queue_requests_per_s": queue_rps,
        "cluster_requests_per_s": cluster_rps,
        "cluster_trace_seconds_per_s": trace_speed,
    }
    for name, figure in figures.items():
        print(f"{name:32} {figure:14,.0f}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sim_engine.json").write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
