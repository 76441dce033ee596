"""Connections to one worker, over real sockets: when they are used again, and what every failure becomes."""

import asyncio
import socket
import time

import pytest

from agents.router.pool import (
    PIECES_LIMIT,
    ConnectionPool,
    LateAnswer,
    NotConnected,
    WorkerAnswer,
    WorkerAnswerLost,
)
from tests.agents.router_harness import (
    Handler,
    raw_worker,
    read_request,
    tick_until,
)
from tests.waiting import in_loop

pytestmark = pytest.mark.integration

MAX_READ = 256 * 1024
"""What asyncio takes from a socket at once."""


async def ask(
    pool: ConnectionPool, body: bytes = b"", *, timeout_s: float = 20.0
) -> WorkerAnswer:
    head = b"POST /x HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n" % len(body)
    return await pool.ask(head, body, timeout_s=timeout_s)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers every request with its body."""
    while True:
        _, body = await read_request(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )


async def whole(answer: WorkerAnswer) -> bytes:
    if answer.body is not None:
        return answer.body
    pieces = []
    while piece := await answer.piece():
        pieces.append(piece)
    answer.close()
    return b"".join(pieces)


def answering(raw: bytes, *, ends: bool = False) -> Handler:
    """Answers every request with the same bytes; `ends`: and ends the connection."""

    async def handle(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await read_request(reader)
            writer.write(raw)
            if ends:
                await writer.drain()
                return

    return handle


NOT_AGAIN = {
    "the worker says so": (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        False,
    ),
    "the worker ends it": (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        True,
    ),
    "its end is the body's": (b"HTTP/1.1 200 OK\r\n\r\nok", True),
    "bytes follow": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
        False,
    ),
}


@pytest.mark.parametrize("name", NOT_AGAIN)
@in_loop
async def test_a_connection_is_not_used_again_when(name: str) -> None:
    raw, ends = NOT_AGAIN[name]
    async with raw_worker(answering(raw, ends=ends)) as worker:
        pool = ConnectionPool(worker.url)
        for _ in range(3):
            assert await whole(await ask(pool)) == b"ok"
        assert worker.connections == 3
        await tick_until(lambda: worker.ended == 3)


@in_loop
async def test_a_connection_that_the_worker_ends_while_it_is_idle_is_forgotten() -> (
    None
):
    end = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await end.wait()

    async with raw_worker(once) as worker:
        pool = ConnectionPool(worker.url)
        assert (await ask(pool)).body == b"ok"
        assert pool.idle == 1
        end.set()
        await tick_until(lambda: pool.idle == 0)
        assert (await ask(pool)).body == b"ok"
        assert worker.connections == 2


@in_loop
async def test_a_connection_that_was_idle_for_too_long_is_not_used_again() -> None:
    async with raw_worker(echo) as worker:
        pool = ConnectionPool(worker.url, idle_s=0.0)
        for _ in range(3):
            assert (await ask(pool, b"a")).body == b"a"
        assert worker.connections == 3
        pool.close()
        await tick_until(lambda: worker.ended == 3)


@in_loop
async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    more = asyncio.Event()

    async def babble(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await more.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await reader.read()

    async with raw_worker(babble) as worker:
        pool = ConnectionPool(worker.url)
        await ask(pool)
        more.set()
        await tick_until(lambda: worker.ended == 1)
        assert (await ask(pool)).body == b""
        assert worker.connections == 2
        await tick_until(lambda: worker.ended == 2)


@in_loop
async def test_a_port_that_nobody_listens_on_is_not_connected() -> None:
    async with raw_worker(echo) as worker:
        url = worker.url
    with pytest.raises(NotConnected, match=url):
        await ask(ConnectionPool(url))


@in_loop
async def test_a_router_that_stood_still_blames_no_worker_that_can_be_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agents.router.pool.CONNECT_TIMEOUT_S", 0.05)
    async with raw_worker(echo) as worker:
        asking = asyncio.create_task(ask(ConnectionPool(worker.url), b"late"))
        await asyncio.sleep(0)
        # As a busy machine does: no turn for anybody until long after the connection's time.
        time.sleep(0.2)  # noqa: ASYNC251
        assert await whole(await asking) == b"late"


@in_loop
async def test_a_worker_that_takes_no_connection_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agents.router.pool.CONNECT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as port:
        host, number = port.getsockname()
        # Its queue is full with the first one, which is not taken out.
        with (
            socket.create_connection((host, number)),
            pytest.raises(NotConnected, match=r"no connection within 0\.05 s"),
        ):
            await ask(ConnectionPool(f"http://{host}:{number}"))


NO_ANSWER = {
    "nothing": (b"", "before an answer"),
    "half a head": (b"HTTP/1.1 200 OK\r\nCont", "in the middle"),
    "half a body": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        "in the middle",
    ),
    "no http": (b"SSH-2.0-x\r\n\r\n", "not a status line"),
}


@pytest.mark.parametrize("name", NO_ANSWER)
@in_loop
async def test_an_answer_that_is_none_is_told_as_such(name: str) -> None:
    raw, message = NO_ANSWER[name]
    async with raw_worker(answering(raw, ends=True)) as worker:
        with pytest.raises(WorkerAnswerLost, match=message):
            await ask(ConnectionPool(worker.url))


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Takes everything and says nothing."""
    while await reader.read(65536):
        pass


@in_loop
async def test_an_answer_that_does_not_come_in_time_is_late_and_the_worker_learns_that_nobody_waits() -> (
    None
):
    async with raw_worker(silent) as worker:
        with pytest.raises(LateAnswer):
            await ask(ConnectionPool(worker.url), timeout_s=0.05)
        await tick_until(lambda: worker.ended == 1)


@pytest.mark.parametrize("steps", range(12))
@in_loop
async def test_whoever_gives_up_at_any_moment_leaves_no_connection(steps: int) -> None:
    async with raw_worker(silent) as worker:
        asking = asyncio.create_task(ask(ConnectionPool(worker.url)))
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        # Whatever came before this one the worker has taken by then.
        before = worker.connections
        host, _, port = worker.url.removeprefix("http://").partition(":")
        _, last = await asyncio.open_connection(host, int(port))
        await tick_until(lambda: worker.connections > before)
        last.close()
        await tick_until(lambda: worker.ended == worker.connections)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer without end."""
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


@in_loop
async def test_a_long_answer_comes_piece_by_piece_and_waits_for_who_takes_them() -> (
    None
):
    async with raw_worker(endless) as worker:
        answer = await ask(ConnectionPool(worker.url))
        assert answer.body is None and answer.length is None
        taken = 0
        while taken < 20 * PIECES_LIMIT:
            await asyncio.sleep(0.005)  # the worker could send megabytes
            piece = await answer.piece()
            assert set(piece) == {ord("x")}
            assert len(piece) <= PIECES_LIMIT + MAX_READ
            taken += len(piece)
        answer.close()
        await tick_until(lambda: worker.ended == 1)


@in_loop
async def test_a_long_answer_that_breaks_off_is_no_answer_after_what_came() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegun"
    async with raw_worker(answering(raw, ends=True)) as worker:
        answer = await ask(ConnectionPool(worker.url))
        assert await answer.piece() == b"begun"
        with pytest.raises(WorkerAnswerLost, match="in the middle"):
            await answer.piece()
        answer.close()


@pytest.mark.thorough
@in_loop
async def test_a_long_answer_that_stops_is_late() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegun"
    async with raw_worker(answering(raw)) as worker:
        answer = await ask(ConnectionPool(worker.url), timeout_s=2.0)
        assert await answer.piece() == b"begun"
        with pytest.raises(LateAnswer):
            await answer.piece()
        await tick_until(lambda: worker.ended == 1)
