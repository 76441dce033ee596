"""The audit of accesses that change nothing: logins, denials, and reads of what is worth guarding.

A program that is refused once a second would fill the audit, so that an access is noted once in ten minutes: one of the
same token (or of its family), kind and subject. Of unknown callers it is one of an address and reason, and 20 of a
reason in an hour. Each API process counts for itself.
"""

import asyncio
from collections import OrderedDict, defaultdict, deque
from datetime import datetime, timedelta
from typing import Final

import structlog

from app.base.errors import PlimsollError
from app.db.base.transaction import translated
from app.store.store import AuditEvent, Store

log = structlog.get_logger(__name__)

NOTED_AGAIN_AFTER: Final = timedelta(minutes=10)
REMEMBERED_ACCESSES: Final = 10_000
"""The one that was noted longest ago goes; a token has some hundred operations to be refused."""
WRITTEN_WITHIN_S: Final = 2.0
UNKNOWN_NOTED: Final = 20
"""Lines of one reason about unknown callers in an hour, who may come from any number of addresses: people read the
audit, and it is kept for ever. Of each reason, so that a scanner of the login page does not hide guessed tokens."""
UNKNOWN_PERIOD: Final = timedelta(hours=1)

_AccessKey = tuple[str, str, str]
"""(root of the token's family or person, kind, subject); of an unknown caller (reason, kind, subject)"""


class NotedAccesses:
    """The accesses that this process noted a short while ago."""

    def __init__(self, store: Store) -> None:
        """`store`: with people's connections, so that a refused agent takes none from those that are let in."""
        self._store = store
        self._noted: OrderedDict[_AccessKey, datetime] = OrderedDict()
        self._unknown = defaultdict[str, deque[datetime]](
            lambda: deque(maxlen=UNKNOWN_NOTED)
        )
        """When the newest of unknown callers were noted, by reason."""

    async def note(self, caller: str | None, access: AuditEvent) -> None:
        """Append an access to the audit, unless that was done a short while ago. Never raises.

        `caller`: the root of a token's family, or a person; None: it is not known who it is, and the reason must be
        one of ours, not what was sent.
        """
        # By the reason, since many may share an address: one's old token must not hide what is done to another.
        key = (access.reason if caller is None else caller, access.kind, access.subject)
        last = self._noted.get(key)
        if last is not None and access.at - last < NOTED_AGAIN_AFTER:
            return
        if caller is None:
            noted = self._unknown[access.reason]
            is_full = len(noted) == UNKNOWN_NOTED
            if is_full and access.at - noted[0] < UNKNOWN_PERIOD:
                return
            noted.append(access.at)
        # Before it is written: many equal requests at once would else write a line each.
        self._noted[key] = access.at
        self._noted.move_to_end(key)
        if len(self._noted) > REMEMBERED_ACCESSES:
            self._noted.popitem(last=False)
        try:
            async with asyncio.timeout(WRITTEN_WITHIN_S):
                with translated():
                    await self._store.add_events(access)
        # The request was decided without the audit, and its answer does not wait for a database that does not answer.
        except (PlimsollError, TimeoutError) as error:
            self._noted.pop(key, None)
            # Else an outage of the database would use up what may be written after it.
            if caller is None and access.at in noted:
                noted.remove(access.at)
            log.warning(
                "an access could not be recorded in the audit",
                actor=access.actor,
                kind=access.kind,
                subject=access.subject,
                problem=str(error) or "the database did not answer in time",
            )
