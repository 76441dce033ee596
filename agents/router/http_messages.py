"""Reads a worker's HTTP/1.1 answer from the bytes of its connection; no I/O.

    parser.feed(data)      head is set once the head is whole; the body's bytes gather in the parser
    parser.take()          the bytes of the body that have come since the last call
    parser.close()         the connection ended; the body may end with it, where the answer says no length
    parser.is_done         the answer is whole; parser.reset() makes ready for the next one

The body's length comes from, in this order (RFC 9112 §6.3): a status without body, `Transfer-Encoding: chunked`,
`Content-Length`, the end of the connection. Interim answers (100, 103) are passed over. Everything is bounded: a head
or trailer beyond HEAD_LIMIT and whatever does not look like HTTP/1.x raise BadAnswer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agents.base.device import DeviceError
from agents.serving.http_problems import DEADLINE

HEAD_LIMIT = 64 * 1024
_SIZE_LIMIT = 1024
"""Characters of a chunk's size with its extensions."""
_MAX_HEX = 15
"""Hexadecimal digits of a chunk's size: below 2^60 bytes."""
_MAX_DECIMAL = 18
_END = b"\r\n\r\n"
_LINE = b"\r\n"
HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
    )
)
"""RFC 9110 §7.6.1: these belong to one connection and are not passed on (Host is made again)."""


class BadAnswer(DeviceError):
    """What came is no HTTP/1.x answer, or ended too early; the connection is of no more use."""


@dataclass(slots=True, kw_only=True)
class AnswerHead:
    """Status and headers of an answer."""

    status: int
    headers: list[tuple[str, str]]
    """Those that are passed on, in their order; without Content-Length, which goes with the body."""
    length: int | None
    """Bytes of the body; None: chunked, or until the connection ends."""
    is_chunked: bool
    is_last: bool
    """Whether the worker closes the connection after it."""


class AnswerParser:
    """One answer after the other from one connection."""

    __slots__ = ("_buffered", "_left", "_pieces", "_rest", "_step", "head", "is_done")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the answer; the next bytes begin another one."""
        self.head: AnswerHead | None = None
        self.is_done = False
        self._rest = b""
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._left = 0
        self._step: Callable[[bytes], bytes] = self._take_head

    @property
    def buffered(self) -> int:
        """Bytes of the body that were not taken yet."""
        return self._buffered

    @property
    def has_rest(self) -> bool:
        """Whether bytes follow the answer's end, which were not asked for."""
        return bool(self._rest)

    def feed(self, data: bytes) -> None:
        """Take bytes of the connection. Raises BadAnswer."""
        # Bytes that were too few for a step wait for the next ones.
        if self._rest:
            data, self._rest = self._rest + data, b""
        while data and not self.is_done:
            data = self._step(data)
        if data:
            self._rest += data

    def close(self) -> None:
        """The connection has ended. Raises BadAnswer when the answer is not whole."""
        # Without length or chunks the end of the connection is the end of the body.
        if self.head is not None and self._step == self._take_all:
            self.is_done = True
        if not self.is_done:
            what = (
                "before an answer"
                if self.head is None and not self._rest
                else "in the middle of an answer"
            )
            raise BadAnswer(f"the connection ended {what}")

    def take(self) -> bytes:
        """The body's bytes that have come since the last call."""
        pieces, self._pieces, self._buffered = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._buffered += len(piece)

    def _wait_for_more(self, data: bytes, limit: int, what: str) -> bytes:
        if len(data) > limit:
            raise BadAnswer(f"{what} is longer than {limit} bytes")
        self._rest = data
        return b""

    def _take_head(self, data: bytes) -> bytes:
        end = data.find(_END)
        if end < 0:
            return self._wait_for_more(data, HEAD_LIMIT, "the answer's head")
        head = parse_head(data[:end])
        rest = data[end + len(_END) :]
        # An interim answer (100, 103) precedes the real one and is dropped.
        if head.status < 200:
            if head.status == 101:
                raise BadAnswer("the worker switched protocols without being asked")
            return rest
        self.head = head
        if head.is_chunked:
            self._step = self._take_size
        elif head.length is None:
            self._step = self._take_all
        else:
            # An empty body is whole at once, since no byte of it will come.
            self._left, self._step = head.length, self._take_counted
            self.is_done = not head.length
        return rest

    def _take_counted(self, data: bytes) -> bytes:
        piece = data[: self._left]
        self._keep(piece)
        self._left -= len(piece)
        self.is_done = not self._left
        return data[len(piece) :]

    def _take_all(self, data: bytes) -> bytes:
        self._keep(data)
        return b""

    def _take_size(self, data: bytes) -> bytes:
        end = data.find(_LINE)
        if end < 0:
            return self._wait_for_more(data, _SIZE_LIMIT, "a chunk's size")
        digits = data[:end].partition(b";")[0].rstrip(b" \t")
        if (
            not digits
            or len(digits) > _MAX_HEX
            or not all(each in b"0123456789abcdefABCDEF" for each in digits)
        ):
            raise BadAnswer(f"{data[:end][:40]!r} is not a chunk size")
        self._left = int(digits, 16)
        # A chunk of size 0 is the last; trailers may follow it.
        self._step = self._take_chunk if self._left else self._take_trailers
        return data[end + len(_LINE) :]

    def _take_chunk(self, data: bytes) -> bytes:
        piece = data[: self._left]
        self._keep(piece)
        self._left -= len(piece)
        if not self._left:
            self._step = self._take_chunk_end
        return data[len(piece) :]

    def _take_chunk_end(self, data: bytes) -> bytes:
        if len(data) < len(_LINE):
            return self._wait_for_more(data, len(_LINE), "a chunk's end")
        if not data.startswith(_LINE):
            raise BadAnswer(f"a chunk ends with {data[:2]!r}")
        self._step = self._take_size
        return data[len(_LINE) :]

    def _take_trailers(self, data: bytes) -> bytes:
        """Trailers are dropped: none were promised downstream."""
        if data.startswith(_LINE):
            self.is_done = True
            return data[len(_LINE) :]
        end = data.find(_END)
        if end < 0:
            return self._wait_for_more(data, HEAD_LIMIT, "the answer's trailer")
        self.is_done = True
        return data[end + len(_END) :]


def parse_head(raw: bytes) -> AnswerHead:
    """Status and headers of what precedes the empty line. Raises BadAnswer."""
    text = raw.decode("utf-8", "replace")
    lines = text.split("\r\n")
    # A bare CR or LF can hide a header from one reader and show it to another.
    if not text.count("\r") == text.count("\n") == len(lines) - 1 or "\0" in text:
        raise BadAnswer("the answer's head has stray line ends or NUL")
    version, _, rest = lines[0].partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (
        rest[:3].isascii() and rest[:3].isdigit() and len(rest) >= 3
    ):
        raise BadAnswer(f"{lines[0][:80]!r} is not a status line of HTTP/1.x")
    status = int(rest[:3])
    headers = []
    own = _OwnHeaders()
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        # Blanks around a name are a known way to smuggle headers past a proxy.
        if not colon or not name or name.strip() != name:
            raise BadAnswer(f"{line[:80]!r} is not a header")
        value, lower = value.strip(" \t"), name.lower()
        if lower == "content-length" or lower in HOP_BY_HOP:
            own.take(lower, value)
        else:
            headers.append((name, value))
    # Headers named by Connection concern this connection only (RFC 9110 §7.6.1).
    if own.dropped:
        headers = [each for each in headers if each[0].lower() not in own.dropped]
    return AnswerHead(
        status=status,
        headers=headers,
        length=0 if status < 200 or status in (204, 304) else own.length(),
        is_chunked=own.is_chunked and status >= 200 and status not in (204, 304),
        is_last=own.is_last(version),
    )


class _OwnHeaders:
    """Headers that speak of the connection and of the body's length."""

    __slots__ = ("_lengths", "connection", "dropped", "is_chunked")

    def __init__(self) -> None:
        self.connection = ""
        self.dropped: frozenset[str] = frozenset()
        self.is_chunked = False
        self._lengths: set[str] = set()

    def take(self, name: str, value: str) -> None:
        if name == "content-length":
            self._lengths.update(each.strip() for each in value.split(","))
        elif name == "transfer-encoding":
            if value.lower() != "chunked" or self.is_chunked:
                raise BadAnswer(
                    f"transfer encoding {value[:40]!r} is not supported; chunked is"
                )
            self.is_chunked = True
        elif name == "connection":
            self.connection = f"{self.connection},{value.lower()}"
            self.dropped = frozenset(
                each.strip() for each in self.connection.split(",")
            ) - {"", "close", "keep-alive"}

    def length(self) -> int | None:
        if self.is_chunked or not self._lengths:
            return None
        (text, *others) = self._lengths
        if (
            others
            or not (text.isascii() and text.isdigit())
            or len(text) > _MAX_DECIMAL
        ):
            raise BadAnswer(
                f"content length {', '.join(sorted(self._lengths))[:40]!r} is not a single number"
            )
        return int(text)

    def is_last(self, version: str) -> bool:
        tokens = [each.strip() for each in self.connection.split(",")]
        both = self.is_chunked and bool(
            self._lengths
        )  # RFC 9112 §6.3: suspicious, so the connection ends with it
        return (
            both
            or "close" in tokens
            or (version == "HTTP/1.0" and "keep-alive" not in tokens)
        )


_DEADLINE = DEADLINE.lower().encode()
_MADE_ANEW = frozenset(each.encode() for each in HOP_BY_HOP) | {
    b"content-length",
    b"expect",
    _DEADLINE,
}
_DECODED = frozenset((b"gzip", b"deflate", b"br", b"zstd"))
"""Encodings of a body that the server in front undoes; a body is passed on as it was read."""

RawHeaders = Iterable[tuple[bytes, bytes]]


def make_head(
    start: bytes,
    *,
    host: bytes,
    headers: RawHeaders,
    body_bytes: int,
    deadline_ms: int | None = None,
) -> bytes:
    """The head of a request with that many bytes of body, with the headers that are not of the first connection alone.

    `start`: method and target. Names and values come from a parser that lets no line end through.
    """
    parts = [
        b"%b HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n" % (start, host, body_bytes)
    ]
    nominated: frozenset[bytes] = frozenset()
    kept = []
    for name, value in headers:
        lower = name.lower()
        if lower == b"connection":
            nominated |= frozenset(each.strip() for each in value.lower().split(b","))
        elif lower not in _MADE_ANEW and not (
            lower == b"content-encoding" and value.strip().lower() in _DECODED
        ):
            kept.append((lower, name, value))
    parts += [
        b"%b: %b\r\n" % (name, value)
        for lower, name, value in kept
        if lower not in nominated
    ]
    if deadline_ms is not None:
        parts.append(b"%b: %d\r\n" % (DEADLINE.encode(), deadline_ms))
    parts.append(b"\r\n")
    return b"".join(parts)
