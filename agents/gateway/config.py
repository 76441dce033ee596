"""The configuration of the gateway's HAProxy: empty places, which the runtime socket fills."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from agents.router.haproxy.config import (
    CHECK_TIMEOUT_MS,
    bind_address,
    error_replies,
    reply,
)
from agents.router.request_router import LONGEST_START_S

NODES_BACKEND = "nodes"
"""Every node, for paths that are of no service."""
NODES_PLACES = 8
WAITING = 4
"""Nodes at which the requests of a service wait while no node serves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """How the gateway is set up; `folder` holds configuration, maps and socket, and is its own alone."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    """Chain in PEM; None: callers come without TLS."""
    private_key: Path | None = None
    node_ca: Path | None = None
    """Authority of the nodes' certificates; None: nodes take requests without TLS."""
    metrics_port: int = 0
    """HAProxy's own metrics are there, on this machine alone; 0 = nowhere."""
    services: int = 128
    """Services that have a place."""
    nodes: int = 16
    """Nodes of one service that have a place."""

    @property
    def replicas(self) -> int:
        """Places of each backend: where all nodes change at once, those that leave keep theirs until they are done."""
        return 2 * self.nodes

    @property
    def node_scheme(self) -> str:
        """How the gateway speaks to all nodes: HAProxy's servers share one setting for TLS."""
        return "http" if self.node_ca is None else "https"

    @property
    def starts_down(self) -> bool:
        """A node that is added gets nothing until its first good check: its replicas may still be starting."""
        return True

    @property
    def socket_path(self) -> Path:
        return self.folder / "haproxy.sock"

    @property
    def map_path(self) -> Path:
        return self.folder / "services.map"

    @property
    def names_path(self) -> Path:
        """The map from backends to services, by which checks know what they ask for."""
        return self.folder / "names.map"

    @property
    def config_path(self) -> Path:
        return self.folder / "haproxy.cfg"

    @property
    def tls_path(self) -> Path:
        """Certificate and private key in one file, as HAProxy takes them."""
        return self.folder / "tls.pem"


def tls_file(settings: GatewaySettings) -> bytes:
    """Certificate and key together; empty: none. Raises OSError."""
    if settings.certificate is None or settings.private_key is None:
        return b""
    chain = settings.certificate.read_bytes()
    return chain + b"\n" + settings.private_key.read_bytes()


def make_gateway_config(settings: GatewaySettings) -> str:
    """The configuration file's text. Raises OSError where a file that it names cannot be read."""
    certificate = tls_file(settings)
    tls = f" ssl crt {settings.tls_path} alpn h2,http/1.1" if certificate else ""
    head = _HEAD.format(
        # With another certificate it is another configuration, for which HAProxy is started again.
        contents=hashlib.sha256(certificate).hexdigest(),
        socket=settings.socket_path,
        map=settings.map_path,
        names=settings.names_path,
        bind=bind_address(settings.host, settings.port) + tls,
        errors="".join(f"    {line}\n" for line in error_replies(_ERRORS)),
        unknown=reply(HTTPStatus.NOT_FOUND, "no service has this name"),
        no_path=reply(
            HTTPStatus.NOT_FOUND,
            "the paths of services begin with /v2/models/SERVICE, or of language models with /services/SERVICE/v1",
        ),
        nodes=NODES_BACKEND,
        server="".join(_to_nodes(settings)),
        check_ms=CHECK_TIMEOUT_MS,
        longest_s=int(LONGEST_START_S) + 120,
    )
    return "".join((head, *_metrics(settings), _nodes_backend(), *_backends(settings)))


def _to_nodes(settings: GatewaySettings) -> Iterator[str]:
    if settings.node_ca is not None:
        yield f" ssl verify required ca-file {settings.node_ca}"


def _metrics(settings: GatewaySettings) -> Iterator[str]:
    if settings.metrics_port:
        yield f"""
frontend metrics
    bind 127.0.0.1:{settings.metrics_port}
    http-request use-service prometheus-exporter if {{ path /metrics }}
    http-request deny deny_status 404
"""


def _nodes_backend() -> str:
    return f"""
backend {NODES_BACKEND}
    http-check send meth GET uri /v2/health/live
    server-template w 1-{NODES_PLACES} 127.0.0.1:1 disabled
"""


def _backends(settings: GatewaySettings) -> Iterator[str]:
    check = (
        "    http-check send meth GET uri-lf "
        f'"/v2/models/%[be_name,map({settings.names_path})]/ready"\n'
    )
    servers = f"    server-template s 1-{settings.replicas} 127.0.0.1:1 disabled\n"
    # Without a check, since they take requests only while no other place is up.
    servers += (
        f"    server-template w 1-{WAITING} 127.0.0.1:1 disabled no-check backup\n"
    )
    for number in range(1, settings.services + 1):
        yield f"\nbackend b{number}\n    option allbackups\n{check}{servers}"


_ERRORS = {
    HTTPStatus.BAD_REQUEST: "not a valid HTTP request",
    HTTPStatus.REQUEST_TIMEOUT: "the request did not arrive within 30 s",
    HTTPStatus.INTERNAL_SERVER_ERROR: "HAProxy failed",
    HTTPStatus.BAD_GATEWAY: "the node gave no complete answer",
    HTTPStatus.SERVICE_UNAVAILABLE: "no node can serve this service at the moment",
    HTTPStatus.GATEWAY_TIMEOUT: "the node did not answer in time",
}

_HEAD = """\
# Written by plimsoll gateway; changes are lost. Certificate: {contents}
global
    stats socket {socket} mode 600 level admin

defaults
    mode http
    timeout connect 2s
    timeout client 120s
    # A node answers, or refuses, when the first replica has started, or a minute after that.
    timeout server {longest_s}s
    # One that is gone without a word is found out by these.
    option srvtcpka
    srvtcpka-idle 15s
    srvtcpka-intvl 5s
    srvtcpka-cnt 3
    # Who leaves is no demand any more.
    option abortonclose
    timeout http-request 30s
    timeout http-keep-alive 60s
    timeout check {check_ms}
    # Nothing of such a request was sent, so it goes to another node; what was sent is never sent again.
    retries 3
    retry-on conn-failure
    option redispatch 1
    # Tokens of language models go on as they come.
    option http-no-delay
    balance roundrobin
    option httpchk
    default-server check inter 500 fall 2 rise 1{server}
{errors}
frontend gateway
    bind {bind}
    http-request return status 200 if {{ path /v2/health/live /v2/health/ready }}
    http-request set-var(txn.backend) path,field(4,/),url_dec,map({map}) if {{ path_beg /v2/models/ }}
    http-request set-var(txn.backend) path,field(3,/),url_dec,map({map}) if {{ path_beg /services/ }}
    http-request return {unknown} if {{ path_beg /v2/models/ /services/ }} !{{ var(txn.backend) -m found }}
    http-request return {no_path} unless {{ path /v2 }} || {{ path_beg /v2/ /services/ }}
    use_backend %[var(txn.backend)] if {{ var(txn.backend) -m found }}
    default_backend {nodes}
"""
