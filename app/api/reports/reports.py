"""Reports: rows of the reporting views that SQL users read in schema `report`."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AwareDatetime, Field, JsonValue
from starlette.responses import Response

from app.api.http.answers import LIST, READ
from app.api.http.auth import Viewer
from app.api.http.body import resource_router
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page, View
from app.api.reports.export import MEDIA_TYPES, ExportResponse, Format, check_format
from app.base.errors import Forbidden, InvalidRequest
from app.db.reports import reports
from app.db.reports.reports import ReportQuery
from app.manifests.parts import Name


class ReportView(View):
    """One reporting view; the same view is there for SQL users in schema `report`."""

    name: str
    time_column: str | None = Field(
        description="Column that `since` and `until` filter; null: they have no effect"
    )


class ReportRows(View):
    """Rows of a reporting view."""

    name: str
    columns: list[str]
    rows: list[list[JsonValue]] = Field(
        description="Values in the order of `columns`; times in ISO 8601"
    )
    next_cursor: str | None = None


router = resource_router("reports", prefix="/reports")

FILES: dict[str, Any] = {
    "description": "The file",
    "content": {
        media_type: {"schema": {"type": "string", "format": "binary"}}
        for media_type in MEDIA_TYPES.values()
    },
}


@router.get("", responses=LIST)
async def list_reports(_context: Viewer) -> Page[ReportView]:
    """The reporting views."""
    return Page(
        items=[
            ReportView(name=name, time_column=column)
            for name, (column, _) in reports.REPORTS.items()
        ]
    )


@router.get("/{name}", responses=READ)
async def get_report(
    context: Viewer,
    name: Annotated[str, Path(pattern=r"^[a-z_]{1,63}$")],
    *,
    paging: Paging,
    since: Annotated[AwareDatetime | None, Query()] = None,
    until: Annotated[AwareDatetime | None, Query()] = None,
    project: Annotated[Name | None, Query()] = None,
    service: Annotated[Name | None, Query()] = None,
) -> ReportRows:
    """Rows of one view with times in [since, until), in the view's order, of one project or service where given.

    A token that is bound to projects sees only their rows, and only of views that have a project.
    """
    offset = paging.after_number or 0
    async with context.transaction() as connection:
        columns = await reports.list_columns(connection, name)
        # Such a view cannot be cut down, so that it is refused as a whole.
        if context.caller.projects is not None and "project" not in columns:
            raise Forbidden(
                f"report {name} covers all projects; this token is bound to some"
            )
        report = await reports.load(
            connection,
            name,
            since=since,
            until=until,
            among=_among(context, project, service),
            limit=paging.fetch,
            offset=offset,
        )
    page = paging.page(
        report.rows,
        view=lambda row: [_cell(value) for value in row],
        # Rows of a view have no key of their own: the cursor is the number of rows before the page.
        key=lambda _: offset + paging.limit,
    )
    return ReportRows(
        name=name,
        columns=list(report.columns),
        rows=page.items,
        next_cursor=page.next_cursor,
    )


@router.get(
    "/{name}/export",
    response_class=Response,
    responses={**READ, 200: FILES},
)
async def export_report(
    context: Viewer,
    name: Annotated[str, Path(pattern=r"^[a-z_]{1,63}$")],
    *,
    since: Annotated[AwareDatetime | None, Query()] = None,
    until: Annotated[AwareDatetime | None, Query()] = None,
    project: Annotated[Name | None, Query()] = None,
    format: Annotated[
        Format, Query(description="parquet: where pyarrow is installed")
    ] = "csv",
) -> Response:
    """Every row of one view as a file, however many there are. The same rows are seen as in the view's pages."""
    check_format(format)
    async with context.transaction() as connection:
        columns = await reports.list_columns(connection, name)
    among = _among(context, project, None)
    if "project" in among and "project" not in columns:
        if context.caller.projects is not None:
            raise Forbidden(
                f"report {name} covers all projects; this token is bound to some"
            )
        raise InvalidRequest(
            f"report {name} cannot be filtered by project", field="project"
        )
    wanted = ReportQuery(name=name, since=since, until=until, among=among)
    await context.note_access("Read", subject=f"report/{name}")
    return ExportResponse(partial(_rows, context, wanted), format, name=name)


async def _rows(
    context: Context, wanted: ReportQuery
) -> AsyncGenerator[tuple[reports.Cell, ...]]:
    async with (
        context.transaction() as connection,
        # Before the transaction ends: its cursor must not outlive it.
        aclosing(reports.stream(connection, wanted)) as rows,
    ):
        async for row in rows:
            yield row


def _among(
    context: Context, project: str | None, service: str | None
) -> dict[str, Sequence[str]]:
    among: dict[str, Sequence[str]] = {} if service is None else {"service": (service,)}
    if (seen := context.projects_seen(project)) is not None:
        among["project"] = seen
    return among


def _cell(value: reports.Cell) -> JsonValue:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return list[JsonValue](value) if isinstance(value, list) else value
