"""`plimsoll port-forward`: a port of this machine that leads to where a service's requests go."""

import asyncio
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import typer

from app.cli.common.client import Api, text
from app.cli.common.context import cli_context
from app.cli.common.errors import CliError, show_error
from app.cli.common.kinds import NamedObject, parse_objects
from app.cli.objects.completion import complete_references

HOST = "127.0.0.1"
"""Others on the network get no way to a service through a person's machine."""
MAX_CONNECTIONS = 256
ENDPOINT_S = 5.0
"""How long a service's address is used before it is asked for again: plans move services."""
CONNECT_S = 10.0
PIECE_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardTarget:
    """Where connections go."""

    host: str
    port: int
    is_tls: bool
    path: str
    """Where its requests go; OpenAI's paths are below that of a language model."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


def port_forward(
    context: typer.Context,
    service: Annotated[
        str,
        typer.Argument(
            metavar="service/NAME",
            help="One service",
            autocompletion=complete_references,
        ),
    ],
    local: Annotated[
        int,
        typer.Argument(
            metavar="LOCAL", min=0, max=65_535, help="Port of this machine; 0 = any"
        ),
    ] = 0,
) -> None:
    """Forward a local port to a service.

    Connects to the gateway or, without one, to a node that serves it; new connections follow the plan. Ctrl-C ends it.
    The service's keys and allowed networks still apply: requests come from this machine.

    Example: plimsoll port-forward service/chat 8000
    """
    (named,) = parse_objects([service])
    if named.kind.name != "Service":
        raise typer.BadParameter("name one service, such as service/chat")
    with Api(cli_context(context)) as api, suppress(KeyboardInterrupt):

        async def find() -> ForwardTarget:
            # In a thread, so that connections go on while the control plane thinks.
            return await asyncio.to_thread(find_target, api, named)

        asyncio.run(Forwarding(find).serve(local))


def find_target(api: Api, named: NamedObject) -> ForwardTarget:
    """Where the requests of a service go now. Raises CliError."""
    found = api.get(f"{named.kind.one(named.name)}/endpoints")
    url = urlsplit(text(found, "url"))
    if not url.hostname:
        raise CliError(
            f"no node takes the requests of {named}",
            hint=f"`plimsoll rollout status {named}` shows what is missing",
        )
    is_tls = url.scheme == "https"
    return ForwardTarget(
        host=url.hostname,
        port=url.port or (443 if is_tls else 80),
        is_tls=is_tls,
        path=url.path,
    )


class Forwarding:
    """Takes connections and carries their bytes both ways."""

    def __init__(self, find: Callable[[], Awaitable[ForwardTarget]]) -> None:
        self._find = find
        self._connections: set[asyncio.Task[object]] = set()
        self._turn = asyncio.Lock()
        self._target: ForwardTarget | None = None
        self._found_s = 0.0

    async def serve(self, port: int) -> None:
        """Until it is cancelled. Raises CliError for a port that is taken, and for a service that has no replica."""
        target = await self._target_now()
        try:
            server = await asyncio.start_server(self._take, HOST, port)
        except OSError as error:
            raise CliError(
                f"cannot listen on {HOST}:{port}: {error.strerror or error}",
                hint="use another port, or 0 for any free one",
            ) from error
        try:
            taken = server.sockets[0].getsockname()[1]
            sys.stdout.write(
                f"Forwarding from {HOST}:{taken} -> {target}\n"
                f"Send requests to http://{HOST}:{taken}{target.path}\n"
            )
            # Programs wait for these lines in a pipe.
            sys.stdout.flush()
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            # Those that are open would keep the program from ending, as long as their callers like.
            for each in self._connections:
                each.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _take(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection, from its beginning to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # Refused and not queued: it would be unclear why nothing comes.
            if len(self._connections) <= MAX_CONNECTIONS:
                await self._forward(reader, writer)
        # Only at the end of the program; asyncio would report it as an error of the connection.
        except asyncio.CancelledError:
            pass
        # One broken connection is not the end of the others; its client sees that it ends.
        except (CliError, OSError, TimeoutError) as error:
            problem = str(error) or type(error).__name__
            show_error(CliError(f"a connection was not forwarded: {problem}"))
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        target = await self._target_now()
        # TLS is spoken from here on, so that clients need no certificate of 127.0.0.1.
        security = ssl.create_default_context() if target.is_tls else None
        async with asyncio.timeout(CONNECT_S):
            far_reader, far_writer = await asyncio.open_connection(
                target.host, target.port, ssl=security
            )
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, far_writer))
                both.create_task(_copy(far_reader, writer))
        finally:
            far_writer.close()

    async def _target_now(self) -> ForwardTarget:
        async with self._turn:
            now_s = asyncio.get_running_loop().time()
            if self._target is None:
                self._target, self._found_s = await self._find(), now_s
            elif now_s > self._found_s + ENDPOINT_S:
                # A control plane that is away takes nothing from a service that runs.
                with suppress(CliError):
                    self._target = await self._find()
                self._found_s = now_s
            return self._target


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All bytes until the end, which is passed on; a side that broke off ends the other one, too."""
    with suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    # TLS has no half-closed connections.
    with suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()
