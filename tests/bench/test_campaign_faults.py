"""What the campaign makes faults with: connections, clocks and replicas fail as they say."""

import asyncio
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.campaign.deployment.clock import Clock, build
from bench.campaign.deployment.device import WORKER
from bench.campaign.deployment.journal import JournalReader
from bench.campaign.deployment.proxy import Proxy
from tests.ports import a_free_port
from tests.waiting import in_loop, until

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def through_proxy() -> AsyncIterator[tuple[Proxy, Callable[[], Any]]]:
    """A proxy in front of an echo, and what makes a connection over which one word has come and gone."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server, Proxy() as proxy:
        port = server.sockets[0].getsockname()[1]
        url = proxy.http(f"http://127.0.0.1:{port}")
        front = int(url.rpartition(":")[2])
        made: list[asyncio.StreamWriter] = []

        async def connect(word: bytes = b"one") -> Connection:
            reader, writer = await asyncio.open_connection("127.0.0.1", front)
            made.append(writer)
            writer.write(word)
            return reader, writer

        yield proxy, connect
        for each in made:
            each.transport.abort()


@in_loop
async def test_a_partition_holds_back_what_was_sent_and_brings_it_afterwards() -> None:
    async with through_proxy() as (proxy, connect):
        reader, writer = await connect()
        assert await reader.read(100) == b"one"
        proxy.fail("silent")
        fresh, _ = await connect(b"three")
        writer.write(b"two")
        answer = asyncio.ensure_future(reader.read(100))
        _, pending = await asyncio.wait([answer], timeout=0.2)
        assert pending
        proxy.fail("none")
        assert (await answer, await fresh.read(100)) == (b"two", b"three")


@in_loop
async def test_a_reset_ends_connections_of_before_and_new_ones() -> None:
    async with through_proxy() as (proxy, connect):
        reader, _ = await connect()
        await reader.read(100)
        proxy.fail("reset")
        with pytest.raises(ConnectionError):
            await reader.read(100)
        fresh, _ = await connect()
        with pytest.raises(ConnectionError):
            await fresh.readexactly(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops connections in silence")
@in_loop
async def test_a_half_open_connection_hears_of_its_end_only_when_it_is_used() -> None:
    async with through_proxy() as (proxy, connect):
        reader, writer = await connect()
        await reader.read(100)
        proxy.fail("half open")
        answer = asyncio.ensure_future(reader.read(100))
        _, pending = await asyncio.wait([answer], timeout=0.2)
        assert pending
        writer.write(b"two")
        with pytest.raises(ConnectionError):
            await answer
        fresh, _ = await connect(b"three")
        assert await fresh.read(100) == b"three"


def test_a_moved_clock_moves_the_date_and_no_timeout(tmp_path: Path) -> None:
    library = build(tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    clock = Clock(library, tmp_path / "offset")
    clock.set(3600)
    date_before_s, before_s = time.time(), time.monotonic()
    said = subprocess.check_output(
        [sys.executable, "-c", "import time; print(time.time(), time.monotonic())"],
        env={**os.environ, **clock.environment},
    )
    date_s, monotonic_s = map(float, said.split())
    assert date_before_s + 3599.0 < date_s < time.time() + 3601.0
    assert before_s <= monotonic_s <= time.monotonic()


@pytest.mark.parametrize("is_doubled", [False, True])
def test_a_replica_notes_that_it_runs_twice(tmp_path: Path, is_doubled: bool) -> None:
    (tmp_path / "journal").touch()
    (tmp_path / "r1").mkdir()
    with (tmp_path / "r1.lock").open("w") as lock:
        if is_doubled:
            fcntl.flock(lock, fcntl.LOCK_EX)
        port = a_free_port()
        process = subprocess.Popen(
            [sys.executable, "-I", str(WORKER), str(port), str(tmp_path)],
            cwd=tmp_path / "r1",
        )
        try:
            until(lambda: _answers(port))
        finally:
            process.kill()
            process.wait()
    noted = JournalReader(path=tmp_path / "journal").read()
    assert [(each.kind, each.detail) for each in noted] == [
        ("doubled", "r1")
    ] * is_doubled


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
            return connection.recv(100).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False
