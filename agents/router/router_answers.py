"""What the own router answers by itself, what it asks of a replica, and how an answer counts."""

from http import HTTPStatus

from aiohttp import web

from agents.base.version import agent_version
from agents.router.forward import RouterJob
from agents.router.service_queue import ServiceQueue
from agents.serving.http_problems import problem


def own_target(request: web.Request) -> str:
    """What a language model's server is asked, whose paths know no services; empty: what came."""
    if "path" not in request.match_info:
        return ""
    # As it was sent: decoded, a line break in it would begin a request of the client's own making.
    *_, target = request.path_qs.split("/", 3)
    return f"/{target}"


def finish(job: RouterJob, status: int, took_ms: float) -> None:
    """Count an answer that was served; a language model's by its tokens."""
    meter, service_queue = job.meter, job.service_queue
    if not service_queue.is_model:
        service_queue.finish(took_ms)
    elif meter is None:
        tokens = job.answer_tokens if status < HTTPStatus.BAD_REQUEST else 0
        # One that came whole tells nothing of its first token: the others are taken to have come just in time.
        service_queue.finish_at_once(took_ms, tokens)
    elif meter.ttft_ms is not None:
        service_queue.finish(meter.ttft_ms, meter.itl_ms, tokens=meter.tokens)
    elif meter.is_known:
        service_queue.finish_at_once(took_ms, meter.tokens)
    else:
        service_queue.finish_unmeasured(took_ms)


def leave(job: RouterJob, took_ms: float) -> None:
    """Count a request whose client has left; one that had got its first token is judged by that."""
    ttft_ms = None if job.meter is None else job.meter.ttft_ms
    job.service_queue.leave(took_ms if ttft_ms is None else ttft_ms)


def too_slow(limit_s: float) -> web.Response:
    """408: the body did not come in time."""
    answer = problem(
        HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {limit_s:g} s"
    )
    # The rest of it would be taken for the next request.
    answer.force_close()
    return answer


async def live(_: web.Request) -> web.Response:
    """200: this process answers."""
    return web.Response()


def about(*, is_binary: bool) -> web.Response:
    """What the server is, by OIP v2, whose extensions are those that all servers behind it have."""
    return web.json_response(
        {
            "name": "plimsoll-router",
            "version": agent_version(),
            "extensions": ["binary_tensor_data"] if is_binary else [],
        }
    )


def unknown(service: str) -> web.Response:
    """404: the node has no such service."""
    return problem(HTTPStatus.NOT_FOUND, f"this node has no service {service}")


def without_replica(service: str) -> web.Response:
    """503: there is no replica to ask."""
    return problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"service {service} has no ready replica on this node",
    )


def come_again(service_queue: ServiceQueue, detail: str) -> web.Response:
    """503, and when to come again."""
    response = problem(HTTPStatus.SERVICE_UNAVAILABLE, detail)
    response.headers["Retry-After"] = str(service_queue.retry_after_s())
    return response
