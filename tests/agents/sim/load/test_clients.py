"""Closed loops: what queueing theory says of them, by hand and in numbers, and that nothing is lost."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from agents.sim.load.clients import ClientLoad, Clients, Target
from agents.sim.queues.replica_queue import ExecutionPace, ReplicaQueue
from agents.sim.queues.tally import ServiceTally


def a_target(
    *,
    batch: int = 1,
    execution_s: float = 0.1,
    weight: float = 1.0,
    capacity: int = 100,
) -> Target:
    pace = ExecutionPace(
        batch=batch,
        batch_s=np.full(batch + 1, execution_s),
        batch_w=np.ones(batch + 1),
        slo_s=1.0,
        sheds_late=False,
    )
    queue = ReplicaQueue(capacity=capacity, noise=np.ones(1))
    return Target(queue=queue, pace=pace, tally=ServiceTally(), weight=weight)


def play(
    clients: Sequence[float],
    targets: Sequence[Target],
    *,
    end_s: float,
    cuts: Sequence[float] = (),
    seed: int = 1,
) -> np.ndarray:
    crowd = Clients(
        ClientLoad(clients=np.array(clients, float)), np.random.default_rng(seed)
    )
    sent = np.zeros(len(targets) + 1, np.int64)
    edges = [0.0, *sorted(each for each in cuts if 0.0 < each < end_s), end_s]
    for start_s, until_s in itertools.pairwise(edges):
        sent += crowd.step(start_s, until_s, targets)
    return sent


def test_a_batch_answers_its_clients_together_and_they_come_together_again() -> None:
    target = a_target(batch=4, execution_s=0.1)
    play([4] * 10, [target], end_s=10.0)
    assert target.queue.requests / target.queue.batches == pytest.approx(4.0)
    assert target.tally.served / 10.0 == pytest.approx(40.0, rel=0.02)


def test_more_clients_send_more_and_fewer_less() -> None:
    target = a_target(batch=16, execution_s=0.1)
    counts = [2] * 20 + [8] * 20 + [1] * 20 + [0] * 20
    crowd = Clients(
        ClientLoad(clients=np.array(counts, float)), np.random.default_rng(1)
    )
    served = []
    for start_s in (0.0, 20.0, 40.0, 60.0):
        before = target.tally.served
        crowd.step(start_s, start_s + 20.0, [target])
        served.append((target.tally.served - before) / 20.0)
    assert served == [
        pytest.approx(20.0, rel=0.05),
        pytest.approx(80.0, rel=0.05),
        pytest.approx(10.0, rel=0.1),
        0.05,
    ]


def test_requests_go_to_replicas_by_weight_and_none_to_one_that_drains() -> None:
    targets = [
        a_target(batch=8, execution_s=0.01, weight=weight) for weight in (3.0, 1.0, 0.0)
    ]
    sent = play([4] * 100, targets, end_s=100.0)
    assert sent[0] / sent[1] == pytest.approx(3.0, rel=0.05)
    assert sent[2] == 0


def test_without_a_replica_a_client_comes_again_each_second() -> None:
    assert play([3] * 5, [], end_s=5.0).tolist() == [15]
    draining = a_target(weight=0.0)
    assert play([3] * 5, [draining], end_s=5.0).tolist() == [0, 15]


def test_who_is_refused_by_a_full_queue_comes_again() -> None:
    target = a_target(execution_s=10.0, capacity=2)
    sent = play([5] * 9, [target], end_s=9.0)
    assert target.tally.rejected == 3 * 9
    assert sent[0] == target.queue.in_flight + 3 * 9


def test_who_lost_a_request_sends_a_new_one() -> None:
    target = a_target(execution_s=100.0)
    crowd = Clients(ClientLoad(clients=np.full(10, 4.0)), np.random.default_rng(1))
    crowd.step(0.0, 2.0, [target])
    assert target.queue.drop() == 4
    crowd.step(2.0, 3.0, [target])
    assert target.queue.in_flight == 4


@pytest.mark.parametrize(
    "cuts", [[0.5], [0.1, 0.2, 3.3, 3.7, 19.99], list(np.arange(0.05, 20.0, 0.05))]
)
def test_no_cut_changes_a_count_and_littles_law_holds(cuts: list[float]) -> None:
    outcomes = []
    for edges in ([], cuts):
        targets = [
            a_target(batch=3, execution_s=0.07 + 0.01 * place, capacity=6)
            for place in range(3)
        ]
        sent = play([20] * 10 + [9] * 10, targets, end_s=20.0, cuts=edges)
        for requests, target in zip(sent, targets, strict=False):
            tally, queue = target.tally, target.queue
            assert requests == tally.served + tally.rejected + queue.in_flight
            stayed_s = tally.sojourn_s + queue.age_s(20.0)
            assert tally.present_s == pytest.approx(stayed_s)
            outcomes.append((*tally.counts, tally.latency_ms(0.9)))
    assert outcomes[:3] == outcomes[3:]
