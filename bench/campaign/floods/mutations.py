"""Bodies that are nearly right: what a broken agent, a broken disk or somebody who tries things may send."""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

Mutation: TypeAlias = Callable[[bytes, Random], bytes]

NUMBERS = (
    b"-1",
    b"0",
    b"1e308",
    b"-1e400",
    b"NaN",
    b"Infinity",
    b"9007199254740993",
    b"1" + b"0" * 400,
    b"0.1e-400",
    b"1.5",
    b"true",
    b"null",
    b'""',
)
TEXTS = (
    b"",
    b"\\u0000",
    b"\\ud800",
    b"\xff\xfe",
    b"\\",
    b'"',
    b"x" * 10_000,
    "\u202e\U0001f4a9".encode(),
    b"'; DROP TABLE node; --",
    b"../../etc/passwd",
)
NESTING = 2000


def mutate(body: bytes, draw: Random) -> bytes:
    """One to three changes of the body; the same for the same state of `draw`."""
    for _ in range(draw.randint(1, 3)):
        body = draw.choice(_MUTATIONS)(body, draw)
    return body


def _other_number(body: bytes, draw: Random) -> bytes:
    """A value after some colon is replaced by one that is no such value."""
    colons = [at for at, byte in enumerate(body) if byte == ord(":")]
    if not colons:
        return body
    begins = draw.choice(colons) + 1
    ends = begins
    while ends < len(body) and body[ends] not in b",}]":
        ends += 1
    return body[:begins] + draw.choice(NUMBERS) + body[ends:]


def _text_within(body: bytes, draw: Random) -> bytes:
    quotes = [at for at, byte in enumerate(body) if byte == ord('"')]
    at = draw.choice(quotes) + 1 if quotes else 0
    return body[:at] + draw.choice(TEXTS) + body[at:]


def _other_byte(body: bytes, draw: Random) -> bytes:
    at = draw.randrange(len(body) + 1)
    return body[:at] + bytes([draw.randrange(256)]) + body[at + 1 :]


def _cut(body: bytes, draw: Random) -> bytes:
    begins, ends = sorted(draw.randrange(len(body) + 1) for _ in range(2))
    return body[:begins] + body[ends:]


def _doubled(body: bytes, draw: Random) -> bytes:
    """Fields that come twice, lists that grow."""
    begins, ends = sorted(draw.randrange(len(body) + 1) for _ in range(2))
    return body[:ends] + body[begins:ends] + body[ends:]


def _nested(body: bytes, draw: Random) -> bytes:
    opening = draw.choice((b"[", b'{"a":'))
    closing = b"]" if opening == b"[" else b"}"
    depth = draw.randint(1, NESTING)
    return opening * depth + body + closing * depth


_MUTATIONS: Sequence[Mutation] = (
    _other_number,
    # Twice as often: the others mostly end what is JSON.
    _other_number,
    _text_within,
    _other_byte,
    _cut,
    _doubled,
    _nested,
)
