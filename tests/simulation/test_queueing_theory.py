"""A whole simulated cluster against queueing theory: Poisson loads, the load balancer, replicas with fixed times."""

import numpy as np
import pytest

from agents.base.clock import ManualClock
from agents.base.device import ServiceRoute
from agents.sim.cluster import ClusterScript, SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.load.arrivals import ArrivalProcess, LoadShape
from agents.sim.queues.tally import ServiceTally
from solvers.laws.bulk_queue import miss_probability
from tests.agents.factories import a_replica, run
from tests.agents.sim.worlds import PlainWorld, a_node

BATCH_MS = 10.0
"""Of `PlainWorld`, whatever the size of the batch."""
NEVER_MS = 1e6
"""An SLO that no request misses, so that none is turned away."""


def serve(batch: int, utilisations: tuple[float, ...], duration_s: int) -> ServiceTally:
    """One service under Poisson load, on replicas with weights that load them so, each on its own node."""
    rates_rps = [1000.0 / BATCH_MS * batch * each for each in utilisations]
    load = ArrivalProcess(
        shape=LoadShape(mean_rps=sum(rates_rps)),
        duration_s=duration_s,
        seed=batch,
        stream=0,
    )
    clock = ManualClock()
    nodes = tuple(
        a_node(f"n{number}", launch_s=0.0) for number in range(len(rates_rps))
    )
    cluster = SimulatedCluster(
        nodes,
        ClusterScript(loads={"chat": load}, seed=1),
        world=PlainWorld(),
        clock=clock,
    )
    for node, rate_rps in zip(nodes, rates_rps, strict=True):
        device, shares = SimulatedDevice(cluster, node.name), ((node.name, rate_rps),)
        run(device.start_replica(0, a_replica(node.name, batch=batch)))
        run(
            device.switch_routes(
                (ServiceRoute(service="chat", shares=shares, slo_ms=NEVER_MS),)
            )
        )
    clock.advance(duration_s + 100.0)
    return cluster.tally("chat")


@pytest.mark.parametrize(
    ("batch", "utilisations", "duration_s"),
    [
        pytest.param(1, (0.5,), 20_000, id="M/D/1"),
        pytest.param(2, (0.7,), 10_000, id="M/D^(1..2)/1"),
        pytest.param(8, (0.3,), 4_000, id="M/D^(1..8)/1 almost idle"),
        pytest.param(
            8, (0.85,), 8_000, marks=pytest.mark.thorough, id="M/D^(1..8)/1 well loaded"
        ),
        pytest.param(8, (0.8, 0.5), 4_000, id="two M/D^(1..8)/1 with unequal loads"),
    ],
)
def test_a_clusters_latency_percentiles_are_within_2_percent_of_theory(
    batch: int, utilisations: tuple[float, ...], duration_s: int
) -> None:
    tally = serve(batch, utilisations, duration_s)
    assert tally.served == tally.arrivals > 900_000
    shares = np.array(utilisations) / sum(utilisations)
    for percentile in (0.5, 0.95, 0.99):
        slo_ratio = (tally.latency_ms(percentile) or 0.0) / BATCH_MS
        # What theory lets through within 2 % less, and within 2 % more, than the latency that was found.
        short, long = (
            1.0
            - float(
                shares
                @ miss_probability(
                    batch, utilisation=utilisations, slo_ratio=factor * slo_ratio
                )
            )
            for factor in (0.98, 1.02)
        )
        assert short <= percentile <= long
