"""Lines of unknown callers: limited for each reason in an hour, and none is used up by an outage of the database."""

from datetime import UTC, datetime, timedelta
from typing import cast

from app.api.caches.noted_accesses import UNKNOWN_NOTED, NotedAccesses
from app.base.errors import Unavailable
from app.store.store import AuditEvent, Store
from tests.waiting import in_loop

AT = datetime(2026, 3, 1, tzinfo=UTC)


class Book:
    """A store that keeps events while its database is there."""

    def __init__(self) -> None:
        self.lines: list[AuditEvent] = []
        self.is_down = False

    async def add_events(self, *lines: AuditEvent) -> None:
        if self.is_down:
            raise Unavailable("the database is down")
        self.lines += lines


def denial(number: int, reason: str = "the token is unknown") -> AuditEvent:
    address = f"address/10.0.{number // 256}.{number % 256}"
    return AuditEvent(
        at=AT + timedelta(seconds=number),
        actor=address,
        kind="AccessDenied",
        subject=address,
        reason=reason,
    )


@in_loop
async def test_what_was_not_written_does_not_count() -> None:
    book = Book()
    noted = NotedAccesses(cast(Store, book))
    book.is_down = True
    for number in range(2 * UNKNOWN_NOTED):
        await noted.note(None, denial(number))
    book.is_down = False
    for number in range(2 * UNKNOWN_NOTED):
        await noted.note(None, denial(100 + number))
    assert len(book.lines) == UNKNOWN_NOTED


@in_loop
async def test_many_of_one_reason_do_not_hide_those_of_another() -> None:
    book = Book()
    noted = NotedAccesses(cast(Store, book))
    for number in range(2 * UNKNOWN_NOTED):
        await noted.note(None, denial(number))
    await noted.note(None, denial(50, "the login form held no well-formed token"))
    assert len(book.lines) == UNKNOWN_NOTED + 1
    # An hour after the first ones.
    await noted.note(None, denial(3600))
    assert len(book.lines) == UNKNOWN_NOTED + 2
