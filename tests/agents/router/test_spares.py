"""Spares behind a router: at work while the replicas cannot keep up, at rest while they can."""

import asyncio
from collections import Counter

import pytest

from agents.base.device import ServiceRoute
from agents.base.lateness import CALM_S
from agents.router.counts import Reason
from agents.router.service_queue import ServiceQueue
from tests.waiting import in_loop


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_queue(
    clock: Clock,
    *shares: tuple[str, float],
    spares: tuple[str, ...] = ("spare",),
    slo_ms: float = 100.0,
    replica_limit: int = 1000,
    batch: int = 1,
) -> ServiceQueue:
    route = ServiceRoute(
        service="chat",
        slo_ms=slo_ms,
        shares=shares,
        spares=spares,
        batches=tuple((each, batch) for each, _ in shares),
    )
    return ServiceQueue(route, queue_limit=4, replica_limit=replica_limit, now_s=clock)


def taken(service_queue: ServiceQueue, requests: int) -> list[str | None]:
    return [service_queue.take() for _ in range(requests)]


def test_a_spare_rests_as_long_as_what_is_ahead_is_done_within_the_slo() -> None:
    # 100 rps are planned: within 100 ms ten are done.
    service_queue = a_queue(Clock(), ("a", 60.0), ("b", 40.0))
    assert Counter(taken(service_queue, 11)) == {"a": 7, "b": 4}
    assert service_queue.total().to_spares == 0


def test_the_first_request_that_would_be_late_and_those_after_it_go_to_the_emptiest() -> (
    None
):
    clock = Clock()
    service_queue = a_queue(clock, ("a", 60.0), ("b", 40.0))
    taken(service_queue, 11)
    # Eleven are ahead. The spare, as strong as the largest replica, gets what makes it as full as the others.
    assert taken(service_queue, 7) == ["spare"] * 7
    assert Counter(taken(service_queue, 16)) == {"a": 6, "b": 4, "spare": 6}
    assert service_queue.total().to_spares == 13


def test_a_spare_rests_again_when_it_has_been_calm_for_a_while() -> None:
    clock = Clock()
    service_queue = a_queue(clock, ("a", 100.0))
    requests = [each for each in taken(service_queue, 12) if each]
    assert requests[-1] == "spare"
    for each in requests:
        service_queue.release(each)
    clock.now_s += CALM_S - 0.01
    service_queue.release("a") if service_queue.in_flight("a") else None
    assert service_queue.take() in ("a", "spare")
    clock.now_s += 0.02
    assert taken(service_queue, 5) == ["a"] * 5


def test_what_was_answered_lately_counts_where_it_is_more_than_what_was_planned() -> (
    None
):
    clock = Clock()
    service_queue = a_queue(clock, ("a", 10.0))
    for _ in range(200):
        service_queue.succeed("a")
        clock.now_s += 0.01
    # 10 rps are planned, for which two in the queue are too many; 200 were answered in the 7 s of two windows.
    assert taken(service_queue, 4) == ["a", "a", "a", "spare"]


@pytest.mark.parametrize(("planned_rps", "slo_ms"), [(2.0, 400.0), (20.0, 100.0)])
def test_a_newcomer_that_joins_the_next_batch_is_never_late(
    planned_rps: float, slo_ms: float
) -> None:
    # At these rates one or two are done within the SLO; but eight are the batch that runs and the one that waits.
    service_queue = a_queue(Clock(), ("a", planned_rps), slo_ms=slo_ms, batch=4)
    assert taken(service_queue, 9) == ["a"] * 8 + ["spare"]


def test_the_next_batches_are_those_of_all_replicas_that_are_not_out() -> None:
    service_queue = a_queue(Clock(), ("a", 1.0), ("b", 1.0), batch=3)
    assert "spare" not in taken(service_queue, 12)
    service_queue = a_queue(Clock(), ("a", 1.0), ("b", 1.0), batch=3)
    assert service_queue.fail("b", is_unreachable=True)
    assert taken(service_queue, 7) == ["a"] * 6 + ["spare"]


@pytest.mark.parametrize(("reason", "waited_ms"), [("full", 0.0), ("expired", 100.0)])
def test_a_request_that_was_turned_away_calls_the_spare(
    reason: Reason, waited_ms: float
) -> None:
    service_queue = a_queue(Clock(), ("a", 100.0))
    assert service_queue.take() == "a"
    service_queue.reject(reason, waited_ms)
    assert service_queue.take() == "spare"


def test_a_client_that_left_and_an_answer_that_was_lost_do_not() -> None:
    service_queue = a_queue(Clock(), ("a", 100.0))
    for reason in ("gone", "lost"):
        service_queue.reject(reason)  # type: ignore[arg-type]
    assert taken(service_queue, 3) == ["a"] * 3


def test_a_spare_serves_alone_where_there_is_no_other_and_where_the_others_fail() -> (
    None
):
    assert taken(a_queue(Clock()), 3) == ["spare"] * 3
    service_queue = a_queue(Clock(), ("a", 100.0))
    assert service_queue.fail("a", is_unreachable=True)
    assert taken(service_queue, 3) == ["spare"] * 3
    service_queue.readmit("a")
    assert service_queue.take() == "a"


def test_a_spare_that_fails_gets_nothing_until_it_is_well() -> None:
    service_queue = a_queue(Clock(), ("a", 10.0))
    assert service_queue.fail("spare", is_unreachable=True)
    assert taken(service_queue, 20) == ["a"] * 20
    service_queue.readmit("spare")
    assert service_queue.take() == "spare"


@in_loop
async def test_requests_that_wait_are_given_to_a_spare_that_comes() -> None:
    clock = Clock()
    service_queue = a_queue(clock, ("a", 10.0), spares=(), replica_limit=1)
    assert service_queue.take() == "a"
    waits = asyncio.create_task(service_queue.acquire())
    await asyncio.sleep(0)
    service_queue.switch(
        ServiceRoute(
            service="chat", slo_ms=100.0, shares=(("a", 10.0),), spares=("spare",)
        )
    )
    assert await waits == "spare"
