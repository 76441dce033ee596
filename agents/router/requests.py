"""What the router reads from a request's headers and what it passes on; no I/O."""

from collections.abc import Iterable

from agents.router.answers import HOP_BY_HOP
from agents.router.deadline import DEADLINE

_DEADLINE = DEADLINE.lower().encode()
_MADE_ANEW = frozenset(each.encode() for each in HOP_BY_HOP) | {b"content-length", b"expect", _DEADLINE}
_DECODED = frozenset((b"gzip", b"deflate", b"br", b"zstd"))
"""Encodings of a body that the server in front undoes; a body is passed on as it was read."""

RawHeaders = Iterable[tuple[bytes, bytes]]


def make_head(
    target: bytes, *, host: bytes, headers: RawHeaders, body_bytes: int, deadline_ms: int | None = None
) -> bytes:
    """The head of a POST with a body of that many bytes, with the headers that are not of the first connection alone.

    Names and values come from a parser that lets no line end through.
    """
    parts = [b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n" % (target, host, body_bytes)]
    nominated: frozenset[bytes] = frozenset()
    kept = []
    for name, value in headers:
        lower = name.lower()
        if lower == b"connection":
            nominated |= frozenset(each.strip() for each in value.lower().split(b","))
        elif lower not in _MADE_ANEW and not (lower == b"content-encoding" and value.strip().lower() in _DECODED):
            kept.append((lower, name, value))
    parts += [b"%b: %b\r\n" % (name, value) for lower, name, value in kept if lower not in nominated]
    if deadline_ms is not None:
        parts.append(b"%b: %d\r\n" % (DEADLINE.encode(), deadline_ms))
    parts.append(b"\r\n")
    return b"".join(parts)
