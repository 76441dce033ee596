"""A TCP proxy between two parts of the deployment, which fails as a network does, on any machine and without rights.

async with Proxy() as proxy:
    url = proxy.http("http://127.0.0.1:8080")      # or proxy.database(...): the address to use in its place
    proxy.fail("silent"); ...; proxy.fail("none")

none       everything passes
silent     nothing passes, and no side is told: a partition; what was sent arrives when it is over
reset      every connection is reset at once, new ones as well
slow       everything comes DELAY_S later, each way
half open  connections of before are gone, and their clients were not told; new ones pass
"""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, TypeAlias
from urllib.parse import urlsplit

from sqlalchemy import make_url

Failure: TypeAlias = Literal["none", "silent", "reset", "slow", "half open"]

DELAY_S = 0.5
_CHUNK = 65536
_TCP_REPAIR = 19
"""linux/tcp.h: a socket that is closed in this mode says nothing to the other side."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 s: closing resets."""


@dataclass(eq=False, slots=True)
class _Pair:
    """One connection through the proxy: the client's half, and the one to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter

    def end(self, *, is_told: bool = True) -> None:
        """Cut both; the client hears of it, or not."""
        peer = self.client.get_extra_info("socket")
        # Without the right to it, or when it is closed already, a reset is as near as it gets.
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            if not is_told:
                peer.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
        self.client.transport.abort()
        self.server.transport.abort()


@dataclass(slots=True)
class Proxy:
    """One way from clients to a server."""

    failure: Failure = "none"
    _target: tuple[str, int] | str = ""
    """Host and port, or the path of a socket."""
    _port: int = 0
    _server: asyncio.Server | None = None
    _pairs: set[_Pair] = field(default_factory=set)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _passes: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Self:
        self._passes.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.fail("reset")
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks)

    def http(self, url: str) -> str:
        """The address that leads to that one."""
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 80)
        return f"http://127.0.0.1:{self._port}"

    def database(self, url: str) -> str:
        """The same for a server that listens on a socket of this machine."""
        real = make_url(url)
        self._target = f"{real.query['host']}/.s.PGSQL.{real.query['port']}"
        return real.set(host="127.0.0.1", port=self._port, query={}).render_as_string(
            hide_password=False
        )

    def fail(self, failure: Failure) -> None:
        """From now on."""
        self.failure = failure
        if failure == "silent":
            self._passes.clear()
        else:
            self._passes.set()
        if failure in ("reset", "half open"):
            for pair in tuple(self._pairs):
                pair.end(is_told=failure == "reset")

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # A client of a server that is away is connected and waits, as behind a partition.
            await self._passes.wait()
            await self._join(reader, writer)
        # Either side is gone, or this end: the other side must hear of it.
        except* (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _join(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        from_server, to_server = await self._connect()
        pair = _Pair(writer, to_server)
        self._pairs.add(pair)
        try:
            if self.failure == "reset":
                pair.end()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, to_server))
                both.create_task(self._carry(from_server, writer))
        finally:
            self._pairs.discard(pair)
            to_server.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(_CHUNK):
            if self.failure == "slow":
                await asyncio.sleep(DELAY_S)
            await self._passes.wait()
            writer.write(data)
            await writer.drain()
        await self._passes.wait()
        writer.close()
