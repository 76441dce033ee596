"""Seats go to the one who holds the fewest; budgets are earned at a steady rate."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from app.api.http.errors import TooMany
from app.api.http.fairness import FLOWS, FairSeats, Pace, SeatRules
from tests.app.coroutines import let_others_run
from tests.waiting import in_loop

RULES = SeatRules(what="tests", seats=3, per_token=2, waiting=2, wait_s=20.0)


class Sitters:
    """Requests that sit until they are told to go; `order` has who was seated."""

    def __init__(self, seats: FairSeats) -> None:
        self._seats = seats
        self.order: list[str] = []
        self._tasks: list[tuple[str, asyncio.Task[None], asyncio.Event]] = []

    async def come(self, *tokens: str) -> None:
        for token in tokens:
            go = asyncio.Event()
            task = asyncio.create_task(self._sit(token, go))
            self._tasks.append((token, task, go))
        await let_others_run()

    async def go(self, token: str) -> None:
        """The first of that token that sits leaves."""
        entry = next(each for each in self._tasks if each[0] == token)
        self._tasks.remove(entry)
        entry[2].set()
        await entry[1]
        await let_others_run()

    async def end(self) -> None:
        for _, task, _ in self._tasks:
            task.cancel()
        await asyncio.gather(
            *(task for _, task, _ in self._tasks), return_exceptions=True
        )

    async def _sit(self, token: str, go: asyncio.Event) -> None:
        async with self._seats.taken(token):
            self.order.append(token)
            await go.wait()


@in_loop
async def test_a_token_leaves_seats_to_others_however_many_requests_it_has() -> None:
    sitters = Sitters(FairSeats(RULES))
    await sitters.come("a", "a", "a", "a", "b")
    assert sitters.order == ["a", "a", "b"]
    await sitters.end()


@in_loop
async def test_a_free_seat_goes_to_the_token_that_holds_the_fewest() -> None:
    sitters = Sitters(FairSeats(RULES))
    await sitters.come("a", "a", "b", "a", "b", "c")
    await sitters.go("a")
    assert sitters.order == ["a", "a", "b", "c"]
    await sitters.end()


@in_loop
async def test_with_one_seat_tokens_take_turns_and_none_has_two_in_a_row() -> None:
    sitters = Sitters(FairSeats(replace(RULES, seats=1, per_token=1)))
    await sitters.come("a", "a", "a", "b")
    for token in ("a", "b", "a"):
        await sitters.go(token)
    assert sitters.order == ["a", "b", "a", "a"]
    await sitters.end()


@in_loop
async def test_who_waits_too_long_or_behind_too_many_is_told_the_limit() -> None:
    seats = FairSeats(replace(RULES, wait_s=0.01, retry_after_s=7.0))
    async with AsyncExitStack() as stack:
        for _ in range(RULES.per_token):
            await stack.enter_async_context(seats.taken("a"))
        with pytest.raises(TooMany, match="tests: 2 at a time") as refused:
            async with seats.taken("a"):
                pass
        assert refused.value.retry_after_s == 7.0
    seats = FairSeats(RULES)
    sitters = Sitters(seats)
    await sitters.come("a", "a", "a", "a", "b")
    with pytest.raises(TooMany):
        async with seats.taken("a"):
            pass
    await sitters.end()


@in_loop
async def test_a_seat_that_is_given_to_a_request_that_was_just_cancelled_is_not_lost() -> (
    None
):
    seats = FairSeats(replace(RULES, seats=1, per_token=1))
    async with seats.taken("a"):
        waiting = asyncio.create_task(seats.taken("b").__aenter__())
        await let_others_run()
        waiting.cancel()
    # The seat was free before the cancellation arrived.
    await asyncio.gather(waiting, return_exceptions=True)
    async with seats.taken("c"):
        pass


def test_a_budget_lets_a_burst_pass_then_its_rate_and_refuses_what_would_wait_too_long() -> (
    None
):
    pace = Pace(rate=10.0, burst=20.0, wait_s=1.0)
    waits = [pace.take("a", 1.0, 100.0) for _ in range(30)]
    # Twenty at once; each further one a tenth of a second after the one before it.
    assert waits[:20] == [0.0] * 20
    assert waits[20:] == pytest.approx([0.1 * step for step in range(1, 11)])
    with pytest.raises(TooMany, match="10 requests per second") as refused:
        pace.take("a", 1.0, 100.0)
    assert refused.value.retry_after_s == pytest.approx(1.1)
    # What was refused costs nothing, others have budgets of their own, and time earns it back.
    assert pace.take("b", 1.0, 100.0) == 0.0
    assert pace.take("a", 1.0, 103.0) == 0.0


def test_an_expensive_request_costs_as_much_as_several() -> None:
    pace = Pace(rate=10.0, burst=20.0, wait_s=1.0)
    assert [pace.take("a", 10.0, 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]


def test_the_table_of_budgets_is_bounded() -> None:
    pace = Pace(rate=1.0, burst=1.0, wait_s=0.0)
    for number in range(FLOWS + 10):
        pace.take(str(number), 1.0, 0.0)
    assert len(pace) == FLOWS
