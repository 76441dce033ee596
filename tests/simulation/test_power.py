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
from agents.sim.truth.running import RunningPart
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
    replicas: tuple[ReplicaCommand, ...],
    rates_rps: tuple[float, ...],
) -> tuple[SimulatedDevice, ManualClock]:
    """One GPU with these replicas, a Poisson load for each."""
    loads = {
        each.service: ArrivalProcess(
            shape=LoadShape(mean_rps=rate_rps),
            duration_s=LOADED_S,
            seed=1,
            stream=stream,
        )
        for stream, (each, rate_rps) in enumerate(zip(replicas, rates_rps, strict=True))
    }
    clock = ManualClock()
    cluster = SimulatedCluster(
        (a_node(launch_s=0.0),),
        ClusterScript(loads=loads, seed=1),
        world=WattsPerRequest(),
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
    device, clock = a_device(tuple(replicas), rates_rps)
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
