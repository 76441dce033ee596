"""Waits for several at once: what becomes of the others when one has said or raised something."""

import asyncio

import pytest

from agents.base.device import DeviceError
from agents.base.waits import together
from tests.waiting import in_loop


@in_loop
async def test_where_one_raises_the_others_have_ended() -> None:
    ended = []

    async def mute() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            # An end that takes a moment of its own, as that of a connection.
            await asyncio.sleep(0)
            ended.append("mute")
        return 0

    async def failing() -> int:
        await asyncio.sleep(0)
        raise DeviceError("no answer")

    with pytest.raises(DeviceError, match="no answer"):
        await together(mute(), failing())
    assert ended == ["mute"]


@in_loop
async def test_answers_come_in_the_order_of_the_questions() -> None:
    async def answer(number: int) -> int:
        for _ in range(3 - number):
            await asyncio.sleep(0)
        return number

    assert await together(answer(1), answer(2)) == [1, 2]
    assert await together() == []
