"""Reports: rows of the reporting views that SQL users read in schema `report`."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated

from fastapi import Path, Query
from pydantic import AwareDatetime, JsonValue

from app.api.answers import LIST, READ
from app.api.auth import ClusterViewer
from app.api.body import resource_router
from app.api.pages import Paging
from app.api.schemas import Page, ReportRows, ReportView
from app.db import reports
from app.errors import InvalidRequest

router = resource_router("reports", prefix="/reports")


@router.get("", responses=LIST)
async def list_reports(_context: ClusterViewer) -> Page[ReportView]:
    """The reporting views."""
    return Page(items=[ReportView(name=name, time_column=column) for name, (column, _) in reports.REPORTS.items()])


@router.get("/{name}", responses=READ)
async def get_report(
    context: ClusterViewer,
    name: Annotated[str, Path(pattern=r"^[a-z_]{1,63}$")],
    paging: Paging,
    since: Annotated[AwareDatetime | None, Query()] = None,
    until: Annotated[AwareDatetime | None, Query()] = None,
) -> ReportRows:
    """Rows of one view with times in [since, until), in the view's order."""
    column, _ = reports.REPORTS.get(name, (name, ""))
    if column is None and (since is not None or until is not None):
        raise InvalidRequest(f"report {name} shows the present; leave `since` and `until` out")
    offset = paging.after_number or 0
    async with context.transaction() as connection:
        report = await reports.load(connection, name, since=since, until=until, limit=paging.fetch, offset=offset)
    page = paging.page(
        report.rows, view=lambda row: [_cell(value) for value in row], key=lambda _: offset + paging.limit
    )
    return ReportRows(name=name, columns=list(report.columns), rows=page.items, next_cursor=page.next_cursor)


def _cell(value: reports.Cell) -> JsonValue:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return list[JsonValue](value) if isinstance(value, list) else value
