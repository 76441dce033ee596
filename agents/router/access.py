"""Who may send a node requests: at which address it listens, from which networks, by TLS, and with which keys.

    access = read_access(options)         of the agent's `--router-…` options; raises DeviceError for a wrong file
    access.summary()                        what an operator should know at the start
    tls_context(access), guard(access)    of the agent's own router; `agents.router.haproxy.config` has HAProxy's

The file of keys has one line per key, `SERVICE = SHA-256 of the key in hexadecimal`; two lines of one service are valid
at once, so that keys can be exchanged. A service without a line answers no request.
"""

import argparse
import hashlib
import ipaddress
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias

from aiohttp import web
from aiohttp.typedefs import Middleware

from agents.base.addresses import plain_ip
from agents.base.device import DeviceError
from agents.serving.http_problems import problem

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK = "127.0.0.1"
ASKS_FOR_KEYS = web.AppKey("asks_for_keys", bool)
"""Whether a server's requests carry keys of the router's, which no replica needs to see."""
MAX_KEYS_FILE = 1024 * 1024
_KEY_LINE = re.compile(r"([A-Za-z0-9._~-]{1,253})\s*=\s*([0-9A-Fa-f]{64})")

READINESS_PATH = "/v2/models/{service}/ready"
"""What balancers ask, without a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterAccess:
    """How a node's router can be reached."""

    host: str = LOOPBACK
    """Its own IP address; `0.0.0.0` and `::` are all that it has."""
    allow: tuple[Network, ...] = ()
    """Networks of those who may send; empty: all who reach the address."""
    certificate: Path | None = None
    """Chain in PEM; None: no TLS."""
    private_key: Path | None = None
    keys: Mapping[str, frozenset[str]] | None = None
    """SHA-256 in lower-case hexadecimal by service; None: no key is needed."""

    def admits(self, address: str) -> bool:
        """Whether a client may send from there."""
        if not self.allow:
            return True
        try:
            client = plain_ip(address)
        except ValueError:
            return False
        return any(client in network for network in self.allow)

    def accepts(self, service: str, authorization: str) -> bool:
        """Whether the header has a key of the service."""
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape"))
        # What is compared are digests, whose beginnings tell nothing about a key.
        return scheme.lower() == "bearer" and digest.hexdigest() in (
            self.keys or {}
        ).get(service, ())

    def summary(self) -> str:
        """Who can send requests; begins with `anybody` where that is not limited at all."""
        if ipaddress.ip_address(self.host).is_loopback:
            return "from this machine only; --router-host opens it to others"
        if not self.allow and self.keys is None:
            way = "by TLS" if self.certificate else "without TLS"
            return (
                f"anybody who can reach {self.host} may send requests {way}: see --router-allow, --router-keys and "
                "--router-tls-cert"
            )
        return f"at {self.host}{', by TLS' if self.certificate else ', without TLS'}"


def read_access(options: argparse.Namespace) -> RouterAccess:
    """As the options say. Raises DeviceError where a file cannot be used."""
    access = RouterAccess(
        host=options.router_host,
        allow=tuple(options.router_allow),
        certificate=options.router_tls_cert,
        private_key=options.router_tls_key,
        keys=None if options.router_keys is None else _read_keys(options.router_keys),
    )
    # Now, and not when the port is opened: by then GPUs and replicas have been touched.
    tls_context(access)
    return access


def _read_keys(path: Path) -> dict[str, frozenset[str]]:
    try:
        with path.open(encoding="utf-8") as file:
            lines = file.read(MAX_KEYS_FILE).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DeviceError(f"--router-keys: {error}") from error
    found: dict[str, frozenset[str]] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        read = _KEY_LINE.fullmatch(text)
        if read is None:
            raise DeviceError(
                f"--router-keys: line {number} of {path} must be `SERVICE = SHA-256 of its key in hexadecimal`"
            )
        found[read[1]] = found.get(read[1], frozenset()) | {read[2].lower()}
    return found


def tls_context(access: RouterAccess) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with that certificate; None: none is wanted. Raises DeviceError."""
    if access.certificate is None or access.private_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # With a password, even a wrong one, OpenSSL does not ask for one at a terminal.
        context.load_cert_chain(access.certificate, access.private_key, password="")
    except (OSError, ssl.SSLError) as error:
        raise DeviceError(
            f"--router-tls-cert {access.certificate} and --router-tls-key {access.private_key} cannot be used: {error}"
        ) from error
    return context


def guard(access: RouterAccess) -> Middleware:
    """What stands before every route of the own router; nothing of a body has been read by then."""

    @web.middleware
    async def admit(
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        if not access.admits(request.remote or ""):
            return _refused(
                HTTPStatus.FORBIDDEN,
                f"this node accepts no requests from {request.remote}",
            )
        # Load balancers and Prometheus ask for readiness and metrics, and have no key.
        if access.keys is not None and _needs_key(request):
            service = request.match_info.get("service", "")
            if not access.accepts(service, request.headers.get("Authorization", "")):
                answer = _refused(
                    HTTPStatus.UNAUTHORIZED,
                    f"service {service} needs its key: `Authorization: Bearer KEY`",
                )
                answer.headers["WWW-Authenticate"] = "Bearer"
                return answer
        return await handler(request)

    return admit


def _needs_key(request: web.Request) -> bool:
    """Whether it is for inference, or asks what a service's network takes."""
    resource = request.match_info.route.resource
    # By the route, since a service may be called "ready", and what a path says is decoded.
    is_ready = resource is not None and resource.canonical == READINESS_PATH
    return "service" in request.match_info and not is_ready


def _refused(status: HTTPStatus, detail: str) -> web.Response:
    answer = problem(status, detail)
    # Else the server would read the body to its end, to keep the connection for the next request.
    answer.force_close()
    return answer
