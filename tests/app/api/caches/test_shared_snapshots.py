"""Shared snapshots: many who ask are served by few loads, and none by one that began before they asked."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from app.api.caches.shared_snapshots import SharedSnapshots
from app.base.clock import WallClock
from app.base.errors import Unavailable
from app.store.memory_store import MemoryStore
from app.store.store import PolicySettings, Snapshot
from tests.app.coroutines import let_others_run
from tests.waiting import in_loop


@dataclass(slots=True, kw_only=True)
class SlowStore(MemoryStore):
    """A load reads at once, and ends when it is told to."""

    began: int = 0
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    is_away: bool = False

    async def load_snapshot(self, now: datetime) -> Snapshot:
        self.began += 1
        snapshot = await MemoryStore.load_snapshot(self, now)
        await self.goes_on.wait()
        if self.is_away:
            raise Unavailable("the database does not answer")
        return snapshot


@in_loop
async def test_all_who_ask_during_a_load_share_the_next_one() -> None:
    store = SlowStore()
    shared = SharedSnapshots(store, WallClock())
    first = asyncio.create_task(shared.load())
    await let_others_run()
    others = [asyncio.create_task(shared.load()) for _ in range(100)]
    await let_others_run()
    assert store.began == 1
    # One that is given up leaves the snapshot to the others.
    others.pop().cancel()
    store.goes_on.set()
    found = await asyncio.gather(*others)
    assert store.began == 2
    assert all(each is found[0] for each in found)
    assert await first is not found[0]


@in_loop
async def test_whoever_changed_something_sees_it() -> None:
    store = SlowStore()
    shared = SharedSnapshots(store, WallClock())
    earlier = asyncio.create_task(shared.load())
    await let_others_run()
    store.settings = PolicySettings(period_s=17.0)
    later = asyncio.create_task(shared.load())
    await let_others_run()
    store.goes_on.set()
    assert (await earlier).settings.period_s != 17.0
    assert (await later).settings.period_s == 17.0


@in_loop
async def test_loads_leave_most_of_the_time_to_others() -> None:
    store = SlowStore()
    shared = SharedSnapshots(store, WallClock())
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    # Moved by the test alone: a machine that stands still adds nothing to the load.
    loop.time = lambda: now_s  # type: ignore[method-assign]
    first = asyncio.create_task(shared.load())
    await let_others_run()
    second = asyncio.create_task(shared.load())
    now_s += 0.1
    store.goes_on.set()
    await first
    # Three times as long as the load took.
    now_s += 0.29
    await let_others_run()
    assert store.began == 1
    now_s += 0.02
    await let_others_run()
    assert store.began == 2
    await second


@in_loop
async def test_a_load_that_fails_fails_for_all_who_share_it_and_no_longer() -> None:
    store = SlowStore(is_away=True)
    store.goes_on.set()
    shared = SharedSnapshots(store, WallClock())
    both = [asyncio.create_task(shared.load()) for _ in range(2)]
    for each in both:
        with pytest.raises(Unavailable, match="does not answer"):
            await each
    store.is_away = False
    assert (await shared.load()).settings == PolicySettings()
