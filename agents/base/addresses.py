"""Addresses: as a socket shows them, as others find a port of this machine, and what is said when one takes no more."""

import asyncio
import errno
import logging
import math
import socket
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

FULL_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""accept(2) ends with these when no further connection can be taken; asyncio tries again after a second."""

log = logging.getLogger(__name__)


# A fleet's agents report from the same addresses every second.
@lru_cache(maxsize=4096)
def plain_ip(text: str) -> IPv4Address | IPv6Address:
    """The address, without a zone. Raises ValueError for a name."""
    found = ip_address(text.partition("%")[0])
    # A socket that takes both kinds shows an IPv4 client as ::ffff:10.0.0.1.
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def advertised(host: str, port: int, url: str) -> str:
    """host:port by which Prometheus finds these metrics; empty where it cannot.

    A port of this machine alone means another one to a Prometheus elsewhere: it is told of only where the control
    plane (`url`) is on this machine, too.
    """
    if not port:
        return ""
    if is_local(host) and not is_local(urlsplit(url).hostname or ""):
        return ""
    return joined(
        # An address that means "all of mine" is none that another machine could use.
        socket.gethostname() if host in ("0.0.0.0", "::", "") else host,
        port,
    )


def is_local(host: str) -> bool:
    """Whether an address means the machine that it is used on."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def joined(host: str, port: int) -> str:
    """host:port, in brackets where the address has colons itself."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def report_full_process(
    loop: asyncio.AbstractEventLoop, *, period_s: float = 60.0
) -> None:
    """Say once a period that no connection can be taken.

    asyncio itself prints a traceback for each place of the backlog and each try: that filled disks within hours.
    """
    said_at_s = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        nonlocal said_at_s
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in FULL_ERRORS:
            loop.default_exception_handler(context)
        elif loop.time() >= said_at_s + period_s:
            said_at_s = loop.time()
            log.error(
                "no further connection can be taken: %s; raise the limit of open files (`ulimit -n`, LimitNOFILE=)",
                error.strerror,
            )

    loop.set_exception_handler(handle)
