"""The feed: everything first, then what changed; loaded once for all, and not at all without a listener."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from app.api.caches.token_news import TokenNews
from app.api.http.errors import TooMany
from app.api.http.parts import ApiParts
from app.base.errors import NotFound, Unavailable
from app.db.base.listen import RECONNECT
from app.web.topics import feed as feed_module
from app.web.topics.feed import (
    ARGUMENTS_PER_TOKEN,
    MAX_PENDING,
    STREAMS_PER_TOKEN,
    TopicFeed,
)
from app.web.topics.topic import Items, Look, Topic
from tests.waiting import in_loop

NOWHERE = cast(ApiParts, None)
"""These topics load nothing from the control plane."""
LOOK = Look(parts=NOWHERE)


@dataclass
class Source:
    """A table that the test changes, and how often it was loaded."""

    items: dict[str, Any] = field(default_factory=dict)
    loads: int = 0
    fault: Exception | None = None
    was_loaded: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def load(self, look: Look) -> Items:
        self.loads += 1
        async with self.was_loaded:
            self.was_loaded.notify_all()
        if self.fault is not None:
            raise self.fault
        return dict(self.items)

    async def loaded(self, loads: int) -> None:
        """Wait until it was loaded so often."""
        async with self.was_loaded:
            await self.was_loaded.wait_for(lambda: self.loads >= loads)


def make_feed(
    source: Source,
    stopping: asyncio.Event | None = None,
    *,
    takes_argument: bool = False,
) -> TopicFeed:
    async def exists(look: Look) -> bool:
        return not look.argument.startswith("made-up")

    topic = Topic(
        name="fleet",
        load=source.load,
        period_s=0.01,
        exists=exists if takes_argument else None,
    )
    return TopicFeed({"fleet": topic}, stopping or asyncio.Event())


async def next_event(stream: AsyncIterator[bytes]) -> tuple[str, Any]:
    """The next event's name and data; what only keeps the connection is passed over."""
    async for message in stream:
        for event in message.split(b"\n\n"):
            if event.startswith(b"event: "):
                name, data = event.split(b"\n", 1)
                return name.removeprefix(b"event: ").decode(), msgspec.json.decode(
                    data.removeprefix(b"data: ")
                )
    raise AssertionError("the stream ended")


async def some_periods() -> None:
    """Return after thirty loads of another table with the same period."""
    other = Source()
    stream = make_feed(other).stream({"fleet": LOOK})
    await next_event(stream)
    await other.loaded(30)
    await stream.aclose()  # type: ignore[attr-defined]


@in_loop
async def test_everything_comes_first_and_then_only_what_changed() -> None:
    source = Source(items={"a": 1, "b": 2, "c": 3})
    stream = make_feed(source).stream({"fleet": LOOK})
    assert await next_event(stream) == (
        "fleet",
        {"all": True, "set": {"a": 1, "b": 2, "c": 3}},
    )
    source.items = {"a": 1, "b": 5}
    assert await next_event(stream) == ("fleet", {"set": {"b": 5}, "gone": ["c"]})
    source.items = {"a": 1, "b": 5, "d": [1.5]}
    assert await next_event(stream) == ("fleet", {"set": {"d": [1.5]}})
    await stream.aclose()  # type: ignore[attr-defined]


@in_loop
async def test_a_page_is_shown_with_what_others_look_at_already() -> None:
    source = Source(items={"a": 1})
    feed = make_feed(source)
    assert await feed.load(LOOK, "fleet") == {"a": 1}
    stream = feed.stream({"fleet": LOOK})
    await next_event(stream)
    source.fault = Unavailable("the database is gone")
    assert msgspec.json.encode(await feed.load(LOOK, "fleet")) == b'{"a":1}'
    await stream.aclose()  # type: ignore[attr-defined]
    # No one looks any more: what was loaded before would be old.
    with pytest.raises(Unavailable):
        await feed.load(LOOK, "fleet")


@in_loop
async def test_arguments_of_a_topic_that_takes_none_cost_no_loads() -> None:
    source = Source(items={"a": 1})
    feed = make_feed(source)
    looks = [Look(parts=NOWHERE, argument=f"x{number}") for number in range(25)]
    streams = [feed.stream({"fleet": look}) for look in looks]
    first = await asyncio.gather(*map(next_event, streams))
    assert first == [("fleet", {"all": True, "set": {"a": 1}})] * 25
    assert source.loads <= 3


@in_loop
async def test_topics_of_objects_that_do_not_exist_are_loaded_for_nobody() -> None:
    feed = make_feed(Source(), takes_argument=True)
    made_up = Look(parts=NOWHERE, argument="made-up")
    with pytest.raises(NotFound, match="fleet/made-up"):
        await feed.existing({"fleet": made_up})
    looks = {"fleet": Look(parts=NOWHERE, argument="n1")}
    assert await feed.existing(looks) == looks


@in_loop
async def test_a_token_follows_so_many_objects_and_is_told_the_limit() -> None:
    feed = make_feed(Source(items={"a": 1}), takes_argument=True)

    def follow(name: str, token: str = "greedy") -> AsyncIterator[bytes]:
        return feed.stream({"fleet": Look(parts=NOWHERE, argument=name)}, token)

    streams = [follow(f"n{number}") for number in range(ARGUMENTS_PER_TOKEN)]
    await asyncio.gather(*map(next_event, streams))
    with pytest.raises(TooMany, match=f"{ARGUMENTS_PER_TOKEN} services and GPUs"):
        follow("one-more")
    # What it follows already costs no further load, and others' tokens have limits of their own.
    for again in (follow("n1"), follow("one-more", "other")):
        await next_event(again)
    await streams[0].aclose()  # type: ignore[attr-defined]
    await next_event(follow("one-more"))


@in_loop
async def test_many_arguments_are_loaded_less_often_so_that_they_cost_what_a_few_do() -> (
    None
):
    source = Source(items={"a": 1})
    feed = make_feed(source, takes_argument=True)
    looks = [Look(parts=NOWHERE, argument=f"x{number}") for number in range(200)]
    streams = [
        feed.stream({"fleet": look}, f"token-{number // 40}")
        for number, look in enumerate(looks)
    ]
    await asyncio.gather(*map(next_event, streams))
    first_loads = source.loads
    await some_periods()  # In which 6,000 loads would be due.
    assert source.loads - first_loads < 250


@in_loop
async def test_many_lookers_cost_one_load_and_nobody_costs_none() -> None:
    source = Source(items={"a": 1})
    feed = make_feed(source)
    streams = [feed.stream({"fleet": LOOK}) for _ in range(20)]
    first = await asyncio.gather(*map(next_event, streams))
    assert first == [("fleet", {"all": True, "set": {"a": 1}})] * 20
    # One task loads for all twenty: they joined while it was at its first load, or soon after.
    assert source.loads <= 3
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    loads = source.loads
    await some_periods()
    assert source.loads == loads


@in_loop
async def test_who_sees_less_has_a_table_of_his_own() -> None:
    async def load(look: Look) -> Items:
        return dict.fromkeys(look.projects or ("all",), True)

    feed = TopicFeed(
        {"services": Topic(name="services", load=load, period_s=0.01)},
        asyncio.Event(),
    )
    everybody = feed.stream({"services": LOOK})
    one = feed.stream({"services": Look(parts=NOWHERE, projects=("a",))})
    assert (await next_event(everybody))[1]["set"] == {"all": True}
    assert (await next_event(one))[1]["set"] == {"a": True}


@in_loop
async def test_who_is_slow_gets_everything_anew_and_holds_no_more_than_a_few_changes() -> (
    None
):
    source = Source(items={"a": 0, "b": 0})
    stream = make_feed(source).stream({"fleet": LOOK})
    await next_event(stream)
    for step in range(1, 2 * MAX_PENDING):
        loads, source.items = source.loads, {"a": step, "b": 0}
        await source.loaded(loads + 2)
    seen: list[object] = []
    while not seen or seen[-1] != {
        "all": True,
        "set": {"a": 2 * MAX_PENDING - 1, "b": 0},
    }:
        due = await anext(stream)
        seen += [
            msgspec.json.decode(part.split(b"data: ")[1])
            for part in due.split(b"\n\n")
            if b"data: " in part
        ]
    assert len(seen) <= MAX_PENDING + 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Unavailable("the database is away"), "the database is away"),
        (KeyError("x"), "could not load"),
    ],
)
@in_loop
async def test_a_fault_is_told_and_it_goes_on(fault: Exception, words: str) -> None:
    source = Source(items={"a": 1}, fault=fault)
    stream = make_feed(source).stream({"fleet": LOOK})
    name, data = await next_event(stream)
    assert name == "trouble"
    assert words in data
    source.fault = None
    while name == "trouble":
        name, data = await next_event(stream)
    assert data == {"all": True, "set": {"a": 1}}


@in_loop
async def test_streams_end_with_the_server() -> None:
    stopping = asyncio.Event()
    stream = make_feed(Source(), stopping).stream({"fleet": LOOK})
    await next_event(stream)
    stopping.set()
    assert [message async for message in stream if message.startswith(b"event")] == []


@in_loop
async def test_a_stream_on_which_much_happens_ends_with_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "BEAT_S", 0.02)

    source, checks = Source(), iter([True, True])

    async def is_valid() -> bool:
        return next(checks, False)

    stream = make_feed(source).stream({"fleet": LOOK}, "a", is_valid)
    messages = []
    async for message in stream:
        messages.append(message)
        source.items = {"a": source.loads}
    assert messages.count(feed_module.BEAT) == 2


class Announced:
    """What other processes announce."""

    def __init__(self) -> None:
        self.roots: asyncio.Queue[str] = asyncio.Queue()

    async def listen(self) -> AsyncIterator[str]:
        while True:
            yield await self.roots.get()


@pytest.mark.parametrize("announced", ["mine", RECONNECT])
@in_loop
async def test_a_stream_ends_as_soon_as_another_process_ends_its_token(
    announced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "BEAT_S", 1e6)
    others = Announced()
    news = TokenNews(others)
    news.start()
    is_revoked = asyncio.Event()

    async def is_valid() -> bool:
        return not is_revoked.is_set()

    stream = make_feed(Source()).stream({"fleet": LOOK}, "mine", is_valid, news)
    # `retry`, then the items: it is under way.
    await anext(stream)
    await anext(stream)
    # Somebody else's changes do not end it, and neither does a change that leaves the token valid.
    others.roots.put_nowait("theirs")
    others.roots.put_nowait("mine")
    assert await anext(stream) == feed_module.BEAT
    is_revoked.set()
    others.roots.put_nowait(announced)
    assert [message async for message in stream] == []
    await news.stop()


@in_loop
async def test_one_token_opens_no_more_streams_than_its_share() -> None:
    feed = make_feed(Source())
    greedy = [feed.stream({"fleet": LOOK}, "a") for _ in range(STREAMS_PER_TOKEN)]
    for stream in greedy:
        await anext(stream)
    with pytest.raises(TooMany, match=str(STREAMS_PER_TOKEN)):
        feed.stream({"fleet": LOOK}, "a")
    await anext(feed.stream({"fleet": LOOK}, "b"))
    await greedy[0].aclose()  # type: ignore[attr-defined]
    await anext(feed.stream({"fleet": LOOK}, "a"))


@in_loop
async def test_too_many_are_refused_until_one_leaves() -> None:
    feed = make_feed(Source())
    streams = [
        feed.stream({"fleet": LOOK}, str(number))
        for number in range(feed_module.MAX_STREAMS)
    ]
    for stream in streams:
        await anext(stream)
    with pytest.raises(TooMany, match=str(feed_module.MAX_STREAMS)):
        feed.stream({"fleet": LOOK})
    await streams[0].aclose()  # type: ignore[attr-defined]
    await anext(feed.stream({"fleet": LOOK}))
