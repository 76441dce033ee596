"""One request passed on to a replica and its answer passed back; replicas that fail are asked until they are ready."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, TypeAlias

from aiohttp import web

from agents.base.device import DeviceError
from agents.router.access import ASKS_FOR_KEYS
from agents.router.counts import Reason
from agents.router.http_messages import RawHeaders, make_head
from agents.router.pool import (
    ConnectionPool,
    LateAnswer,
    NotConnected,
    WorkerAnswer,
    WorkerAnswerLost,
)
from agents.router.request_router import LONGEST_START_S
from agents.router.service_queue import ServiceQueue
from agents.router.streams import EVENT_STREAM, AnswerTail, TokenMeter, answered_tokens
from agents.serving.http_problems import PROBLEM_TYPE, RETRY_AFTER_S, problem

PROBE_TIMEOUT_S = 1.0
METADATA_TIMEOUT_S = 5.0
PEER = "node "
"""With it begin ids of other nodes' routers, to which requests go as they came."""
MAX_METADATA = 1024 * 1024
_PEERS_OWN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
"""Another node's router so refuses a client's key or its own sender's address, or knows no such service."""
_REFUSALS = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)
"""vLLM, SGLang, Triton, llama.cpp and Ollama refuse by the first what has no place, TGI and TEI by the second."""

Outcome: TypeAlias = Literal["served"] | Reason

log = logging.getLogger(__name__)


class Busy(DeviceError):
    """A replica answered 503 or 429: it is well, did nothing of the request, and takes no more at the moment."""

    def __init__(self, response: web.Response) -> None:
        """`response`: its refusal, as a client gets it."""
        super().__init__("the replica takes no more requests at the moment")
        self.response = response


@dataclass(slots=True, kw_only=True)
class RouterJob:
    """One request on its way."""

    service_queue: ServiceQueue
    request: web.Request
    body: bytes
    came_s: float
    deadline_ms: float | None
    timeout_s: float
    target: str = ""
    """Path and query for the replica; empty: the request's own."""
    meter: TokenMeter | None = None
    """Only streams of language models have one."""
    answer_tokens: int = 0
    """In an answer of a language model that is no stream; an error has none."""

    def left_s(self, now_s: float) -> float:
        """Until its deadline, or as long as anybody waits."""
        if self.deadline_ms is None:
            return self.timeout_s
        return min(self.timeout_s, self.deadline_ms / 1000.0 - (now_s - self.came_s))

    def longest_s(self, now_s: float) -> float:
        """Until its deadline, or for as long as a start is waited for."""
        if self.deadline_ms is None:
            return LONGEST_START_S
        return min(LONGEST_START_S, self.deadline_ms / 1000.0 - (now_s - self.came_s))


class Forwarder:
    """The connections to all replicas of a node."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._pools: dict[str, ConnectionPool] = {}
        self._ready_paths: Mapping[str, str] = {}
        self._probes: dict[tuple[ServiceQueue, str], asyncio.Task[None]] = {}

    def pools_for(self, urls: Mapping[str, str]) -> dict[str, ConnectionPool]:
        """A pool for each replica's base URL, the present one where that is the same. Raises ValueError."""
        return {each: self._pool(each, url) for each, url in urls.items()}

    def use(
        self,
        pools: Mapping[str, ConnectionPool],
        busy: Collection[str],
        ready_paths: Mapping[str, str],
    ) -> None:
        """Connect to these replicas from now on, and to `busy` ones as before; all other pools are closed."""
        self._ready_paths = ready_paths
        kept = dict(pools)
        for replica_id, pool in self._pools.items():
            if replica_id in busy and replica_id not in pools:
                kept[replica_id] = pool
            if kept.get(replica_id) is not pool:
                pool.close()
        self._pools = kept

    async def close(self) -> None:
        """Connect to no replica any more."""
        probes = tuple(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        self.use({}, (), {})

    async def forward(
        self, job: RouterJob, replica_id: str
    ) -> tuple[web.StreamResponse, Outcome]:
        """Pass the request on and its answer back. NotConnected: nothing was sent. Busy: nothing of it was done."""
        if job.request.transport is None:
            return problem(
                HTTPStatus.BAD_GATEWAY, "the client has disconnected"
            ), "gone"
        # The turn in the queue may have used the deadline up.
        left_s = job.left_s(self._now_s())
        if left_s < 0.001:
            return expired("in the queue"), "expired"
        pool = self._pools[replica_id]
        is_peer = replica_id.startswith(PEER)
        head = _make_head(job, pool, left_s, is_peer=is_peer)
        try:
            answer = await pool.ask(head, job.body, timeout_s=left_s)
        except LateAnswer:
            if job.deadline_ms is not None and job.left_s(self._now_s()) <= 0.0:
                return expired(
                    f"while {shown_name(replica_id)} had the request"
                ), "expired"
            self._blame(job, replica_id, "no answer in time")
            return problem(
                HTTPStatus.BAD_GATEWAY,
                f"{shown_name(replica_id)} did not answer in {left_s:g} s",
            ), "lost"
        except WorkerAnswerLost as error:
            self._blame(job, replica_id, str(error))
            reason = "the connection was lost" if is_peer else str(error)
            return problem(
                HTTPStatus.BAD_GATEWAY,
                f"{shown_name(replica_id)} did not answer: {reason}",
            ), "lost"
        # A replica behind it would answer in words of its own.
        if is_peer and answer.status in _PEERS_OWN and _has_type(answer, PROBLEM_TYPE):
            answer.close()
            raise Busy(peer_refuses())
        if answer.status in _REFUSALS:
            raise Busy(await _refusal(answer))
        return await self._pass_answer(job, replica_id, answer)

    async def forward_metadata(
        self, request: web.Request, replica_ids: Iterable[str]
    ) -> web.StreamResponse:
        """What a replica answers to a GET: the first of these that does. It counts nowhere, and blames no replica."""
        reason = "there is no replica"
        # For all of them together: one that hangs is no reason to wait for as long at each other one.
        due_s = time.monotonic() + METADATA_TIMEOUT_S
        for replica_id in replica_ids:
            try:
                return await self._ask_metadata(request, replica_id, due_s)
            # Asking changes nothing, so that the next one can be asked whatever happened to this one.
            except (NotConnected, WorkerAnswerLost) as error:
                reason = f"replica {replica_id} did not answer: {error}"
        return problem(HTTPStatus.BAD_GATEWAY, reason)

    async def _ask_metadata(
        self, request: web.Request, replica_id: str, due_s: float
    ) -> web.StreamResponse:
        """Raises NotConnected or WorkerAnswerLost."""
        left_s = due_s - time.monotonic()
        if left_s <= 0.0:
            raise WorkerAnswerLost(f"{METADATA_TIMEOUT_S:g} s are over")
        pool = self._pools.get(replica_id)
        # The table changed while another replica was asked.
        if pool is None:
            raise WorkerAnswerLost("it has disconnected")
        head = make_head(
            b"GET " + _target(request, pool),
            host=pool.host,
            headers=_passed_headers(request),
            body_bytes=0,
        )
        answer = await pool.ask(head, b"", timeout_s=left_s)
        try:
            body = await _read_body(answer)
        finally:
            answer.close()
        return web.Response(status=answer.status, headers=answer.headers, body=body)

    async def _pass_answer(
        self, job: RouterJob, replica_id: str, answer: WorkerAnswer
    ) -> tuple[web.StreamResponse, Outcome]:
        """The answer as the client gets it; its status tells how the replica does."""
        self._note_status(job, replica_id, answer.status)
        if job.service_queue.is_model and _has_type(answer, EVENT_STREAM):
            job.meter = TokenMeter(job.came_s)
        if answer.body is None:
            return await self._pass_pieces(job, replica_id, answer)
        if job.meter is not None:
            job.meter.feed(answer.body, self._now_s())
        elif job.service_queue.is_model:
            job.answer_tokens = answered_tokens(answer.body)
        response = web.Response(
            status=answer.status, headers=answer.headers, body=answer.body
        )
        return response, _outcome(job, answer)

    def _note_status(self, job: RouterJob, replica_id: str, status: int) -> None:
        # An error of the client's own (4xx) says nothing against the replica.
        if status >= 500:
            self._blame(job, replica_id, f"status {status}")
        else:
            job.service_queue.succeed(replica_id)

    async def _pass_pieces(
        self, job: RouterJob, replica_id: str, answer: WorkerAnswer
    ) -> tuple[web.StreamResponse, Outcome]:
        """A long answer, piece by piece as it comes and as fast as the client takes it."""
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        # Known lengths are passed on, so that the client sees a broken answer as one.
        response.content_length = answer.length
        tail = AnswerTail()
        try:
            await response.prepare(job.request)
            while piece := await answer.piece():
                # Before it is written: how fast the client takes it is no matter of the replica's.
                if job.meter is not None:
                    job.meter.feed(piece, self._now_s())
                else:
                    tail.feed(piece)
                await response.write(piece)
            await response.write_eof()
            job.answer_tokens = tail.tokens
        except WorkerAnswerLost as error:  # part of the answer is out: only a broken connection tells the client so
            self._blame(job, replica_id, str(error))
            if job.request.transport is not None:
                job.request.transport.abort()
            return response, "lost"
        except ConnectionError:
            return response, "gone"
        finally:
            answer.close()
        return response, _outcome(job, answer)

    def _blame(self, job: RouterJob, replica_id: str, reason: str) -> None:
        """Count a failure of a replica that was reached."""
        self.note_failure(job.service_queue, replica_id, reason, is_unreachable=False)

    def note_failure(
        self,
        service_queue: ServiceQueue,
        replica_id: str,
        reason: str,
        *,
        is_unreachable: bool,
    ) -> None:
        """Count a failure; a replica that is out of the table by it is asked until it is ready."""
        if service_queue.fail(replica_id, is_unreachable=is_unreachable):
            log.warning(
                "replica %s of %s gets no requests until it is ready again: %s",
                replica_id,
                service_queue.service,
                reason,
            )
            # One probe at a time asks, however many requests have failed.
            if (service_queue, replica_id) not in self._probes:
                self._probes[service_queue, replica_id] = asyncio.create_task(
                    self._probe(service_queue, replica_id)
                )

    async def _probe(self, service_queue: ServiceQueue, replica_id: str) -> None:
        """Ask until the replica is ready, or out of the table."""
        try:
            while replica_id in service_queue.out:
                await asyncio.sleep(service_queue.probe_in_s(replica_id))
                pool = self._pools.get(replica_id)
                path = self._ready_paths.get(replica_id, "").encode()
                if pool is not None and await pool.is_ready(
                    path, timeout_s=PROBE_TIMEOUT_S
                ):
                    log.info(
                        "replica %s of %s is ready again",
                        replica_id,
                        service_queue.service,
                    )
                    service_queue.readmit(replica_id)
        finally:
            del self._probes[service_queue, replica_id]

    def _pool(self, replica_id: str, url: str) -> ConnectionPool:
        known = self._pools.get(replica_id)
        return known if known is not None and known.url == url else ConnectionPool(url)


def _make_head(
    job: RouterJob, pool: ConnectionPool, left_s: float, *, is_peer: bool
) -> bytes:
    """The head of the request as the replica gets it, with the time that is left of its deadline."""
    return make_head(
        b"POST "
        + (
            pool.prefix + job.target.encode()
            if job.target and not is_peer
            else _target(job.request, pool)
        ),
        host=pool.host,
        # Another node asks for the key itself.
        headers=job.request.raw_headers if is_peer else _request_headers(job),
        body_bytes=len(job.body),
        deadline_ms=None if job.deadline_ms is None else int(1000.0 * left_s),
    )


def _target(request: web.Request, pool: ConnectionPool) -> bytes:
    return pool.prefix + request.path_qs.encode()


def _request_headers(job: RouterJob) -> RawHeaders:
    headers = _passed_headers(job.request)
    if not job.service_queue.is_model:
        return headers
    # The tokens of a compressed answer could not be read on the way.
    return tuple(each for each in headers if each[0].lower() != b"accept-encoding")


def _passed_headers(request: web.Request) -> RawHeaders:
    headers = request.raw_headers
    if not request.app.get(ASKS_FOR_KEYS):
        return headers
    return tuple(each for each in headers if each[0].lower() != b"authorization")


def shown_name(replica_id: str) -> str:
    """As clients may know it: other nodes' addresses are none of theirs."""
    return "another node" if replica_id.startswith(PEER) else f"replica {replica_id}"


def peer_refuses() -> web.Response:
    """503: another node does not take what was passed on to it; the client did nothing wrong."""
    return problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the service has left this node, and the next one does not take requests yet",
    )


def _has_type(answer: WorkerAnswer, content_type: str) -> bool:
    return any(
        name.lower() == "content-type" and value.lower().startswith(content_type)
        for name, value in answer.headers
    )


def _outcome(job: RouterJob, answer: WorkerAnswer) -> Outcome:
    """How an answer counts that is whole."""
    has_failed = job.meter is not None and job.meter.has_failed
    return "lost" if has_failed or answer.status >= 500 else "served"


async def _refusal(answer: WorkerAnswer) -> web.Response:
    """A replica's refusal in its own words, and when to come again."""
    try:
        body = await _read_body(answer)
    except WorkerAnswerLost:
        # That it was refused is known without the words, which are lost.
        return problem(
            HTTPStatus.SERVICE_UNAVAILABLE, "the replica refused the request"
        )
    finally:
        answer.close()
    response = web.Response(status=answer.status, headers=answer.headers, body=body)
    response.headers.setdefault("Retry-After", str(RETRY_AFTER_S))
    return response


async def _read_body(answer: WorkerAnswer) -> bytes:
    """Raises WorkerAnswerLost."""
    if answer.body is not None:
        return answer.body
    body = bytearray()
    while piece := await answer.piece():
        body += piece
        if len(body) > MAX_METADATA:
            raise WorkerAnswerLost(f"it has more than {MAX_METADATA} bytes")
    return bytes(body)


def expired(when: str) -> web.Response:
    """The answer to a request whose deadline has passed."""
    return problem(HTTPStatus.GATEWAY_TIMEOUT, f"the request's deadline passed {when}")
