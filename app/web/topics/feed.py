"""The feed: what changes on the pages, as server-sent events to every browser that looks.

A Topic is a table of items by key, loaded again every moment while somebody looks at it, once for all who do. Browsers
get all items first and then only those that changed:

    event: fleet
    data: {"all": true, "set": {"gpu-01/gpu-0": {...}, ...}}

    event: fleet
    data: {"set": {"gpu-01/gpu-0": {...}}, "gone": ["gpu-02/gpu-3"]}

What a topic shows may depend on who looks: a token that is bound to projects has topics of its own.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec
import structlog

from app.api.caches.token_news import TokenNews
from app.api.http.errors import TooMany
from app.base.errors import NotFound, Unavailable
from app.web.topics.topic import FEED, Items, Look, Topic

log = structlog.get_logger(__name__)

BEAT_S = 15.0
"""So often an event is sent, that proxies keep the connection and pages know that nothing is new. The caller's token is
checked again, too, as it is when this process hears that it changed."""
STREAM_S = 300.0
"""Then the browser comes back by itself."""
MAX_STREAMS = 500
STREAMS_PER_TOKEN = 64
"""Several people may share a token, and each has a stream per page that is open."""
ARGUMENT_LOADS_PER_S = 20.0
"""All topics with an argument together: beyond, each is loaded less often. One page needs 1.4."""
ARGUMENTS_PER_TOKEN = 40
"""Different topics with an argument: as many pages. They slow such topics down to 2 s for everybody."""
MAX_PENDING = 16
"""Changes that a slow browser may be behind; beyond, it gets everything again."""
RETRY = b"retry: 2000\n\n"
BEAT = b"event: beat\ndata: {}\n\n"


Key: TypeAlias = tuple[str, str, tuple[str, ...] | None]
"""Topic, argument, projects."""


@dataclass(slots=True, eq=False)
class _Listener:
    """One browser: what it has yet to be sent."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    pending: list[bytes] = field(default_factory=list)
    behind: set[Key] = field(default_factory=set)
    """Topics of which it must get everything."""
    is_doubtful: bool = False
    """Its token changed: whether it is still valid must be asked."""

    def doubt(self) -> None:
        """Its token changed."""
        self.is_doubtful = True
        self.changed.set()

    def add(self, key: Key, message: bytes) -> None:
        # A browser that does not read must not make the server remember everything that happens.
        if len(self.pending) < MAX_PENDING:
            self.pending.append(message)
        else:
            self.behind.add(key)
        self.changed.set()


class _Channel:
    """One topic with all who look at it."""

    def __init__(
        self, topic: Topic, look: Look, key: Key, *, period_s: Callable[[Topic], float]
    ) -> None:
        """`period_s`: from one load of a topic to the next, as it is now."""
        self._topic, self._look, self._key = topic, look, key
        self._period_s = period_s
        self._items: dict[str, bytes] = {}
        self._is_loaded = False
        self.listeners: set[_Listener] = set()
        self.task: asyncio.Task[None] | None = None

    def join(self, listener: _Listener) -> None:
        """Begin to tell somebody: everything first."""
        self.listeners.add(listener)
        # Others look already: what they see is as new as the last load.
        if self._is_loaded:
            listener.add(self._key, self.everything())
        # The first listener starts the loading, for all who come after.
        if self.task is None:
            self.task = asyncio.create_task(
                self._run(), name=f"plimsoll-feed-{self._topic.name}"
            )

    def leave(self, listener: _Listener) -> None:
        """Tell somebody no more; without anybody there is nothing to load."""
        self.listeners.discard(listener)
        if not self.listeners and self.task is not None:
            self.task.cancel()
            self.task = None
            # The next listener must not get what was loaded before the pause.
            self._is_loaded = False

    @property
    def encoded(self) -> Mapping[str, msgspec.Raw] | None:
        """All items as they are sent; None before the first load."""
        if not self._is_loaded:
            return None
        return {key: msgspec.Raw(item) for key, item in self._items.items()}

    def everything(self) -> bytes:
        """All items in one event."""
        return self._event(b'{"all":true,"set":' + _object(self._items) + b"}")

    async def _run(self) -> None:
        now_s = asyncio.get_running_loop().time
        while True:
            began_s = now_s()
            try:
                self._take(await self._topic.load(self._look))
            # The streams stay open: the page says what is wrong, and goes on by itself when the database is back.
            except Unavailable as error:
                self._send(_message("trouble", msgspec.json.encode(str(error))))
            except Exception:
                log.exception(
                    "the dashboard cannot load a topic", topic=self._topic.name
                )
                self._send(
                    _message(
                        "trouble",
                        b'"the control plane could not load this; its log says why"',
                    )
                )
            period_s = self._period_s(self._topic)
            await asyncio.sleep(self._topic.pause_s(period_s, now_s() - began_s))

    def _take(self, items: Items) -> None:
        # Compared as bytes: an item is encoded once, however many browsers it goes to.
        fresh = {key: msgspec.json.encode(item) for key, item in items.items()}
        changed = {
            key: item for key, item in fresh.items() if self._items.get(key) != item
        }
        gone = [key for key in self._items if key not in fresh]
        self._items = fresh
        if not self._is_loaded:
            self._is_loaded = True
            self._send(self.everything())
        elif changed or gone:
            lost = b',"gone":' + msgspec.json.encode(gone) if gone else b""
            self._send(self._event(b'{"set":' + _object(changed) + lost + b"}"))

    def _send(self, message: bytes) -> None:
        for listener in self.listeners:
            listener.add(self._key, message)

    def _event(self, data: bytes) -> bytes:
        return _message("/".join(filter(None, self._key[:2])), data)


class TopicFeed:
    """All topics, and who looks at them."""

    def __init__(self, topics: Mapping[str, Topic], stopping: asyncio.Event) -> None:
        """`stopping`: the server ends, and streams with it."""
        self.topics = topics
        self._stopping = stopping
        self._channels: dict[Key, _Channel] = {}
        self._listeners: set[_Listener] = set()
        self._by_token: Counter[str] = Counter()
        self._arguments: dict[str, Counter[Key]] = defaultdict(Counter)
        """Streams by topic with an argument, by token."""
        self._waker: asyncio.Task[None] | None = None

    async def load(self, look: Look, name: str) -> Mapping[str, object]:
        """A topic's items for the page that is about to be shown: those of the last load where somebody looks."""
        channel = self._channels.get(self._key(name, look))
        seen = None if channel is None else channel.encoded
        return await self.topics[name].load(look) if seen is None else seen

    async def existing(self, looks: Mapping[str, Look]) -> dict[str, Look]:
        """Those of the topics whose object exists. Raises NotFound where there is none of them.

        The others are left out, and not refused: the page of an object that was deleted keeps its header.
        """
        found = {}
        for name, look in looks.items():
            exists = self.topics[name].exists
            if exists is None or await exists(look):
                found[name] = look
        if looks and not found:
            missing = ", ".join(
                f"{name}/{look.argument}" for name, look in looks.items()
            )
            raise NotFound(f"there is nothing with that name to follow: {missing}")
        return found

    def stream(
        self,
        looks: Mapping[str, Look],
        token: str = "",
        is_valid: Callable[[], Awaitable[bool]] | None = None,
        news: TokenNews | None = None,
    ) -> AsyncIterator[bytes]:
        """Everything that happens to these topics (by name), until the browser has gone or should come back.

        `is_valid`: whether the token still is; the stream ends when it is not. None: it is valid for ever. `news`:
        tells when to ask, besides every BEAT_S.
        Raises TooMany where too many look already, at all or with that token.
        """
        if len(self._listeners) >= MAX_STREAMS:
            raise TooMany(
                f"{MAX_STREAMS} pages are already open; close some and reload this one"
            )
        if self._by_token[token] >= STREAMS_PER_TOKEN:
            raise TooMany(
                f"{STREAMS_PER_TOKEN} pages are open with this token already; close some and reload this one"
            )
        followed = self._arguments.get(token, Counter[Key]())
        if len(followed.keys() | self._argument_keys(looks)) > ARGUMENTS_PER_TOKEN:
            raise TooMany(
                f"pages of {ARGUMENTS_PER_TOKEN} services and GPUs are open with this token "
                "already; close some and reload this one"
            )
        return self._stream(looks, token, is_valid, news)

    async def _stream(
        self,
        looks: Mapping[str, Look],
        token: str,
        is_valid: Callable[[], Awaitable[bool]] | None,
        news: TokenNews | None,
    ) -> AsyncIterator[bytes]:
        listener = _Listener()
        self._by_token[token] += 1
        arguments = self._argument_keys(looks)
        self._arguments[token].update(arguments)
        channels = [self._channel(name, look) for name, look in looks.items()]
        self._listeners.add(listener)
        # One task wakes all streams at the end; each of them waits for its own event alone.
        if self._waker is None:
            self._waker = asyncio.create_task(
                self._wake_all(), name="plimsoll-feed-end"
            )
        try:
            # Only now, inside `try`: a browser that goes away during the first lines is taken out again.
            for channel in channels:
                channel.join(listener)
            yield RETRY
            with news.watching(token, listener.doubt) if news else nullcontext():
                async for message in self._messages(listener, is_valid):
                    yield message
        finally:
            self._listeners.discard(listener)
            self._by_token[token] -= 1
            self._arguments[token] -= Counter(arguments)
            # Otherwise every token that ever followed something would be kept.
            if not self._by_token[token]:
                del self._by_token[token], self._arguments[token]
            for channel in channels:
                channel.leave(listener)
            # Without this, every service that anybody ever looked at would keep a channel.
            self._channels = {
                key: channel
                for key, channel in self._channels.items()
                if channel.listeners
            }

    async def _wake_all(self) -> None:
        await self._stopping.wait()
        for listener in self._listeners:
            listener.changed.set()

    async def _messages(
        self,
        listener: _Listener,
        is_valid: Callable[[], Awaitable[bool]] | None,
    ) -> AsyncIterator[bytes]:
        now_s = asyncio.get_running_loop().time
        ends_s, beat_s = now_s() + STREAM_S, now_s() + BEAT_S
        while not self._stopping.is_set() and now_s() < ends_s:
            # By the clock, and not only when nothing changed: a busy topic must not keep a revoked token's stream open.
            if now_s() >= beat_s or listener.is_doubtful:
                listener.is_doubtful = False
                if is_valid is not None and not await is_valid():
                    return
                beat_s = now_s() + BEAT_S
                yield BEAT
            try:
                # Not `wait_for` on the stream: a timeout must not end it.
                async with asyncio.timeout_at(beat_s):
                    await listener.changed.wait()
            except TimeoutError:
                continue
            # Nothing more is sent to a token that may have ended.
            if not listener.is_doubtful and (due := self._due(listener)):
                yield due

    def _due(self, listener: _Listener) -> bytes:
        listener.changed.clear()
        messages = listener.pending
        behind = listener.behind
        # Taken as a whole: no await lies between, so nothing can be added meanwhile.
        listener.pending, listener.behind = [], set()
        # A listener that fell behind gets all items instead of the changes that it missed.
        messages += [
            self._channels[key].everything() for key in behind if key in self._channels
        ]
        return b"".join(messages)

    def _channel(self, name: str, look: Look) -> _Channel:
        topic, key = self.topics[name], self._key(name, look)
        if key not in self._channels:
            look = replace(look, argument=key[1], token=FEED)
            self._channels[key] = _Channel(topic, look, key, period_s=self._period_s)
        return self._channels[key]

    def _key(self, name: str, look: Look) -> Key:
        # Without it, made-up arguments would have a table of the whole cluster loaded for each.
        argument = "" if self.topics[name].exists is None else look.argument
        return name, argument, look.projects

    def _argument_keys(self, looks: Mapping[str, Look]) -> set[Key]:
        keys = (self._key(name, look) for name, look in looks.items())
        return {key for key in keys if key[1]}

    def _period_s(self, topic: Topic) -> float:
        """Longer where many look at different things, so that they cost the database no more than a few."""
        if topic.exists is None:
            return topic.period_s
        count = sum(1 for _, argument, _ in self._channels if argument)
        return max(topic.period_s, count / ARGUMENT_LOADS_PER_S)


def _object(items: Mapping[str, bytes]) -> bytes:
    """A JSON object of values that are encoded already."""
    members = (msgspec.json.encode(key) + b":" + item for key, item in items.items())
    return b"{" + b",".join(members) + b"}"


def _message(event: str, data: bytes) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"
