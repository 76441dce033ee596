"""The queue of simulations and those who run it: one at a time, never twice, and nothing is lost with a process."""

import asyncio
import multiprocessing
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from app.base.clock import ManualControlClock
from app.base.errors import Conflict, NotFound
from app.db.base.engine import make_engine
from app.db.base.transaction import Engine
from app.db.decisions import simulations
from app.db.decisions.simulations import (
    KEPT,
    WAITING_LIMIT,
    NewSimulation,
    SimulationRow,
)
from app.simulate.requests.runner import Body, RunnerPeriods, SimulationRunner
from tests.integration.scenes import Body as SceneBody
from tests.integration.scenes import scene
from tests.integration.simulation_bodies import DeadAtOnce, answer, be_killed, hang
from tests.waiting import eventually, run

pytestmark = pytest.mark.integration

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
WANTED = NewSimulation(
    name="small",
    example=None,
    document={"kind": "Scenario"},
    policies=("joint",),
    seeds=(0,),
    duration_s=60.0,
)
QUICK = RunnerPeriods(look_s=0.05, beat_s=0.05)
LOST_S = -1.0
"""A lease that is over as soon as it begins."""


def play(body: SceneBody, database: str) -> None:
    """On that database; no process of it is left."""

    async def on_engine() -> None:
        engine = make_engine(database, pool_size=4)
        try:
            await body(engine)
        finally:
            await engine.dispose()

    run(on_engine())
    left = {each.name for each in multiprocessing.active_children()}
    assert "plimsoll-simulation" not in left


on_queue = scene(play, supplies=("engine",), needs=("database",))


def runner(
    engine: Engine, body: Body = answer, pace: RunnerPeriods = QUICK
) -> SimulationRunner:
    return SimulationRunner(engine, ManualControlClock(NOW), pace=pace, body=body)


async def ask(engine: Engine) -> int | None:
    async with engine.begin() as connection:
        return await simulations.add(
            connection, WANTED, asked_by="token/operator", at=NOW
        )


async def asked(engine: Engine) -> int:
    number = await ask(engine)
    assert number is not None
    return number


async def look(engine: Engine, number: int) -> SimulationRow:
    async with engine.begin() as connection:
        return await simulations.get(connection, number)


async def lose(engine: Engine) -> None:
    """A runner takes the next one and is never heard again."""
    async with engine.begin() as connection:
        assert (
            await simulations.claim(connection, "dead", lease_s=LOST_S, at=NOW)
            is not None
        )


async def running(engine: Engine, number: int) -> SimulationRow:
    """As soon as it runs and has said how far it is."""

    async def said() -> SimulationRow | None:
        row = await look(engine, number)
        return row if row.progress else None

    found: SimulationRow = await eventually(said)
    return found


@on_queue
async def test_what_waits_or_was_left_by_a_killed_runner_is_run_and_finished(
    engine: Engine,
) -> None:
    number = await asked(engine)
    await lose(engine)
    assert await runner(engine).run_next()
    row = await look(engine, number)
    assert (row.state, row.progress, row.summary) == ("finished", 1.0, {"done": True})
    assert not row.has_json
    assert not await runner(engine).run_next()
    async with engine.begin() as connection:
        assert await simulations.get_report(connection, number, "html") == b"page"
        with pytest.raises(NotFound, match="too long to store"):
            await simulations.get_report(connection, number, "json")
        with pytest.raises(Conflict, match="is over: it has finished"):
            await simulations.cancel(connection, number, at=NOW)


@on_queue
async def test_a_process_that_ends_before_its_time_fails_its_simulation_in_words(
    engine: Engine,
) -> None:
    long = replace(WANTED, document={"kind": "x" * 1_000_000})
    quick = RunnerPeriods(beat_s=0.05, limit_s=0.6)
    for wanted, ending, words in (
        (WANTED, runner(engine, be_killed), "its process was killed, perhaps for want"),
        # It dies before it takes a long scenario.
        (long, runner(engine, DeadAtOnce()), "ended by itself with exit code 3; the"),
        (WANTED, runner(engine, hang, quick), "it was ended after 0.01 min; ask for a"),
    ):
        async with engine.begin() as connection:
            number = await simulations.add(
                connection, wanted, asked_by="token/operator", at=NOW
            )
        assert number is not None
        assert await ending.run_next()
        row = await look(engine, number)
        assert (row.state, words in (row.error or "")) == ("failed", True), row.error


@on_queue
async def test_of_several_runners_one_runs_one_until_it_is_cancelled_and_the_next_one_runs(
    engine: Engine,
) -> None:
    first, second = await asked(engine), await asked(engine)
    work = asyncio.create_task(runner(engine, hang).run_next())
    assert (await running(engine, first)).progress == 0.25
    others = (runner(engine).run_next() for _ in range(3))
    assert await asyncio.gather(*others) == [False] * 3
    assert (await look(engine, second)).state == "queued"
    async with engine.begin() as connection:
        assert await simulations.cancel(connection, first, at=NOW)
        assert not await simulations.cancel(connection, first, at=NOW)
    assert await work
    assert (await look(engine, first)).state == "cancelled"
    assert await runner(engine).run_next()
    assert (await look(engine, second)).state == "finished"


@on_queue
async def test_a_queue_is_taken_by_several_runners_in_turn_and_nothing_twice(
    engine: Engine,
) -> None:
    numbers = [await asked(engine) for _ in range(WAITING_LIMIT)]
    assert await ask(engine) is None
    async with engine.begin() as connection:
        claims = [
            await simulations.claim(connection, name, lease_s=20.0, at=NOW)
            for name in ("a", "b")
        ]
    assert [None if each is None else each.id for each in claims] == [numbers[0], None]


@on_queue
async def test_what_ended_two_runners_is_given_up_in_words(engine: Engine) -> None:
    number = await asked(engine)
    await lose(engine)
    await lose(engine)
    assert not await runner(engine).run_next()
    row = await look(engine, number)
    assert row.state == "failed"
    assert (row.error or "").startswith("its runner was lost 2 times: ")


@on_queue
async def test_a_runner_that_lost_its_lease_writes_nothing_more(engine: Engine) -> None:
    number = await asked(engine)
    await lose(engine)
    async with engine.begin() as connection:
        assert (
            await simulations.claim(connection, "alive", lease_s=20.0, at=NOW)
            is not None
        )
        assert not await simulations.renew(
            connection, number, "dead", progress=0.9, lease_s=20.0
        )
        assert not await simulations.finish(
            connection, number, "dead", "too late", at=NOW
        )
    row = await look(engine, number)
    assert (row.state, row.progress) == ("running", 0.0)


@on_queue
async def test_a_runner_that_ends_gives_back_what_it_runs(engine: Engine) -> None:
    number = await asked(engine)
    ending = runner(engine, hang)
    ending.start()
    await running(engine, number)
    await ending.stop()
    row = await look(engine, number)
    assert (row.state, row.progress, row.started_at) == ("queued", 0.0, None)


@on_queue
async def test_the_newest_that_are_over_are_kept(engine: Engine) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO simulation (asked_by, name, document, policies, seeds, duration_s, state, created_at, "
                "finished_at) SELECT 'a', 'old', '{}', '{joint}', '{0}', 60, 'cancelled', :at, :at "
                "FROM generate_series(1, :count)"
            ),
            {"at": NOW, "count": KEPT + 3},
        )
    number = await asked(engine)
    async with engine.begin() as connection:
        rows = await simulations.list_rows(connection)
    assert [row.id for row in rows] == list(range(number, number - KEPT - 1, -1))
