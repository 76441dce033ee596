"""How an agent reaches the control plane: one call, one observation up, one reply down.

Errors:

    TransportError
    ├── ControlPlaneSilent no answer, or "not now": the same observation is sent again later
    ├── NotAuthorised      the token is refused: sent again too, but a person must act
    └── Unacceptable       this observation will never be taken: it must be dropped, or it would block the others
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping, Set
from http import HTTPStatus
from types import MappingProxyType
from typing import Protocol, TypeAlias, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from msgspec import structs

from agents.base.protocol import (
    TIME_HEADER,
    Observation,
    ReplicaReading,
    ServiceReading,
    SyncReply,
)
from agents.base.version import REPLICA_FIELDS, SERVICE_FIELDS, TAKES_HEADER, taken

ANSWER_TIMEOUT_S = 10.0
"""Wall seconds for an answer, beyond the wait that was asked for."""
MAX_RETRY_AFTER_S = 60.0
"""An agent is never sent away for longer."""
_REFUSED = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)

Handler: TypeAlias = Callable[[Observation, float], Awaitable[SyncReply]]
"""(observation, seconds that the answer may wait for a newer command) → reply."""


_Reading = TypeVar("_Reading", ServiceReading, ReplicaReading)


class TransportError(Exception):
    """Base of everything that a transport raises on purpose."""


class ControlPlaneSilent(TransportError):
    """No answer, or one that says to come again."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        """`retry_after_s`: the control plane wants nothing before; 0 = it did not say."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotAuthorised(TransportError):
    """The token is missing, wrong, revoked, or not an agent's."""


class Unacceptable(TransportError):
    """The control plane will never take this observation."""


class Transport(Protocol):
    """The way to the control plane."""

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        """Hand over one observation; the answer may take `wait_s` longer while there is no newer command."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class DirectTransport:
    """The control plane in the same process."""

    def __init__(
        self,
        handle: Handler,
        *,
        is_lost: Callable[[Observation], bool] = lambda _: False,
    ) -> None:
        """`is_lost`: whether the network takes this observation nowhere at the moment."""
        self._handle = handle
        self._is_lost = is_lost

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        if self._is_lost(observation):
            raise ControlPlaneSilent("the simulated network is down")
        return await self._handle(observation, wait_s)

    async def close(self) -> None:
        """Nothing to let go of."""


class HttpTransport:
    """`POST {url}/api/v1/nodes/{node}/sync?wait_s=…` with a bearer token."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        speed: float = 1.0,
        now_s: Callable[[], float] | None = None,
        addresses: Mapping[str, str] = MappingProxyType({}),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`speed`: seconds of the agent's clock per wall second; `wait_s` goes over the wire in wall seconds.

        `now_s`: the agent's clock, told with every request. `addresses`: told by these headers, as they are then.
        `tls`: whom the agent trusts and how it proves who it is; None: as the system does.
        """
        self._addresses = addresses
        self._now_s = now_s
        self._tls = tls
        self._url = url.rstrip("/")
        self.token = token
        """Sent with every request; it may be replaced at any time."""
        self._speed = speed
        self._taken: frozenset[str] = frozenset()
        """Fields of readings that the control plane has said that it takes."""
        self._session: aiohttp.ClientSession | None = None

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        wall_wait_s = wait_s / self._speed
        try:
            async with self._open().post(
                f"{self._url}/api/v1/nodes/{quote(observation.node, safe='')}/sync",
                params={"wait_s": f"{wall_wait_s:.3f}"},
                data=msgspec.json.encode(self._sendable(observation)),
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(total=wall_wait_s + ANSWER_TIMEOUT_S),
            ) as response:
                reply = _reply_of(await _body_of(response))
                # Said with each answer: the next one may come from another version of the control plane.
                self._taken = taken(response.headers.get(TAKES_HEADER))
                return reply
        except _NO_ANSWER as error:
            raise self._silent(error) from error

    async def post(self, path: str, document: object) -> bytes:
        """The body of the answer to a document, which is sent to a path below `/api/v1`. Raises TransportError."""
        try:
            async with self._open().post(
                f"{self._url}/api/v1/{path}",
                data=msgspec.json.encode(document),
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
            ) as response:
                # For a sync a conflict passes; what is asked for here would be refused again.
                if response.status == HTTPStatus.CONFLICT:
                    raise Unacceptable(
                        f"it was answered 409{_detail_of(await response.read())}"
                    )
                return await _body_of(response)
        except _NO_ANSWER as error:
            raise self._silent(error) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _sendable(self, observation: Observation) -> Observation:
        """What the control plane does not refuse. These fields explain others, and none of those needs them."""
        services = _without(observation.services, set(SERVICE_FIELDS) - self._taken)
        replicas = _without(observation.replicas, set(REPLICA_FIELDS) - self._taken)
        if services is observation.services and replicas is observation.replicas:
            return observation
        return structs.replace(observation, services=services, replicas=replicas)

    def _headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.token}", **self._addresses}
        # Taken at the moment of sending, since an observation may have waited long in the outbox.
        if self._now_s is not None:
            headers[TIME_HEADER] = f"{self._now_s():.3f}"
        return headers

    def _silent(self, error: Exception) -> ControlPlaneSilent:
        """All that keeps an answer away means the same to the caller: send it again later."""
        reason = str(error) or type(error).__name__
        return ControlPlaneSilent(f"no answer from {self._url}: {reason}")

    def _open(self) -> aiohttp.ClientSession:
        """The session; made late because it belongs to the running event loop."""
        if self._session is None:
            headers = {"Content-Type": "application/json"}
            self._session = aiohttp.ClientSession(
                headers=headers,
                connector=aiohttp.TCPConnector(ssl=self._tls or True),
            )
        return self._session


def _without(readings: tuple[_Reading, ...], names: Set[str]) -> tuple[_Reading, ...]:
    """The readings with these counts at 0, which is not sent; the same ones where all are."""
    if not any(getattr(each, name) for each in readings for name in names):
        return readings
    nothing = dict.fromkeys(names, 0)
    return tuple(structs.replace(each, **nothing) for each in readings)


class _Problem(msgspec.Struct):
    """The parts of an RFC 9457 answer that a log line needs."""

    title: str = ""
    detail: str = ""


_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)


async def _body_of(response: aiohttp.ClientResponse) -> bytes:
    """The body of a good answer. Raises TransportError for any other."""
    retry_after = response.headers.get("Retry-After")
    return read_answer(response.status, await response.read(), retry_after)


def read_answer(status: int, body: bytes, retry_after: str | None) -> bytes:
    """The body, where the status is good. Raises TransportError for any other; `retry_after`: the header."""
    if status in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT):
        return body
    message = f"the control plane answered {status}{_detail_of(body)}"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise NotAuthorised(
            f"{message}; create a token with scope join and pass it with --token-file"
        )
    if status in _REFUSED:
        raise Unacceptable(message)
    retry_after_s = _seconds(retry_after)
    raise ControlPlaneSilent(
        message + (f", come again in {retry_after_s:g} s" if retry_after_s else ""),
        retry_after_s=retry_after_s,
    )


def _reply_of(body: bytes) -> SyncReply:
    try:
        return msgspec.json.decode(body, type=SyncReply)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ControlPlaneSilent(
            f"the answer is not a sync reply ({error}); is this URL a Plimsoll API?"
        ) from error


def _seconds(retry_after: str | None) -> float:
    """What `Retry-After` says, at most MAX_RETRY_AFTER_S; 0 without one, and for a date."""
    # A date would have to be compared with this node's clock, which may be wrong.
    if retry_after is None or not retry_after.strip().isdecimal():
        return 0.0
    return min(float(retry_after), MAX_RETRY_AFTER_S)


def _detail_of(body: bytes) -> str:
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return (
        f": {problem.detail or problem.title}"
        if problem.detail or problem.title
        else ""
    )


LIMIT_S = 5.0
"""A larger difference is reported. The control plane's windows are some seconds long."""


class ClockSkew:
    """How far one node's clock is from the control plane's."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._low_s = self._high_s = 0.0

    def note(self, *, sent_s: float, received_s: float, server_time_s: float) -> None:
        """The times of one exchange: two of the node's clock, one of the control plane's."""
        # The answer was made between sending and receiving, so the true difference lies between these two.
        self._low_s, self._high_s = sent_s - server_time_s, received_s - server_time_s

    @property
    def certain_s(self) -> float:
        """The smallest difference that explains the last exchange; positive: the node's clock is ahead."""
        # The value of that interval that is nearest to zero: a slow network is not taken for a wrong clock.
        return max(self._low_s, min(self._high_s, 0.0))

    @property
    def problem(self) -> str:
        """What is wrong, by how much, and what to do; empty = nothing."""
        if abs(self.certain_s) <= self._limit_s:
            return ""
        middle_s = (self._low_s + self._high_s) / 2.0
        half_s = (self._high_s - self._low_s) / 2.0
        side = "ahead of" if middle_s > 0.0 else "behind"
        return (
            f"the node's clock is {abs(middle_s):.1f} s {side} the control plane's (give or take {half_s:.1f}): see by "
            "`timedatectl` which of the two machines has no NTP, set its clock, and restart the agent, which follows "
            "no clock that jumps"
        )
