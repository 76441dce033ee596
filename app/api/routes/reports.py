"""Reports: rows of the reporting views that SQL users read in schema `report`."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated

from fastapi import Path, Query
from pydantic import AwareDatetime, JsonValue

from app.api.answers import LIST, READ
from app.api.auth import Viewer
from app.api.body import resource_router
from app.api.pages import Paging
from app.api.parts import Context
from app.api.schemas import Page, ReportRows, ReportView
from app.db import reports
from app.errors import Forbidden
from app.manifests import Name

router = resource_router("reports", prefix="/reports")


@router.get("", responses=LIST)
async def list_reports(_context: Viewer) -> Page[ReportView]:
    """The reporting views."""
    return Page(items=[ReportView(name=name, time_column=column) for name, (column, _) in reports.REPORTS.items()])


@router.get("/{name}", responses=READ)
async def get_report(
    context: Viewer,
    name: Annotated[str, Path(pattern=r"^[a-z_]{1,63}$")],
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
        if context.caller.projects is not None and "project" not in columns:
            raise Forbidden(f"report {name} shows all projects at once; this token is bound to some")
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
        report.rows, view=lambda row: [_cell(value) for value in row], key=lambda _: offset + paging.limit
    )
    return ReportRows(name=name, columns=list(report.columns), rows=page.items, next_cursor=page.next_cursor)


def _among(context: Context, project: str | None, service: str | None) -> dict[str, Sequence[str]]:
    among: dict[str, Sequence[str]] = {} if service is None else {"service": (service,)}
    if project is not None:
        among["project"] = (project,) if context.sees(project) else ()
    elif context.caller.projects is not None:
        among["project"] = context.caller.projects
    return among


def _cell(value: reports.Cell) -> JsonValue:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return list[JsonValue](value) if isinstance(value, list) else value
