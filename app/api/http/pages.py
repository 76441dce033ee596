"""Pages of lists: at most `limit` items, and an opaque cursor to the next page. Order is stable: by key."""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Query

from app.api.http.views import Page
from app.base.errors import InvalidRequest

DEFAULT_LIMIT = 50
MAX_LIMIT = 500

Row = TypeVar("Row")
View = TypeVar("View")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which part of a list is wanted."""

    limit: int
    cursor: str | None

    @property
    def fetch(self) -> int:
        """Rows to ask the repository for: one more than shown, to know whether there is a next page."""
        return self.limit + 1

    @property
    def after(self) -> str:
        """Key of the last item of the page before; empty on the first page. Raises InvalidRequest."""
        if self.cursor is None:
            return ""
        try:
            # The padding is cut off when it is made: `=` would have to be escaped in an address.
            padded = self.cursor + "=" * (-len(self.cursor) % 4)
            version, _, key = base64.urlsafe_b64decode(padded).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            version, key = "", ""
        # The version lets a later release change what a cursor holds; PostgreSQL refuses NUL in a text.
        if version != "1" or not key.isprintable():
            raise InvalidRequest(
                "`cursor` does not belong to this list; start again without it"
            )
        return key

    @property
    def after_number(self) -> int | None:
        """The same for lists whose keys are numbers; None on the first page. Raises InvalidRequest."""
        key = self.after
        if not key:
            return None
        # Eighteen digits fit into PostgreSQL's bigint; `isdigit` alone takes digits of other scripts.
        if not key.isascii() or not key.isdigit() or len(key) > 18:
            raise InvalidRequest(
                "`cursor` does not belong to this list; start again without it"
            )
        return int(key)

    def page(
        self,
        rows: Sequence[Row],
        *,
        view: Callable[[Row], View],
        key: Callable[[Row], str | int],
    ) -> Page[View]:
        """The page of these rows, of which there may be one more than is shown."""
        # A cursor holds the last key and no offset: what is added or deleted meanwhile shifts nothing.
        shown = rows[: self.limit]
        has_more = len(rows) > self.limit
        return Page(
            items=[view(row) for row in shown],
            next_cursor=_encode(str(key(shown[-1]))) if has_more else None,
        )


async def _page_request(
    limit: Annotated[
        int, Query(ge=1, le=MAX_LIMIT, description="Items on a page")
    ] = DEFAULT_LIMIT,
    cursor: Annotated[
        str | None,
        Query(
            pattern=r"^[A-Za-z0-9_-]{1,400}$",
            description="`next_cursor` of the previous page",
        ),
    ] = None,
) -> PageRequest:
    return PageRequest(limit, cursor)


Paging = Annotated[PageRequest, Depends(_page_request)]


def _encode(key: str) -> str:
    return base64.urlsafe_b64encode(f"1:{key}".encode()).decode().rstrip("=")
