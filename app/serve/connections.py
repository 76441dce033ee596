"""The API's socket and its connections, which a client can hold no longer than it uses them."""

import asyncio
import socket
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.base.errors import PlimsollError
from app.base.settings import Settings

BACKLOG = 2048
"""Connections that may wait to be taken; a fleet's agents come back all at once."""

HEADERS_WITHIN_S = 30.0
"""From a connection's or a request's first byte to the end of its headers."""

TAKEN_WITHIN_S = 60
"""A client that takes nothing of its answer for so long is cut by the kernel, and so is one that lost its network."""


def open_socket(settings: Settings) -> socket.socket:
    """The API's socket, before anything else is started. Raises PlimsollError, which says what to do."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server(
            (settings.host, settings.port), family=family, backlog=BACKLOG
        )
    except OSError as error:
        raise PlimsollError(
            f"the API cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}; "
            "another program may have the port: choose one by --port or PLIMSOLL_PORT (0: any free one)"
        ) from error
    # Connections have it from the socket that they came in by. Only Linux has it.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * TAKEN_WITHIN_S
        )
    return listening


class TimedProtocol(HttpToolsProtocol):
    """One connection, which is cut where the headers of a request do not come in time; uvicorn itself waits for ever.

    `RequestMiddleware` looks after bodies, and uvicorn's `timeout_keep_alive` after connections that are silent.
    """

    within_s = HEADERS_WITHIN_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, if they are not complete."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        super().connection_lost(exc)
        self._stop_watching()

    def _watch(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self._stop_watching()
        # Not begun again by each byte: they may come one a minute.
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.within_s, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
