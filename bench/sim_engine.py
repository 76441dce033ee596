"""Requests per second of the simulator: the compiled queue alone, and whole clusters, door and tallies included.

One cluster is looked at once a second, with batches of 8 and some hundred requests per second and service; in the other
V100s take batches up to 32 and are kept 80 % busy, looked at every five seconds, as agents do.

Run: python -m bench.sim_engine
"""

import asyncio
import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agents.base.clock import ManualClock
from agents.base.protocol import GpuCommand, NodeCommand, ReplicaCommand, Route
from agents.enforce.actions import perform
from agents.enforce.diff import actions
from agents.sim.cluster import ClusterScript, SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.load.arrivals import ArrivalProcess, LoadShape
from agents.sim.pace import draw_noise
from agents.sim.queues.replica_queue import ExecutionPace, ReplicaQueue
from agents.sim.queues.tally import ServiceTally
from agents.sim.spec import make_node
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import load_truth

RESULTS = Path(__file__).parent / "results"
SERVICES = 4
NODES = 8
RATE_RPS = 150.0
TRACE_S = 120
CLOCK_MHZ = 1530.0


def measure_queue(requests: int = 5_000_000) -> float:
    """Requests per second of one replica at 80 % utilisation, batch 16, in windows of a second."""
    random = np.random.default_rng(1)
    batch, execution_s = 16, 0.02
    arrivals = np.cumsum(random.exponential(execution_s / (0.8 * batch), requests))
    pace = ExecutionPace(
        batch=batch,
        batch_s=np.full(17, execution_s),
        batch_w=np.full(17, 100.0),
        slo_s=0.1,
    )
    queue, tally = (
        ReplicaQueue(capacity=512, noise=draw_noise(random, 0.02)),
        ServiceTally(),
    )
    edges = np.searchsorted(arrivals, np.arange(0.0, arrivals[-1] + 1.0))
    queue.advance((0.0, 0.0), (arrivals[:0], arrivals[:0]), pace, tally)  # compiles
    began = time.perf_counter()
    for second, (first, last) in enumerate(pairwise(edges)):
        here = arrivals[first:last]
        queue.advance((float(second), second + 1.0), (here, here), pace, tally)
    return requests / (time.perf_counter() - began)


class Course(NamedTuple):
    """What a cluster is put through."""

    network: str = "resnet50"
    batch: int = 8
    rate_rps: float = RATE_RPS
    slo_ms: float = 100.0
    look_s: float = 1.0
    trace_s: int = TRACE_S


def busy_v100s(busy: float = 0.8, batch: int = 32) -> Course:
    """Batches of 32 of the fastest network, at so much of what all replicas can take with their neighbours."""
    network, half = "alexnet-trt", 50.0
    mine = RunningPart(
        network=network,
        gpu_type="V100-32GB",
        sm_percent=half,
        batch=batch,
        clock_mhz=CLOCK_MHZ,
        neighbours=(SimulatedNeighbour(network, half, batch),),
    )
    batch_ms = float(load_truth().batch_ms(mine)[batch])
    rate_rps = busy * NODES * batch / batch_ms * 1000.0
    return Course(
        network=network,
        batch=batch,
        rate_rps=rate_rps,
        slo_ms=4.0 * batch_ms,
        look_s=5.0,
        trace_s=60,
    )


async def measure_cluster(course: Course) -> tuple[float, float]:
    """(requests, trace seconds) per second of 8 nodes of 2 GPUs and 4 services, all nodes read at each look.

    Seconds are those of the processor. What is compiled, and what starts, is ready before they count.
    """
    clock = ManualClock()
    nodes = tuple(
        make_node(f"n{i}", "V100-32GB", gpus=2, memory_mib=32768.0)
        for i in range(NODES)
    )
    names = [f"s{i}" for i in range(SERVICES)]
    shape = LoadShape(mean_rps=course.rate_rps, burst_weight=0.5)
    loads = {
        name: ArrivalProcess(shape=shape, duration_s=course.trace_s, seed=1, stream=i)
        for i, name in enumerate(names)
    }
    cluster = SimulatedCluster(
        nodes, ClusterScript(loads=loads, seed=1), world=load_truth(), clock=clock
    )
    devices = {node.name: SimulatedDevice(cluster, node.name) for node in nodes}

    async def look() -> None:
        for name, device in devices.items():
            for action in actions(_command(name, names, course), await device.state()):
                await perform(device, action)
            await device.read()
        clock.advance(course.look_s)

    warm_up = round(10.0 / course.look_s)
    for _ in range(warm_up):
        await look()
    before = sum(each.arrivals for each in cluster.totals())
    began_s = time.process_time()
    looks = round(course.trace_s / course.look_s) - warm_up
    for _ in range(looks):
        await look()
    elapsed_s = time.process_time() - began_s
    return (
        sum(each.arrivals for each in cluster.totals()) - before
    ) / elapsed_s, looks * course.look_s / elapsed_s


def _command(node: str, services: list[str], course: Course) -> NodeCommand:
    """Two replicas on each GPU, every service on every node."""
    replicas = [
        ReplicaCommand(
            id=f"{node}-{name}",
            service=name,
            network=course.network,
            sm_percent=50.0,
            batch=course.batch,
            memory_mib=3000.0,
            arrival_rate_rps=course.rate_rps / NODES,
        )
        for name in services
    ]
    gpus = tuple(
        GpuCommand(
            index=index,
            gpu_type="V100-32GB",
            clock_mhz=CLOCK_MHZ,
            power_cap_w=300.0,
            replicas=tuple(replicas[2 * index : 2 * index + 2]),
        )
        for index in (0, 1)
    )
    routes = tuple(
        Route(
            service=name,
            slo_ms=course.slo_ms,
            percentile=0.98,
            arrival_rate_rps=course.rate_rps,
        )
        for name in services
    )
    return NodeCommand(node=node, generation=1, gpus=gpus, routes=routes)


def main() -> int:
    """Measure, print a table, write bench/results/sim_engine.json."""
    queue_rps = measure_queue()
    cluster_rps, trace_speed = asyncio.run(measure_cluster(Course()))
    busy_rps, _ = asyncio.run(measure_cluster(busy_v100s()))
    figures = {
        "queue_requests_per_s": queue_rps,
        "cluster_requests_per_s": cluster_rps,
        "busy_v100s_requests_per_s": busy_rps,
        "cluster_trace_seconds_per_s": trace_speed,
    }
    for name, figure in figures.items():
        print(f"{name:32} {figure:14,.0f}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sim_engine.json").write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
