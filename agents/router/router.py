"""A reverse proxy in front of this node's workers: one address for every service, whatever moves behind it.

`POST /v2/models/{service}/infer` (Open Inference Protocol v2) goes to a replica by the plan's weights, and
`POST /services/{service}/v1/…` (OpenAI's, of language models) to the one that has least to do; what is streamed passes
as it comes. A service without a replica keeps its requests waiting, bounded, and counts them, so that the control plane
sees the demand; where it starts on another node, what waits is passed on. Metadata is any replica's own, not counted.

    request ──▶ queue: bounded, turn by weights ──▶ pool of the replica's connections ──▶ answer, whole or in parts
                  │ full: 503, Retry-After                 │ NotConnected, or 503, 429: another replica, for nothing
                  │                                        │ was done; when all are busy that, Retry-After
                  │ deadline passed: 504                   │ WorkerAnswerLost: 502 or a broken connection, never sent
                                                           again
                  ▼                                        ▼ LateAnswer: 502, or 504 when the deadline passed
               counts (`read`, `/metrics`)              health (`agents.router.health`): out, probed, in again

`Plimsoll-Deadline-Ms` says how many milliseconds are left for an answer; a worker is told what the queue left of them.
Files: `service_queue` (turns and counts), `attempts` (which replicas are tried), `forward` (to a replica and back),
`health`, `pool` and `http_messages` (HTTP towards workers), `metrics`.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

from aiohttp import web

from agents.base.device import ServerTraits, ServiceRoute
from agents.base.protocol import ServiceReading
from agents.router.access import READINESS_PATH
from agents.router.attempts import serve
from agents.router.counts import Counts
from agents.router.forward import PEER, Forwarder, Outcome, RouterJob
from agents.router.metrics import CONTENT_TYPE, exposition, shown
from agents.router.request_router import NO_TRAITS
from agents.router.router_answers import (
    about,
    come_again,
    finish,
    leave,
    live,
    own_target,
    too_slow,
    unknown,
    without_replica,
)
from agents.router.service_queue import ServiceQueue
from agents.serving.http_problems import (
    DEADLINE,
    parse_deadline_ms,
    problem,
    refusals_as_problems,
)
from agents.serving.request_bodies import is_compressed, read_body

QUEUE_LIMIT = 512
"""Requests of one service that wait at most while no replica has room."""
REPLICA_LIMIT = 256
"""Requests that one replica has at most: several of the largest batches."""
ANSWER_TIMEOUT_S = 60.0
"""For a replica's whole answer, and for a turn in the queue where no first replica starts."""
BODY_TIMEOUT_S = 30.0
"""For a request's whole body, which counts as held before it has come."""
MAX_BODY = 64 * 1024 * 1024
MAX_HELD_BYTES = 1024 * 1024 * 1024
"""The bodies of all requests, waiting or with a replica, are at most so long together."""


class Router:
    """The router of one node. `switch` and `read` are called by its device, requests come by HTTP."""

    def __init__(
        self,
        *,
        queue_limit: int = QUEUE_LIMIT,
        replica_limit: int = REPLICA_LIMIT,
        max_held_bytes: int = MAX_HELD_BYTES,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        body_timeout_s: float = BODY_TIMEOUT_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue_limit = queue_limit
        self._replica_limit = replica_limit
        self._max_held_bytes = max_held_bytes
        self._answer_timeout_s = answer_timeout_s
        self._body_timeout_s = body_timeout_s
        self._now_s = now_s
        self._service_queues: dict[str, ServiceQueue] = {}
        self._retired: list[ServiceQueue] = []
        self._forwarder = Forwarder(now_s)
        self._routes: tuple[ServiceRoute, ...] = ()
        self._traits: Mapping[str, ServerTraits] = NO_TRAITS
        self._addresses: dict[str, str] = {}
        self._held_bytes = 0
        self._unknown = 0
        self.on_wait: Callable[[], None] = lambda: None
        """As of `agents.router.request_router`."""

    @property
    def routes(self) -> tuple[ServiceRoute, ...]:
        """The table in force."""
        return self._routes

    @property
    def out(self) -> tuple[str, ...]:
        """Replicas that get nothing because they fail, by id."""
        return tuple(
            sorted(
                each
                for service_queue in self._service_queues.values()
                for each in service_queue.out
            )
        )

    def make_app(self) -> web.Application:
        """The HTTP server; run it with `web.AppRunner`."""
        app = web.Application(
            client_max_size=MAX_BODY,
            middlewares=[refusals_as_problems],
        )
        by_name = "/v2/models/{service}"
        by_version = by_name + "/versions/{version}"
        app.router.add_post(f"{by_name}/infer", self._infer)
        app.router.add_post(f"{by_version}/infer", self._infer)
        app.router.add_post("/services/{service}/v1/{path:.+}", self._infer)
        app.router.add_get("/services/{service}/v1/models", self._models)
        app.router.add_get("/v2", self._about)
        app.router.add_get("/v2/", self._about)
        app.router.add_get("/v2/health/live", live)
        app.router.add_get("/v2/health/ready", live)
        app.router.add_get(READINESS_PATH, self._ready)
        # Which versions there are, only a replica knows.
        app.router.add_get(f"{by_version}/ready", self._metadata)
        for path in (by_name, by_version):
            app.router.add_get(path, self._metadata)
            # Triton's extensions; replicas without them answer 404.
            app.router.add_get(f"{path}/{{extension:config|stats}}", self._metadata)
        app.router.add_get("/metrics", self._metrics)
        app.on_cleanup.append(self._close)
        return app

    def switch(
        self,
        routes: tuple[ServiceRoute, ...],
        addresses: Mapping[str, str],
        traits: Mapping[str, ServerTraits] = NO_TRAITS,
    ) -> None:
        """Put a new table in force at once. `addresses`: base URL of every replica that the routes name; `traits`: of
        their servers, where they are not as the agent's own workers.

        Requests under way finish where they are, also those of services that the table no longer has.
        Raises KeyError when a replica has no address and ValueError when it is no address, and then changes nothing.
        """
        needed = {
            replica_id: addresses[replica_id]
            for route in routes
            for replica_id, _ in route.shares
        }
        # Everything that can fail comes before the first change.
        self._connect(needed, traits)
        # A service that comes back goes on with its counts and with what waits in it.
        known = {each.service: each for each in self._queues}
        self._routes = routes
        self._addresses = needed
        self._traits = {each: traits.get(each, ServerTraits()) for each in needed}
        self._service_queues = {
            route.service: known.get(route.service) or self._make_queue(route)
            for route in routes
        }
        self._retired = [
            service_queue
            for service, service_queue in known.items()
            if service not in self._service_queues
        ]
        for route in routes:
            self._service_queues[route.service].switch(route)
        for service_queue in self._retired:
            # What waits is for a replica that starts on another node, as far as is known here.
            service_queue.strand() if service_queue.waiting else service_queue.close()

    @property
    def stranded(self) -> tuple[str, ...]:
        """As of `agents.router.request_router`."""
        return tuple(sorted(each.service for each in self._retired if each.waiting))

    def pass_on(self, service: str, urls: Sequence[str]) -> None:
        """As of `agents.router.request_router`."""
        peers = {PEER + url: url for url in urls if url.startswith("http://")}
        service_queue = self._retired_queue(service)
        if service_queue is not None and service_queue.waiting:
            self._connect(self._addresses | peers, self._traits)
            service_queue.pass_on(peers)
            if not peers:
                service_queue.close()

    def _retired_queue(self, service: str) -> ServiceQueue | None:
        """The queue of a service that has left the table and has requests that wait or are passed on, if any."""
        for each in self._retired:
            if each.service == service and (each.waiting or each.members):
                return each
        return None

    @property
    def _queues(self) -> tuple[ServiceQueue, ...]:
        return (*self._retired, *self._service_queues.values())

    def _connect(
        self, addresses: Mapping[str, str], traits: Mapping[str, ServerTraits]
    ) -> None:
        """Have connections to these, and to those that have requests. Raises ValueError where one is no address."""
        pools = self._forwarder.pools_for(addresses)
        busy = {each for service_queue in self._queues for each in service_queue.busy}
        ready_paths = {
            each: traits.get(each, ServerTraits()).ready_path for each in addresses
        }
        self._forwarder.use(pools, busy, ready_paths)

    def in_flight(self, replica_id: str) -> int:
        """Requests that a replica has and has not answered; 0 means drained once no route names it."""
        return sum(each.in_flight(replica_id) for each in self._queues)

    def read(self) -> tuple[ServiceReading, ...]:
        """Every service's counts since the last reading, by service."""
        readings = [service_queue.read() for service_queue in self._queues]
        for service_queue in self._retired:
            # Else replicas that fail would be asked for ever when they are ready, and other nodes for what is theirs.
            if not service_queue.waiting and not service_queue.running:
                service_queue.close()
        self._retired = [each for each in self._retired if not each.is_empty]
        return tuple(sorted(readings, key=lambda reading: reading.service))

    async def switch_routes(
        self,
        routes: tuple[ServiceRoute, ...],
        addresses: Mapping[str, str],
        traits: Mapping[str, ServerTraits] = NO_TRAITS,
    ) -> None:
        """As `switch`, for `agents.router.request_router`."""
        self.switch(routes, addresses, traits)

    async def look(self) -> None:
        """Nothing: what is in flight is always known."""

    async def read_services(self) -> tuple[ServiceReading, ...]:
        """As `read`, for `agents.router.request_router`."""
        return self.read()

    async def close(self, *, keep: bool) -> None:  # noqa: ARG002  it ends with this process in any case
        """Send nothing more to any replica."""
        self.switch((), {})
        for service_queue in self._retired:
            service_queue.close()

    def total(self, service: str) -> Counts:
        """Everything counted for a service since it came; readings take nothing from it. Zeros for an unknown one."""
        service_queue = self._service_queues.get(service)
        return service_queue.total() if service_queue is not None else Counts()

    def _make_queue(self, route: ServiceRoute) -> ServiceQueue:
        return ServiceQueue(
            route,
            queue_limit=self._queue_limit,
            replica_limit=self._replica_limit,
            now_s=self._now_s,
            on_wait=lambda: self.on_wait(),
        )

    async def _about(self, _: web.Request) -> web.Response:
        # Binary tensors are offered only where all servers take them.
        return about(is_binary=all(each.is_binary for each in self._traits.values()))

    async def _ready(self, request: web.Request) -> web.Response:
        service = request.match_info["service"]
        for route in self._routes:
            if route.service == service and route.shares and not route.is_leaving:
                return web.Response()
        if service not in self._service_queues:
            return unknown(service)
        return without_replica(service)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        """The one model of a service, under the service's name, whether or not it has a replica."""
        service = request.match_info["service"]
        if service not in self._service_queues:
            return unknown(service)
        model = {"id": service, "object": "model", "owned_by": "plimsoll"}
        return web.json_response({"object": "list", "data": [model]})

    async def _metadata(self, request: web.Request) -> web.StreamResponse:
        service = request.match_info["service"]
        service_queue = self._service_queues.get(service)
        if service_queue is None:
            return unknown(service)
        # A client that only asks is no demand, so it neither waits nor counts.
        if not (replica_ids := service_queue.answering):
            return without_replica(service)
        return await self._forwarder.forward_metadata(request, replica_ids)

    async def _metrics(self, _: web.Request) -> web.Response:
        text = exposition(
            shown((*self._service_queues.values(), *self._retired)),
            unknown=self._unknown,
        )
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        service = request.match_info["service"]
        # Also where it starts elsewhere: a client who comes now may not have heard of that.
        service_queue = self._service_queues.get(service)
        service_queue = service_queue or self._retired_queue(service)
        if service_queue is None:
            self._unknown += 1
            return unknown(service)
        # Counted with what is held, it would keep all others out without a byte of it ever coming.
        if (request.content_length or 0) > MAX_BODY:
            return problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"a body may have at most {MAX_BODY} bytes",
            )
        came_s = self._now_s()
        deadline_text = request.headers.get(DEADLINE)
        try:
            deadline_ms = (
                None if deadline_text is None else parse_deadline_ms(deadline_text)
            )
        except ValueError as error:
            return problem(HTTPStatus.BAD_REQUEST, str(error))
        # A body of unknown length counts with the longest that is allowed.
        length = None if is_compressed(request) else request.content_length
        held_bytes = MAX_BODY if length is None else length
        if self._held_bytes + held_bytes > self._max_held_bytes and self._held_bytes:
            service_queue.arrive()
            service_queue.reject("full")
            return come_again(
                service_queue,
                f"requests of {self._held_bytes} bytes are already waiting on this node",
            )
        self._held_bytes += held_bytes
        try:
            body = await self._body(request)
            if body is None:
                return too_slow(self._body_timeout_s)
            self._held_bytes += len(body) - held_bytes
            held_bytes = len(body)
            job = RouterJob(
                service_queue=service_queue,
                request=request,
                body=body,
                came_s=came_s,
                deadline_ms=deadline_ms,
                timeout_s=self._answer_timeout_s,
                target=own_target(request),
            )
            return await self._counted(job)
        finally:
            self._held_bytes -= held_bytes

    async def _body(self, request: web.Request) -> bytes | None:
        """None: it did not come in time."""
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await read_body(request, MAX_BODY)
        except TimeoutError:
            return None

    async def _counted(self, job: RouterJob) -> web.StreamResponse:
        service_queue = job.service_queue
        service_queue.arrive()
        outcome: Outcome = "gone"
        try:
            response, outcome = await serve(job, self._forwarder, self._now_s)
            return response
        finally:  # also when the client gave up: every arrival is counted once more, as served or as rejected
            took_ms = 1000.0 * (self._now_s() - job.came_s)
            if outcome == "served":
                finish(job, response.status, took_ms)
            elif outcome == "gone":
                leave(job, took_ms)
            else:
                service_queue.reject(outcome, took_ms)

    async def _close(self, _: web.Application) -> None:
        await self._forwarder.close()
