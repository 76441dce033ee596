"""The port at which Prometheus reads an agent's metrics, and the address that the control plane is told of it.

    async with metrics_port(host, port, read): ...

It is off unless asked for, and on this machine alone unless another address is given: it has no token.
"""

import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

log = logging.getLogger(__name__)

Read = Callable[[], bytes]


@contextlib.asynccontextmanager
async def metrics_port(host: str, port: int, read: Read) -> AsyncIterator[None]:
    """Answers `GET /metrics`; port 0: not at all. Raises OSError where the port is taken."""
    if not port:
        yield
        return

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=read(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    # No access log: a line for every scrape would bury the others.
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        log.info("metrics are at http://%s/metrics", _joined(host, port))
        yield
    finally:
        await runner.cleanup()


def advertised(host: str, port: int, url: str) -> str:
    """host:port by which Prometheus finds these metrics; empty where it cannot.

    A port of this machine alone means another one to a Prometheus elsewhere: it is told of only where the control
    plane (`url`) is on this machine, too.
    """
    if not port:
        return ""
    if is_local(host) and not is_local(urlsplit(url).hostname or ""):
        return ""
    return _joined(
        # An address that means "all of mine" is none that another machine could use.
        socket.gethostname() if host in ("0.0.0.0", "::", "") else host,
        port,
    )


def is_local(host: str) -> bool:
    """Whether an address means the machine that it is used on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
