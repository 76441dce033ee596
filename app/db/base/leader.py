"""What one process at a time may do, by a session's advisory lock; a controller's has an epoch, raised by each leader.

PostgreSQL gives the lock back as soon as the leader's session ends, however it ends; that of a machine that vanished
ends within seconds (`engine.KEEPALIVES`). A process that was stopped or hangs still has a kernel that answers for it:
its session ends when it said nothing for `IDLE_S`. The epoch fences what an old leader still tries to write: each such
transaction asks `holds_lead` first. What it had begun when it hung is ended by the new leader, whom its locks would
keep from deciding.
"""

import asyncio
import contextlib

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agents.base.waits import cancel

# "plimlead" and "plimkube" in ASCII.
LEADER_LOCK = 0x706C696D6C656164
CLUSTER_LOCK = 0x706C696D6B756265
"""Held by the process that keeps a Kubernetes cluster's objects and Plimsoll's in step."""
IDLE_S = 30.0
"""The longest silence of a session with a lock. Ticks do their computing in another process, so that an event loop
which runs at all says more often than this that it is there, however busy the machine is."""
BEATS = 6
"""How often that is said meanwhile."""

# In one statement: a process that is stopped after the lock must not keep it.
_ACQUIRE = text(
    "SELECT set_config('idle_session_timeout', :idle_ms, false) WHERE pg_try_advisory_lock(:key)"
)

# PostgreSQL ends a transaction whose client is silent only after `engine.IDLE_IN_TRANSACTION_MS`, and never where the
# client stopped in the middle of a pipeline.
_END_TRANSACTIONS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = :name AND xact_start IS NOT NULL"
)


def session_name(holder: str) -> str:
    """What a controller's sessions are called, by which the next leader finds them; PostgreSQL keeps 63 bytes."""
    # The end, since that is where pods of one deployment differ.
    return f"plimsoll-controller {holder[-40:]}"


class SessionLock:
    """The right to do something, for one process at a time. Holds one connection while it is ours."""

    def __init__(
        self, engine: AsyncEngine, key: int, *, idle_s: float = IDLE_S
    ) -> None:
        self._engine, self._key, self._idle_s = engine, key, idle_s
        self._connection: AsyncConnection | None = None
        self._asking = asyncio.Lock()
        """One question at a time on the connection."""
        self._beats: asyncio.Task[None] | None = None

    async def acquire(self) -> bool:
        """Get it, or confirm that it is still ours; False: another process has it."""
        async with self._asking:
            if self._connection is not None:
                return await self._confirm(self._connection)
            self._connection = await self._connect()
        if self._connection is None:
            return False
        self._beats = asyncio.create_task(self._beat(), name="plimsoll-lock")
        return True

    async def _connect(self) -> AsyncConnection | None:
        """A session with the lock; None: another process has it."""
        # The lock belongs to the session, which is kept for as long as the lock is ours. Autocommit: an open
        # transaction that idles for hours would stop vacuum, and the server would end it.
        connection = await self._engine.connect()
        try:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            asked = {"key": self._key, "idle_ms": f"{1000 * self._idle_s:.0f}"}
            got = await connection.execute(_ACQUIRE, asked)
            if got.scalar_one_or_none() is None:
                await connection.close()
                return None
            await self._begin(connection)
        # A cancelled task, too, must not leave a session behind that holds the lock.
        except BaseException:
            await _discard(connection)
            raise
        return connection

    async def _begin(self, connection: AsyncConnection) -> None:
        """Runs first in the process that gets the lead."""

    async def release(self) -> None:
        """Give it back; harmless without it."""
        # Forgotten first: whatever goes wrong below, this process does not believe that it has it.
        connection, self._connection = self._connection, None
        beats, self._beats = self._beats, None
        if beats is not None and beats is not asyncio.current_task():
            await cancel(beats)
        if connection is not None:
            await _discard(connection)

    async def _beat(self) -> None:
        """Keep the session from ending, for as long as this process runs; what it lost is given up here, too."""
        while self._connection is not None:
            await asyncio.sleep(self._idle_s / BEATS)
            async with self._asking:
                if self._connection is not None:
                    await self._confirm(self._connection)

    async def _confirm(self, connection: AsyncConnection) -> bool:
        """A session that answers still has its lock."""
        try:
            await connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            await self.release()
            return False
        return True


class Leader(SessionLock):
    """The right to decide."""

    def __init__(
        self, engine: AsyncEngine, holder: str, *, idle_s: float = IDLE_S
    ) -> None:
        super().__init__(engine, LEADER_LOCK, idle_s=idle_s)
        self._holder = holder
        self.epoch = 0
        """The present leadership's; 0 = it does not lead."""

    async def _begin(self, connection: AsyncConnection) -> None:
        await self._end_transactions_before(connection)
        # Written down with its holder, so that people see who leads and how often the lead changed.
        grown = await connection.execute(
            text(
                "UPDATE leader SET epoch = epoch + 1, holder = :holder RETURNING epoch"
            ),
            {"holder": self._holder},
        )
        self.epoch = int(grown.scalar_one())

    async def release(self) -> None:
        self.epoch = 0
        await super().release()

    async def _end_transactions_before(self, connection: AsyncConnection) -> None:
        """Those of the leader before; ours go on where that was this process."""
        found = await connection.execute(text("SELECT holder FROM leader"))
        holder = found.scalar_one()
        if holder != self._holder:
            await connection.execute(_END_TRANSACTIONS, {"name": session_name(holder)})


async def holds_lead(connection: AsyncConnection, epoch: int) -> bool:
    """Whether no other has led since the leader of that epoch; none begins to before the transaction ends.

    0 is the epoch of a process that does not lead: it holds in a database that never had a leader, and only there.
    """
    # The row is what a new leader updates: it waits for this transaction, or this one reads its epoch.
    found = await connection.execute(text("SELECT epoch FROM leader FOR SHARE"))
    return bool(found.scalar_one() == epoch)


async def _discard(connection: AsyncConnection) -> None:
    """Close the session itself instead of giving it back to the pool: that ends its lock."""
    with contextlib.suppress(SQLAlchemyError):
        await connection.invalidate()
    await connection.close()
