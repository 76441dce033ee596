"""A reverse proxy in front of this node's workers: one address for every service, whatever moves behind it.

`POST /v2/models/{service}/infer` (Open Inference Protocol v2) goes to a replica by the plan's weights. A service
without a replica keeps its requests waiting, bounded, and counts them, so that the control plane sees the demand.

    request ──▶ lane: turn by weights, bounded queue ──▶ pool of the replica's connections ──▶ answer, whole or in parts
                  │ full: 503, Retry-After                 │ NotConnected: another replica, for nothing was sent
                  │ deadline passed: 504                   │ NoAnswer: 502 or a broken connection, never sent again
                  ▼                                        ▼ LateAnswer: 502, or 504 when the deadline passed
               counts (`read`, `/metrics`)              health (`agents.router.health`): out, probed, in again

`Plimsoll-Deadline-Ms` says how many milliseconds are left for an answer; a worker is told what the queue left of them.
Files: `lane` (turns and counts), `router_health`, `router_pool` and `router_answers` (HTTP towards workers),
`router_requests` (headers), `router_metrics`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, TypeAlias

from aiohttp import web

from agents.base.device import ServiceRoute
from agents.base.http_problems import DEADLINE, parse_deadline_ms, problem
from agents.base.protocol import ServiceReading
from agents.router.http_messages import make_head
from agents.router.lane import Counts, Lane, Overloaded, Reason
from agents.router.metrics import CONTENT_TYPE, exposition, shown
from agents.router.pool import (
    ConnectionPool,
    LateAnswer,
    NotConnected,
    WorkerAnswer,
    WorkerAnswerLost,
)

QUEUE_LIMIT = 512
"""Requests of one service that wait at most while no replica has room."""
REPLICA_LIMIT = 256
"""Requests that one replica has at most: several of the largest batches."""
ANSWER_TIMEOUT_S = 60.0
"""For a replica's whole answer, and for a turn in the queue."""
ATTEMPTS = 3
"""Replicas that are tried for one request, of which all but the last could not be connected to."""
MAX_BODY = 64 * 1024 * 1024
MAX_HELD_BYTES = 1024 * 1024 * 1024
"""Of all requests' bodies together, waiting or with a replica."""
READY_PATH = b"/v2/health/ready"
PROBE_TIMEOUT_S = 1.0

Outcome: TypeAlias = Literal["served"] | Reason

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Job:
    """One request on its way."""

    lane: Lane
    request: web.Request
    body: bytes
    came_s: float
    deadline_ms: float | None
    timeout_s: float

    def left_s(self, now_s: float) -> float:
        """Until its deadline, or as long as anybody waits."""
        if self.deadline_ms is None:
            return self.timeout_s
        return min(self.timeout_s, self.deadline_ms / 1000.0 - (now_s - self.came_s))


class Router:
    """The router of one node. `switch` and `read` are called by its device, requests come by HTTP."""

    def __init__(
        self,
        *,
        queue_limit: int = QUEUE_LIMIT,
        replica_limit: int = REPLICA_LIMIT,
        max_held_bytes: int = MAX_HELD_BYTES,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue_limit = queue_limit
        self._replica_limit = replica_limit
        self._max_held_bytes = max_held_bytes
        self._answer_timeout_s = answer_timeout_s
        self._now_s = now_s
        self._lanes: dict[str, Lane] = {}
        self._retired: list[Lane] = []
        self._pools: dict[str, ConnectionPool] = {}
        self._routes: tuple[ServiceRoute, ...] = ()
        self._probes: dict[tuple[Lane, str], asyncio.Task[None]] = {}
        self._held_bytes = 0
        self._unknown = 0

    @property
    def routes(self) -> tuple[ServiceRoute, ...]:
        """The table in force."""
        return self._routes

    @property
    def out(self) -> tuple[str, ...]:
        """Replicas that get nothing because they fail, by id."""
        return tuple(sorted(each for lane in self._lanes.values() for each in lane.out))

    def make_app(self) -> web.Application:
        """The HTTP server; run it with `web.AppRunner`."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/v2/models/{service}/infer", self._infer)
        app.router.add_get("/v2/health/live", _live)
        app.router.add_get("/v2/health/ready", _live)
        app.router.add_get("/v2/models/{service}/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.on_cleanup.append(self._close)
        return app

    def switch(
        self, routes: tuple[ServiceRoute, ...], addresses: Mapping[str, str]
    ) -> None:
        """Put a new table in force at once. `addresses`: base URL of every replica that the routes name.

        Requests under way finish where they are, also those of services that the table no longer has.
        Raises KeyError when a replica has no address and ValueError when it is no address, and then changes nothing.
        """
        needed = {
            replica_id: addresses[replica_id]
            for route in routes
            for replica_id, _ in route.shares
        }
        pools = {
            replica_id: self._pool(replica_id, url)
            for replica_id, url in needed.items()
        }
        known = {lane.service: lane for lane in (*self._retired, *self._lanes.values())}
        busy = {replica_id for lane in known.values() for replica_id in lane.busy}
        self._keep_pools(
            pools
            | {
                each: pool
                for each, pool in self._pools.items()
                if each in busy - pools.keys()
            }
        )
        self._routes = routes
        self._lanes = {
            route.service: known.get(route.service) or self._make_lane(route)
            for route in routes
        }
        self._retired = [
            lane for service, lane in known.items() if service not in self._lanes
        ]
        for route in routes:
            self._lanes[route.service].switch(route)
        for lane in self._retired:
            lane.close()

    def in_flight(self, replica_id: str) -> int:
        """Requests that a replica has and has not answered; 0 means drained once no route names it."""
        return sum(
            lane.in_flight(replica_id)
            for lane in (*self._lanes.values(), *self._retired)
        )

    def read(self) -> tuple[ServiceReading, ...]:
        """Every service's counts since the last reading, by service."""
        readings = [lane.read() for lane in (*self._lanes.values(), *self._retired)]
        self._retired = [lane for lane in self._retired if not lane.is_empty]
        return tuple(sorted(readings, key=lambda reading: reading.service))

    async def switch_routes(
        self, routes: tuple[ServiceRoute, ...], addresses: Mapping[str, str]
    ) -> None:
        """As `switch`, for `agents.router.request_router`."""
        self.switch(routes, addresses)

    async def look(self) -> None:
        """Nothing: what is in flight is always known."""

    async def read_services(self) -> tuple[ServiceReading, ...]:
        """As `read`, for `agents.router.request_router`."""
        return self.read()

    async def close(self, *, keep: bool) -> None:  # noqa: ARG002  it ends with this process in any case
        """Send nothing more to any replica."""
        self.switch((), {})

    def total(self, service: str) -> Counts:
        """Everything counted for a service since it came; readings take nothing from it. Zeros for an unknown one."""
        lane = self._lanes.get(service)
        return lane.total() if lane is not None else Counts()

    def _make_lane(self, route: ServiceRoute) -> Lane:
        return Lane(
            route,
            queue_limit=self._queue_limit,
            replica_limit=self._replica_limit,
            now_s=self._now_s,
        )

    def _pool(self, replica_id: str, url: str) -> ConnectionPool:
        known = self._pools.get(replica_id)
        return known if known is not None and known.url == url else ConnectionPool(url)

    def _keep_pools(self, pools: dict[str, ConnectionPool]) -> None:
        for replica_id, pool in self._pools.items():
            if pools.get(replica_id) is not pool:
                pool.close()
        self._pools = pools

    async def _ready(self, request: web.Request) -> web.Response:
        service = request.match_info["service"]
        if any(route.service == service and route.shares for route in self._routes):
            return web.Response()
        return problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"service {service} has no ready replica on this node",
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        text = exposition(
            shown((*self._lanes.values(), *self._retired)), unknown=self._unknown
        )
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        service = request.match_info["service"]
        lane = self._lanes.get(service)
        if lane is None:
            self._unknown += 1
            return problem(
                HTTPStatus.NOT_FOUND, f"this node knows no service {service}"
            )
        came_s = self._now_s()
        deadline_text = request.headers.get(DEADLINE)
        try:
            deadline_ms = (
                None if deadline_text is None else parse_deadline_ms(deadline_text)
            )
        except ValueError as error:
            return problem(HTTPStatus.BAD_REQUEST, str(error))
        held_bytes = (
            request.content_length if request.content_length is not None else MAX_BODY
        )
        if self._held_bytes + held_bytes > self._max_held_bytes and self._held_bytes:
            lane.arrive()
            lane.reject("full")
            return _come_again(
                lane, f"requests of {self._held_bytes} bytes wait already on this node"
            )
        self._held_bytes += held_bytes
        try:
            body = await request.read()
            self._held_bytes += len(body) - held_bytes
            held_bytes = len(body)
            job = _Job(
                lane=lane,
                request=request,
                body=body,
                came_s=came_s,
                deadline_ms=deadline_ms,
                timeout_s=self._answer_timeout_s,
            )
            return await self._counted(job)
        finally:
            self._held_bytes -= held_bytes

    async def _counted(self, job: _Job) -> web.StreamResponse:
        lane = job.lane
        lane.arrive()
        outcome: Outcome = "gone"
        try:
            response, outcome = await self._serve(job)
            return response
        finally:  # also when the client gave up: every arrival is counted once more, as served or as rejected
            if outcome == "served":
                lane.finish(1000.0 * (self._now_s() - job.came_s))
            else:
                lane.reject(outcome)

    async def _serve(self, job: _Job) -> tuple[web.StreamResponse, Outcome]:
        """The answer, and whether it is a replica's own and whole."""
        lane, reason = job.lane, ""
        for _ in range(ATTEMPTS):
            left_s = job.left_s(self._now_s())
            if left_s < 0.001:
                return _expired("before a replica had the request"), "expired"
            try:
                replica_id = lane.take() or await _turn(lane, left_s)
            except Overloaded as error:
                return _come_again(lane, str(error)), "full"
            except TimeoutError:
                if left_s < job.timeout_s:
                    return _expired("in the queue"), "expired"
                return _come_again(
                    lane, f"no replica of {lane.service} had room within {left_s:g} s"
                ), "full"
            try:
                return await self._forward(job, replica_id)
            except NotConnected as error:
                self._note_failure(lane, replica_id, str(error), is_unreachable=True)
                reason = f"replica {replica_id} cannot be connected to: {error}"
                if not lane.has_other(replica_id):
                    break
            finally:
                lane.release(replica_id)
        return problem(HTTPStatus.BAD_GATEWAY, reason), "lost"

    async def _forward(
        self, job: _Job, replica_id: str
    ) -> tuple[web.StreamResponse, Outcome]:
        """Pass the request on and its answer back. NotConnected: nothing was sent."""
        if job.request.transport is None:
            return problem(HTTPStatus.BAD_GATEWAY, "the client has left"), "gone"
        left_s = job.left_s(self._now_s())
        if left_s < 0.001:
            return _expired("in the queue"), "expired"
        pool = self._pools[replica_id]
        head = make_head(
            pool.prefix + job.request.path_qs.encode(),
            host=pool.host,
            headers=job.request.raw_headers,
            body_bytes=len(job.body),
            deadline_ms=None if job.deadline_ms is None else int(1000.0 * left_s),
        )
        try:
            answer = await pool.ask(head, job.body, timeout_s=left_s)
        except LateAnswer:
            if job.deadline_ms is not None and job.left_s(self._now_s()) <= 0.0:
                return _expired(
                    f"while replica {replica_id} had the request"
                ), "expired"
            self._note_failure(
                job.lane, replica_id, "no answer in time", is_unreachable=False
            )
            return problem(
                HTTPStatus.BAD_GATEWAY,
                f"replica {replica_id} did not answer in {left_s:g} s",
            ), "lost"
        except WorkerAnswerLost as error:
            self._note_failure(job.lane, replica_id, str(error), is_unreachable=False)
            return problem(
                HTTPStatus.BAD_GATEWAY, f"replica {replica_id} did not answer: {error}"
            ), "lost"
        if answer.status >= 500:
            self._note_failure(
                job.lane, replica_id, f"status {answer.status}", is_unreachable=False
            )
        else:
            job.lane.succeed(replica_id)
        if answer.body is not None:
            response = web.Response(
                status=answer.status, headers=answer.headers, body=answer.body
            )
            return response, "served" if answer.status < 500 else "lost"
        return await self._pass_pieces(job, replica_id, answer)

    async def _pass_pieces(
        self, job: _Job, replica_id: str, answer: WorkerAnswer
    ) -> tuple[web.StreamResponse, Outcome]:
        """A long answer, piece by piece as it comes and as fast as the client takes it."""
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        response.content_length = answer.length
        try:
            await response.prepare(job.request)
            while piece := await answer.piece():
                await response.write(piece)
            await response.write_eof()
        except WorkerAnswerLost as error:  # part of the answer is out: only a broken connection tells the client so
            self._note_failure(job.lane, replica_id, str(error), is_unreachable=False)
            if job.request.transport is not None:
                job.request.transport.abort()
            return response, "lost"
        except ConnectionError:
            return response, "gone"
        finally:
            answer.close()
        return response, "served" if answer.status < 500 else "lost"

    def _note_failure(
        self, lane: Lane, replica_id: str, reason: str, *, is_unreachable: bool
    ) -> None:
        if lane.fail(replica_id, is_unreachable=is_unreachable):
            log.warning(
                "replica %s of %s gets nothing until it is ready again: %s",
                replica_id,
                lane.service,
                reason,
            )
            if (lane, replica_id) not in self._probes:
                self._probes[lane, replica_id] = asyncio.create_task(
                    self._probe(lane, replica_id)
                )

    async def _probe(self, lane: Lane, replica_id: str) -> None:
        """Ask until the replica is ready, or out of the table."""
        try:
            while replica_id in lane.out:
                await asyncio.sleep(lane.probe_in_s(replica_id))
                pool = self._pools.get(replica_id)
                if pool is not None and await pool.is_ready(
                    READY_PATH, timeout_s=PROBE_TIMEOUT_S
                ):
                    log.info(
                        "replica %s of %s is ready again", replica_id, lane.service
                    )
                    lane.readmit(replica_id)
        finally:
            del self._probes[lane, replica_id]

    async def _close(self, _: web.Application) -> None:
        probes = tuple(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        self._keep_pools({})


async def _turn(lane: Lane, timeout_s: float) -> str:
    async with asyncio.timeout(timeout_s):
        return await lane.acquire()


async def _live(_: web.Request) -> web.Response:
    return web.Response()


def _expired(when: str) -> web.Response:
    return problem(HTTPStatus.GATEWAY_TIMEOUT, f"the request's deadline passed {when}")


def _come_again(lane: Lane, detail: str) -> web.Response:
    response = problem(HTTPStatus.SERVICE_UNAVAILABLE, detail)
    response.headers["Retry-After"] = str(lane.retry_after_s())
    return response
