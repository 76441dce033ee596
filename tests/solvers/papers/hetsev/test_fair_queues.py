"""Fair queues: clusters by hand, weights, and none starves."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.papers.hetsev.fair_queues import (
    WaitingReplica,
    cluster,
    fair_order,
    make_queues,
    weight,
)


def replica(
    name: str,
    *,
    network: str = "bert",
    memory_mib: float = 1000.0,
    waiting_s: float = 0.0,
) -> WaitingReplica:
    return WaitingReplica(
        name=name, network=network, memory_mib=memory_mib, waiting_s=waiting_s
    )


waiting_replicas = st.lists(
    st.builds(
        WaitingReplica,
        name=st.uuids().map(str),
        network=st.sampled_from(("bert", "resnet", "vgg")),
        memory_mib=st.sampled_from((500.0, 1000.0, 8000.0)),
        waiting_s=st.integers(0, 50).map(float),
    ),
    max_size=30,
    unique_by=lambda one: one.name,
)


def test_points_far_apart_make_clusters_of_their_own() -> None:
    points = np.array([[0.0], [0.2], [0.1], [9.0], [9.1], [20.0]])
    labels = cluster(points, 3).tolist()
    assert labels[0] == labels[1] == labels[2]
    assert labels[3] == labels[4]
    assert len(set(labels)) == 3


def test_fewer_different_points_than_clusters_make_fewer_clusters() -> None:
    assert sorted(set(cluster(np.array([[1.0], [1.0], [2.0]]), 5).tolist())) == [0, 1]
    assert cluster(np.zeros((0, 2)), 3).tolist() == []


def test_queues_hold_similar_replicas_with_the_longest_wait_first() -> None:
    waiting = [
        replica("a", network="bert", waiting_s=1.0),
        replica("b", network="vgg", memory_mib=9000.0, waiting_s=5.0),
        replica("c", network="bert", waiting_s=3.0),
    ]
    queues = make_queues(waiting, 2)
    assert sorted([one.name for one in queue] for queue in queues) == [
        ["b"],
        ["c", "a"],
    ]
    assert (
        weight(next(queue for queue in queues if len(queue) == 2)) == 2 * 2.0
    )  # Median of 1 and 3 is 2.


def test_a_rounds_picks_follow_the_weights_by_hand() -> None:
    # bert: 6 replicas that wait 10 s, weight 60; vgg: 3 that wait 10 s, weight 30. A round of 6: first the longest
    # wait by name (bert-0), then highest averages: 60/2 = 30 ties with 30/1 and the first queue's length, 6/2, with
    # 3/1: bert or vgg first, but of six picks bert gets four and vgg two.
    waiting = [replica(f"bert-{n}", network="bert", waiting_s=10.0) for n in range(6)]
    waiting += [replica(f"vgg-{n}", network="vgg", waiting_s=10.0) for n in range(3)]
    first_round = fair_order(waiting, queues=2, per_round=6)[:6]
    assert first_round[0] == "bert-0"
    assert (
        sorted(name.split("-")[0] for name in first_round) == ["bert"] * 4 + ["vgg"] * 2
    )


@given(waiting_replicas, st.integers(1, 5), st.integers(1, 6))
def test_everybody_is_picked_once_whatever_the_order_of_the_input(
    waiting: list[WaitingReplica], queues: int, per_round: int
) -> None:
    order = fair_order(waiting, queues=queues, per_round=per_round)
    assert sorted(order) == sorted(one.name for one in waiting)
    shuffled = random.Random(0).sample(waiting, len(waiting))
    assert fair_order(shuffled, queues=queues, per_round=per_round) == order


@given(waiting_replicas, st.integers(1, 5), st.integers(1, 6))
def test_the_kth_longest_wait_is_picked_within_k_rounds(
    waiting: list[WaitingReplica], queues: int, per_round: int
) -> None:
    order = fair_order(waiting, queues=queues, per_round=per_round)
    by_wait = sorted(waiting, key=lambda one: (-one.waiting_s, one.name))
    for rank, one in enumerate(by_wait):
        assert order.index(one.name) // per_round <= rank


@pytest.mark.parametrize("flood", (3, 10))
def test_a_lone_replica_beside_an_endless_flood_is_placed_in_bounded_time(
    flood: int,
) -> None:
    # Two are placed a second while `flood` others arrive: the flood's weight grows without end.
    pending = {f"flood-0-{n}": (0, "bert") for n in range(20)} | {"lone": (0, "vgg")}
    ahead = len(pending)
    for second in range(1, ahead + 1):
        waiting = [
            replica(name, network=network, waiting_s=float(second - since))
            for name, (since, network) in pending.items()
        ]
        for name in fair_order(waiting, queues=2, per_round=2)[:2]:
            del pending[name]
        if "lone" not in pending:
            break
        pending |= {f"flood-{second}-{n}": (second, "bert") for n in range(flood)}
    assert "lone" not in pending


@pytest.mark.parametrize(("queues", "per_round"), [(0, 1), (1, 0)])
def test_senseless_settings_are_refused(queues: int, per_round: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        fair_order([], queues=queues, per_round=per_round)
