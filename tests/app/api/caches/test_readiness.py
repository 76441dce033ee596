"""Readiness: one set of checks at a time, and one per second, however many ask."""

import asyncio

from app.api.caches.readiness import Readiness
from tests.app.coroutines import let_others_run
from tests.waiting import in_loop


class Database:
    """A part that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = asyncio.Event()
        self.problem: str | None = None

    async def check(self) -> str | None:
        self.asked += 1
        await self.answers.wait()
        return self.problem


@in_loop
async def test_a_flood_of_probes_asks_the_database_once() -> None:
    database, readiness = Database(), Readiness()
    checks = {"database": database.check}
    probes = [asyncio.create_task(readiness.load(checks)) for _ in range(1000)]
    await let_others_run()
    # One that is given up leaves the answer to the others.
    probes.pop().cancel()
    database.answers.set()
    assert await asyncio.gather(*probes) == [{"database": None}] * 999
    assert database.asked == 1
