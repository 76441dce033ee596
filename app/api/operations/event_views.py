"""Events as the API shows them, and webhooks send them; without FastAPI, which the controller does not load."""

from datetime import datetime

from pydantic import JsonValue

from app.api.http.views import View
from app.db.operations.events import EventRow


class EventView(View):
    """One line of the audit."""

    id: int
    at: datetime
    actor: str
    kind: str
    subject: str
    reason: str
    plan_id: int | None
    request_id: str | None
    before: JsonValue
    after: JsonValue


def event_view(row: EventRow) -> EventView:
    """A line as the API shows it."""
    # An event's fields have the same names; only its number is the row's.
    fields = {
        name: getattr(row.event, name)
        for name in EventView.model_fields
        if name != "id"
    }
    return EventView.model_validate({"id": row.id, **fields})


def event_bytes(row: EventRow) -> bytes:
    """The same as JSON, for webhooks."""
    return event_view(row).model_dump_json().encode()
