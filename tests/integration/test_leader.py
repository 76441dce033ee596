"""Leadership and notifications over lost connections."""

import asyncio
import multiprocessing
import os
import signal
from contextlib import nullcontext
from multiprocessing.connection import Connection

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.base.engine import make_engine
from app.db.base.leader import Leader, holds_lead, session_name
from app.db.base.listen import (
    RECONNECT,
    STILL_HERE,
    WAKE_CHANNEL,
    Listener,
    conninfo,
    wake,
)
from tests.integration.fault_harness import with_store
from tests.integration.scenes import scene
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.integration
LEADS = "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)"


on_engine = scene(
    lambda body, database: with_store(database, lambda _, engine: body(engine)),
    supplies=("engine",),
    needs=("database",),
)


async def acquire_soon(leader: Leader) -> None:
    """Get the lead; the server ends the session of who gave it back in its own time."""
    await eventually(leader.acquire)


def end_sessions(url: str, condition: str) -> None:
    """Ends matching sessions of this database and waits until they are gone."""
    with psycopg.connect(conninfo(url), autocommit=True) as connection:
        connection.execute(
            f"SELECT pg_terminate_backend(pid, {1000 * PATIENCE_S:.0f}) FROM pg_stat_activity "
            f"WHERE datname = current_database() AND pid <> pg_backend_pid() AND {condition}".encode()
        )


@on_engine
async def test_one_leads_and_the_other_takes_over_with_a_higher_epoch(
    engine: AsyncEngine,
) -> None:
    one, other = Leader(engine, "one"), Leader(engine, "other")
    assert await one.acquire()
    assert not await other.acquire()
    assert await one.acquire()
    await one.release()
    await acquire_soon(other)
    assert not await one.acquire()
    assert (one.epoch, other.epoch) == (0, 2)
    async with engine.connect() as connection:
        holder = (
            await connection.execute(text("SELECT epoch, holder FROM leader"))
        ).one()
    assert tuple(holder) == (2, "other")
    await other.release()


@on_engine
async def test_a_leader_whose_session_dies_learns_it_and_may_lead_again(
    engine: AsyncEngine, database: str
) -> None:
    one, other = Leader(engine, "one"), Leader(engine, "other")
    assert await one.acquire()
    await asyncio.to_thread(end_sessions, database, LEADS)
    assert await other.acquire()
    assert not await one.acquire()
    assert not await one.acquire()
    await other.release()
    await acquire_soon(one)
    assert one.epoch == 3
    await one.release()


@pytest.mark.parametrize("is_in_pipeline", [False, True])
@on_engine
async def test_what_a_leader_that_hangs_has_open_is_ended_by_the_next_one(
    engine: AsyncEngine, database: str, is_in_pipeline: bool
) -> None:
    old, other = Leader(engine, "old"), Leader(engine, "other")
    assert await old.acquire()
    hanging = psycopg.connect(conninfo(database), application_name=session_name("old"))
    # The server ends the session, which the client learns when it goes on.
    with pytest.raises(psycopg.OperationalError), hanging:
        with hanging.pipeline() if is_in_pipeline else nullcontext():
            hanging.execute("SELECT epoch FROM leader FOR SHARE")
            await asyncio.to_thread(end_sessions, database, LEADS)
            assert await other.acquire()
        hanging.execute("SELECT 1")
    await old.release()
    await other.release()


def lead_and_look_again(url: str, told: Connection) -> None:
    """A process that leads, and says what it believes when it is asked."""

    async def run() -> None:
        engine = make_engine(url, pool_size=2)
        leader = Leader(engine, "stopped", idle_s=1.0)
        await acquire_soon(leader)
        epoch = leader.epoch
        told.send(epoch)
        await asyncio.to_thread(told.recv)
        async with engine.connect() as connection:
            may_push = await holds_lead(connection, epoch)
        told.send((may_push, await leader.acquire(), leader.epoch))
        await engine.dispose()

    asyncio.run(run())


@on_engine
async def test_a_leader_that_is_stopped_loses_the_lead_and_knows_it_when_it_wakes(
    engine: AsyncEngine, database: str
) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stopped = context.Process(target=lead_and_look_again, args=(database, theirs))
    stopped.start()
    other = Leader(engine, "other")
    try:
        epoch = await asyncio.to_thread(ours.recv)
        assert stopped.pid is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        await acquire_soon(other)
        assert other.epoch > epoch
        os.kill(stopped.pid, signal.SIGCONT)
        ours.send("look")
        assert await asyncio.to_thread(ours.recv) == (False, False, 0)
        assert await other.acquire()
    finally:
        stopped.kill()
        await asyncio.to_thread(stopped.join)
        await other.release()


@on_engine
async def test_a_leader_says_that_it_is_there_also_between_two_rounds(
    engine: AsyncEngine,
) -> None:
    leader = Leader(engine, "one", idle_s=6.0)
    assert await leader.acquire()
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")

        async def asked() -> object:
            words = text(f"SELECT query_start FROM pg_stat_activity WHERE {LEADS}")
            return (await connection.execute(words)).scalar_one()

        first = await asked()

        async def is_asked_again() -> bool:
            return await asked() != first

        await eventually(is_asked_again)
    await leader.release()


@on_engine
async def test_a_listener_comes_back_and_says_that_it_may_have_missed_something(
    engine: AsyncEngine, database: str
) -> None:
    async def notify(payload: str) -> None:
        async with engine.begin() as connection:
            await wake(connection, payload)

    heard = Listener(database, WAKE_CHANNEL, retry_s=0.01).listen()
    words = [await anext(heard)]
    await notify("one")
    words.append(await anext(heard))
    await asyncio.to_thread(
        end_sessions, database, "application_name = 'plimsoll-listen'"
    )
    words.append(await anext(heard))
    await notify("two")
    words.append(await anext(heard))
    await heard.aclose()  # type: ignore[attr-defined]
    assert (words) == [RECONNECT, "one", RECONNECT, "two"]


@on_engine
async def test_a_beat_comes_after_all_that_was_committed_before_it(
    engine: AsyncEngine, database: str
) -> None:
    heard = Listener(database, WAKE_CHANNEL, beat_s=0.05).listen()
    words = [await anext(heard), await anext(heard)]
    # While nothing listens, as a busy event loop does.
    for number in range(3):
        async with engine.begin() as connection:
            await wake(connection, f"{number}")
    # The next beat is due; one that comes late comes after the words as well.
    await asyncio.sleep(0.2)
    words += [await anext(heard) for _ in range(4)]
    await heard.aclose()  # type: ignore[attr-defined]
    assert words == [RECONNECT, STILL_HERE, "0", "1", "2", STILL_HERE]
