"""Simulations: one at a time, in a process of its own next to the API; what waits is kept in a short queue.

Scenarios and reports say nothing of the live cluster. Asking needs an operator's token, like a what-if: it takes a core
for minutes, and a place in a queue that is everybody's. A token that is bound to projects asks only where the project's
quota says how many, and sees its projects' simulations alone.
"""

import asyncio
import gzip
from typing import Annotated, Literal, cast

from fastapi import Path, Request, Response

from app.api.decisions.simulation_views import (
    ExamplesView,
    ScenarioChecks,
    SimulationRequest,
    SimulationView,
)
from app.api.http.answers import LIST, READ, Responses, problems
from app.api.http.auth import Operator, Viewer
from app.api.http.body import LargeBodyRoute, accepts_gzip, resource_router
from app.api.http.errors import TooMany
from app.api.http.idempotency import IdempotencyKey, is_repeated, once
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page
from app.base.errors import Forbidden, InvalidRequest, NotFound
from app.db.base.transaction import Connection
from app.db.decisions import simulations
from app.db.decisions.simulations import WAITING_LIMIT, SimulationRow
from app.db.workloads import quotas
from solvers.types.state import Json

router = resource_router(
    "simulations", prefix="/simulations", route_class=LargeBodyRoute
)

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
async def list_simulations(context: Viewer, paging: Paging) -> Page[SimulationView]:
    """Simulations, newest first, without what they came to."""
    async with context.transaction() as connection:
        rows = await simulations.list_rows(
            connection,
            before=paging.after_number,
            limit=paging.fetch,
            projects=context.caller.projects,
        )
    return paging.page(rows, view=_view, key=lambda row: row.id)


@router.get("/examples", responses=LIST)
async def list_simulation_examples(context: Viewer) -> ExamplesView:
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
            "description": "It is waiting for its turn",
            "headers": {"Location": {"schema": {"type": "string"}}},
        }
    },
)
async def ask_simulation(
    context: Operator,
    wanted: SimulationRequest,
    request: Request,
    key: IdempotencyKey = None,
) -> Response:
    """Simulate a scenario under one to five policies; the answer says where to look how far it is."""
    project = _project_of(context, wanted)
    if project is not None:
        # Before the work of reading a scenario, and again below, where no other request can come between.
        async with context.transaction() as connection:
            # A repeated request has its own simulation in the quota, and must still get the first one's answer.
            if not await is_repeated(context, request, key, connection):
                await _check_quota(context, connection, project)
    # Before the transaction, in a thread: reading a scenario takes up to a second.
    order = await asyncio.to_thread(
        cast(ScenarioChecks, context.parts.simulations).order, wanted
    )

    async def work(connection: Connection) -> SimulationView:
        if project is not None:
            await _check_quota(context, connection, project)
        made = await simulations.add(
            connection,
            order,
            asked_by=context.actor,
            at=context.now(),
            project=project,
        )
        if made is None:
            raise TooMany(
                f"{WAITING_LIMIT} simulations are already waiting; one runs at a time. Cancel one, or wait"
            )
        after: dict[str, Json] = {
            "name": order.name,
            "policies": order.policies,
            "seeds": order.seeds,
            "duration_s": order.duration_s,
        }
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
    context: Viewer, simulation_id: SimulationId
) -> SimulationView:
    """One simulation: how far it is, and what it came to."""
    async with context.transaction() as connection:
        return _view(await _visible(context, connection, simulation_id))


@router.get(
    "/{simulation_id}/report",
    response_class=Response,
    responses=problems(404, 409) | REPORT,
)
async def get_simulation_report(
    context: Viewer, simulation_id: SimulationId, request: Request
) -> Response:
    """The report as a page with charts, as `plimsoll simulate --html` writes it."""
    return await _report(context, simulation_id, request, "html")


@router.get(
    "/{simulation_id}/report.json",
    response_class=Response,
    responses=problems(404, 409) | REPORT_JSON,
)
async def get_simulation_report_json(
    context: Viewer, simulation_id: SimulationId, request: Request
) -> Response:
    """The report with every figure and time series, as `plimsoll simulate -o` writes it."""
    return await _report(context, simulation_id, request, "json")


@router.delete("/{simulation_id}", status_code=204, responses=problems(404, 409))
async def cancel_simulation(context: Operator, simulation_id: SimulationId) -> None:
    """End a simulation that waits or runs; it stays in the list. Again does nothing; one that is over is refused."""
    async with context.transaction() as connection:
        await _visible(context, connection, simulation_id)
        if await simulations.cancel(connection, simulation_id, at=context.now()):
            await context.audit(
                connection, "SimulationCancelled", f"simulation/{simulation_id}"
            )


def _project_of(context: Context, wanted: SimulationRequest) -> str | None:
    """Whose quota a simulation counts for. Raises Forbidden, and InvalidRequest where a bound token must say it."""
    bound = context.caller.projects
    if wanted.project is not None:
        context.require_project(wanted.project)
        return wanted.project
    if bound is None:
        return None
    if len(bound) != 1:
        raise InvalidRequest(
            f"name one of the token's projects: {', '.join(bound)}", field="project"
        )
    return bound[0]


async def _check_quota(context: Context, connection: Connection, project: str) -> None:
    """Raise Forbidden, TooMany, or InvalidRequest: there is no such project."""
    try:
        left = await quotas.simulations_left(connection, project)
    except NotFound as error:
        raise InvalidRequest(str(error), field="project") from error
    if left is None and context.caller.projects is not None:
        raise Forbidden(
            f"project {project!r} may not run simulations; an admin can allow them with the quota max_simulations"
        )
    if left == 0:
        raise TooMany(
            f"project {project!r} has reached its quota of waiting and running simulations; cancel one, or wait"
        )


async def _visible(
    context: Context, connection: Connection, simulation_id: int
) -> SimulationRow:
    """Raises NotFound, also for one of which the caller must not know."""
    row = await simulations.get(connection, simulation_id)
    # Without a project it is the cluster's.
    if context.caller.projects is None or (row.project and context.sees(row.project)):
        return row
    raise NotFound(simulations.missing(simulation_id))


async def _report(
    context: Context,
    simulation_id: int,
    request: Request,
    kind: Literal["html", "json"],
) -> Response:
    """A report as it is kept, or decompressed for a client that does not accept gzip."""
    async with context.transaction() as connection:
        await _visible(context, connection, simulation_id)
        report = await simulations.get_report(connection, simulation_id, kind)
    media_type = HTML if kind == "html" else "application/json"
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
