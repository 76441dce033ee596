"""The API: routers, layers around them, and its OpenAPI document. `app.serve.api_process` gives it what it works
with."""

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Lifespan

from agents.base.protocol import LogAnswer, Observation, SyncReply
from app.api import apply
from app.api.decisions import compare, plans, policies, preview, restore, simulations
from app.api.fleet import (
    enrolment,
    gpu_types,
    gpus,
    log_answers,
    nodes,
    sync,
    telemetry,
)
from app.api.http import errors
from app.api.http.auth import AuthMiddleware
from app.api.http.limits import LimitMiddleware
from app.api.http.middleware import RequestMiddleware
from app.api.http.parts import Context
from app.api.http.views import ProblemDetails
from app.api.operations import events, health, metrics, tokens, webhooks
from app.api.predictions import fits, networks, profiles
from app.api.reports import costs, demand, history, reports
from app.api.workloads import budgets, endpoints, logs, projects, services, tasks
from app.base.errors import Forbidden

PREFIX = "/api/v1"
VERSION = "1"
DEFAULT_BODY_LIMIT = 4_194_304
DEFAULT_TOKEN_RATE = 50.0

RESOURCES = (
    sync,
    enrolment,
    apply,
    projects,
    gpu_types,
    nodes,
    gpus,
    networks,
    profiles,
    fits,
    endpoints,
    services,
    telemetry,
    tasks,
    logs,
    log_answers,
    demand,
    history,
    compare,
    preview,
    plans,
    restore,
    simulations,
    policies,
    reports,
    costs,
    budgets,
    events,
    metrics,
    tokens,
    webhooks,
)
"""In the order in which paths are tried: the busiest first; `compare` and `preview` before `plans`, whose paths take
any plan id."""

VALUES = frozenset({"const", "default", "enum", "example", "examples"})
"""What stands under these keys of a schema is data, not a schema."""

DESCRIPTION = (
    "Errors are RFC 9457 problems. Lists have `limit` and `cursor`. Objects have an ETag; replacing or deleting one "
    "needs If-Match. Every answer has X-Request-ID, which the audit keeps. A body has 64 KiB at most, a manifest "
    "512 KiB; profiles, samples, scenarios and what-ifs may be larger. Additive changes only within v1."
)


def make_api(
    lifespan: Lifespan[FastAPI] | None = None,
    *,
    body_limit_bytes: int = DEFAULT_BODY_LIMIT,
    token_rate: float = DEFAULT_TOKEN_RATE,
) -> FastAPI:
    """The application. Before the first request `app.state.parts` must hold its Parts."""
    app = FastAPI(
        title="Plimsoll",
        version=VERSION,
        description=DESCRIPTION,
        lifespan=lifespan,
        # FastAPI's own page loads its scripts from a foreign host; `app.web` has one that does not.
        docs_url=None,
        redoc_url=None,
        # Its own route would make the document while everybody else waits.
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
    )
    # First of all routes: routes are tried in turn, and nearly every request of a large fleet is a sync.
    app.router.routes.append(sync.QuickSync(PREFIX))
    for module in RESOURCES:
        app.include_router(module.router, prefix=PREFIX)
    # Without the prefix: probes and scrapers expect these paths at the root, and they outlive versions of the API.
    app.include_router(health.router)
    app.add_route("/openapi.json", _answer_document, include_in_schema=False)
    errors.install(app)
    app.add_exception_handler(Forbidden, _answer_denied)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPStatus.METHOD_NOT_ALLOWED, _answer_wrong_method)
    # Added later means further outside: the request has its id and its limit before anybody asks who calls.
    app.add_middleware(LimitMiddleware, prefix=PREFIX, token_rate=token_rate)
    app.add_middleware(AuthMiddleware)
    app.add_middleware(RequestMiddleware, body_limit_bytes=body_limit_bytes)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


async def _answer_document(request: Request) -> Response:
    """The document. In a thread, since making it takes most of a second."""
    state = request.app.state
    # Written once: everybody may ask, without a token, and writing it takes 5 ms each time.
    if not hasattr(state, "document"):
        state.document = await asyncio.to_thread(_document, request.app)
    return Response(state.document, media_type="application/json")


def _document(app: FastAPI) -> bytes:
    return bytes(JSONResponse(openapi(app)).body)


async def _answer_denied(request: Request, error: Exception) -> Response:
    """Refuse what a caller may not do; of a known one the audit has it."""
    context: Context | None = request.scope.get("plimsoll.context")
    if context is not None:
        # The route's template, as in the metrics: a path is the caller's to choose. The dashboard's pages have none.
        path = getattr(request.scope.get("route"), "path", "(page)")
        # Some routes know the prefix, others are included under it.
        operation = f"operation/{request.method} {path.removeprefix(PREFIX)}"
        await context.note_access("AccessDenied", subject=operation, reason=str(error))
    return await errors.answer(request, error)


async def _answer_wrong_method(request: Request, error: Exception) -> Response:
    """Refuse a method that the path does not have; Allow names all that it has."""
    answer = await errors.answer(request, error)
    # A path has a route for each of its methods, and the first one, which refuses, knows of its own alone.
    if methods := _methods(getattr(request.scope.get("route"), "path", "")):
        answer.headers["Allow"] = ", ".join(sorted(methods))
    return answer


async def _answer_invalid(request: Request, error: Exception) -> Response:
    """Refuse a wrong input; but /plans/preview, say, has methods of its own, and is no plan's id for the others."""
    methods = _methods(request.url.path.removeprefix(PREFIX))
    if not methods or request.method in methods:
        return await errors.answer(request, error)
    headers = {"Allow": ", ".join(sorted(methods))}
    wrong_method = HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers=headers)
    return await errors.answer(request, wrong_method)


def _methods(path: str) -> set[str]:
    """Those of that path, as the routers have it."""
    routes = (
        route for module in (*RESOURCES, health) for route in module.router.routes
    )
    return {
        method
        for route in routes
        if isinstance(route, APIRoute) and route.path == path
        for method in route.methods or ()
    }


def _operation_id(route: APIRoute) -> str:
    """The name of the function that answers, as `put_service`: generators of clients make theirs of it."""
    return route.name


def openapi(app: FastAPI) -> dict[str, Any]:
    """The document: FastAPI's, with the schemas that it cannot see, without its own shape of errors, and as generators
    of clients understand it."""
    # Made once: the document does not change while the process runs.
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
        )
        schemas = document["components"]["schemas"]
        schemas.update(_problem_schemas())
        schemas.update(_wire_schemas())
        # FastAPI documents its own errors, which `errors.install` replaces by problems.
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        for part in ("paths", "components"):
            document[part] = _plain(document[part])
        app.openapi_schema = document
    return app.openapi_schema


def _plain(part: Any) -> Any:
    """That part of the document in the words that generators of clients know.

    Titles go: many are the same, and generators name classes by them; a schema's name in the document is its own.
    """
    if isinstance(part, list):
        return [_plain(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _plain_value(key, value)
        for key, value in part.items()
        # A tuple's `maxItems` says as much as its `items: false`, which few generators read.
        if key != "title" and not (key == "items" and value is False)
    }


def _plain_value(key: str, value: Any) -> Any:
    """The same of what stands under that key."""
    if key in VALUES:
        return value
    # Keys are names of fields here, and a field may be called title.
    if key == "properties":
        return {name: _plain(schema) for name, schema in value.items()}
    if key == "anyOf":
        return [_plain(_without_constant(schema)) for schema in value]
    return _plain(value)


def _without_constant(schema: dict[str, Any]) -> dict[str, Any]:
    """The same alternative as an enum of one: openapi-python-client reads `0` of "0, or all" as a wrong `all`."""
    if "const" not in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "const"}
    return {**rest, "enum": [schema["const"]]}


def _wire_schemas() -> dict[str, Any]:
    """What agents send and get is read and written with msgspec."""
    _, components = msgspec.json.schema_components(
        [Observation, SyncReply, LogAnswer], ref_template="#/components/schemas/{name}"
    )
    return components


def _problem_schemas() -> dict[str, Any]:
    """Problems are answered by handlers, not by routes."""
    schema = ProblemDetails.model_json_schema(
        mode="serialization", ref_template="#/components/schemas/{model}"
    )
    return {**schema.pop("$defs", {}), ProblemDetails.__name__: schema}
