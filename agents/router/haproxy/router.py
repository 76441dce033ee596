"""HAProxy as the router of a node's device; `agents.router.haproxy.supervised` keeps its process.

    router = await open_haproxy(HaProxySettings(port=8081, folder=…))
    await router.switch_routes(routes, addresses), router.routes       as `agents.router.request_router` says
    await router.look(), router.in_flight(id), await router.read_services()
    await router.close(keep=…)

HAProxy is asked in a thread, one question at a time: the agent goes on meanwhile.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from agents.base.device import NotSupported, ServerTraits, ServiceRoute
from agents.base.protocol import ServiceReading
from agents.router.counts import Counts
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.counts import Counter, read_counts
from agents.router.haproxy.process import HaProxy
from agents.router.haproxy.state import HaProxyError, ProxyState
from agents.router.haproxy.supervised import ProxyServer
from agents.router.haproxy.waiting import WaitingRoom
from agents.router.request_router import NO_TRAITS

STATE_AGE_S = 0.1
"""How old a look at what is in flight may be: one state asks for every replica."""

log = logging.getLogger(__name__)


async def open_haproxy(settings: HaProxySettings) -> "HaProxyRouter":
    """HAProxy, running: an earlier agent's, or a new one. Raises HaProxyError or OSError; then none of ours runs."""
    router = HaProxyRouter(settings)
    await router.open()
    return router


class HaProxyRouter:
    """See the module's docstring. `open` is called once, before everything else."""

    def __init__(self, settings: HaProxySettings) -> None:
        self._proxy = HaProxy(settings)
        self._settings = settings
        self._server = ProxyServer(
            self._proxy, settings.folder, self._restore, mark=settings.mark
        )
        self._table: tuple[ServiceRoute, ...] = ()
        """Remembered over failed restarts, because a fresh HAProxy begins without routes."""
        self._addresses: dict[str, str] = {}
        self._traits: Mapping[str, ServerTraits] = NO_TRAITS
        self._held: frozenset[str] = frozenset()
        """Services that have left the table and whose requests still wait, or run on another node."""
        self._waiting = WaitingRoom(
            queue_limit=settings.queue_limit,
            asks_for_keys=settings.access.keys is not None,
        )
        self._waiting.on_wait = lambda: self.on_wait()
        self.on_wait: Callable[[], None] = lambda: None
        """As of `agents.router.request_router`."""
        self._counter = Counter({})
        self._state = ProxyState(backends={}, places=())
        self._seen_s = -math.inf
        self._asking = asyncio.Lock()

    @property
    def routes(self) -> tuple[ServiceRoute, ...]:
        """The table that was put in force last by this agent."""
        return tuple(
            each for each in self._proxy.routes if each.service not in self._held
        )

    @property
    def pid(self) -> int:
        """HAProxy's process; 0 while there is none."""
        return self._server.pid

    async def open(self) -> None:
        await self._waiting.open()
        self._proxy.waits_at = self._waiting.address
        self._proxy.secret = self._waiting.secret
        try:
            is_kept = await self._server.open()
        except BaseException:
            await self._waiting.close()
            raise
        if is_kept:
            # What it counted before is the earlier agent's, which has reported it.
            self._counter = Counter(await asyncio.to_thread(read_counts, self._proxy))
        log.info(
            "HAProxy takes requests on port %d (%s)",
            self._settings.port,
            self._settings.access.summary(),
        )

    async def switch_routes(
        self,
        routes: tuple[ServiceRoute, ...],
        addresses: Mapping[str, str],
        traits: Mapping[str, ServerTraits] = NO_TRAITS,
    ) -> None:
        """As `HaProxy.switch`."""
        async with self._asking:
            self._seen_s = -math.inf
            self._waiting.switch(routes, addresses, traits)
            held = {
                each.service: replace(each, shares=(), is_starting=True)
                for each in self._proxy.routes
                if each.service in {*self._waiting.stranded, *self._held}
            }
            for route in routes:
                held.pop(route.service, None)
            table = (*routes, *held.values())
            await asyncio.to_thread(self._proxy.switch, table, addresses, traits)
            self._table, self._traits = routes, traits
            self._held = frozenset(held)
            self._addresses = {
                each: addresses[each] for route in routes for each, _ in route.shares
            }

    async def _restore(self) -> None:
        self._counter, self._seen_s = Counter({}), -math.inf
        await self.switch_routes(self._table, self._addresses, self._traits)

    async def look(self) -> None:
        """See what is in flight; nothing while HAProxy is down, since requests went with it. Raises HaProxyError."""
        async with self._asking:
            await self._look()

    def in_flight(self, replica_id: str) -> int:
        """Requests that a replica had when it was looked."""
        held = self._waiting.in_flight(replica_id)
        return held + self._proxy.in_flight(replica_id, self._state)

    async def read_services(self) -> tuple[ServiceReading, ...]:
        """What was counted since the last reading; nothing while HAProxy does not answer."""
        try:
            async with self._asking:
                counts = await asyncio.to_thread(read_counts, self._proxy)
                await self._look()
        except HaProxyError as error:
            log.warning("%s", error)
            return ()
        readings = self._counter.read(counts, self._state.backends)
        await self._let_go(readings)
        return readings

    async def _let_go(self, readings: Sequence[ServiceReading]) -> None:
        """Give up the services that left and of which all that waited is answered and counted."""
        queued = {each.service for each in readings if each.queued}
        over = self._held - queued - {*self._waiting.stranded}
        if not over:
            return
        self._held -= over
        try:
            await self.switch_routes(self._table, self._addresses, self._traits)
        except HaProxyError as error:
            log.warning("%s", error)

    def total(self, service: str) -> Counts:
        """Nothing that governors need. Raises NotSupported."""
        raise NotSupported(
            f"HAProxy reports no latencies of {service}, so governors cannot act; use --router own"
        )

    @property
    def stranded(self) -> tuple[str, ...]:
        """As of `agents.router.request_router`."""
        return self._waiting.stranded

    def pass_on(self, service: str, urls: Sequence[str]) -> None:
        """As of `agents.router.request_router`."""
        self._waiting.pass_on(service, urls)

    async def close(self, *, keep: bool) -> None:
        """Let it run on for the next agent, or finish what it has and end."""
        if keep:
            with contextlib.suppress(HaProxyError):
                await asyncio.to_thread(self._proxy.end_waiting)
        await self._server.close(keep=keep)
        await self._waiting.close()

    async def _look(self) -> None:
        if time.monotonic() <= self._seen_s + STATE_AGE_S:
            return
        try:
            self._state = await asyncio.to_thread(self._proxy.state)
        except HaProxyError:
            # While it starts or is down no answer is expected; its requests went with it.
            if self._server.is_up and self.pid:
                raise
            self._state = ProxyState(backends={}, places=())
        self._seen_s = time.monotonic()
