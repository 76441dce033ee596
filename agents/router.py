"""A thin reverse proxy in front of this node's workers: one address for every service, whatever moves behind it.

`POST /v2/models/{service}/infer` (Open Inference Protocol v2) goes to a replica by the plan's weights. A service
without a replica keeps its requests waiting, bounded, and counts them, so that the control plane sees the demand. What
cannot be taken is answered at once: 503 and Retry-After. A request goes to a second replica only if the first could
not even be connected to; otherwise it might run twice.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

import aiohttp
from aiohttp import web

from agents.device import ServiceRoute
from agents.lane import Lane, Overloaded
from agents.problems import problem
from agents.protocol import ServiceReading

QUEUE_LIMIT = 512
"""Requests of one service that wait at most while no replica has room."""
REPLICA_LIMIT = 256
"""Requests that one replica has at most: several of the largest batches."""
ANSWER_TIMEOUT_S = 60.0
"""For a replica's whole answer, and for a turn in the queue."""
ATTEMPTS = 2
LARGEST_BODY = 64 * 1024 * 1024
_CHUNK = 64 * 1024
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host")
)
"""RFC 9110 §7.6.1: these belong to one connection and are not passed on (Host is made anew)."""


class Router:
    """The router of one node. `switch` and `read` are called by its device, requests come by HTTP."""

    def __init__(
        self,
        *,
        queue_limit: int = QUEUE_LIMIT,
        replica_limit: int = REPLICA_LIMIT,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue_limit = queue_limit
        self._replica_limit = replica_limit
        self._now_s = now_s
        self._lanes: dict[str, Lane] = {}
        self._retired: list[Lane] = []
        self._addresses: dict[str, str] = {}
        self._routes: tuple[ServiceRoute, ...] = ()
        self._session: aiohttp.ClientSession | None = None

    @property
    def routes(self) -> tuple[ServiceRoute, ...]:
        """The table in force."""
        return self._routes

    def make_app(self) -> web.Application:
        """The HTTP server; run it with `web.AppRunner`."""
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_post("/v2/models/{service}/infer", self._infer)
        app.router.add_get("/v2/health/live", _live)
        app.router.add_get("/v2/health/ready", _live)
        app.router.add_get("/v2/models/{service}/ready", self._ready)
        app.on_cleanup.append(self._close)
        return app

    def switch(self, routes: tuple[ServiceRoute, ...], addresses: Mapping[str, str]) -> None:
        """Put a new table in force at once. `addresses`: base URL of every replica that the routes name.

        Requests under way finish where they are, also those of services that the table no longer has.
        Raises KeyError, and changes nothing, when a replica has no address.
        """
        needed = {replica_id: addresses[replica_id] for route in routes for replica_id, _ in route.shares}
        known = {lane.service: lane for lane in (*self._retired, *self._lanes.values())}
        self._addresses = {each: url for each, url in self._addresses.items() if self.in_flight(each)} | needed
        self._routes = routes
        self._lanes = {route.service: known.get(route.service) or self._make_lane(route) for route in routes}
        self._retired = [lane for service, lane in known.items() if service not in self._lanes]
        for route in routes:
            self._lanes[route.service].switch(route)
        for lane in self._retired:
            lane.close()

    def in_flight(self, replica_id: str) -> int:
        """Requests that a replica has and has not answered; 0 means drained once no route names it."""
        return sum(lane.in_flight(replica_id) for lane in (*self._lanes.values(), *self._retired))

    def read(self) -> tuple[ServiceReading, ...]:
        """Every service's counts since the last reading, by service."""
        readings = [lane.read() for lane in (*self._lanes.values(), *self._retired)]
        self._retired = [lane for lane in self._retired if not lane.is_empty]
        return tuple(sorted(readings, key=lambda reading: reading.service))

    def _make_lane(self, route: ServiceRoute) -> Lane:
        return Lane(route, queue_limit=self._queue_limit, replica_limit=self._replica_limit)

    async def _ready(self, request: web.Request) -> web.Response:
        service = request.match_info["service"]
        if any(route.service == service and route.shares for route in self._routes):
            return web.Response()
        return problem(HTTPStatus.SERVICE_UNAVAILABLE, f"service {service} has no ready replica on this node")

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        service = request.match_info["service"]
        lane = self._lanes.get(service)
        if lane is None:
            return problem(HTTPStatus.NOT_FOUND, f"this node knows no service {service}")
        came_s = self._now_s()
        body = await request.read()
        lane.arrive()
        is_served = False
        try:
            response, is_served = await self._serve(lane, request, body)
            return response
        finally:  # also when the client gave up: every arrival is counted once more, as served or as rejected
            if is_served:
                lane.finish(1000.0 * (self._now_s() - came_s))
            else:
                lane.reject()

    async def _serve(self, lane: Lane, request: web.Request, body: bytes) -> tuple[web.StreamResponse, bool]:
        """The answer, and whether it is a replica's own and whole."""
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    replica_id = await lane.acquire()
            except Overloaded as error:
                return problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)), False
            except TimeoutError:
                detail = f"no replica of {lane.service} had room within {ANSWER_TIMEOUT_S:g} s"
                return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail), False
            try:
                return await self._forward(request, body, replica_id)
            except aiohttp.ClientConnectorError as error:
                reason = f"replica {replica_id} cannot be connected to: {error}"
            finally:
                lane.release(replica_id)
        return problem(HTTPStatus.BAD_GATEWAY, reason), False

    async def _forward(self, request: web.Request, body: bytes, replica_id: str) -> tuple[web.StreamResponse, bool]:
        """Pass the request on and its answer back, chunk by chunk. ClientConnectorError: nothing was sent."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        url = self._addresses[replica_id] + request.path_qs
        response: web.StreamResponse | None = None
        try:
            async with self._open().post(
                url, data=body, headers=_passed_on(request.headers), timeout=timeout
            ) as answer:
                response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
                await response.prepare(request)
                async for chunk in answer.content.iter_chunked(_CHUNK):
                    await response.write(chunk)
                await response.write_eof()
                return response, answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientError, TimeoutError) as error:
            if response is not None:  # part of the answer is out: only a broken connection tells the client so
                if request.transport is not None:
                    request.transport.abort()
                return response, False
            reason = str(error) or type(error).__name__
            return problem(HTTPStatus.BAD_GATEWAY, f"replica {replica_id} did not answer: {reason}"), False

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def _close(self, _: web.Application) -> None:
        if self._session is not None:
            await self._session.close()


async def _live(_: web.Request) -> web.Response:
    return web.Response()


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
