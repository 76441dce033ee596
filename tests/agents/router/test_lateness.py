"""Turns behind a router: by weight while the replicas keep up, to the emptiest while they cannot."""

import pytest

from agents.base.device import ServiceRoute
from agents.router.counts import Reason
from agents.router.lateness import CALM_S
from agents.router.service_queue import ServiceQueue


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_queue(
    clock: Clock,
    *,
    ahead: int,
    names: str = "ab",
    planned_rps: float = 100.0,
    batch: int = 1,
) -> ServiceQueue:
    """Replicas of the same weight, of which `a` has `ahead` requests and the others none."""
    route = ServiceRoute(
        service="chat",
        slo_ms=100.0,
        shares=tuple((each, planned_rps / len(names)) for each in names),
        batches=tuple((each, batch) for each in names),
    )
    service_queue = ServiceQueue(route, queue_limit=4, replica_limit=1000, now_s=clock)
    load(service_queue, ahead)
    return service_queue


def load(service_queue: ServiceQueue, ahead: int) -> None:
    """Give `a` `ahead` requests; the others answer theirs at once."""
    while service_queue.in_flight("a") < ahead:
        chosen = service_queue.take()
        if chosen is not None and chosen != "a":
            service_queue.release(chosen)


def taken(service_queue: ServiceQueue, requests: int) -> str:
    return "".join(service_queue.take() or "-" for _ in range(requests))


BY_TURNS = ("abab", "baba")


def test_turns_are_by_weight_as_long_as_what_is_ahead_is_done_within_the_slo() -> None:
    # 100 rps are planned: within 100 ms ten are done.
    assert taken(a_queue(Clock(), ahead=7), 4) in BY_TURNS


def test_the_first_request_that_would_be_late_and_those_after_it_go_to_the_emptiest() -> (
    None
):
    service_queue = a_queue(Clock(), ahead=11)
    assert taken(service_queue, 11) == "b" * 11
    assert taken(service_queue, 4) in BY_TURNS


def test_turns_are_by_weight_again_when_it_has_been_calm_for_a_while() -> None:
    clock = Clock()
    service_queue = a_queue(clock, ahead=11)
    assert taken(service_queue, 1) == "b"
    service_queue.release("b")
    for _ in range(5):
        service_queue.release("a")
    clock.now_s += CALM_S - 0.01
    assert taken(service_queue, 3) == "bbb"
    clock.now_s += 0.02
    assert sorted(taken(service_queue, 2)) == ["a", "b"]


def test_what_was_answered_lately_counts_where_it_is_more_than_what_was_planned() -> (
    None
):
    clock = Clock()
    service_queue = a_queue(clock, ahead=0, planned_rps=10.0)
    for _ in range(1000):
        service_queue.succeed("a")
        clock.now_s += 0.002
    # For the 10 rps that are planned five are too many; 1,000 were answered in the 7 s of two windows.
    load(service_queue, 10)
    assert taken(service_queue, 4) in BY_TURNS
    assert taken(service_queue, 7) == "b" * 7


@pytest.mark.parametrize("planned_rps", [2.0, 20.0])
def test_a_newcomer_that_joins_the_next_batch_is_never_late(planned_rps: float) -> None:
    # At these rates two are done within the SLO at most; but sixteen are the batches that run and those that wait.
    service_queue = a_queue(Clock(), ahead=12, planned_rps=planned_rps, batch=4)
    assert taken(service_queue, 4) in BY_TURNS
    assert taken(service_queue, 8) == "b" * 8


def test_the_next_batches_are_those_of_all_replicas_that_are_not_out() -> None:
    def a_queue_of_three() -> ServiceQueue:
        return a_queue(Clock(), ahead=13, names="abc", planned_rps=3.0, batch=3)

    assert "a" in taken(a_queue_of_three(), 3)
    service_queue = a_queue_of_three()
    assert service_queue.fail("c", is_unreachable=True)
    assert taken(service_queue, 3) == "bbb"


@pytest.mark.parametrize(("reason", "waited_ms"), [("full", 0.0), ("expired", 100.0)])
def test_after_a_request_that_was_turned_away_the_emptiest_comes_first(
    reason: Reason, waited_ms: float
) -> None:
    service_queue = a_queue(Clock(), ahead=5)
    service_queue.reject(reason, waited_ms)
    assert taken(service_queue, 4) == "bbbb"


def test_a_client_that_left_and_an_answer_that_was_lost_change_no_turns() -> None:
    service_queue = a_queue(Clock(), ahead=5)
    for reason in ("gone", "lost"):
        service_queue.reject(reason)  # type: ignore[arg-type]
    assert taken(service_queue, 4) in BY_TURNS


def test_a_replica_that_fails_gets_nothing_though_it_is_the_emptiest() -> None:
    service_queue = a_queue(Clock(), ahead=11)
    assert service_queue.fail("b", is_unreachable=True)
    assert taken(service_queue, 4) == "aaaa"
    service_queue.readmit("b")
    assert taken(service_queue, 4) == "bbbb"
