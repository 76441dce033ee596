"""A worker's answer is read alike however its bytes are cut, and what is none is refused."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.router.http_messages import HEAD_LIMIT, AnswerParser, BadAnswer

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\n\r\n"


@dataclass
class Read:
    """What a parser made of some bytes."""

    status: int
    body: bytes
    headers: list[tuple[str, str]] = field(default_factory=list)
    is_last: bool = False
    has_rest: bool = False


def read(*pieces: bytes, ends: bool = False) -> Read:
    """The one answer in the pieces; `ends`: the connection ends after them."""
    parser, body = AnswerParser(), b""
    for piece in pieces:
        parser.feed(piece)
        body += parser.take()
    if ends:
        parser.close()
    assert parser.is_done and parser.head is not None
    return Read(
        parser.head.status,
        body,
        parser.head.headers,
        parser.head.is_last,
        parser.has_rest,
    )


WHOLE = {
    "with a length": (PLAIN, Read(200, b"hello", [("X-A", "b")])),
    "in chunks": (CHUNKED, Read(200, b"hello")),
    "in chunks with a trailer": (
        CHUNKED[:-2] + b"X-Sum: 1\r\nX-B: 2\r\n\r\n",
        Read(200, b"hello"),
    ),
    "with a length of 0": (
        b"HTTP/1.1 500 Oh no\r\ncontent-length: 0\r\n\r\n",
        Read(500, b""),
    ),
    "without a body by its status": (
        b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n",
        Read(204, b"", [("X", "y")]),
    ),
    "after interim answers": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        + PLAIN,
        Read(200, b"hello", [("X-A", "b")]),
    ),
    "that closes": (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
        Read(200, b"x", is_last=True),
    ),
    "of HTTP/1.0": (
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        Read(200, b"x", is_last=True),
    ),
    "of HTTP/1.0 that stays": (
        b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx",
        Read(200, b"x"),
    ),
    "with both lengths": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        Read(200, b"x", is_last=True),
    ),
    "with headers of its connection": (
        b"HTTP/1.1 200 OK\r\nConnection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: t=5\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
        b"Content-Length: 0\r\n\r\n",
        Read(200, b"", [("Set-Cookie", "a"), ("Set-Cookie", "b")]),
    ),
    "without a reason": (
        b"HTTP/1.1 200\r\nContent-Length: 2, 2\r\n\r\nok",
        Read(200, b"ok"),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_is_read_alike_wherever_its_bytes_are_cut(name: str) -> None:
    raw, expected = WHOLE[name]
    assert read(raw) == expected
    assert read(*(raw[at : at + 1] for at in range(len(raw)))) == expected
    for cut in range(1, len(raw)):
        assert read(raw[:cut], raw[cut:]) == expected


@given(
    st.binary(max_size=300),
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
    st.integers(1, 40),
)
def test_any_body_comes_through_any_chunks_and_any_cuts(
    body: bytes, sizes: list[int], cut: int
) -> None:
    raw, rest = b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n", body
    for size in sizes * 300:
        if not rest:
            break
        piece, rest = rest[:size], rest[size:]
        raw += b"%x\r\n%b\r\n" % (len(piece), piece)
    raw += b"0\r\n\r\n"
    assert read(*(raw[at : at + cut] for at in range(0, len(raw), cut))).body == body


@pytest.mark.parametrize("cut", [0, 8, 45, len(PLAIN) - 1])
def test_a_connection_that_ends_early_is_no_answer(cut: int) -> None:
    parser = AnswerParser()
    parser.feed(PLAIN[:cut])
    with pytest.raises(
        BadAnswer, match="before an answer" if not cut else "in the middle"
    ):
        parser.close()


BAD = {
    "no http": b"SSH-2.0-OpenSSH\r\n\r\n",
    "no status": b"HTTP/1.1 abc\r\n\r\n",
    "http 2": b"HTTP/2 200\r\n\r\n",
    "folded header": b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
    "space before the colon": b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
    "bare line feed": b"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n",
    "bare carriage return": b"HTTP/1.1 200 OK\r\nA: b\rC: d\r\n\r\n",
    "NUL": b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "length in words": b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n",
    "length beyond measure": b"HTTP/1.1 200 OK\r\nContent-Length: "
    + b"9" * 30
    + b"\r\n\r\n",
    "unknown encoding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "switch of protocols": b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\nA: " + b"x" * HEAD_LIMIT,
    "no chunk size": CHUNKED.replace(b"3\r\n", b"x\r\n"),
    "negative chunk size": CHUNKED.replace(b"3\r\n", b"-3\r\n"),
    "huge chunk size": CHUNKED.replace(b"3\r\n", b"f" * 16 + b"\r\n"),
    "endless chunk size": CHUNKED.replace(b"3\r\n", b"3;" + b"x" * 2000),
    "chunk without its end": CHUNKED.replace(b"hel\r\n", b"help\r"),
    "endless trailer": CHUNKED[:-2] + b"A: " + b"x" * HEAD_LIMIT,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_answer_is_refused(name: str) -> None:
    with pytest.raises(BadAnswer):
        AnswerParser().feed(BAD[name])
