"""Events: the audit of every write, every automatic decision, logins, denials and guarded reads."""

from typing import Annotated

from fastapi import Query
from pydantic import AwareDatetime

from app.api.http.answers import LIST
from app.api.http.auth import ClusterViewer
from app.api.http.body import resource_router
from app.api.http.pages import Paging
from app.api.http.views import Page
from app.api.operations.event_views import EventView, event_view
from app.db.operations import events

router = resource_router("events", prefix="/events")

Text = Annotated[str | None, Query(max_length=300, pattern=r"^[\x20-\x7e]*$")]


@router.get("", responses=LIST)
async def list_events(
    context: ClusterViewer,
    paging: Paging,
    *,
    kind: Annotated[str | None, Query(pattern=r"^[A-Z][A-Za-z]{0,62}$")] = None,
    subject: Text = None,
    actor: Text = None,
    plan_id: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    since: Annotated[AwareDatetime | None, Query()] = None,
    until: Annotated[AwareDatetime | None, Query()] = None,
) -> Page[EventView]:
    """Lines of the audit, newest first."""
    wanted = events.EventFilter(
        kind=kind,
        subject=subject,
        actor=actor,
        plan_id=plan_id,
        since=since,
        until=until,
    )
    async with context.transaction() as connection:
        rows = await events.list_rows(
            connection, wanted, before=paging.after_number, limit=paging.fetch
        )
    return paging.page(rows, view=event_view, key=lambda row: row.id)
