"""Spare replicas: when they take requests, which and how many, and that their neighbours feel them only then."""

import pytest

from agents.base.clock import ManualClock
from agents.base.device import ServiceRoute
from agents.base.lateness import CALM_S
from agents.base.protocol import ReplicaCommand
from agents.sim.cluster import SimulatedCluster
from agents.sim.gpu import SimReplica
from agents.sim.load.load_balancer import DETECTION_S
from agents.sim.spec import Fault
from tests.agents.factories import a_replica
from tests.agents.sim.worlds import a_cluster, a_node

SLO_MS = 100.0


def a_spare() -> ReplicaCommand:
    sizes = {"sm_percent": 20.0, "memory_mib": 500.0, "rate_rps": 0.0}
    return a_replica("spare", is_spare=True, **sizes)


def with_spare(
    *ordinary: ReplicaCommand, rates_rps: dict[str, float]
) -> tuple[SimulatedCluster, ManualClock]:
    """One GPU with these replicas and a spare of chat, all of them ready at once."""
    cluster, clock = a_cluster(a_node(launch_s=0.0), rates_rps=rates_rps)
    node = cluster.node("n1")
    for command in (*ordinary, a_spare()):
        node.start(0, command, 0.0)
    shares: dict[str, list[tuple[str, float]]] = {service: [] for service in rates_rps}
    for command in (*ordinary, a_spare()):
        shares[command.service].append((command.id, command.arrival_rate_rps))
    node.routes = tuple(
        ServiceRoute(service=service, slo_ms=SLO_MS, shares=tuple(mine))
        for service, mine in shares.items()
    )
    for gpu in node.gpus:
        node.set_paces(gpu)
    return cluster, clock


def passed(cluster: SimulatedCluster, clock: ManualClock, seconds: float) -> None:
    """Let so many seconds pass, and everything happen that does in them."""
    clock.advance(seconds)
    cluster.advance()


def replica(cluster: SimulatedCluster, replica_id: str) -> SimReplica:
    return cluster.node("n1").find(replica_id)[1]


def batch_ms(cluster: SimulatedCluster, replica_id: str) -> float:
    pace = replica(cluster, replica_id).pace
    assert pace is not None
    return 1000.0 * float(pace.batch_s[1])


@pytest.mark.parametrize("has_other", [True, False])
def test_a_spare_rests_unfelt_while_another_keeps_up(has_other: bool) -> None:
    # A batch of 4 takes 10 ms: 400 requests per second are possible, 50 come.
    ordinary = (a_replica(),) if has_other else ()
    cluster, clock = with_spare(*ordinary, rates_rps={"chat": 50.0})
    clock.advance(10.0)
    (chat,) = cluster.totals()
    assert (chat.replicas, chat.in_slo, chat.rejected) == (1, 500, 0)
    if has_other:
        assert replica(cluster, "spare").queue.requests == 0
        assert replica(cluster, "spare").rests
        assert batch_ms(cluster, "r1") == 10.0


def test_a_spare_helps_the_overloaded_and_its_neighbours_feel_it() -> None:
    # Neighbours slow each other to 20 ms in this world: a replica does 200 requests per second then, two do 400; the
    # ordinary one alone has 100 ms / 10 ms and does 400. 450 come: too many for it, and too many for both.
    cluster, clock = with_spare(a_replica(), rates_rps={"chat": 450.0})
    passed(cluster, clock, 10.0)
    assert replica(cluster, "spare").queue.requests > 0
    assert (batch_ms(cluster, "r1"), batch_ms(cluster, "spare")) == (20.0, 20.0)
    (chat,) = cluster.totals()
    assert chat.arrivals == chat.served + chat.rejected + chat.queued
    assert chat.present_s == pytest.approx(chat.sojourn_s)


def test_a_spare_rests_again_when_calm_has_lasted() -> None:
    cluster, clock = with_spare(a_replica(), rates_rps={"chat": 50.0})
    passed(cluster, clock, 1.0)
    # As if the ordinary replica had been busy with a burst until now.
    cluster.spares.count(("chat", "n1"), rejected=1)
    passed(cluster, clock, 0.2)
    assert not replica(cluster, "spare").rests
    passed(cluster, clock, CALM_S + 0.5)
    assert replica(cluster, "spare").rests
    assert batch_ms(cluster, "r1") == 10.0


def across_nodes(
    rates_rps: dict[str, float],
    *,
    offered_rps: float,
    faults: tuple[Fault, ...] = (),
) -> tuple[SimulatedCluster, ManualClock]:
    """A replica of chat on every node that has a planned rate, and a spare of chat alone on a GPU of node s."""
    names = sorted({*rates_rps, "s"})
    cluster, clock = a_cluster(
        *(a_node(name, gpus=2, launch_s=0.0) for name in names),
        rates_rps={"chat": offered_rps},
        faults=faults,
    )
    for name in names:
        node = cluster.node(name)
        shares: tuple[tuple[str, float], ...] = ()
        if name in rates_rps:
            shares = ((f"r-{name}", rates_rps[name]),)
            node.start(0, a_replica(f"r-{name}", rate_rps=rates_rps[name]), 0.0)
        if name == "s":
            node.start(1, a_spare(), 0.0)
        node.routes = (ServiceRoute(service="chat", slo_ms=SLO_MS, shares=shares),)
        for gpu in node.gpus:
            node.set_paces(gpu)
    return cluster, clock


def requests_of(cluster: SimulatedCluster, node: str, replica_id: str) -> int:
    return cluster.node(node).find(replica_id)[1].queue.requests


def test_without_any_replica_requests_go_to_the_node_of_a_spare() -> None:
    cluster, clock = across_nodes({"n": 100.0}, offered_rps=50.0)
    passed(cluster, clock, 2.0)
    cluster.node("n").stop("r-n", 2.0)
    passed(cluster, clock, 2.0)
    # What comes before the next look waits for it.
    assert requests_of(cluster, "s", "spare") == pytest.approx(100, abs=6)
    cluster.node("n").start(0, a_replica("r-n", rate_rps=100.0), 4.0)
    passed(cluster, clock, 1.0)
    assert requests_of(cluster, "n", "r-n") > 40


def test_a_backup_gets_nothing_before_the_balancer_knows_that_a_node_is_lost() -> None:
    lost = Fault(kind="node_lost", node="n", start_s=2.0)
    cluster, clock = across_nodes({"n": 100.0}, offered_rps=50.0, faults=(lost,))
    passed(cluster, clock, 2.0 + DETECTION_S)
    assert requests_of(cluster, "s", "spare") == 0
    passed(cluster, clock, 2.0)
    assert requests_of(cluster, "s", "spare") == pytest.approx(100, abs=6)
