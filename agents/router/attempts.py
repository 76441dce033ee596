"""Which replicas are tried for a request: it waits for its turn, and goes on where a replica did nothing of it."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web

from agents.router.forward import (
    PEER,
    Busy,
    Forwarder,
    Outcome,
    RouterJob,
    expired,
    peer_refuses,
)
from agents.router.pool import NotConnected
from agents.router.router_answers import come_again
from agents.router.service_queue import Overloaded, ServiceQueue
from agents.serving.http_problems import problem

ATTEMPTS = 3
"""Replicas that are tried for one request, of which all but the last could not be connected to, or refused it."""
_LOOK_S = 1.0
"""From look to look whether the first replica still starts."""


async def serve(
    job: RouterJob, forwarder: Forwarder, now_s: Callable[[], float]
) -> tuple[web.StreamResponse, Outcome]:
    """The answer to a request that was counted, and whether it is a replica's own and whole."""
    service_queue = job.service_queue
    reason = ""
    refused: dict[str, web.Response] = {}
    # Only a request that no replica has begun is tried again: it was not sent, or refused.
    for _ in range(ATTEMPTS):
        left_s = job.left_s(now_s())
        if left_s < 0.001:
            return expired("before a replica had the request"), "expired"
        replica_id = service_queue.take(refused)
        if replica_id is None and refused:
            break
        try:
            replica_id = replica_id or await _turn(
                service_queue,
                left_s,
                longest_s=job.longest_s(now_s()),
            )
        except Overloaded as error:
            return come_again(service_queue, str(error)), "full"
        except TimeoutError:
            if job.left_s(now_s()) < 0.001:
                return expired("in the queue"), "expired"
            return come_again(
                service_queue,
                f"no replica of {service_queue.service} had room within {left_s:g} s, and none is starting",
            ), "full"
        try:
            return await forwarder.forward(job, replica_id)
        except Busy as busy:
            refused[replica_id] = busy.response
        except NotConnected as error:
            forwarder.note_failure(
                service_queue, replica_id, str(error), is_unreachable=True
            )
            if replica_id.startswith(PEER):
                refused[replica_id] = peer_refuses()
            reason = f"replica {replica_id} cannot be connected to: {error}"
            if not service_queue.has_other(replica_id):
                break
        finally:
            service_queue.release(replica_id)
    if refused:
        return refused.popitem()[1], "full"
    return problem(HTTPStatus.BAD_GATEWAY, reason), "lost"


async def _turn(
    service_queue: ServiceQueue, limit_s: float, *, longest_s: float
) -> str:
    """The replica whose turn it is, within the limit; within the longest time while the first replica starts. Raises
    Overloaded, TimeoutError."""
    acquiring = asyncio.ensure_future(service_queue.acquire())
    try:
        async with asyncio.timeout(longest_s):
            await asyncio.wait((acquiring,), timeout=limit_s)
            # How long it takes is known when it is over: a start that fails gives up what waits for it.
            while not acquiring.done() and service_queue.is_starting:
                await asyncio.wait((acquiring,), timeout=_LOOK_S)
        if acquiring.done():
            return acquiring.result()
        raise TimeoutError
    except (asyncio.CancelledError, TimeoutError):
        # It may have been given a place at this very moment, which goes to the next one.
        if acquiring.done() and acquiring.exception() is None:
            service_queue.release(acquiring.result())
        acquiring.cancel()
        raise
