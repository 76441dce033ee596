"""What a simulated GPU draws: its idle watts, and what each of its replicas draws while it executes."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.base.clock import ManualClock
from agents.base.device import DeviceReadings, ServiceRoute
from agents.base.protocol import ReplicaCommand
from agents.sim.cluster import ClusterScript, SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.load.arrivals import ArrivalProcess, LoadShape
from agents.sim.spec import make_node
from agents.sim.truth.running import RunningPart
from agents.sim.truth.truth import load_truth
from tests.agents.factories import a_replica, run
from tests.agents.sim.worlds import PlainWorld, a_node
from tests.examples import examples

LOADED_S, QUIET_S = 30, 40.0
"""Requests arrive for so long; by then they have all been served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WattsPerRequest(PlainWorld):
    """A batch draws 7 W for each of its requests."""

    def busy_w(self, placed: RunningPart, batch: int) -> float:
        return 7.0 * batch


def a_device(
    world: PlainWorld | None,
    replicas: tuple[ReplicaCommand, ...],
    rates_rps: tuple[float, ...],
) -> tuple[SimulatedDevice, ManualClock]:
    """One GPU with these replicas, a Poisson load for each; None = the measured world."""
    loads = {
        each.service: ArrivalProcess(
            shape=LoadShape(mean_rps=rate_rps),
            duration_s=LOADED_S,
            seed=1,
            stream=stream,
        )
        for stream, (each, rate_rps) in enumerate(zip(replicas, rates_rps, strict=True))
    }
    node = (
        a_node(launch_s=0.0)
        if world
        else make_node("n1", "V100-32GB", gpus=1, memory_mib=32_768.0, launch_s=0.0)
    )
    clock = ManualClock()
    cluster = SimulatedCluster(
        (node,),
        ClusterScript(loads=loads, seed=1),
        world=world or load_truth(),
        clock=clock,
    )
    device = SimulatedDevice(cluster, "n1")
    for each in replicas:
        run(device.start_replica(0, each))
    routes = (
        ServiceRoute(service=each.service, slo_ms=500.0, shares=((each.id, 1.0),))
        for each in replicas
    )
    run(device.switch_routes(tuple(routes)))
    return device, clock


def read_at(
    device: SimulatedDevice, clock: ManualClock, moments_s: list[float]
) -> list[DeviceReadings]:
    """What is read at each moment; the first window begins at the start."""
    start_s, readings = clock.now_s(), []
    for moment_s in moments_s:
        clock.advance(start_s + moment_s - clock.now_s())
        readings.append(run(device.read()))
    return readings


REPLICAS = st.lists(
    st.tuples(st.integers(1, 8), st.floats(1.0, 400.0)), min_size=1, max_size=3
)
LOOKS = st.lists(st.floats(0.5, LOADED_S), max_size=5, unique=True).map(sorted)


@settings(max_examples=examples(40))
@given(batches_and_rates=REPLICAS, looks=LOOKS)
def test_energy_is_that_of_an_idle_gpu_and_of_every_request_served(
    batches_and_rates: list[tuple[int, float]], looks: list[float]
) -> None:
    batches, rates_rps = zip(*batches_and_rates, strict=True)
    names = [f"s{number}" for number in range(len(batches))]
    replicas = (
        a_replica(name, service=name, batch=batch, sm_percent=30.0)
        for name, batch in zip(names, batches, strict=True)
    )
    device, clock = a_device(WattsPerRequest(), tuple(replicas), rates_rps)
    readings = read_at(device, clock, [*looks, QUIET_S])
    assert readings[-1].services and all(
        service.queued == 0 for service in readings[-1].services
    )
    requests = sum(replica.requests for each in readings for replica in each.replicas)
    # A batch of n takes 10 ms per replica on the GPU and draws 7 W · n meanwhile: 7 W · 10 ms · replicas a request.
    energy_j = 50.0 * QUIET_S + 7.0 * 0.01 * len(batches) * requests
    assert sum(each.gpus[0].energy_j for each in readings) == pytest.approx(
        energy_j, rel=1e-9
    )
    for each, (start_s, end_s) in zip(
        readings, pairwise([0.0, *looks, QUIET_S]), strict=True
    ):
        assert each.gpus[0].power_w == pytest.approx(
            each.gpus[0].energy_j / (end_s - start_s)
        )


def test_in_the_measured_world_each_replica_adds_its_measured_watts_while_it_executes() -> (
    None
):
    networks = ("resnet50", "vgg19-trt", "inception_v3")
    replicas = tuple(
        ReplicaCommand(
            id=network,
            service=network,
            network=network,
            sm_percent=30.0,
            batch=1,
            memory_mib=2000.0,
            arrival_rate_rps=1.0,
        )
        for network in networks
    )
    device, clock = a_device(None, replicas, (20.0, 30.0, 10.0))
    (reading,) = read_at(device, clock, [QUIET_S])
    truth = load_truth()
    energy_j = truth.idle_w("V100-32GB") * QUIET_S
    for each in reading.replicas:
        placed = RunningPart(
            network=each.id,
            gpu_type="V100-32GB",
            sm_percent=30.0,
            batch=1,
            clock_mhz=reading.gpus[0].clock_mhz,
        )
        assert each.batches == each.requests > 200
        energy_j += truth.busy_w(placed, 1) * each.batches * each.execution_ms / 1000.0
    assert reading.gpus[0].energy_j == pytest.approx(energy_j, rel=1e-9)
