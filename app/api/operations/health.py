"""Health and metrics: for probes and scrapers, without a token."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BeforeValidator, Field
from starlette.responses import JSONResponse, Response

from app.api.http.answers import (
    PROMETHEUS_TEXT,
    PUBLIC,
    PUBLIC_LIMITED,
    RETRY_AFTER,
    Responses,
)
from app.api.http.errors import RETRY
from app.api.http.parts import ApiParts
from app.api.http.views import View


class HealthView(View):
    """Whether this process can work."""

    status: Literal["ok", "unavailable"]
    checks: dict[str, str] = Field(
        default_factory=dict, description="`ok` or the problem, by component"
    )


# Load balancers and `wget --spider` ask with HEAD, which FastAPI, other than Starlette, does not take for a GET.
router = APIRouter(tags=["health"])

_UNREADY: Responses = {
    503: {
        "description": "A required component cannot be reached",
        "model": HealthView,
        "headers": RETRY_AFTER,
    }
}


@router.head("/livez", include_in_schema=False)
@router.get("/livez")
async def get_livez() -> HealthView:
    """Whether this process answers at all."""
    # It asks no database: an orchestrator would else restart every API while PostgreSQL is away.
    return HealthView(status="ok")


def _bare_flag(given: object) -> object:
    """`?verbose` alone says yes, as it does for Kubernetes' own endpoints."""
    return True if given == "" else given


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", response_model=HealthView, responses=PUBLIC | _UNREADY)
async def get_readyz(
    request: Request,
    verbose: Annotated[
        bool,
        BeforeValidator(_bare_flag),
        Query(description="List every component, including healthy ones"),
    ] = False,
) -> JSONResponse:
    """Whether this process can do its work: database, schema, listener, and the control loop where it runs here.

    As it was within the last second.
    """
    return await _readiness(request, verbose)


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", response_model=HealthView, responses=_UNREADY)
async def get_healthz(request: Request) -> JSONResponse:
    """The same as /readyz, under the older name."""
    return await _readiness(request, verbose=False)


@router.head("/metrics", include_in_schema=False)
@router.get(
    "/metrics",
    response_class=Response,
    responses=PROMETHEUS_TEXT | PUBLIC_LIMITED,
)
async def get_metrics(request: Request) -> Response:
    """Metrics of this process in Prometheus' text format."""
    # Not kept for a moment, as readiness is: two scrapes tell what happened between them.
    parts: ApiParts = request.app.state.parts
    return Response(
        generate_latest(parts.metrics.registry), media_type=CONTENT_TYPE_LATEST
    )


async def _readiness(request: Request, verbose: bool) -> JSONResponse:
    parts: ApiParts = request.app.state.parts
    found = await parts.readiness.load(parts.checks)
    is_ready = not any(found.values())
    # Without `?verbose` only what is wrong: probes log what they get every few seconds.
    shown = {
        name: problem or "ok" for name, problem in found.items() if verbose or problem
    }
    view = HealthView(status="ok" if is_ready else "unavailable", checks=shown)
    return JSONResponse(
        view.model_dump(),
        status_code=200 if is_ready else 503,
        headers=None if is_ready else RETRY,
    )
