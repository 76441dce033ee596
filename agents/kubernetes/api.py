"""The part of the Kubernetes API that an agent needs, with aiohttp alone.

    api = KubernetesApi(ApiAddress.in_cluster())
    await api.ask(method, path, document)        -> the body of the answer
    async for each in api.follow(path, Kind, …)  what there is, then what changes, for ever

An answer that trying again cannot change raises ApiRefused, no answer raises ApiAway.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Generic, Protocol, TypeVar

import aiohttp
import msgspec

from agents.base.backoff import retry_s
from agents.base.device import DeviceError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_S = 10.0
"""For one request; a server that takes longer hangs."""
WATCH_S = 300
"""For one watch, which the server ends then; the next one goes on where it was. One request in so long is all that an
idle node asks."""
SILENCE_S = 120.0
"""Without a line in so long a watch may be dead, and another one is begun: a server sends a bookmark every minute, but
none of kinds of which nothing has changed since its start."""
TLS_CLOSE_S = 0.05
MAX_LINE = 4 * 2**20
"""One event's: an object has 1.5 MiB at most, and text in JSON may take twice as much."""


class ApiRefused(DeviceError):
    """The API server says no, and would say so again."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ApiAway(DeviceError):
    """The API server does not answer, or cannot now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAddress:
    """Where the API server is, and how to speak to it."""

    url: str
    token_file: Path
    """Read again whenever it was written: kubelet renews what is in it every hour."""
    ca_file: Path | None = None
    """None: the system's authorities."""

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str]) -> "ApiAddress":
        """As every Pod finds it. Raises DeviceError outside of one."""
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        token_file = SERVICE_ACCOUNT / "token"
        if not host or not token_file.exists():
            raise DeviceError(
                f"this is no Pod with a service account: KUBERNETES_SERVICE_HOST or {token_file} is missing"
            )
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        return cls(
            url=f"https://{in_url(host)}:{port}",
            token_file=token_file,
            ca_file=SERVICE_ACCOUNT / "ca.crt",
        )


class OwnerReference(msgspec.Struct):
    """Whose end is the object's, too."""

    uid: str = ""


class ObjectMetadata(msgspec.Struct, rename="camel"):
    """What any object says of itself."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


class HasMetadata(Protocol):
    """Any object."""

    @property
    def metadata(self) -> ObjectMetadata:
        """Its name and the like."""
        ...


K = TypeVar("K", bound=HasMetadata)


@dataclass(frozen=True, slots=True)
class ListedObjects(Generic[K]):
    """All objects that there are."""

    objects: tuple[K, ...]


@dataclass(frozen=True, slots=True)
class ChangedObject(Generic[K]):
    """One object as it is now."""

    object: K
    is_gone: bool


@dataclass(frozen=True, slots=True)
class Away:
    """What is seen may be old from here on until there is a next event."""

    reason: str


class _List(msgspec.Struct):
    metadata: ObjectMetadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0


class _Bookmark(msgspec.Struct):
    metadata: ObjectMetadata


class _Expired(Exception):
    """The server no longer knows what came after that version."""


class KubernetesApi:
    """One API server, spoken to as one service account."""

    def __init__(self, address: ApiAddress) -> None:
        self._address = address
        self._token, self._token_ns = "", 0
        self._session: aiohttp.ClientSession | None = None
        self._random = Random()

    async def follow(
        self, path: str, kind: type[K], **query: str
    ) -> AsyncIterator[ListedObjects[K] | ChangedObject[K] | Away]:
        """What there is, then every change of it, for ever; a list once more where changes were missed."""
        place, failures = _Place(), 0
        while True:
            try:
                async for each in self._follow_from(place, path, kind, query):
                    failures = 0
                    yield each
            # The server keeps some minutes of changes; who comes later has to look at everything again.
            except _Expired:
                place.version = ""
            except (ApiRefused, ApiAway, msgspec.MsgspecError) as error:
                failures += 1
                yield Away(str(error))
                await asyncio.sleep(retry_s(failures, self._random))

    async def _follow_from(
        self, place: "_Place", path: str, kind: type[K], query: Mapping[str, str]
    ) -> AsyncIterator[ListedObjects[K] | ChangedObject[K]]:
        """Until the server ends the watch. Raises _Expired, ApiRefused, ApiAway, MsgspecError."""
        if not place.version:
            body = await self.ask("GET", path, query=query)
            found = msgspec.json.decode(body, type=_List)
            objects = (
                msgspec.json.decode(each, type=kind) for each in found.items or ()
            )
            yield ListedObjects(tuple(objects))
            place.version = found.metadata.resource_version
        async for event in self._watch(
            path, {**query, "resourceVersion": place.version}
        ):
            # A bookmark is a version alone, so that a watch in which nothing happens does not grow too old.
            if event.type != "BOOKMARK":
                yield ChangedObject(
                    msgspec.json.decode(event.object, type=kind),
                    event.type == "DELETED",
                )
            # Only now: what was not taken in comes once more after a failure.
            seen = msgspec.json.decode(event.object, type=_Bookmark)
            place.version = seen.metadata.resource_version

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
            # Connections under TLS are closed by the next turns of the loop, which may be its last.
            await asyncio.sleep(TLS_CLOSE_S)

    async def _watch(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncIterator[_Event]:
        """One watch. Raises _Expired, ApiRefused, ApiAway."""
        asked = {
            **query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        # No limit for all of it, which is as long as nothing happens.
        timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
        try:
            begun = self._opened().get(
                self._address.url + path,
                params=asked,
                headers=self._headers(),
                timeout=timeout,
            )
            async with asyncio.timeout(ANSWER_S):
                response = await begun
            async with response:
                if response.status == HTTPStatus.GONE:
                    raise _Expired
                if response.status != HTTPStatus.OK:
                    raise _refusal(response.status, await response.read())
                while line := await _read_line(response):
                    yield _event(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self._silent(error) from error

    async def ask(
        self,
        method: str,
        path: str,
        document: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """The body of a good answer. `content_type`: how a PATCH is to be read. Raises ApiRefused, ApiAway."""
        try:
            async with self._opened().request(
                method,
                self._address.url + path,
                params=query,
                data=None if document is None else msgspec.json.encode(document),
                headers={**self._headers(), "Content-Type": content_type},
                timeout=aiohttp.ClientTimeout(total=ANSWER_S),
            ) as response:
                body = await response.read()
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise _refusal(response.status, body)
                return body
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._silent(error) from error

    def _headers(self) -> dict[str, str]:
        # Its time of change says whether it was renewed; mounted Secrets are replaced as a whole.
        written_ns = self._address.token_file.stat().st_mtime_ns
        if written_ns != self._token_ns:
            self._token = self._address.token_file.read_text(encoding="ascii").strip()
            self._token_ns = written_ns
        return {"Authorization": f"Bearer {self._token}"}

    def _opened(self) -> aiohttp.ClientSession:
        """The session; made late because it belongs to the running event loop."""
        if self._session is None:
            tls = ssl.create_default_context(cafile=self._address.ca_file)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                # It refuses lines that are longer than its buffer.
                read_bufsize=MAX_LINE,
            )
        return self._session

    def _silent(self, error: Exception) -> ApiAway:
        reason = str(error) or type(error).__name__
        return ApiAway(
            f"no answer from the Kubernetes API at {self._address.url}: {reason}"
        )


async def _read_line(response: aiohttp.ClientResponse) -> bytes:
    """The next line; empty at the end, or after a silence: whether the server is there, the next request tells."""
    try:
        return await response.content.readline()
    except aiohttp.SocketTimeoutError:
        return b""


@dataclass(slots=True)
class _Place:
    """How far a follower has come."""

    version: str = ""
    """Empty: it has to begin with a list."""


def _event(line: bytes) -> _Event:
    """Raises _Expired, ApiAway, MsgspecError."""
    event = msgspec.json.decode(line, type=_Event)
    if event.type == "ERROR":
        failed = msgspec.json.decode(event.object, type=_Status)
        if failed.code == HTTPStatus.GONE:
            raise _Expired
        raise ApiAway(f"the watch ended: {failed.message}")
    return event


def in_url(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


_LATER = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
)
"""A token may just be being renewed."""


def _refusal(status: int, body: bytes) -> ApiRefused | ApiAway:
    try:
        said = msgspec.json.decode(body, type=_Status).message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = ""
    message = f"the Kubernetes API answered {status}{f': {said}' if said else ''}"
    # The server says who may not do what, and not what an operator has forgotten.
    if status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        message += "; is deploy/kubernetes of this release applied, with its roles?"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _LATER:
        return ApiAway(message)
    return ApiRefused(message, status)
