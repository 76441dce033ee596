"""The demo's clock: jumps while it is behind the machine's, and is real from there on; two processes read the same."""

import asyncio
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context

import pytest

from app.base.clock import CatchingUpClock
from tests.waiting import run


def test_behind_the_machine_s_clock_time_jumps() -> None:
    start = datetime.now(UTC) - timedelta(hours=1)
    clock = CatchingUpClock(start)
    # In reality it would take longer than the patience of this.
    run(clock.sleep(1800.0))
    assert clock.now() == start + timedelta(minutes=30)


def test_it_never_gets_ahead_of_the_machine_s_clock() -> None:
    clock = CatchingUpClock(datetime.now(UTC) - timedelta(seconds=10))

    async def pass_time() -> None:
        # Ten seconds at once; what goes beyond takes as long as it does in reality.
        for _ in range(102):
            await clock.sleep(0.1)

    asyncio.run(pass_time())
    assert clock.now() <= datetime.now(UTC) + timedelta(milliseconds=1)


def test_time_never_falls() -> None:
    with pytest.raises(ValueError, match="time never goes backwards"):
        CatchingUpClock(datetime.now(UTC)).advance(-1.0)


def test_whoever_made_it_reads_where_another_process_has_moved_it() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    clock = CatchingUpClock(start)
    child = get_context("spawn").Process(target=clock.advance, args=(15.0,))
    child.start()
    child.join()
    assert clock.now() == start + timedelta(seconds=15)
