"""Spare replicas: when they take requests, how many, and that their neighbours feel them only then."""

import math

import numpy as np
import pytest

from agents.base.clock import ManualClock
from agents.base.device import ServiceRoute
from agents.base.protocol import ReplicaCommand
from agents.sim.cluster import SimulatedCluster
from agents.sim.layout import (
    CALM_S,
    OrdinaryLoad,
    cannot_keep_up,
    room_of,
    service_rate_rps,
)
from agents.sim.node import SimReplica
from agents.sim.replica_queue import ExecutionPace
from tests.agents.factories import a_replica
from tests.agents.sim.worlds import a_cluster, a_node

SLO_MS = 100.0


def a_load(*, backlog: int = 0, room: float = 8.0, rejected: int = 0) -> OrdinaryLoad:
    return OrdinaryLoad(backlog=backlog, room=room, rejected=rejected)


def a_pace(*, slo_s: float) -> ExecutionPace:
    """20 ms for a batch of 4."""
    return ExecutionPace(
        batch=4, batch_s=np.full(5, 0.02), batch_w=np.zeros(5), slo_s=slo_s
    )


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (a_load(), False),
        (a_load(backlog=8), False),
        (a_load(backlog=9), True),
        (a_load(rejected=1), True),
        (a_load(room=0.0), True),
    ],
)
def test_spares_must_help_where_the_others_have_more_than_they_can_finish_or_are_none(
    load: OrdinaryLoad,
    expected: bool,
) -> None:
    assert cannot_keep_up(load) is expected


def test_a_replica_finishes_whole_batches_within_its_slo() -> None:
    # 90 ms hold four batches of 20 ms.
    assert room_of(a_pace(slo_s=0.09)) == 16
    assert room_of(a_pace(slo_s=0.01)) == 0
    assert room_of(a_pace(slo_s=math.inf)) == math.inf
    assert service_rate_rps(a_pace(slo_s=1.0)) == pytest.approx(200.0)


def a_spare(service: str = "chat") -> ReplicaCommand:
    return ReplicaCommand(
        id="spare",
        service=service,
        network="resnet50",
        sm_percent=20.0,
        batch=4,
        memory_mib=500.0,
        arrival_rate_rps=0.0,
        is_spare=True,
    )


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


def replica(cluster: SimulatedCluster, replica_id: str) -> SimReplica:
    return cluster.node("n1").find(replica_id)[1]


def batch_ms(cluster: SimulatedCluster, replica_id: str) -> float:
    pace = replica(cluster, replica_id).pace
    assert pace is not None
    return 1000.0 * float(pace.batch_s[1])


def test_a_spare_rests_unfelt_while_the_others_keep_up() -> None:
    # A batch of 4 takes 10 ms: 400 requests per second are possible, 50 come.
    cluster, clock = with_spare(a_replica(), rates_rps={"chat": 50.0})
    clock.advance(10.0)
    (chat,) = cluster.totals()
    assert (chat.replicas, chat.in_slo, chat.rejected) == (1, 500, 0)
    assert replica(cluster, "spare").queue.requests == 0
    assert replica(cluster, "spare").rests
    assert batch_ms(cluster, "r1") == 10.0


def test_a_spare_takes_the_requests_of_a_service_without_another_replica() -> None:
    cluster, clock = with_spare(rates_rps={"chat": 50.0})
    clock.advance(10.0)
    (chat,) = cluster.totals()
    assert (chat.replicas, chat.in_slo, chat.rejected) == (1, 500, 0)


def test_a_spare_helps_the_overloaded_and_its_neighbours_feel_it() -> None:
    # Neighbours slow each other to 20 ms in this world: a replica does 200 requests per second then, two do 400; the
    # ordinary one alone has 100 ms / 10 ms and does 400. 450 come: too many for it, and too many for both.
    cluster, clock = with_spare(a_replica(), rates_rps={"chat": 450.0})
    clock.advance(10.0)
    cluster.advance()
    assert replica(cluster, "spare").queue.requests > 0
    assert (batch_ms(cluster, "r1"), batch_ms(cluster, "spare")) == (20.0, 20.0)
    (chat,) = cluster.totals()
    assert chat.arrivals == chat.served + chat.rejected + chat.queued
    assert chat.present_s == pytest.approx(chat.sojourn_s)


def test_a_spare_rests_again_when_calm_has_lasted() -> None:
    cluster, clock = with_spare(a_replica(), rates_rps={"chat": 50.0})
    clock.advance(1.0)
    cluster.advance()
    # As if the ordinary replica had been busy with a burst until now.
    cluster.spares.count_rejected("chat", 1)
    clock.advance(0.2)
    cluster.advance()
    assert not replica(cluster, "spare").rests
    clock.advance(CALM_S + 0.5)
    cluster.advance()
    assert replica(cluster, "spare").rests
    assert batch_ms(cluster, "r1") == 10.0


def test_a_spare_that_gets_a_rate_is_an_ordinary_replica() -> None:
    cluster, clock = with_spare(a_replica(rate_rps=10.0), rates_rps={"chat": 50.0})
    shares = (("r1", 10.0), ("spare", 30.0))
    cluster.node("n1").routes = (
        ServiceRoute(service="chat", slo_ms=SLO_MS, shares=shares),
    )
    clock.advance(10.0)
    (chat,) = cluster.totals()
    assert chat.replicas == 2
    # Three of four requests go there; five standard deviations of 500 are 48.
    assert replica(cluster, "spare").queue.requests == pytest.approx(375, abs=48)


def test_a_cluster_with_spares_comes_to_the_same_however_often_somebody_looks() -> None:
    counts = []
    # 56 looks are one every 0.125 s, which adds up to 7 s without rounding.
    for looks in (1, 56):
        cluster, clock = with_spare(a_replica(), rates_rps={"chat": 420.0})
        for _ in range(looks):
            clock.advance(7.0 / looks)
            cluster.advance()
        (chat,) = cluster.totals()
        counts.append((chat.arrivals, chat.served, chat.rejected, chat.in_slo))
    assert counts[0] == counts[1]
