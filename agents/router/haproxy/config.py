"""HAProxy's configuration: what of it may be chosen, and the file's text; see `agents.router.haproxy.process`."""

import hashlib
import pwd
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import msgspec

from agents.base.device import ServerTraits
from agents.processes.user import WorkerUser
from agents.router.access import RouterAccess
from agents.router.haproxy.state import (
    METADATA_BACKEND,
    MODEL_BACKENDS,
    HaProxyError,
)
from agents.router.haproxy.template import CONFIG, ERRORS, STREAMS, WAITING
from agents.router.pool import RUNS_WITHOUT_READINESS
from agents.serving.http_problems import (
    COMES_AGAIN,
    PROBLEM_TYPE,
    RETRY_AFTER_S,
    problem_body,
)
from agents.serving.request_bodies import ENCODINGS

METER = Path(__file__).with_name("meter.lua").read_bytes()
BINARY = "binary_tensor_data"
BUFFER_BYTES = 64 * 1024
"""A request that fits in is tried at another replica when one is busy."""
IN_SLO_TABLE = "answers_in_slo"
SECRET_HEADER = "Plimsoll-Waits"
"""By it the place where requests wait knows that they came by HAProxy, which has asked for keys."""
VERSION_VARIABLE = "PLIMSOLL_VERSION"
"""HAProxy's process has it: in the configuration, the version would part a kept HAProxy from the next agent."""
MAX_BODY = 64 * 1024 * 1024
"""As the own router's, and the worker's."""
CHECK_TIMEOUT_MS = 500
"""For the answer to a check, of replicas and, by the gateway, of nodes."""
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
    models: int = 16
    """Services of language models that have a place; theirs are others, which pass streams on at once."""
    replicas: int = 16
    """Replicas of one service that have a place, those that drain included."""
    replica_limit: int = 256
    queue_limit: int = 512
    """Requests that wait at most for each replica."""
    mark: str = ""
    """As of `agents.router.haproxy.supervised`."""

    @property
    def starts_down(self) -> bool:
        """The plan names replicas that answer already."""
        return False

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
    def metadata_path(self) -> Path:
        """The map of the replicas that are asked for their services' metadata: `ADDRESS:PORT`."""
        return self.folder / "metadata.map"

    @property
    def leaving_path(self) -> Path:
        """The map of services that leave the node."""
        return self.folder / "leaving.map"

    @property
    def ready_path(self) -> Path:
        """The map of places whose servers are not asked at `/v2/health/ready`: `BACKEND/SERVER`."""
        return self.folder / "ready.map"

    @property
    def itl_path(self) -> Path:
        """The map of language models' SLOs from one token to the next, in us."""
        return self.folder / "itl.map"

    @property
    def limits_path(self) -> Path:
        """The map of what not all servers of the node can."""
        return self.folder / "limits.map"

    @property
    def meter_path(self) -> Path:
        """The program in Lua that counts what HAProxy does not."""
        return self.folder / "meter.lua"

    @property
    def waiting_path(self) -> Path:
        """The map of services without a replica, whose requests are held (`agents.router.haproxy.waiting`):
        its secret."""
        return self.folder / "waiting.map"

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
            f"there is no user {PROXY_USER!r} for HAProxy: `useradd --system {PROXY_USER}` creates it"
        ) from error
    # Of its own user a process may read the memory, with the services' keys and the private key of TLS.
    if account.pw_uid in {each.uid for each in workers}:
        raise HaProxyError(
            f"{PROXY_USER} is HAProxy's user, which replicas must not be; name another one by --worker-user, or "
            "--worker-user-for"
        )
    return ProxyUser(uid=account.pw_uid, gid=account.pw_gid)


def access_files(settings: HaProxySettings) -> dict[Path, bytes]:
    """The files that the configuration names: for TLS, for keys, and to count. Raises OSError."""
    access, found = settings.access, {settings.meter_path: METER}
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
    head = CONFIG.format(
        socket=settings.socket_path,
        map=settings.map_path,
        slo=settings.slo_path,
        metadata=settings.metadata_path,
        asked=METADATA_BACKEND,
        leaving=settings.leaving_path,
        ready=settings.ready_path,
        ready_path=ServerTraits().ready_path,
        runs=",".join(map(str, RUNS_WITHOUT_READINESS)),
        itl=settings.itl_path,
        meter=settings.meter_path,
        bufsize=BUFFER_BYTES,
        again=RETRY_AFTER_S,
        waiting=settings.waiting_path,
        secret=SECRET_HEADER,
        unready=_unready(),
        leaves=reply(
            HTTPStatus.SERVICE_UNAVAILABLE, "the service is leaving this node"
        ),
        table=IN_SLO_TABLE,
        services=settings.services,
        # With new content it is another configuration, for which HAProxy is started again.
        contents="".join(
            f"# {path.name}: {hashlib.sha256(content).hexdigest()}\n"
            for path, content in files.items()
        ),
        user="".join(_user(settings.user)),
        bind=_bind(settings),
        rules="".join(f"    {line}\n" for line in _rules(settings)),
        errors="".join(f"    {line}\n" for line in error_replies(ERRORS)),
        answers="".join(f"    {line}\n" for line in _answers(settings)),
        streaming=MODEL_BACKENDS,
        models=f"{_JSON} lf-string '{_MODELS}'",
        unknown_service=reply(HTTPStatus.NOT_FOUND, "this node has no such service"),
        keys="".join(f"    {line}\n" for line in _key_rules(settings)),
        readiness="".join(f"    {line}\n" for line in _readiness(settings)),
        replica_limit=settings.replica_limit,
        queue_limit=settings.queue_limit,
        check_ms=CHECK_TIMEOUT_MS,
    )
    template = (
        f"    server-template s 1-{settings.replicas} 127.0.0.1:1 disabled\n{WAITING}"
    )
    models = [f"\nbackend {name}\n{STREAMS}{template}" for name in _models(settings)]
    others = [f"\nbackend {name}\n{template}" for name in _services(settings)]
    return "".join((head, *others, *models))


def _services(settings: HaProxySettings) -> Iterator[str]:
    return (f"b{number}" for number in range(1, settings.services + 1))


def _models(settings: HaProxySettings) -> Iterator[str]:
    numbers = range(1, settings.models + 1)
    return (f"{MODEL_BACKENDS}{number}" for number in numbers)


def _user(user: ProxyUser | None) -> Iterator[str]:
    # By number: HAProxy leaves root behind when its port and its socket are open.
    if user is not None:
        yield f"    uid {user.uid}\n    gid {user.gid}\n"


def _bind(settings: HaProxySettings) -> str:
    tls = f" ssl crt {settings.tls_path}" if settings.access.certificate else ""
    return bind_address(settings.access.host, settings.port) + tls


def bind_address(host: str, port: int) -> str:
    """As HAProxy writes it; `::` is every address, of IPv4 too."""
    address = f"[{host}]" if ":" in host else host
    both = " v4v6" if host == "::" else ""
    return f"{address}:{port}{both}"


def _rules(settings: HaProxySettings) -> Iterator[str]:
    """What is asked before anything of a request is read, and before TLS."""
    if allow := settings.access.allow:
        yield f"tcp-request connection reject unless {{ src {' '.join(map(str, allow))} }}"


def reply(status: HTTPStatus, detail: str) -> str:
    """An answer of HAProxy's own, as the agent's servers give it. `detail` has no apostrophe, which would end it."""
    body = problem_body(status, detail).decode()
    again = f" hdr Retry-After {RETRY_AFTER_S}" if status in COMES_AGAIN else ""
    return f"status {int(status)} content-type {PROBLEM_TYPE} string '{body}'{again}"


def error_replies(details: Mapping[HTTPStatus, str]) -> Iterator[str]:
    """What HAProxy answers where no rule says it better."""
    for status, detail in details.items():
        yield f"http-error {reply(status, detail)}"


def _answers(settings: HaProxySettings) -> Iterator[str]:
    """What needs no replica."""
    lacks = f"{{ str({BINARY}),map({settings.limits_path}) -m found }}"
    for extensions, when in (([], f" {lacks}"), ([BINARY], "")):
        about = msgspec.json.encode(
            {
                "name": "plimsoll-router",
                "version": f"%[env({VERSION_VARIABLE})]",
                "extensions": extensions,
            }
        ).decode()
        yield f"{_JSON} lf-string '{about}' if {{ path /v2 /v2/ }}{when}"
    yield "http-request return status 200 if { path /v2/health/live /v2/health/ready }"
    yield "http-request use-service prometheus-exporter if { path /metrics }"
    expired = reply(HTTPStatus.GATEWAY_TIMEOUT, "the deadline passed before it came")
    has_deadline = "{ req.hdr(Plimsoll-Deadline-Ms) -m found }"
    yield f"http-request return {expired} if {{ req.hdr_val(Plimsoll-Deadline-Ms) le 0 }} {has_deadline}"
    unknown = reply(HTTPStatus.NOT_FOUND, _NO_PATH)
    known = "is_inference or is_ready or is_metadata or is_openai"
    yield f"http-request return {unknown} unless {known}"
    wrong = reply(HTTPStatus.METHOD_NOT_ALLOWED, _NO_PATH)
    yield f"http-request return {wrong} hdr Allow POST if is_inference !METH_POST"
    yield f"http-request return {wrong} hdr Allow POST if is_openai !METH_POST !METH_GET"
    yield f"http-request return {wrong} hdr Allow POST if is_openai METH_GET !is_models"
    # METH_GET is HEAD, too.
    yield f"http-request return {wrong} hdr Allow GET,HEAD if !is_inference !is_openai !METH_GET"
    long = reply(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have at most {MAX_BODY} bytes"
    )
    yield f"http-request return {long} if {{ req.body_size gt {MAX_BODY} }}"
    encoded = reply(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        f"this Content-Encoding is not supported; send the body as it is, or by {' or '.join(ENCODINGS)}",
    )
    known = f"{{ req.fhdr(Content-Encoding) -i identity {' '.join(ENCODINGS)} }}"
    has_encoding = "{ req.hdr(Content-Encoding) -m found }"
    accepted = f'hdr Accept-Encoding "{", ".join(ENCODINGS)}"'
    yield f"http-request return {encoded} {accepted} if {has_encoding} !{known}"


def _key_rules(settings: HaProxySettings) -> Iterator[str]:
    """What is asked of a request for inference or metadata."""
    if settings.access.keys is None:
        return
    yield "http-request set-var(txn.key) http_auth_bearer,sha2(256),hex"
    yield "http-request set-var(txn.pair) var(txn.service),concat(/,txn.key)"
    refused = reply(
        HTTPStatus.UNAUTHORIZED, "the service needs its key: Authorization: Bearer KEY"
    )
    has_key = f"{{ var(txn.pair),map({settings.keys_path}) -m found }}"
    yield f"http-request return {refused} hdr WWW-Authenticate Bearer if !is_ready !{has_key}"
    # No replica needs to see it; what waits may go on to a node that asks for it.
    yield "http-request del-header Authorization unless { var(txn.waits) -m bool }"


def _readiness(settings: HaProxySettings) -> Iterator[str]:
    """A service is ready while its backend has a server, which HAProxy knows without asking one."""
    # A rule for each: the function takes no backend from a variable.
    for name in (*_services(settings), *_models(settings)):
        is_up = f"{{ nbsrv({name}) gt 0 }}"
        yield f"http-request return status 200 if is_ready {{ var(txn.backend) -m str {name} }} {is_up}"
    unready = _unready()
    yield f"http-request return {unready} if is_ready"
    yield f"http-request return {unready} unless {{ var(txn.replica) -m found }}"


def _unready() -> str:
    return reply(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the service has no ready replica on this node",
    )


_JSON = "http-request return status 200 content-type application/json"
_MODELS = (
    '{"object":"list","data":[{"id":"%[var(txn.service)]","object":"model",'
    '"owned_by":"plimsoll"}]}'
)
_NO_PATH = (
    "inference is POST /v2/models/SERVICE/infer or, of language models, /services/SERVICE/v1/chat/completions; "
    "its metadata is GET /v2/models/SERVICE"
)
