"""The group commit in front of the store: acknowledged means durable, and a full queue says so."""

import asyncio
from datetime import datetime

import pytest

from agents.base.protocol import Observation
from app.base.clock import ManualControlClock
from app.base.errors import NotFound, Unavailable
from app.store.ingest_queue import IngestQueue
from app.store.store import Ingested


class RecordingStore:
    """Takes observations when it is allowed to; can be told to fail."""

    def __init__(self) -> None:
        self.commits: list[tuple[Observation, ...]] = []
        self.open = asyncio.Event()
        self.fails = False
        self.unknown: tuple[str, ...] = ()

    async def ingest(
        self, observations: tuple[Observation, ...], received: datetime
    ) -> Ingested:
        await self.open.wait()
        if self.fails:
            raise ConnectionError("the database is away")
        self.commits.append(observations)
        return Ingested(
            acknowledged={
                (entry.node, entry.boot): entry.sequence for entry in observations
            },
            unknown_nodes=self.unknown,
        )


def observation(node: str, sequence: int = 1) -> Observation:
    return Observation(
        node=node,
        boot="b",
        sequence=sequence,
        window_start_s=0.0,
        window_s=1.0,
        generation=0,
    )


def queue_on(store: RecordingStore, limit: int = 100) -> IngestQueue:
    queue = IngestQueue(store, ManualControlClock(), limit=limit)  # type: ignore[arg-type]
    queue.start()
    return queue


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_observations_that_wait_are_committed_together() -> None:
    async def scenario() -> None:
        store = RecordingStore()
        queue = queue_on(store)
        first = asyncio.create_task(queue.add(observation("n0")))
        await settle()
        rest = [
            asyncio.create_task(queue.add(observation(f"n{i}", sequence=i)))
            for i in range(1, 9)
        ]
        await settle()
        store.open.set()
        assert await first == 1
        assert await asyncio.gather(*rest) == list(range(1, 9))
        assert [len(commit) for commit in store.commits] == [1, 8]
        await queue.stop()

    asyncio.run(scenario())


def test_nothing_is_acknowledged_before_its_commit() -> None:
    async def scenario() -> None:
        store = RecordingStore()
        queue = queue_on(store)
        waiting = asyncio.create_task(queue.add(observation("n0")))
        await settle()
        assert not waiting.done()
        store.open.set()
        await waiting
        await queue.stop()

    asyncio.run(scenario())


def test_a_failed_commit_tells_every_agent_to_send_again() -> None:
    async def scenario() -> None:
        store = RecordingStore()
        store.fails = True
        store.open.set()
        queue = queue_on(store)
        answers = await asyncio.gather(
            *(queue.add(observation(f"n{i}")) for i in range(3)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [Unavailable] * 3
        store.fails = False
        assert await queue.add(observation("n0")) == 1
        await queue.stop()

    asyncio.run(scenario())


def test_a_full_queue_refuses_at_once() -> None:
    async def scenario() -> None:
        store = RecordingStore()
        queue = queue_on(store, limit=2)
        tasks = [asyncio.create_task(queue.add(observation("n0")))]
        await settle()
        tasks += [asyncio.create_task(queue.add(observation(f"n{i}"))) for i in (1, 2)]
        await settle()
        with pytest.raises(Unavailable, match="2 observations wait"):
            await queue.add(observation("n9"))
        store.open.set()
        await asyncio.gather(*tasks)
        await queue.stop()

    asyncio.run(scenario())


def test_an_unknown_node_is_told_to_register() -> None:
    async def scenario() -> None:
        store = RecordingStore()
        store.open.set()
        store.unknown = ("ghost",)
        queue = queue_on(store)
        with pytest.raises(NotFound, match="apply a Node manifest"):
            await queue.add(observation("ghost"))
        await queue.stop()

    asyncio.run(scenario())


def test_stopping_commits_what_waits() -> None:
    async def scenario() -> None:
        store = RecordingStore()
        store.open.set()
        queue = queue_on(store)
        waiting = [
            asyncio.create_task(queue.add(observation(f"n{i}"))) for i in range(5)
        ]
        await settle()
        await queue.stop()
        assert await asyncio.gather(*waiting) == [1] * 5

    asyncio.run(scenario())
