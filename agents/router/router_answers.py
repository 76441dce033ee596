"""What the own router answers by itself, what it asks of a replica, and how an answer counts."""

import asyncio
from http import HTTPStatus

from aiohttp import web

from agents.base.version import agent_version
from agents.router.forward import RouterJob
from agents.router.service_queue import ServiceQueue
from agents.serving.http_problems import problem

_LOOK_S = 1.0
"""From look to look whether the first replica still starts."""


def own_target(request: web.Request) -> str:
    """What a language model's server is asked, whose paths know no services; empty: what came."""
    if "path" not in request.match_info:
        return ""
    # As it was sent: decoded, a line break in it would begin a request of the client's own making.
    *_, target = request.path_qs.split("/", 3)
    return f"/{target}"


def finish(job: RouterJob, took_ms: float) -> None:
    """Count an answer that was served; a language model's by its tokens."""
    meter = job.meter
    if meter is None:
        job.service_queue.finish(took_ms)
    elif meter.ttft_ms is not None:
        job.service_queue.finish(meter.ttft_ms, meter.itl_ms, tokens=meter.tokens)
    else:
        # One that came whole tells nothing of its first token: the others are taken to have come just in time.
        job.service_queue.finish_at_once(took_ms, job.answer_tokens)


def too_slow(limit_s: float) -> web.Response:
    """408: the body did not come in time."""
    answer = problem(
        HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {limit_s:g} s"
    )
    # The rest of it would be taken for the next request.
    answer.force_close()
    return answer


async def turn(service_queue: ServiceQueue, limit_s: float, *, longest_s: float) -> str:
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


async def live(_: web.Request) -> web.Response:
    """200: this process answers."""
    return web.Response()


async def about(_: web.Request) -> web.Response:
    """What the server is, by OIP v2."""
    return web.json_response(
        {
            "name": "plimsoll-router",
            "version": agent_version(),
            "extensions": ["binary_tensor_data"],
        }
    )


def unknown(service: str) -> web.Response:
    """404: the node has no such service."""
    return problem(HTTPStatus.NOT_FOUND, f"this node has no service {service}")


def without_replica(service: str) -> web.Response:
    """503: nobody is there to ask."""
    return problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"service {service} has no ready replica on this node",
    )


def come_again(service_queue: ServiceQueue, detail: str) -> web.Response:
    """503, and when to come again."""
    response = problem(HTTPStatus.SERVICE_UNAVAILABLE, detail)
    response.headers["Retry-After"] = str(service_queue.retry_after_s())
    return response
