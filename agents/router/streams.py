"""What a stream of tokens tells while it passes: when its first token came, how many followed, when the last one did.

    meter = TokenMeter(came_s)
    meter.feed(piece, now_s)                each piece of a server-sent stream, as it is passed on
    meter.ttft_ms, meter.itl_ms             None: no token came, or one alone

Events are told apart by their blank lines and nothing of them is decoded: five hundred streams of fifty tokens a second
pass through one process. An event is taken for a token, unless the last ones tell the usage, as clients may ask:
engines merge tokens and speculate. What comes before the first token (the role), and after the last one (`[DONE]`), is
none.
"""

import re

_EVENT_END = b"\n\n"
_LAST_BYTES = 2048
"""Usage and `[DONE]` are within so many bytes of the end."""
_STATED = re.compile(rb'"completion_tokens": ?(\d{1,9})\b')
"""Within a text that was generated the quotes have backslashes before them."""
MAX_TOKENS = 1_000_000
"""In one answer. Replicas are their tenants' own programs, which may say anything."""


class TokenMeter:
    """One stream."""

    __slots__ = ("_came_s", "_events", "_first_s", "_head", "_last_s", "_tail")

    def __init__(self, came_s: float) -> None:
        """`came_s`: when its request did."""
        self._came_s = came_s
        self._events = 0
        self._first_s = self._last_s = 0.0
        self._head = b""
        """What came before the first token, and together with it."""
        self._tail = b""

    def feed(self, piece: bytes, now_s: float) -> None:
        """A piece of the stream, cut anywhere."""
        if not self._events:
            self._head += piece
            # The first events are looked at one by one: which of them has the first token?
            *events, rest = self._head.split(_EVENT_END)
            self._events = sum(map(_is_token, events))
            if self._events:
                self._first_s = self._last_s = now_s
                self._tail = rest
            else:
                self._head = rest
            return
        joined = self._tail[-1:] + piece
        ends = joined.count(_EVENT_END)
        if ends:
            self._events += ends
            self._last_s = now_s
        self._tail = (self._tail + piece)[-_LAST_BYTES:]

    @property
    def tokens(self) -> int:
        """Tokens that came."""
        if self._events and (stated := _STATED.findall(self._head + self._tail)):
            return _believed(int(stated[-1]))
        after = sum(
            not _is_token(each) for each in self._tail.split(_EVENT_END)[1:] if each
        )
        return max(min(self._events, 1), self._events - after)

    @property
    def ttft_ms(self) -> float | None:
        """From the request to the first token."""
        return 1000.0 * (self._first_s - self._came_s) if self._events else None

    @property
    def itl_ms(self) -> float | None:
        """The mean from one token to the next."""
        if self.tokens < 2:
            return None
        return 1000.0 * (self._last_s - self._first_s) / (self.tokens - 1)


def _is_token(event: bytes) -> bool:
    """Whether an event has content: not a role alone, usage, or the end."""
    if b"data:" not in event or b"[DONE]" in event or b'"choices":[]' in event:
        return False
    is_role = b'"role":' in event and b'"content":""' in event
    return not is_role


def answered_tokens(body: bytes) -> int:
    """Tokens of an answer that came at once, by its usage, else by its events; 1 where it has neither."""
    if stated := _STATED.findall(body):
        return _believed(int(stated[-1]))
    return _believed(sum(map(_is_token, body.split(_EVENT_END))))


def _believed(tokens: int) -> int:
    return min(max(1, tokens), MAX_TOKENS)
