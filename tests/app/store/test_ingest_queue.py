"""The group commit in front of the store: acknowledged means durable, and a full queue says so."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime

import pytest

from agents.base.protocol import Observation
from app.base.clock import ManualControlClock
from app.base.errors import InvalidRequest, NotFound, Unavailable
from app.store.ingest_queue import IngestQueue
from app.store.reportable import Ingested
from app.store.store import AuditEvent
from tests.waiting import in_loop


class RecordingStore:
    """Takes observations when it is allowed to; can be told to fail."""

    def __init__(self) -> None:
        self.commits: list[tuple[Observation, ...]] = []
        self.open = asyncio.Event()
        self.fails = False
        self.calls_until_away: int | None = None
        self.unknown: tuple[str, ...] = ()
        self.unkeepable: frozenset[str] = frozenset()
        """Nodes whose observations the database can never keep."""
        self.dropped: Mapping[str, int] = {}
        self.calls = 0
        self.events: list[AuditEvent] = []

    async def add_events(self, *lines: AuditEvent) -> None:
        self._require_database()
        self.events.extend(lines)

    def _require_database(self) -> None:
        if self.fails or self.calls == self.calls_until_away:
            raise ConnectionError("the database is away")

    async def ingest(
        self, observations: tuple[Observation, ...], received: datetime
    ) -> Ingested:
        await self.open.wait()
        self._require_database()
        self.calls += 1
        if self.unkeepable & {entry.node for entry in observations}:
            raise InvalidRequest("the database cannot store this: integer out of range")
        self.commits.append(observations)
        return Ingested(
            acknowledged={
                (entry.node, entry.boot): entry.sequence for entry in observations
            },
            unknown_nodes=self.unknown,
            dropped=self.dropped,
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


def queue_on(
    store: RecordingStore,
    limit: int = 100,
    on_dropped: Callable[[Mapping[str, int]], None] = lambda _dropped: None,
) -> IngestQueue:
    queue = IngestQueue(
        store,  # type: ignore[arg-type]
        ManualControlClock(),
        limit=limit,
        on_dropped=on_dropped,
    )
    queue.start()
    return queue


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@in_loop
async def test_observations_that_wait_are_committed_together() -> None:
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


@in_loop
async def test_nothing_is_acknowledged_before_its_commit() -> None:
    store = RecordingStore()
    queue = queue_on(store)
    waiting = asyncio.create_task(queue.add(observation("n0")))
    await settle()
    assert not waiting.done()
    store.open.set()
    await waiting
    await queue.stop()


@in_loop
async def test_a_failed_commit_tells_every_agent_to_send_again() -> None:
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


async def answers_to(queue: IngestQueue, count: int, turn: int = 1) -> list[object]:
    """What `count` nodes are told that report in one group."""
    return await asyncio.gather(
        *(queue.add(observation(f"n{i}", turn)) for i in range(count)),
        return_exceptions=True,
    )


@pytest.mark.parametrize("culprits", [{"n0"}, {"n63"}, {"n20", "n21"}, {"n5", "n60"}])
@in_loop
async def test_one_observation_that_cannot_be_kept_is_refused_and_all_others_are_committed(
    culprits: set[str],
) -> None:
    store = RecordingStore()
    store.unkeepable = frozenset(culprits)
    store.open.set()
    queue = queue_on(store)
    answers = await answers_to(queue, 64)
    refused = {
        f"n{number}"
        for number, answer in enumerate(answers)
        if isinstance(answer, InvalidRequest)
    }
    assert refused == culprits
    assert answers.count(1) == 64 - len(culprits)
    kept = [entry.node for commit in store.commits for entry in commit]
    assert sorted(kept) == sorted({f"n{i}" for i in range(64)} - culprits)
    # The whole group, then both halves at each of log2(64) levels.
    assert store.calls <= 1 + 2 * 6 * len(culprits)
    await queue.stop()


@in_loop
async def test_a_node_whose_observations_are_refused_is_one_event_an_hour() -> None:
    store = RecordingStore()
    store.unkeepable = frozenset(["n1"])
    store.open.set()
    queue = queue_on(store)
    for turn in (1, 2, 3):
        await answers_to(queue, 3, turn)
    (line,) = store.events
    assert (line.kind, line.subject) == ("ObservationRefused", "node/n1")
    assert "integer out of range" in line.reason
    await queue.stop()


@in_loop
async def test_a_database_that_goes_away_while_a_culprit_is_sought_defers_all_that_are_left() -> (
    None
):
    store = RecordingStore()
    store.unkeepable = frozenset(["n3"])
    # The whole group and its first half; then the second half meets no database.
    store.calls_until_away = 2
    store.open.set()
    queue = queue_on(store)
    answers = await answers_to(queue, 4)
    assert answers[:2] == [1, 1]
    assert [type(each) for each in answers[2:]] == [Unavailable] * 2
    await queue.stop()


@in_loop
async def test_an_audit_that_cannot_be_written_does_not_end_the_commits() -> None:
    store = RecordingStore()
    store.unkeepable = frozenset(["n0"])
    store.calls_until_away = 1
    store.open.set()
    queue = queue_on(store)
    with pytest.raises(InvalidRequest):
        await queue.add(observation("n0"))
    store.calls_until_away = None
    assert await queue.add(observation("n1")) == 1
    await queue.stop()


@in_loop
async def test_a_full_queue_refuses_at_once() -> None:
    store = RecordingStore()
    queue = queue_on(store, limit=2)
    tasks = [asyncio.create_task(queue.add(observation("n0")))]
    await settle()
    tasks += [asyncio.create_task(queue.add(observation(f"n{i}"))) for i in (1, 2)]
    await settle()
    with pytest.raises(Unavailable, match="2 observations are already waiting"):
        await queue.add(observation("n9"))
    store.open.set()
    await asyncio.gather(*tasks)
    await queue.stop()


@in_loop
async def test_an_unknown_node_is_told_to_register() -> None:
    store = RecordingStore()
    store.open.set()
    store.unknown = ("ghost",)
    queue = queue_on(store)
    with pytest.raises(NotFound, match="apply a Node manifest"):
        await queue.add(observation("ghost"))
    await queue.stop()


@in_loop
async def test_stopping_commits_what_waits() -> None:
    store = RecordingStore()
    store.open.set()
    queue = queue_on(store)
    waiting = [asyncio.create_task(queue.add(observation(f"n{i}"))) for i in range(5)]
    await settle()
    await queue.stop()
    assert await asyncio.gather(*waiting) == [1] * 5
