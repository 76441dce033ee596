"""Connections of the router to one worker: HTTP/1.1 over asyncio, kept alive, one request at a time on each.

    pool = ConnectionPool("http://127.0.0.1:8001")
    answer = await pool.ask(head, body, timeout_s=60.0)      NotConnected | WorkerAnswerLost | LateAnswer
    answer.body                                              the whole body, or None: it is long or still coming, then
    while piece := await answer.piece(): ...                 its parts as they come
    answer.close()                                           always; gives up what has not come

`head` is the request's head with its last empty line. An answer of at most WHOLE_LIMIT bytes comes whole. A longer one
comes piece by piece for as long as it likes, where no pause is longer than the time for its beginning; who takes them
slowly slows the worker down, no more than PIECES_LIMIT (and one read) waits here.
A connection is used again only when its answer was whole, nothing is left of its request, and it has not been idle for
longer than IDLE_S, less than usual servers keep it (uvicorn: 5 s): a request must not meet a server that closes at that
moment, because it would be unknown whether it was taken.

Of aiohttp's client this keeps what a node needs; it costs a third of its time per request (`bench.router`).
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from urllib.parse import urlsplit

from agents.base.device import DeviceError
from agents.router.http_messages import AnswerParser, BadAnswer

WHOLE_LIMIT = 256 * 1024
PIECES_LIMIT = 512 * 1024
IDLE_S = 3.0
MAX_IDLE = 256
CONNECT_TIMEOUT_S = 2.0
"""Workers are on this machine: a worker that takes longer does not take connections any more."""
RUNS_WITHOUT_READINESS = (401, 403, 404, 405, 501)
"""So a server answers a GET of its readiness that has none there: it asks for a key first, or knows no such path."""
_STALL_S = 0.1
"""Given to a connection after its time, so that a process that stood still sees what came meanwhile."""
_JOINED_LIMIT = 64 * 1024
"""Bodies up to this size go out with their head in one write."""


class NotConnected(DeviceError):
    """No connection could be made; nothing of the request was sent."""


class WorkerAnswerLost(DeviceError):
    """The request was sent, at least in part, and no whole answer came."""


class LateAnswer(WorkerAnswerLost):
    """No whole answer came in time."""


@dataclass(slots=True, kw_only=True)
class WorkerAnswer:
    """A worker's answer."""

    status: int
    headers: list[tuple[str, str]]
    length: int | None
    """Bytes of the body, where the worker said so."""
    body: bytes | None
    """None: ask for its pieces."""
    connection: "Connection | None" = None
    """Where the pieces come from."""

    async def piece(self) -> bytes:
        """The next part of the body; empty at its end. Raises WorkerAnswerLost."""
        return await self.connection.piece() if self.connection is not None else b""

    def close(self) -> None:
        """No more pieces are wanted."""
        if self.connection is not None:
            self.connection.give_up()
            self.connection = None


class ConnectionPool:
    """Connections to one worker."""

    def __init__(self, url: str, *, idle_s: float = IDLE_S) -> None:
        """`url`: `http://host:port`, perhaps with a path before all others. Raises ValueError."""
        parts = urlsplit(url)
        if (
            parts.scheme != "http"
            or not parts.hostname
            or parts.query
            or parts.fragment
        ):
            raise ValueError(
                f"{url!r} is not an address of a worker; it must look like http://127.0.0.1:8001"
            )
        self.url = url
        self.host = parts.netloc.rpartition("@")[2].encode()
        """For the Host header."""
        self.prefix = parts.path.rstrip("/").encode()
        self._address = (parts.hostname, parts.port or 80)
        self._idle_s = idle_s
        self._idle: deque[Connection] = deque()
        self._is_closed = False

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    async def ask(self, head: bytes, body: bytes, *, timeout_s: float) -> WorkerAnswer:
        """Send a request; its answer. Raises NotConnected, WorkerAnswerLost or LateAnswer."""
        loop = asyncio.get_running_loop()
        # One deadline for connecting and answering, so that a slow connection leaves less for the answer.
        due_s = loop.time() + timeout_s
        connection = self._take_idle(loop.time()) or await self._connect(
            loop, min(timeout_s, CONNECT_TIMEOUT_S)
        )
        return await connection.ask(head, body, due_s)

    async def is_ready(self, path: bytes, *, timeout_s: float) -> bool:
        """Whether a GET of the path is answered in time, with 2xx or as by a server that does not know the path or
        asks for a key first: it takes requests nevertheless."""
        head = b"GET %b%b HTTP/1.1\r\nHost: %b\r\n\r\n" % (self.prefix, path, self.host)
        try:
            answer = await self.ask(head, b"", timeout_s=timeout_s)
        except (NotConnected, WorkerAnswerLost):
            return False
        answer.close()
        return 200 <= answer.status < 300 or answer.status in RUNS_WITHOUT_READINESS

    def close(self) -> None:
        """Close what is idle; what is busy closes when it is done."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def put_back(self, connection: "Connection", now_s: float) -> None:
        """A connection is free again."""
        connection.idle_since_s = now_s
        # A closed pool's requests still end here; their connections must not outlive it.
        if self._is_closed or len(self._idle) >= MAX_IDLE:
            connection.close()
        else:
            self._idle.append(connection)

    def forget(self, connection: "Connection") -> None:
        """A connection has ended."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _take_idle(self, now_s: float) -> "Connection | None":
        """The one that was used last; those that have been idle for too long are closed."""
        while self._idle:
            connection = self._idle.pop()
            if now_s - connection.idle_since_s < self._idle_s and connection.is_open:
                return connection
            connection.close()
        return None

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, timeout_s: float
    ) -> "Connection":
        connecting = asyncio.ensure_future(
            loop.create_connection(lambda: Connection(self, loop), *self._address)
        )
        try:
            # When this process itself stood still for so long, its timer ends before it sees that the worker had
            # answered: the second wait is for that, and the worker is not blamed for it.
            await asyncio.wait((connecting,), timeout=timeout_s)
            await asyncio.wait((connecting,), timeout=_STALL_S)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_unused)
            raise
        finally:
            # Nothing else waits for it, whether it is late or this request was given up.
            connecting.cancel()
        if not connecting.done():
            raise NotConnected(
                f"{self.url} cannot be connected to: no connection within {timeout_s:g} s"
            )
        try:
            _, connection = connecting.result()
        except OSError as error:
            raise NotConnected(f"{self.url} cannot be connected to: {error}") from error
        return connection


def _close_unused(
    connecting: "asyncio.Task[tuple[asyncio.Transport, Connection]]",
) -> None:
    """End a connection that came at the moment at which its request was given up."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[1].close()


class Connection(asyncio.Protocol):
    """One connection; idle ──ask()──▶ busy ──whole answer──▶ idle, or closed."""

    def __init__(self, pool: ConnectionPool, loop: asyncio.AbstractEventLoop) -> None:
        self.idle_since_s = 0.0
        self._pool = pool
        self._loop = loop
        self._parser = AnswerParser()
        self._transport: asyncio.Transport
        self._answered: asyncio.Future[WorkerAnswer] | None = None
        self._more: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        """When the last piece came."""
        self._pause_s = 0.0
        """A long answer may pause so long between two of them."""
        self._problem: WorkerAnswerLost | None = None
        self._is_busy = False
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent on it."""
        return not self._transport.is_closing()

    async def ask(self, head: bytes, body: bytes, due_s: float) -> WorkerAnswer:
        """Send a request; its answer. `due_s`: by the loop's clock. Raises WorkerAnswerLost or LateAnswer."""
        self._is_busy = True
        self._pause_s = max(0.0, due_s - self._loop.time())
        self._timer = self._loop.call_at(due_s, self._expire)
        self._answered = self._loop.create_future()
        # One write is one packet where it fits; a long body is not copied for that.
        if len(body) <= _JOINED_LIMIT:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        try:
            return await self._answered
        except asyncio.CancelledError:
            self.give_up()
            raise

    async def piece(self) -> bytes:
        """The next part of the body; empty at its end. Raises WorkerAnswerLost."""
        while self._is_busy or self._problem is not None:
            if self._parser.buffered:
                return self._take()
            if self._problem is not None:
                raise self._problem
            if self._parser.is_done:
                self._release()
                break
            self._more = self._loop.create_future()
            await self._more
        return b""

    def give_up(self) -> None:
        """The rest of the answer is not wanted; the worker learns it by the end of the connection."""
        if self._is_busy:
            self._end()
            self._transport.abort()

    def close(self) -> None:
        """End an idle connection."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._is_busy:  # without a request: whatever it is, the next answer would be taken for another
            self._transport.abort()
            return
        self._heard_s = self._loop.time()
        try:
            self._parser.feed(data)
        except BadAnswer as error:
            self._fail(WorkerAnswerLost(str(error)))
            return
        self._report()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_busy:
            self._pool.forget(self)
            return
        try:
            # A body without a length ends with its connection, which only the parser knows.
            self._parser.close()
        except BadAnswer as error:
            self._fail(WorkerAnswerLost(f"{error}: {exc}" if exc else str(error)))
            return
        self._report()

    def _report(self) -> None:
        """Tell the waiting request what has come."""
        parser = self._parser
        if self._answered is None:
            self._wake()
            if (
                parser.buffered > PIECES_LIMIT
                and not self._is_paused
                and not self._transport.is_closing()
            ):
                self._is_paused = True
                self._transport.pause_reading()
        elif parser.is_done:
            self._answer(parser.take())
        elif (head := parser.head) is not None and (
            head.length is None or head.length > WHOLE_LIMIT
        ):
            self._answer(None)

    def _answer(self, body: bytes | None) -> None:
        answered, self._answered, head = self._answered, None, self._parser.head
        assert answered is not None and head is not None
        answer = WorkerAnswer(
            status=head.status, headers=head.headers, length=head.length, body=body
        )
        if body is None:
            # The rest of a long answer is taken from here, piece by piece, for as long as they come.
            answer.connection = self
            self._heard_s = self._loop.time()
            self._watch(self._pause_s)
        else:
            self._release()
        if not answered.done():
            answered.set_result(answer)

    def _take(self) -> bytes:
        # The client has taken what was held back, so that more may come.
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return self._parser.take()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def _watch(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        """Give up a long answer that has paused for too long; not where it is the client that takes nothing."""
        left_s = self._heard_s + self._pause_s - self._loop.time()
        if left_s > 0.0 or self._is_paused:
            self._watch(max(left_s, 0.1))
        else:
            self._fail(LateAnswer(f"nothing more of it came for {self._pause_s:g} s"))

    def _expire(self) -> None:
        self._fail(LateAnswer("no complete answer in time"))

    def _fail(self, problem: WorkerAnswerLost) -> None:
        self._problem = problem
        answered, self._answered = self._answered, None
        self._end()
        self._transport.abort()
        if answered is not None and not answered.done():
            answered.set_exception(problem)
        self._wake()

    def _release(self) -> None:
        """The answer is whole."""
        head = self._parser.head
        assert head is not None
        is_clean = (
            not head.is_last
            and not self._parser.has_rest
            and not self._transport.get_write_buffer_size()
        )
        self._end()
        if not is_clean or self._transport.is_closing():
            self._transport.abort()
            return
        # Only a connection on which nothing is left can carry another request.
        self._parser.reset()
        self._pool.put_back(self, self._loop.time())

    def _end(self) -> None:
        self._is_busy = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
