"""Demand: the arrival rates that plans were made for."""

from datetime import timedelta
from typing import Annotated

from fastapi import Query
from pydantic import AwareDatetime

from app.api.decisions.plan_views import DemandView
from app.api.http.answers import LIST, READ
from app.api.http.auth import Viewer
from app.api.http.body import resource_router
from app.api.http.pages import MAX_LIMIT, Paging
from app.api.http.views import Page
from app.api.workloads.services import visible_service, visible_services
from app.db.reports import demands
from app.manifests.parts import Name

router = resource_router("demand", prefix="/demand")

DEFAULT_PERIOD = timedelta(hours=1)


@router.get("", responses=LIST)
async def list_demand(context: Viewer, paging: Paging) -> Page[DemandView]:
    """The newest rate of every service, by service."""
    async with context.transaction() as connection:
        visible = {
            row.service.name for row in await visible_services(context, connection)
        }
        rows = [
            row
            for row in await demands.list_newest(connection)
            # Cut here: the view has one row per service, and which are visible is not in it.
            if row.service in visible and row.service > paging.after
        ]
    return paging.page(
        rows, view=DemandView.model_validate, key=lambda row: row.service
    )


@router.get("/{service}", responses=READ)
async def list_service_demand(
    context: Viewer,
    service: Name,
    since: Annotated[AwareDatetime | None, Query()] = None,
    until: Annotated[AwareDatetime | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = MAX_LIMIT,
) -> Page[DemandView]:
    """The rates of one service from `since` (an hour ago) to `until` (now), oldest first, at most `limit`."""
    end = until or context.now()
    async with context.transaction() as connection:
        await visible_service(context, connection, service)
        rows = await demands.list_rows(
            connection,
            service,
            since=since or end - DEFAULT_PERIOD,
            until=end,
            limit=limit,
        )
    return Page(items=[DemandView.model_validate(row) for row in rows])
