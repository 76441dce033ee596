"""The port at which a node takes requests, and how it lives through a restart of the agent.

    async with front(device, port, access): ...

An agent that opens the port itself closes it when it ends: until the next one has opened it connections are refused.
systemd can hold the port instead (`plimsoll-agent.socket`) and hand it over as file descriptor 3, as sd_listen_fds(3)
says. Then nothing is refused: what comes between two agents waits in the kernel. The agent that leaves takes no new
connection, answers for a moment longer those that have one already, and tells them to come by a new one; the agent that
comes takes requests once the routes of its last command are in force, so that none is told of an unknown service.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping

from aiohttp import web

from agents.base.device import Device, DeviceError
from agents.router.access import ASKS_FOR_KEYS, RouterAccess, guard, tls_context
from agents.serving.request_bodies import IS_RAW

FIRST_HANDED_OVER = 3
"""SD_LISTEN_FDS_START."""
BACKLOG = 128
"""Connections that wait at the agent's own port."""
LEAVE_S = 0.5
"""For requests on connections that were there before: far above the time from a connection to its request."""

log = logging.getLogger(__name__)


class BadSocket(DeviceError):
    """What was handed over is no port at which requests can be taken."""


@contextlib.asynccontextmanager
async def front(device: Device, port: int, access: RouterAccess) -> AsyncIterator[int]:
    """The router's HTTP server, where the device has one of its own; the port at which requests are taken, 0 = none.

    Raises BadSocket, DeviceError or OSError.
    """
    router = getattr(device, "router", None)
    make_app = getattr(router, "make_app", None)
    handed_over = handed_over_socket(os.environ)
    # A device without an HTTP server of its own takes no requests: simulated ones make theirs up, and HAProxy
    # binds its port itself.
    if make_app is None:
        if handed_over is not None:
            raise BadSocket(
                "systemd passes a port that this process does not serve: disable plimsoll-agent.socket"
            )
        yield 0 if router is None else port
        return
    app = make_app()
    app[ASKS_FOR_KEYS] = access.keys is not None
    # Without a rule nothing stands before a request, which is the time of a middleware less.
    if access.allow or access.keys is not None:
        app.middlewares.append(guard(access))
    closing = asyncio.Event()
    app.on_response_prepare.append(_sender_off(closing))
    # A caller who leaves ends the work of a replica for him.
    app[IS_RAW] = True
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, auto_decompress=False
    )
    await runner.setup()
    try:
        site = web.SockSite(
            runner,
            handed_over or open_port(access.host, port),
            ssl_context=tls_context(access),
        )
        await site.start()
        log.info(
            "requests are taken on port %d (%s)",
            taken_at := runner.addresses[0][1],
            "which stays open" if handed_over else access.summary(),
        )
        yield taken_at
        if handed_over:
            # No new connections first; those that are there get LEAVE_S for the request that may be on its way.
            await site.stop()
            closing.set()
            # Twice, so that a process that stood still for the first time still reads what came meanwhile.
            await asyncio.sleep(LEAVE_S)
            await asyncio.sleep(LEAVE_S)
    finally:
        await runner.cleanup()


def open_port(host: str, port: int) -> socket.socket:
    """A port of that IP address, `::` of all addresses of both kinds; 0: any free one. Raises DeviceError."""
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            dualstack_ipv6=host == "::",
            backlog=BACKLOG,
        )
    except OSError as error:
        raise DeviceError(
            f"cannot take requests at {host}, port {port}: {os.strerror(error.errno or 0)}; "
            "end what listens there, or give another --router-port or --router-host"
        ) from error


def _sender_off(
    closing: asyncio.Event,
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def send_off(_: web.Request, response: web.StreamResponse) -> None:
        if closing.is_set():
            response.force_close()
            response.headers["Connection"] = (
                "close"  # aiohttp's own headers are made by now
            )

    return send_off


def handed_over_socket(environment: MutableMapping[str, str]) -> socket.socket | None:
    """The port that systemd handed over; None = none was. Takes the variables away, so that no replica sees them.

    Raises BadSocket when it is no listening TCP socket, or more than one.
    """
    pid = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "0")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or count == "0":
        return None
    if count != "1":
        raise BadSocket(
            f"systemd passes {count} sockets; plimsoll-agent.socket must have one ListenStream="
        )
    try:
        found = socket.socket(fileno=FIRST_HANDED_OVER)
        is_port = (
            found.family in (socket.AF_INET, socket.AF_INET6)
            and found.type == socket.SOCK_STREAM
        )
        is_open = is_port and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise BadSocket(
            f"file descriptor {FIRST_HANDED_OVER} of LISTEN_FDS is not a socket: {error}"
        ) from error
    if not is_open:
        raise BadSocket(
            "the socket that systemd passes is not a listening TCP socket; use ListenStream=PORT and Accept=no"
        )
    # Replicas must not hold the port open after the agent has ended.
    found.set_inheritable(False)
    return found
