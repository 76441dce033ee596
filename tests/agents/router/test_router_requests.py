"""Which headers go on to a worker, and what a deadline may look like."""

import pytest

from agents.router.http_messages import make_head
from agents.serving.http_problems import parse_deadline_ms

HEADERS = (
    (b"Host", b"front:80"),
    (b"Connection", b"keep-alive, X-Hop"),
    (b"X-Hop", b"1"),
    (b"Keep-Alive", b"timeout=5"),
    (b"Transfer-Encoding", b"chunked"),
    (b"Expect", b"100-continue"),
    (b"Content-Length", b"99"),
    (b"Content-Encoding", b"gzip"),
    (b"Plimsoll-Deadline-Ms", b"500"),
    (b"Content-Type", b"application/json"),
    (b"X-Twice", b"1"),
    (b"X-Twice", b"2"),
)


def test_what_belongs_to_the_first_connection_stays_there() -> None:
    head = make_head(
        b"POST /v2/x?a=b", host=b"w:1", headers=HEADERS, body_bytes=7, deadline_ms=120
    )
    assert head.split(b"\r\n") == [
        b"POST /v2/x?a=b HTTP/1.1",
        b"Host: w:1",
        b"Content-Length: 7",
        b"Content-Type: application/json",
        b"X-Twice: 1",
        b"X-Twice: 2",
        b"Plimsoll-Deadline-Ms: 120",
        b"",
        b"",
    ]


def test_an_encoding_that_the_server_does_not_undo_is_told() -> None:
    head = make_head(
        b"POST /", host=b"w", headers=((b"Content-Encoding", b"x-own"),), body_bytes=0
    )
    assert b"\r\nContent-Encoding: x-own\r\n" in head
    assert b"Deadline" not in head


@pytest.mark.parametrize(
    ("text", "deadline_ms"), [("250", 250.0), ("0.5", 0.5), ("0", 0.0), ("-3", -3.0)]
)
def test_a_deadline_is_a_number(text: str, deadline_ms: float) -> None:
    assert parse_deadline_ms(text) == deadline_ms


@pytest.mark.parametrize(
    "text", ["", "soon", "1e9", "nan", "inf", "1 000", "--1", "1.2.3", "9" * 21, "½"]
)
def test_what_is_no_plain_number_is_no_deadline(text: str) -> None:
    with pytest.raises(ValueError, match="like 250"):
        parse_deadline_ms(text)
