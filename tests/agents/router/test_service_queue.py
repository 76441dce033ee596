"""One service's way through the router, without HTTP."""

import asyncio
from collections import Counter

import pytest

from agents.base.device import ServiceRoute
from agents.router.service_queue import Overloaded, ServiceQueue
from tests.waiting import in_loop


def a_route(*shares: tuple[str, float], slo_ms: float = 100.0) -> ServiceRoute:
    return ServiceRoute(service="chat", slo_ms=slo_ms, shares=shares)


def a_queue(
    *shares: tuple[str, float], queue_limit: int = 4, replica_limit: int = 1000
) -> ServiceQueue:
    return ServiceQueue(
        a_route(*shares), queue_limit=queue_limit, replica_limit=replica_limit
    )


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@in_loop
async def test_requests_are_shared_exactly_by_weight_and_smoothly() -> None:
    service_queue = a_queue(("a", 3.0), ("b", 1.0))
    chosen = [await service_queue.acquire() for _ in range(400)]
    assert Counter(chosen) == {"a": 300, "b": 100}
    assert all(Counter(chosen[i : i + 4]) == {"a": 3, "b": 1} for i in range(0, 400, 4))


@in_loop
async def test_weights_of_zero_share_evenly_only_among_themselves() -> None:
    idle = a_queue(("a", 0.0), ("b", 0.0))
    assert Counter([await idle.acquire() for _ in range(10)]) == {"a": 5, "b": 5}
    mixed = a_queue(("a", 0.0), ("b", 1.0))
    assert Counter([await mixed.acquire() for _ in range(10)]) == {"b": 10}


@in_loop
async def test_without_a_replica_requests_wait_in_order_until_one_comes_and_no_more_than_allowed() -> (
    None
):
    service_queue = a_queue(queue_limit=2)
    first, second = (
        asyncio.create_task(service_queue.acquire()),
        asyncio.create_task(service_queue.acquire()),
    )
    await settled()
    with pytest.raises(
        Overloaded, match="2 requests of service chat are already waiting"
    ):
        await service_queue.acquire()
    service_queue.switch(a_route(("a", 1.0)))
    assert (await first, await second) == ("a", "a")
    assert service_queue.in_flight("a") == 2


@in_loop
async def test_a_full_replica_is_passed_over_and_a_release_lets_the_next_one_in() -> (
    None
):
    service_queue = a_queue(("a", 9.0), ("b", 1.0), replica_limit=1)
    assert {await service_queue.acquire(), await service_queue.acquire()} == {"a", "b"}
    third = asyncio.create_task(service_queue.acquire())
    await settled()
    assert not third.done()
    service_queue.release("b")
    assert await third == "b"


@in_loop
async def test_a_switch_moves_new_requests_and_leaves_those_under_way() -> None:
    service_queue = a_queue(("old", 1.0))
    await service_queue.acquire()
    service_queue.switch(a_route(("new", 1.0)))
    assert await service_queue.acquire() == "new"
    assert (service_queue.in_flight("old"), service_queue.in_flight("new")) == (1, 1)
    service_queue.release("old")
    assert service_queue.in_flight("old") == 0


@in_loop
async def test_a_request_that_gives_up_loses_neither_its_place_nor_anybody_elses() -> (
    None
):
    service_queue = a_queue(replica_limit=1)
    impatient, patient = (
        asyncio.create_task(service_queue.acquire()),
        asyncio.create_task(service_queue.acquire()),
    )
    await settled()
    service_queue.switch(
        a_route(("a", 1.0))
    )  # the turn of the first has come, but it gives up before it runs
    impatient.cancel()
    assert await patient == "a"
    assert service_queue.in_flight("a") == 1


@in_loop
async def test_a_request_that_gives_up_while_waiting_frees_its_place() -> None:
    service_queue = a_queue(queue_limit=1)
    waiting = asyncio.create_task(service_queue.acquire())
    await settled()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert service_queue.read().queued == 0


@in_loop
async def test_a_service_that_leaves_turns_its_waiting_requests_away() -> None:
    service_queue = a_queue()
    waiting = asyncio.create_task(service_queue.acquire())
    await settled()
    service_queue.close()
    with pytest.raises(Overloaded, match="has left"):
        await waiting


@in_loop
async def test_readings_count_each_request_once() -> None:
    service_queue = a_queue(("a", 1.0))
    for latency_ms in (50.0, 100.0, 100.1):
        service_queue.arrive()
        service_queue.release(await service_queue.acquire())
        service_queue.finish(latency_ms)
    service_queue.arrive()
    service_queue.reject()
    service_queue.arrive()
    await service_queue.acquire()
    reading = service_queue.read()
    assert (
        reading.arrivals,
        reading.served,
        reading.in_slo,
        reading.rejected,
        reading.queued,
    ) == (5, 3, 2, 1, 1)
    assert sum(count for _, count in reading.latency_buckets) == 3
    assert service_queue.read().arrivals == 0


@in_loop
async def test_a_replica_that_fails_gets_nothing_until_it_is_readmitted() -> None:
    service_queue = a_queue(("a", 1.0), ("b", 1.0))
    assert service_queue.fail("a", is_unreachable=True)
    assert Counter([await service_queue.acquire() for _ in range(10)]) == {"b": 10}
    assert (
        sorted(service_queue.out),
        service_queue.members,
        service_queue.has_other("b"),
        service_queue.has_other("a"),
    ) == (["a"], 2, False, True)
    for _ in range(10):
        service_queue.release("b")
    service_queue.readmit("a")
    assert Counter([await service_queue.acquire() for _ in range(10)]) == {
        "a": 5,
        "b": 5,
    }


@in_loop
async def test_those_who_wait_go_to_a_replica_that_is_readmitted() -> None:
    service_queue = a_queue(("a", 1.0), ("b", 1.0), replica_limit=1)
    service_queue.fail("a", is_unreachable=True)
    assert await service_queue.acquire() == "b"
    waiting = asyncio.create_task(service_queue.acquire())
    await settled()
    assert service_queue.waiting == 1
    service_queue.readmit("a")
    assert await waiting == "a"


@in_loop
async def test_who_is_turned_away_comes_again_when_the_queue_has_gone_by() -> None:
    now_s = 100.0
    service_queue = ServiceQueue(
        a_route(), queue_limit=100, replica_limit=1, now_s=lambda: now_s
    )
    waiting = [asyncio.create_task(service_queue.acquire()) for _ in range(40)]
    await settled()
    assert service_queue.retry_after_s() == 1  # it is unknown how fast answers come
    for now_s in (101.0, 102.0, 103.0, 104.0):  # noqa: B007  the lane's clock
        for _ in range(5):
            service_queue.succeed("a")
    # 20 answers in the 5 s before and the 4 s of this window are 20 / 9 per second: 40 wait for 18 s.
    assert service_queue.retry_after_s() == 18
    now_s = 109.0  # 20 in the window before, none in 4 s of this one: the same
    assert service_queue.retry_after_s() == 18
    now_s = 1000.0
    assert service_queue.retry_after_s() == 1
    now_s = 1004.0
    service_queue.succeed("a")
    assert service_queue.retry_after_s() == 60  # 1 answer in 9 s would be 360 s
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
