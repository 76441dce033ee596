"""Looking twice as often changes nothing: every arrival, noise factor and choice of a replica comes from a stream that
does not know when somebody looks. Counts and latencies are the same, sums of times and energy but for rounding."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from agents.base.clock import ManualClock
from agents.base.device import DeviceError
from agents.base.protocol import NodeCommand
from agents.enforce.actions import perform
from agents.enforce.diff import actions
from agents.sim.cluster import ClusterScript, SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.load.arrivals import ArrivalProcess, LoadShape, Modulation, Spike
from agents.sim.load.clients import ClientLoad
from agents.sim.load.rates import Shape
from agents.sim.queues.tally import ServiceTotals
from agents.sim.spec import Fault
from solvers.types.state import Task
from tests.agents.factories import a_command, a_gpu, a_replica, a_task, run
from tests.agents.sim.worlds import PlainWorld, a_node
from tests.simulation.scenes import PERIOD_S, Scene, a_scene

LENGTH_S = 60
FAULTS = (
    Fault(kind="launch_failure", node="n2", start_s=2.0, end_s=9.0),
    Fault(
        kind="straggler", node="n1", gpu_index=0, start_s=15.3, end_s=25.9, factor=2.5
    ),
    Fault(kind="gpu_lost", node="n2", gpu_index=1, start_s=31.7, end_s=44.1),
    Fault(kind="node_lost", node="n1", start_s=48.4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """All that can be counted of a run."""

    totals: tuple[ServiceTotals, ...]
    """Without the sums of times, which are below."""
    fine: tuple[tuple[int, ...], ...]
    """Finished requests by fine latency bucket, by service."""
    tasks: tuple[tuple[str, str], ...]
    """Names and states."""
    sums: tuple[float, ...]
    """Time present and time spent of each service, what tasks have done, energy and busy time: rounding may differ."""


def course_of(cluster: SimulatedCluster) -> Course:
    totals = cluster.totals()
    times_s = (
        moment for total in totals for moment in (total.present_s, total.sojourn_s)
    )
    tasks = [task for node in cluster.nodes.values() for _, task in node.tasks()]
    return Course(
        totals=totals,
        fine=tuple(
            tuple(cluster.tally(total.service).fine.tolist()) for total in totals
        ),
        tasks=tuple((task.command.name, task.state) for task in tasks),
        sums=(
            *times_s,
            *(task.done_iterations for task in tasks),
            cluster.used_energy_j,
            cluster.busy_s,
        ),
    )


def assert_same(one: Course, other: Course) -> None:
    assert one.totals == other.totals
    assert one.fine == other.fine
    assert one.tasks == other.tasks
    assert one.sums == pytest.approx(other.sums, rel=1e-9)


def a_busy_cluster(seed: int) -> tuple[SimulatedCluster, ManualClock]:
    """Two nodes of two GPUs; a steady service, one that jumps, one with clients, and a fault of every kind."""
    shapes: dict[str, Shape] = {
        "chat": LoadShape(mean_rps=300.0),
        "jump": Modulation(levels_rps=(20.0, 900.0), mean_stays_s=(4.0, 2.0)),
    }
    loads = {
        name: ArrivalProcess(shape=shape, duration_s=LENGTH_S, seed=seed, stream=stream)
        for stream, (name, shape) in enumerate(shapes.items())
    }
    clients = {"crowd": ClientLoad(clients=np.linspace(2.0, 12.0, LENGTH_S))}
    scenario = ClusterScript(loads=loads, clients=clients, seed=seed, faults=FAULTS)
    clock = ManualClock(1000.0)
    nodes = (a_node("n1", gpus=2, launch_s=3.4), a_node("n2", gpus=2, launch_s=3.4))
    return SimulatedCluster(
        nodes, scenario, world=PlainWorld(deviation=0.1), clock=clock
    ), clock


def wanted(node: str, generation: int) -> NodeCommand:
    """Replicas that move, change their batches and come back, from command to command, and tasks next to them: one
    that goes on for ever, and one that is in the host's memory now and then until it is done."""
    batch = (4, 8, 2)[generation % 3]
    chat = a_replica(
        f"{node}-chat",
        service="chat",
        batch=batch,
        sm_percent=30.0,
        rate_rps=10.0 + generation,
    )
    jump = a_replica(
        f"{node}-jump-{generation // 2}", service="jump", batch=8, sm_percent=30.0
    )
    crowd = a_replica(f"{node}-crowd", service="crowd", batch=3, sm_percent=30.0)
    here, there = (
        ((chat, crowd), (jump,)) if generation % 4 < 2 else ((chat,), (jump, crowd))
    )
    long = a_task(f"{node}-long", sm_percent=5.0, iterations=10**6)
    short = a_task(
        f"{node}-short", sm_percent=5.0, iterations=300, is_resident=generation % 3 > 0
    )
    return a_command(
        a_gpu(*here, clock_mhz=1500.0 if generation % 2 else 900.0, tasks=(long,)),
        a_gpu(*there, index=1, tasks=(short,)),
        generation=generation,
        node=node,
        services=("chat",),
    )


def play(seed: int, looks_per_s: int) -> Course:
    """Commands are carried out and devices read at whole seconds; in between the cluster is only looked at."""
    cluster, clock = a_busy_cluster(seed)
    devices = {name: SimulatedDevice(cluster, name) for name in cluster.nodes}
    for second in range(LENGTH_S):
        for name, device in devices.items():
            run(reconcile(device, wanted(name, 1 + second // 7)))
            if second % 5 == 0:
                run(device.read())
        for _ in range(looks_per_s):
            clock.advance(1.0 / looks_per_s)
            cluster.advance()
    for device in devices.values():
        run(device.read())
    return course_of(cluster)


async def reconcile(device: SimulatedDevice, command: NodeCommand) -> None:
    """Carry out what can be, where GPUs may be lost."""
    for action in actions(command, await device.state()):
        with contextlib.suppress(DeviceError):
            await perform(device, action)


@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 5))],
)
def test_a_cluster_that_is_looked_at_twice_as_often_does_the_same(seed: int) -> None:
    once = play(seed, 1)
    assert all(total.served > 500 and total.rejected > 0 for total in once.totals)
    assert {state for _, state in once.tasks} >= {"running", "finished"}
    assert_same(once, play(seed, 2))
    assert_same(once, play(seed, 4))
    assert play(seed + 100, 1).totals != once.totals


async def _play(scene: Scene, periods: int, looks: int) -> None:
    closed = scene.closed
    for _ in range(periods):
        for _ in range(looks):
            await closed.pass_time(PERIOD_S / looks)
            closed.cluster.advance()
        await closed.step()
        scene.outcomes.append(await closed.tick())


SPIKE: Mapping[str, Spike] = {
    "resnet50": Spike(start_s=30.0, length_s=20.0, factor=3.0, ramp_s=10.0)
}
LOSSES = (
    Fault(kind="gpu_lost", node="n1", gpu_index=0, start_s=51.3),
    Fault(kind="straggler", node="n2", start_s=20.2, end_s=40.9, factor=1.7),
    Fault(kind="stale", node="n3", start_s=61.0, end_s=90.0, delay_s=7.0),
)


LONG = Task(
    name="long", kind="offline", network="resnet50", batch=8, iterations=100_000
)
SHORT = Task(
    name="short",
    kind="offline",
    network="resnet50",
    batch=8,
    iterations=200,
    due_in_s=80.0,
)


@pytest.mark.parametrize(
    "policy",
    [
        "hetsev",
        pytest.param("joint", marks=pytest.mark.thorough),
        pytest.param("k8s_hpa", marks=pytest.mark.thorough),
    ],
)
def test_a_loop_whose_time_passes_in_half_steps_decides_and_serves_the_same(
    policy: str,
) -> None:
    whole, halves = (
        a_scene(policy=policy, spikes=SPIKE, faults=LOSSES) for _ in range(2)
    )
    for scene in (whole, halves):
        scene.closed.store.put_tasks((LONG, SHORT), at=scene.clock.now())
    asyncio.run(_play(whole, 20, looks=1))
    asyncio.run(_play(halves, 20, looks=2))
    assert len(whole.closed.store.pushed) > 2
    assert whole.closed.store.tasks.records["short"].finished_at is not None
    assert whole.closed.store.tasks.records == halves.closed.store.tasks.records
    assert_same(course_of(whole.closed.cluster), course_of(halves.closed.cluster))
    assert whole.closed.store.pushed == halves.closed.store.pushed
    assert whole.closed.store.events == halves.closed.store.events
