"""What a topic is, who looks at it, and what it shows: a table of items by key."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from app.api.http.parts import ApiParts
from app.db.base.transaction import Connection
from app.store.store import Snapshot
from solvers.types.state import Json

Items: TypeAlias = Mapping[str, Json]

FEED = "(the dashboard's feed)"
"""What all who look share is loaded for none of their tokens: it takes its turn among them as one more."""
MAX_REST_S = 60.0
"""A topic is loaded so often, however long that takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Who looks at what."""

    parts: ApiParts
    argument: str = ""
    """What the topic is about, e.g. the service; topics that are about everything do not look at it."""
    projects: tuple[str, ...] | None = None
    """None: every project."""
    token: str = FEED
    """Whose seat among the connections to the database it takes."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One transaction. Raises TooMany where the looker's others occupy the database."""
        async with self.parts.transaction(self.token) as connection:
            yield connection

    async def snapshot(self) -> Snapshot:
        """Everything that a tick would see now. Raises TooMany, as above."""
        return await self.parts.snapshot(self.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A table that pages show."""

    name: str
    load: Callable[[Look], Awaitable[Items]]
    period_s: float = 0.7
    """From one load to the next, on the machine's clock: a page shows within a second what the database has."""
    is_of_cluster: bool = True
    """Only for tokens that see every project."""
    exists: Callable[[Look], Awaitable[bool]] | None = None
    """Whether there is an object of the argument's name; None: the topic is the same for all, whatever the argument."""
    rest: float = 0.0
    """At least this many times as long as a load took passes until the next: 9 keeps it to a tenth of the time."""

    def pause_s(self, period_s: float, took_s: float) -> float:
        """From the end of a load that took `took_s` to the next."""
        return max(period_s, min(self.rest * took_s, MAX_REST_S))


def pick(row: object, names: Iterable[str]) -> dict[str, Json]:
    """These attributes of a row, by name."""
    return {name: getattr(row, name) for name in names}
