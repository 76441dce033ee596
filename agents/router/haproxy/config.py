"""HAProxy's configuration: what of it may be chosen, and the file's text; see `agents.router.haproxy.process`."""

import hashlib
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agents.processes.user import WorkerUser
from agents.router.access import RouterAccess
from agents.router.haproxy.state import HaProxyError

IN_SLO_TABLE = "answers_in_slo"
PROXY_USER = "haproxy"
"""Whom HAProxy's package makes for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyUser:
    """Neither the agent's user nor the replicas'."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HaProxySettings:
    """How HAProxy is set up; `folder` holds configuration, map and socket, and is the agent's alone."""

    port: int
    folder: Path
    access: RouterAccess = field(default_factory=RouterAccess)
    user: ProxyUser | None = None
    """Whom it becomes once it has opened its port; None: it stays the agent's user."""
    services: int = 64
    """Services that have a place."""
    replicas: int = 16
    """Replicas of one service that have a place, those that drain included."""
    replica_limit: int = 256
    queue_limit: int = 512
    """Requests that wait at most for each replica."""
    timeout_s: float = 2.0
    """For an answer on the socket."""

    @property
    def socket_path(self) -> Path:
        return self.folder / "haproxy.sock"

    @property
    def map_path(self) -> Path:
        return self.folder / "services.map"

    @property
    def slo_path(self) -> Path:
        """The map of SLOs in ms."""
        return self.folder / "slo.map"

    @property
    def config_path(self) -> Path:
        return self.folder / "haproxy.cfg"

    @property
    def tls_path(self) -> Path:
        """Certificate and private key in one file, as HAProxy takes them."""
        return self.folder / "tls.pem"

    @property
    def keys_path(self) -> Path:
        """The map of keys: `SERVICE/SHA-256`."""
        return self.folder / "keys.map"


def find_proxy_user(workers: Sequence[WorkerUser]) -> ProxyUser | None:
    """The user of HAProxy's package, where replicas have theirs; None: the agent's own. Raises HaProxyError."""
    if not workers:
        return None
    try:
        account = pwd.getpwnam(PROXY_USER)
    except KeyError as error:
        raise HaProxyError(
            f"there is no user {PROXY_USER!r} for HAProxy: `useradd --system {PROXY_USER}` makes it"
        ) from error
    # Of its own user a process may read the memory, with the services' keys and the private key of TLS.
    if account.pw_uid in {each.uid for each in workers}:
        raise HaProxyError(
            f"{PROXY_USER} is HAProxy's user, which replicas must not be; name another one by --worker-user, or "
            "--worker-user-for"
        )
    return ProxyUser(uid=account.pw_uid, gid=account.pw_gid)


def access_files(settings: HaProxySettings) -> dict[Path, bytes]:
    """What it takes beside the configuration for TLS and keys. Raises OSError."""
    access, found = settings.access, dict[Path, bytes]()
    if access.certificate is not None and access.private_key is not None:
        chain, key = access.certificate.read_bytes(), access.private_key.read_bytes()
        found[settings.tls_path] = chain + b"\n" + key
    if access.keys is not None:
        # In capitals, as HAProxy's `hex` writes them.
        lines = sorted(
            f"{service}/{digest.upper()} 1\n"
            for service, digests in access.keys.items()
            for digest in digests
        )
        found[settings.keys_path] = "".join(lines).encode()
    return found


def make_config(settings: HaProxySettings) -> str:
    """The configuration file's text. Raises OSError where a file that it names cannot be read."""
    files = access_files(settings)
    head = _CONFIG.format(
        socket=settings.socket_path,
        map=settings.map_path,
        slo=settings.slo_path,
        table=IN_SLO_TABLE,
        services=settings.services,
        # With new content it is another configuration, for which HAProxy is started anew.
        contents="".join(
            f"# {path.name}: {hashlib.sha256(content).hexdigest()}\n"
            for path, content in files.items()
        ),
        user="".join(_user(settings.user)),
        bind=_bind(settings),
        rules="".join(f"    {line}\n" for line in _rules(settings)),
        keys="".join(f"    {line}\n" for line in _key_rules(settings)),
        replica_limit=settings.replica_limit,
        queue_limit=settings.queue_limit,
    )
    template = f"    server-template s 1-{settings.replicas} 127.0.0.1:1 disabled\n"
    return head + "".join(
        f"\nbackend b{number}\n{template}" for number in range(1, settings.services + 1)
    )


def _user(user: ProxyUser | None) -> Iterator[str]:
    # By number: HAProxy leaves root behind when its port and its socket are open.
    if user is not None:
        yield f"    uid {user.uid}\n    gid {user.gid}\n"


def _bind(settings: HaProxySettings) -> str:
    host = settings.access.host
    address = f"[{host}]" if ":" in host else host
    both = " v4v6" if host == "::" else ""
    tls = f" ssl crt {settings.tls_path}" if settings.access.certificate else ""
    return f"{address}:{settings.port}{both}{tls}"


def _rules(settings: HaProxySettings) -> Iterator[str]:
    """What is asked before anything of a request is read, and before TLS."""
    if allow := settings.access.allow:
        yield f"tcp-request connection reject unless {{ src {' '.join(map(str, allow))} }}"


def _key_rules(settings: HaProxySettings) -> Iterator[str]:
    """What is asked of a request for inference."""
    if settings.access.keys is None:
        return
    yield "acl is_inference path_end /infer"
    yield "http-request set-var(txn.service) path,field(4,/),url_dec"
    yield "http-request set-var(txn.key) http_auth_bearer,sha2(256),hex"
    yield "http-request set-var(txn.pair) var(txn.service),concat(/,txn.key)"
    yield (
        "http-request return status 401 hdr WWW-Authenticate Bearer if is_inference !{ "
        f"var(txn.pair),map({settings.keys_path}) -m found }}"
    )
    # No replica needs to see it.
    yield "http-request del-header Authorization"


_CONFIG = """\
# Written by plimsoll-agent; changes are lost.
{contents}global
    stats socket {socket} mode 600 level admin
{user}
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    timeout queue 60s
    # A request that could not be connected goes elsewhere; what was sent is never sent again.
    retries 2
    retry-on conn-failure
    option redispatch 1
    balance roundrobin
    option httpchk GET /v2/health/ready
    # A server that runs but knows no such path, as vLLM, is well.
    http-check expect status 200-299,404
    default-server check inter 500 fall 3 rise 1 observe layer7 error-limit 3 on-error mark-down
    default-server maxconn {replica_limit} maxqueue {queue_limit}

frontend node
    bind {bind}
{rules}    http-request return status 200 if {{ path /v2/health/live /v2/health/ready }}
    http-request use-service prometheus-exporter if {{ path /metrics }}
    http-request deny deny_status 504 if {{ req.hdr_val(Plimsoll-Deadline-Ms) le 0 }} {{ req.hdr(Plimsoll-Deadline-Ms) -m found }}
    http-request deny deny_status 404 unless {{ path_reg ^/v2/models/[^/]+/(infer|ready)$ }}
{keys}    http-request set-var(txn.backend) path,field(4,/),url_dec,map({map})
    http-request deny deny_status 404 unless {{ var(txn.backend) -m found }}
    http-request set-var(txn.slo_ms) path,field(4,/),url_dec,map_str_int({slo},0)
    http-request set-var(txn.came_ms) date(0,ms)
    http-request track-sc0 var(txn.backend) table {table}
    http-response set-var(txn.late_ms) date(0,ms),sub(txn.came_ms),sub(txn.slo_ms)
    http-response sc-inc-gpc0(0) if {{ var(txn.late_ms) -m int le 0 }} {{ status lt 500 }}
    use_backend %[var(txn.backend)]

backend {table}
    stick-table type string len 16 size {services} store gpc0
"""  # noqa: E501  HAProxy takes a condition on one line only
