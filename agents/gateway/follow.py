"""Follow the control plane's list of endpoints, and keep the last table while it is away."""

import asyncio
import logging
import ssl
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Protocol

import aiohttp
import msgspec

from agents.gateway.config import GatewaySettings
from agents.gateway.table import (
    CarriedService,
    EndpointsPage,
    GatewayTable,
    make_table,
)
from agents.router.haproxy.state import Address, HaProxyError

POLL_S = 0.5
MAX_POLL_S = 5.0
"""While the control plane does not answer."""
ANSWER_TIMEOUT_S = 10.0
NODE_TIMEOUT_S = 1.0
PAGE = 500
MAX_PAGES = 20
MAX_PAGE_BYTES = 16 * 1024 * 1024

_TOKEN_HINT = "the gateway needs a token that may see services: `plimsoll token create --scope viewer`"

log = logging.getLogger(__name__)


class FollowedProxy(Protocol):
    """A proxy that puts tables in force."""

    @property
    def table(self) -> GatewayTable:
        """The last one."""
        ...

    @property
    def is_in_force(self) -> bool:
        """Whether that is what requests go by."""
        ...

    async def put(self, table: GatewayTable) -> None:
        """Put it in force. Raises HaProxyError."""
        ...


class ListUnavailable(Exception):
    """The control plane gave no list of endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSource:
    """Where the list is."""

    url: str
    token: str
    tls: ssl.SSLContext | None = None


class Follower:
    """Asks again and again, and logs each difficulty once."""

    def __init__(
        self, source: ListSource, proxy: FollowedProxy, settings: GatewaySettings
    ) -> None:
        self._source = source
        self._proxy = proxy
        self._settings = settings
        self._reported: tuple[str, ...] = ()
        self._known: frozenset[tuple[str, Address]] = frozenset()
        """Services at rest, with the nodes that were found to know them."""
        self._node_tls: ssl.SSLContext | bool = True
        if settings.node_ca is not None:
            self._node_tls = ssl.create_default_context(cafile=str(settings.node_ca))
            # As HAProxy does, which verifies their authority alone.
            self._node_tls.check_hostname = False

    async def run(self) -> None:
        """For ever."""
        wait_s = POLL_S
        connector = aiohttp.TCPConnector(ssl=self._source.tls or True)
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                is_well = await self.step(session)
                # Slower while it fails, so that a control plane that starts again is not flooded.
                wait_s = POLL_S if is_well else min(MAX_POLL_S, 2.0 * wait_s)
                await asyncio.sleep(wait_s)

    async def step(self, session: aiohttp.ClientSession) -> bool:
        """Ask once, and put in force what is not; whether both went well."""
        wanted = last = self._proxy.table
        errors: list[str] = []
        problems: tuple[str, ...] = ()
        try:
            services = await read_list(session, self._source)
            listed, problems = make_table(services, self._settings)
            wanted = await self._at_known(session, listed, last)
        except ListUnavailable as error:
            errors.append(f"{error}; the last table stays in force")
        try:
            # Without a list and a table of its own, what HAProxy has of an earlier gateway is the best that there is.
            is_known = wanted.weights or not errors
            if is_known and (wanted != last or not self._proxy.is_in_force):
                await self._proxy.put(wanted)
                log.info(
                    "%d services on %d nodes", len(wanted.weights), len(wanted.nodes)
                )
        except HaProxyError as error:
            errors.append(str(error))
        self._report((*errors, *problems))
        return not errors

    async def _at_known(
        self, session: aiohttp.ClientSession, listed: GatewayTable, last: GatewayTable
    ) -> GatewayTable:
        """The table without the nodes that do not know a service at rest yet: they hear of it just after the list.

        Where none does, those stay that had it and are still there.
        """
        resting = [each for each, weights in listed.weights.items() if not weights]
        pairs = [(name, node) for name in resting for node in listed.waiting[name]]
        asked = [each for each in pairs if each not in self._known]
        answers = await asyncio.gather(*(self._knows(session, *each) for each in asked))
        self._known &= frozenset(pairs)
        self._known |= {
            each for each, knows in zip(asked, answers, strict=True) if knows
        }
        waiting, nodes = dict(listed.waiting), frozenset(listed.nodes)
        for name in resting:
            known = (node for node in waiting[name] if (name, node) in self._known)
            before = (each for each in last.waiting.get(name, ()) if each in nodes)
            waiting[name] = tuple(known) or tuple(before)
        return replace(listed, waiting=waiting)

    async def _knows(
        self, session: aiohttp.ClientSession, service: str, node: Address
    ) -> bool:
        """Whether the node knows the service; one that cannot be asked is taken to: HAProxy goes on to another."""
        host, port = node
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # What is ready is asked without a key, also where requests need one.
        url = f"{self._settings.node_scheme}://{place}/v2/models/{service}/ready"
        # Without the wait for a connection, of which there are only some at a time.
        limit = aiohttp.ClientTimeout(
            sock_connect=NODE_TIMEOUT_S, sock_read=NODE_TIMEOUT_S
        )
        try:
            async with session.get(url, timeout=limit, ssl=self._node_tls) as answer:
                return answer.status != HTTPStatus.NOT_FOUND
        except (aiohttp.ClientError, TimeoutError, OSError):
            return True

    def _report(self, problems: tuple[str, ...]) -> None:
        for each in dict.fromkeys(problems):
            if each not in self._reported:
                log.error("%s", each)
        if self._reported and not problems:
            log.info("all problems are resolved")
        self._reported = problems


async def read_list(
    session: aiohttp.ClientSession, source: ListSource
) -> tuple[CarriedService, ...]:
    """All services that the token may see, by name. Raises ListUnavailable."""
    found: list[CarriedService] = []
    cursor = None
    # Bounded: a list whose cursor never ends must not keep the gateway from its table.
    for _ in range(MAX_PAGES):
        page = await _read_page(session, source, cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(found)


async def _read_page(
    session: aiohttp.ClientSession, source: ListSource, cursor: str | None
) -> EndpointsPage:
    query = {"limit": str(PAGE)} | ({} if cursor is None else {"cursor": cursor})
    try:
        async with session.get(
            f"{source.url.rstrip('/')}/api/v1/endpoints",
            params=query,
            headers={"Authorization": f"Bearer {source.token}"},
            timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
        ) as answer:
            # One read may bring only what has arrived so far.
            body = await answer.content.read(MAX_PAGE_BYTES)
            while more := await answer.content.read(MAX_PAGE_BYTES - len(body)):
                body += more
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise ListUnavailable(f"no answer from {source.url}: {reason}") from error
    if answer.status != 200:
        is_refused = answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        hint = f"; {_TOKEN_HINT}" if is_refused else ""
        raise ListUnavailable(f"{source.url} answered {answer.status}{hint}")
    try:
        return msgspec.json.decode(body, type=EndpointsPage)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ListUnavailable(
            f"{source.url} gave no list of endpoints ({error}); is it a Plimsoll API?"
        ) from error
