"""Simulations: one at a time, in a process of its own beside the API; what waits is kept in a short queue.

Scenarios and reports say nothing of the live cluster, but they belong to no project either: a token that is bound to
projects neither asks nor looks. Asking needs an operator's, like a what-if: it takes a core for minutes, and a place in
a queue that is everybody's.
"""

import asyncio
import gzip
from typing import Annotated, cast

from fastapi import Path, Request, Response

from app.api.decisions.simulation_views import (
    ExamplesView,
    ScenarioChecks,
    SimulationRequest,
    SimulationView,
)
from app.api.http.answers import LIST, READ, Responses, problems
from app.api.http.auth import ClusterOperator, ClusterViewer
from app.api.http.body import accepts_gzip, resource_router
from app.api.http.errors import TooMany
from app.api.http.idempotency import IdempotencyKey, once
from app.api.http.pages import Paging
from app.api.http.views import Page
from app.db.base.transaction import Connection
from app.db.decisions import simulations
from app.db.decisions.simulations import WAITING_LIMIT, SimulationRow
from solvers.types.state import Json

router = resource_router("simulations", prefix="/simulations")

SimulationId = Annotated[int, Path(ge=1, le=2**53)]

# A report is made of what a caller sent. It has no script; if it had one, no browser would run it, nor let it be the
# API's own page: `sandbox` without words gives it an origin of its own, and takes scripts and forms from it.
SANDBOX = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Vary": "Accept-Encoding",
}
HTML = "text/html; charset=utf-8"
REPORT: Responses = {
    200: {
        "content": {HTML: {"schema": {"type": "string"}}},
        "description": "The page; it stands alone",
    }
}
REPORT_JSON: Responses = {
    200: {
        "content": {"application/json": {"schema": {"type": "object"}}},
        "description": "Every figure",
    }
}


@router.get("", responses=LIST)
async def list_simulations(
    context: ClusterViewer, paging: Paging
) -> Page[SimulationView]:
    """Simulations, newest first, without what they came to."""
    async with context.transaction() as connection:
        rows = await simulations.list_rows(
            connection, before=paging.after_number, limit=paging.fetch
        )
    return paging.page(rows, view=_view, key=lambda row: row.id)


@router.get("/examples", responses=LIST)
async def list_examples(context: ClusterViewer) -> ExamplesView:
    """Shipped scenarios, and what a simulation may have at most."""
    checks = cast(ScenarioChecks, context.parts.simulations)
    items = await asyncio.to_thread(checks.examples)
    return ExamplesView(
        items=list(items), policies=list(checks.policies()), limits=checks.limits()
    )


@router.post(
    "",
    status_code=202,
    response_model=SimulationView,
    responses=problems(400, 413, 415)
    | {
        202: {
            "description": "It waits for its turn",
            "headers": {"Location": {"schema": {"type": "string"}}},
        }
    },
)
async def ask_simulation(
    context: ClusterOperator,
    wanted: SimulationRequest,
    request: Request,
    key: IdempotencyKey = None,
) -> Response:
    """Simulate a scenario under one to five policies; the answer says where to look how far it is."""
    # Before the transaction, in a thread: reading a scenario takes up to a second.
    order = await asyncio.to_thread(
        cast(ScenarioChecks, context.parts.simulations).order, wanted
    )

    async def work(connection: Connection) -> SimulationView:
        made = await simulations.add(
            connection, order, asked_by=context.actor, at=context.now()
        )
        if made is None:
            raise TooMany(
                f"{WAITING_LIMIT} simulations wait already; one runs at a time. Cancel one, or wait"
            )
        after: dict[str, Json] = {
            "name": order.name,
            "policies": order.policies,
            "seeds": order.seeds,
        }
        after["duration_s"] = order.duration_s
        await context.audit(
            connection, "SimulationAsked", f"simulation/{made}", after=after
        )
        return _view(await simulations.get(connection, made))

    answer = await once(context, request, key, work, status=202)
    # From the body: a repeated request has the first one's answer, and its id.
    made = SimulationView.model_validate_json(bytes(answer.body))
    answer.headers["Location"] = f"{request.url.path}/{made.id}"
    return answer


@router.get("/{simulation_id}", responses=READ)
async def get_simulation(
    context: ClusterViewer, simulation_id: SimulationId
) -> SimulationView:
    """One simulation: how far it is, and what it came to."""
    async with context.transaction() as connection:
        return _view(await simulations.get(connection, simulation_id))


@router.get(
    "/{simulation_id}/report",
    response_class=Response,
    responses=problems(404, 409) | REPORT,
)
async def get_report(
    context: ClusterViewer, simulation_id: SimulationId, request: Request
) -> Response:
    """The report as a page with charts, as `plimsoll simulate --html` writes it."""
    async with context.transaction() as connection:
        report = await simulations.get_report(connection, simulation_id, "html")
    return await _packed(request, report, HTML)


@router.get(
    "/{simulation_id}/report.json",
    response_class=Response,
    responses=problems(404, 409) | REPORT_JSON,
)
async def get_report_json(
    context: ClusterViewer, simulation_id: SimulationId, request: Request
) -> Response:
    """The report with every figure and time series, as `plimsoll simulate -o` writes it."""
    async with context.transaction() as connection:
        report = await simulations.get_report(connection, simulation_id, "json")
    return await _packed(request, report, "application/json")


@router.delete("/{simulation_id}", status_code=204, responses=problems(404, 409))
async def cancel_simulation(
    context: ClusterOperator, simulation_id: SimulationId
) -> None:
    """End a simulation that waits or runs; it stays in the list. Again does nothing; one that is over is refused."""
    async with context.transaction() as connection:
        if await simulations.cancel(connection, simulation_id, at=context.now()):
            await context.audit(
                connection, "SimulationCancelled", f"simulation/{simulation_id}"
            )


async def _packed(request: Request, report: bytes, media_type: str) -> Response:
    """A report as it is kept, or unpacked for who does not take that."""
    # Stored compressed, so that most browsers get it as it is.
    if accepts_gzip(request):
        return Response(
            report,
            media_type=media_type,
            headers={**SANDBOX, "Content-Encoding": "gzip"},
        )
    return Response(
        await asyncio.to_thread(gzip.decompress, report),
        media_type=media_type,
        headers=SANDBOX,
    )


def _view(row: SimulationRow) -> SimulationView:
    return SimulationView.model_validate(row)
