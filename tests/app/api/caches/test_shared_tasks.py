"""Answers that several wait for."""

import asyncio

import pytest

from app.api.caches import shared_tasks
from tests.waiting import in_loop


@in_loop
async def test_it_goes_on_when_who_asked_gives_up_and_ends_with_the_application() -> (
    None
):
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # As a connection is given back, which takes turns of the loop.
            await asyncio.sleep(0.0)
            ended.append("work")

    task = shared_tasks.begin(work(), "snapshot")
    asking = asyncio.ensure_future(asyncio.shield(task))
    await asyncio.sleep(0.0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not task.done()
    await shared_tasks.end_all()
    assert ended == ["work"]


@in_loop
async def test_one_that_ignores_its_end_does_not_hang_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_tasks, "END_WITHIN_S", 0.01)

    async def stubborn(may_end: asyncio.Event) -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    may_end = asyncio.Event()
    task = shared_tasks.begin(stubborn(may_end), "check")
    await asyncio.sleep(0.0)
    await shared_tasks.end_all()
    assert not task.done()
    may_end.set()
    await task
