"""Both ends of token streams on bare sockets, so light that a router between them is what is measured.

    start_process(stack, run_engines)                       ENGINES engines, in one process (`bench.processes`)
    client = StreamClient(ports, path, arrivals_s)
    client.run(look)                                        opens streams and reads them
    used_s(router_pid, engines_pid)                         who had a core, and who waited for one

An engine works in steps, as vLLM does: at the end of each, all of its streams get a token, one `send` for each. Events
look like vLLM's and are made beforehand. The first one of a stream says in its id how long the engine took for it, from
the request to that `send`, so that the rest of the time to the first token is the way's. The client asks over
connections that are kept alive, reads whatever is there at once, and looks only for the first event and the end.
"""

import gc
import os
import random
import re
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

ROUTER_CORE, PARTIES_CORE = sorted(os.sched_getaffinity(0))[:2]
"""The router has a core of its own, engines and client have another one together."""
ENGINES = 8
"""A node's, one on each GPU. Their steps are spread evenly, since nothing makes them step together."""
STEP_S = 0.020
TOKENS = 200
"""Of every stream, which so is open for 4 s; a new one is opened for each that ends."""
STREAM_S = TOKENS * STEP_S
_PATIENCE_S = 5.0
"""For first tokens that have not come when the measured time is over."""
_READ_BYTES = 64 * 1024
"""More than a whole stream, so that one `recv` takes all that is there."""
_BODY = (
    b'{"model":"chat","prompt":"one two three","max_tokens":%d,"stream":true}' % TOKENS
)
_EVENT = (
    b'data: {"id":"cmpl-%012d","object":"text_completion","created":1760000000,"model":"chat","choices":[{"index":0,'
    b'"text":" token","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
)
_STATED_US = re.compile(rb"cmpl-(\d{12})")
_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_EVENT_END = b"\n\n"
EVENTS = TOKENS + 1
"""With `[DONE]`."""


@dataclass(slots=True)
class _Answer:
    """What an engine writes to one client."""

    socket: socket.socket
    came_ns: int
    tokens: int = 0


class _Engines:
    """All engines of one process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._epoll = select.epoll()
        self._epoll.register(pipe.fileno(), select.EPOLLIN)
        self._listeners: dict[int, tuple[socket.socket, int]] = {}
        self._clients: dict[int, tuple[socket.socket, int]] = {}
        """Sockets by file descriptor, each with the number of its engine."""
        self._answers: list[list[_Answer]] = [[] for _ in range(ENGINES)]
        self._late_ms: list[float] = []
        self._event = _chunk(_EVENT % 0)
        self._end = self._event + _chunk(b"data: [DONE]\n\n") + _LAST_CHUNK

    def open(self) -> list[int]:
        """The port of every engine."""
        for number in range(ENGINES):
            listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
            listener.setblocking(False)
            self._epoll.register(listener.fileno(), select.EPOLLIN)
            self._listeners[listener.fileno()] = (listener, number)
        return [each.getsockname()[1] for each, _ in self._listeners.values()]

    def run(self) -> None:
        """Until the caller has gone."""
        number, due_s = 0, time.monotonic()
        while True:
            due_s += STEP_S / ENGINES
            while (left_s := due_s - time.monotonic()) > 0.0:
                # `epoll` alone waits for whole milliseconds only.
                select.select((self._epoll,), (), (), left_s)
                for fd, _ in self._epoll.poll(0.0):
                    if fd == self._pipe.fileno() and not self._tell():
                        return
                    self._take(fd)
            self._late_ms.append(-1000.0 * left_s)
            self._step(number)
            number = (number + 1) % ENGINES

    def _tell(self) -> bool:
        try:
            self._pipe.recv()
        except EOFError:
            return False
        self._pipe.send(self._late_ms)
        self._late_ms = []
        return True

    def _take(self, fd: int) -> None:
        """A connection, a request, or the end of one."""
        if fd in self._listeners:
            listener, number = self._listeners[fd]
            client = _ready(listener.accept()[0])
            self._epoll.register(client.fileno(), select.EPOLLIN)
            self._clients[client.fileno()] = (client, number)
        elif fd in self._clients:
            client, number = self._clients[fd]
            request = _received(client)
            if not request:
                del self._clients[fd]
                client.close()
            elif request.startswith(b"GET"):  # HAProxy asks how the replica does
                _send(client, _NOT_FOUND)
            elif request.endswith(_BODY) and _send(client, _HEAD):
                self._answers[number].append(_Answer(client, time.monotonic_ns()))

    def _step(self, number: int) -> None:
        """Each stream of an engine gets a token, the newest last: it waits for all others on the way, too."""
        going = []
        for answer in self._answers[number]:
            answer.tokens += 1
            piece = self._event
            if answer.tokens == 1:
                took_us = (time.monotonic_ns() - answer.came_ns) // 1000
                piece = _chunk(_EVENT % took_us)
            elif answer.tokens == TOKENS:
                piece = self._end
            if _send(answer.socket, piece) and answer.tokens < TOKENS:
                going.append(answer)
        self._answers[number] = going


def run_engines(pipe: Connection) -> None:
    """The engines' process: tells their ports, then for each message how late every step since the last one began."""
    os.sched_setaffinity(0, {PARTIES_CORE})
    gc.disable()
    engines = _Engines(pipe)
    pipe.send(engines.open())
    engines.run()


def used_s(router_pid: int, engines_pid: int) -> dict[str, float]:
    """Seconds so far for which the router, and both parties, had their core or had to wait for it, by what it was."""
    router_s, router_wait_s = _schedule_s(router_pid) if router_pid else (0.0, 0.0)
    engines_s, engines_wait_s = _schedule_s(engines_pid)
    client_s, client_wait_s = _schedule_s(os.getpid())
    return {
        "router": router_s,
        "router waits": router_wait_s,
        "parties": engines_s + client_s,
        "engines wait": engines_wait_s,
        "client waits": client_wait_s,
    }


def _schedule_s(pid: int) -> tuple[float, float]:
    """On a core, and ready for one; each of these processes works in its main thread alone."""
    running, waiting, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return 1e-9 * int(running), 1e-9 * int(waiting)


def spread(streams: int, seconds: float, seed: int) -> tuple[float, ...]:
    """When to open streams so that `streams` are open after STREAM_S: one at a random time within each equal gap."""
    gap_s, random_ = STREAM_S / streams, random.Random(seed)
    return tuple(
        gap_s * (number + random_.random()) for number in range(int(seconds / gap_s))
    )


@dataclass(slots=True)
class ReadStream:
    """A stream as the client saw it."""

    sent_ns: int
    first_ns: int = 0
    """When its first token came; where none did, until when it was waited for."""
    engine_ms: float = 0.0
    """How much of that the engine took."""
    events: int = 0
    is_broken: bool = False
    head: bytes = field(default=b"", repr=False)
    tail: bytes = b""

    @property
    def ttft_ms(self) -> float:
        """Until its first token."""
        return 1e-6 * (self.first_ns - self.sent_ns)

    @property
    def way_ms(self) -> float:
        """What of that is not the engine's."""
        return self.ttft_ms - self.engine_ms

    def feed(self, data: bytes) -> bool:
        """Whether it has ended with these bytes."""
        if not self.first_ns:
            self.head += data
            if stated := _STATED_US.search(self.head):
                self.first_ns = time.monotonic_ns()
                self.engine_ms = int(stated[1]) / 1000.0
            elif not self.head.startswith(_HEAD[:12][: len(self.head)]):
                self.is_broken = True
        joined = self.tail + data
        self.events += joined.count(_EVENT_END) - self.tail.count(_EVENT_END)
        self.tail = joined[1 - len(_LAST_CHUNK) :]
        return joined.endswith(_LAST_CHUNK)


class StreamClient:
    """Opens a stream whenever one is due, and reads all that are open; used once."""

    def __init__(
        self, ports: Sequence[int], path: str, arrivals_s: Sequence[float]
    ) -> None:
        """`ports`: asked in turn. `arrivals_s`: of streams, ascending, in seconds from the start."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
        )
        self._request = (
            head.encode() + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY
        )
        self._ports = ports
        self._arrivals_s = arrivals_s
        self._epoll = select.epoll()
        self._sockets: dict[int, tuple[socket.socket, ReadStream]] = {}
        self._idle: dict[int, list[socket.socket]] = {port: [] for port in ports}
        self.streams: list[ReadStream] = []
        """All that were opened, in that order."""
        self.events = 0
        """That have come within the measured time."""

    @property
    def measured(self) -> list[ReadStream]:
        """Those that were opened within the measured time."""
        both = zip(self._arrivals_s, self.streams, strict=False)
        return [stream for at_s, stream in both if at_s >= STREAM_S]

    def run(self, look: Callable[[], None]) -> None:
        """Streams up to the last arrival; measured from STREAM_S on, when as many end as begin. `look`: is called when
        the measured time begins and when it ends."""
        gc.disable()
        try:
            begun_s = time.monotonic()
            self._read_until(begun_s, STREAM_S)
            look()
            before = self._count()
            self._read_until(begun_s, self._arrivals_s[-1])
            look()
            self.events = self._count() - before
            self._await_first(begun_s + self._arrivals_s[-1] + _PATIENCE_S)
        finally:
            gc.enable()
            self._give_up()
            self._close()

    def _read_until(self, begun_s: float, end_s: float) -> None:
        while (now_s := time.monotonic() - begun_s) < end_s:
            while now_s >= self._arrivals_s[len(self.streams)]:
                self._open()
            self._read(self._arrivals_s[len(self.streams)] - now_s)

    def _await_first(self, due_s: float) -> None:
        while time.monotonic() < due_s and any(
            not each.first_ns and not each.is_broken for each in self.streams
        ):
            self._read(0.1)

    def _count(self) -> int:
        return sum(each.events for each in self.streams)

    def _open(self) -> None:
        port = self._ports[len(self.streams) % len(self._ports)]
        idle = self._idle[port]
        if idle:
            used = idle.pop()
        else:
            used = _ready(socket.create_connection(("127.0.0.1", port)))
            self._epoll.register(used.fileno(), select.EPOLLIN)
        stream = ReadStream(sent_ns=time.monotonic_ns())
        self._sockets[used.fileno()] = (used, stream)
        self.streams.append(stream)
        # Where that fails, the end of the connection tells so.
        _send(used, self._request)

    def _read(self, wait_s: float) -> None:
        select.select((self._epoll,), (), (), max(0.0, wait_s))
        for fd, _ in self._epoll.poll(0.0):
            used, stream = self._sockets[fd]
            data = _received(used)
            if not data:
                stream.is_broken |= not self._was_idle(used)
                del self._sockets[fd]
                used.close()
            elif stream.feed(data):
                stream.is_broken |= stream.events != EVENTS
                self._idle[used.getpeername()[1]].append(used)

    def _was_idle(self, used: socket.socket) -> bool:
        """Whether it had done with its stream; from now on nothing uses it."""
        for idle in self._idle.values():
            if used in idle:
                idle.remove(used)
                return True
        return False

    def _give_up(self) -> None:
        """What has no token counts with the time that was waited for it, which is too little: it is broken."""
        for stream in self.streams:
            if not stream.first_ns:
                stream.first_ns, stream.is_broken = time.monotonic_ns(), True

    def _close(self) -> None:
        for used, _ in self._sockets.values():
            used.close()
        self._epoll.close()


def _ready(used: socket.socket) -> socket.socket:
    used.setblocking(False)
    used.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return used


def _send(used: socket.socket, data: bytes) -> bool:
    """Whether it is on its way; not where the connection has ended."""
    try:
        sent = used.send(data)
    except OSError:
        return False
    # The kernel has room for several whole streams on each connection.
    assert sent == len(data)
    return True


def _received(used: socket.socket) -> bytes:
    """Empty at the end of the connection, however it came."""
    try:
        return used.recv(_READ_BYTES)
    except OSError:
        return b""


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
