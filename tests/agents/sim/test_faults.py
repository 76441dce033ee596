"""The loss of a node: requests that go astray until the balancer knows, the busiest node, and what is noted of it."""

import pytest

from agents.base.clock import ManualClock
from agents.enforce.actions import perform
from agents.enforce.diff import actions, is_settled
from agents.sim.cluster import SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.load.load_balancer import DETECTION_S
from agents.sim.spec import BUSIEST, Fault
from tests.agents.factories import a_replica, on_gpu, run
from tests.agents.sim.worlds import a_cluster, a_node


def a_loss(
    node: str, *, start_s: float = 30.0, end_s: float = 60.0, kind: str = "node_lost"
) -> Fault:
    return Fault(kind=kind, node=node, start_s=start_s, end_s=end_s)  # type: ignore[arg-type]


def two_nodes(
    *faults: Fault, rates_rps: tuple[float, float] = (25.0, 75.0)
) -> tuple[SimulatedCluster, ManualClock]:
    """n1 and n2 with a replica of chat each, at these planned rates; 100 requests per second from second 0 on."""
    cluster, clock = a_cluster(
        a_node("n1"), a_node("n2"), rates_rps={"chat": 100.0}, faults=faults
    )
    for name, rate_rps in zip(("n1", "n2"), rates_rps, strict=True):
        settle(cluster, name, rate_rps, clock)
    return cluster, clock


def settle(
    cluster: SimulatedCluster, node: str, rate_rps: float, clock: ManualClock
) -> None:
    device = SimulatedDevice(cluster, node)
    replica = a_replica(f"on-{node}", rate_rps=rate_rps)
    wanted = on_gpu(replica)

    async def enforce() -> bool:
        for action in actions(wanted, await device.state()):
            await perform(device, action)
        return is_settled(wanted, await device.state())

    for _ in range(10):
        if run(enforce()):
            return
        clock.advance(1.0)
    raise AssertionError("the node never settles")


def at(cluster: SimulatedCluster, clock: ManualClock, second: float) -> None:
    clock.advance(1000.0 + second - clock.now_s())
    cluster.advance()


def test_requests_go_astray_until_the_balancer_has_noticed() -> None:
    cluster, clock = two_nodes(a_loss("n2"))
    at(cluster, clock, 30.0)
    before = cluster.tally("chat")
    at(cluster, clock, 30.0 + DETECTION_S)
    astray = cluster.tally("chat").since(before)
    at(cluster, clock, 50.0)
    later = cluster.tally("chat").since(before)
    # 100 requests in the second, each with 3 chances of 4 to go astray; five standard deviations are 22.
    assert astray.arrivals == 100
    assert astray.rejected == pytest.approx(75, abs=22)
    assert later.rejected == astray.rejected


@pytest.mark.parametrize(
    ("rates_rps", "lost"), [((25.0, 75.0), "n2"), ((75.0, 25.0), "n1")]
)
def test_the_busiest_node_is_the_one_with_the_highest_planned_rate(
    rates_rps: tuple[float, float], lost: str
) -> None:
    cluster, clock = two_nodes(a_loss(BUSIEST), rates_rps=rates_rps)
    at(cluster, clock, 31.0)
    assert [loss.fault.node for loss in cluster.node_losses] == [lost]
    healthy = {name: node.gpus[0].is_healthy for name, node in cluster.nodes.items()}
    assert healthy == {"n1": lost != "n1", "n2": lost != "n2"}


def test_the_busiest_node_is_named_once_and_the_next_loss_takes_another_one() -> None:
    cluster, clock = two_nodes(a_loss(BUSIEST), a_loss(BUSIEST, start_s=40.0))
    at(cluster, clock, 45.0)
    assert [loss.fault.node for loss in cluster.node_losses] == ["n2", "n1"]


def test_a_loss_notes_the_counts_before_it_and_the_replicas_that_it_took() -> None:
    cluster, clock = two_nodes(a_loss("n2"))
    at(cluster, clock, 30.0)
    (loss,) = cluster.node_losses
    # 100 requests per second, none of them in the moment of the loss itself.
    assert loss.tallies["chat"].arrivals == 3000
    assert (dict(loss.replicas), dict(loss.replicas_lost)) == ({"chat": 2}, {"chat": 1})


def test_a_lost_first_node_leaves_counting_to_the_next_one() -> None:
    cluster, clock = a_cluster(
        a_node("n1"), a_node("n2"), rates_rps={"chat": 100.0}, faults=(a_loss("n1"),)
    )
    at(cluster, clock, 20.0)
    assert cluster.home.spec.name == "n1"
    at(cluster, clock, 31.0)
    assert cluster.home.spec.name == "n2"
    assert cluster.nodes["n2"].tallies["chat"].arrivals == 100
