"""How each service is forecast: the technique that was chosen, and what the back-tests said of all of them."""

from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import msgspec
from sqlalchemy import func, literal, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.db.base.tables import AnyRow, forecast_choice, service
from app.db.decisions import policies
from app.db.fleet.launches import load_launch_times
from app.db.predictions.rates import (
    load_outcomes,
    load_rates,
    load_windows,
    roll_up_rates,
)
from app.db.workloads import services
from app.learn.choose_forecasts import (
    BURSTING_S,
    JUDGED_S,
    OPENING_S,
    REJUDGE_S,
    Case,
    HeardLoad,
)
from app.loop.forecast import horizon_s
from app.store.launch_times import usual_launch_s
from app.store.store import PolicySettings
from app.store.windows import WINDOWS_IN_SNAPSHOT
from solvers.forecast.back_test import ForecastScore
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.forecast.room import Outcomes, Room
from solvers.forecast.types import Season
from solvers.types.state import Service

SEASON_DAYS = 28
"""Seasons are made from this number of days, where they are kept for as long."""

Revision: TypeAlias = tuple[datetime | None, int]
"""Moves with every change of a choice: the newest one's time, and how many there are."""


async def load_revision(connection: AsyncConnection) -> Revision:
    """Where the choices stand now."""
    row = (
        await connection.execute(select(func.max(forecast_choice.c.at), func.count()))
    ).one()
    # The count next to the time: a choice that was deleted moves no time.
    return row[0], row[1]


async def load_all(connection: AsyncConnection) -> dict[str, TechniqueChoice]:
    """The choices without scores, by service: what a tick needs."""
    scores = forecast_choice.c.scores
    # Scores are for people, and longer than all else of a choice.
    none = literal({}, scores.type).label(scores.name)
    columns = [none if each is scores else each for each in forecast_choice.c]
    found = await connection.execute(select(*columns))
    return {row.service: _choice(row) for row in found}


async def get(connection: AsyncConnection, name: str) -> TechniqueChoice:
    """How one service is forecast; the default without scores where it was never judged."""
    statement = select(forecast_choice).where(forecast_choice.c.service == name)
    row = (await connection.execute(statement)).one_or_none()
    return TechniqueChoice() if row is None else _choice(row)


async def save(
    connection: AsyncConnection, choices: Mapping[str, TechniqueChoice]
) -> None:
    """Keep the choices of these services, in place of earlier ones."""
    if not choices:
        return
    statement = insert(forecast_choice)
    # Sorted by service, so that two processes lock the rows in one order.
    rows = [_values(name, choice) for name, choice in sorted(choices.items())]
    changed = {name: statement.excluded[name] for name in rows[0] if name != "service"}
    await connection.execute(
        statement.on_conflict_do_update(index_elements=["service"], set_=changed), rows
    )


def _values(name: str, choice: TechniqueChoice) -> dict[str, object]:
    return {
        "service": name,
        "technique": choice.technique,
        "seasons": msgspec.to_builtins(choice.seasons),
        "margin": choice.margin,
        "room_factor": choice.room.factor,
        "floor_rps": choice.room.floor_rps,
        "burst_rps": choice.room.burst_rps,
        "burst_at": datetime.fromtimestamp(choice.burst_until_s, UTC)
        if choice.burst_until_s
        else None,
        "scores": msgspec.to_builtins(choice.scores),
        "at": datetime.fromtimestamp(choice.judged_until_s, UTC),
    }


class PostgresForecasts:
    """What `app.learn.choose_forecasts` reads and writes, in PostgreSQL."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def load_cases(self, now: datetime, limit: int) -> tuple[Case, ...]:
        """Services that were not judged for REJUDGE_S, those first that waited longest. Brings the rates up to now."""
        # Committed by itself: it holds a lock that the leader's hourly work waits for.
        async with self._engine.begin() as connection:
            await roll_up_rates(connection, now)
        async with self._engine.begin() as connection:
            settings = await policies.load_current(connection)
            due = await _load_due(connection, now - timedelta(seconds=REJUDGE_S), limit)
            nouns = {noun.name: noun for noun in await services.load_all(connection)}
            window_s = settings.window_s
            # Agents report after a window is over: the newest two may be incomplete.
            until = now - timedelta(seconds=2.0 * window_s)
            # A technique that is judged on the first window needs as many before it as a tick would have had.
            since = until - timedelta(seconds=JUDGED_S + WINDOWS_IN_SNAPSHOT * window_s)
            rates = await load_rates(
                connection,
                list(due),
                since=now - timedelta(days=SEASON_DAYS),
                until=now,
            )
            # Read in two statements: a service may have been deleted between them.
            known = {name: nouns[name] for name in due if name in nouns}
            loads = await _load_heard(connection, known, settings, since, until)
            bursting = await _bursting_projects(connection, now)
        return tuple(
            Case(
                service=name,
                project=nouns[name].project,
                bursts=nouns[name].project in bursting,
                choice=due[name],
                rates=rates.get(name),
                until_s=until.timestamp(),
                horizon_s=horizon_s(settings),
                load=loads[name],
            )
            for name in known
        )

    async def save_choices(self, choices: Mapping[str, TechniqueChoice]) -> None:
        """Keep the choices of these services."""
        async with self._engine.begin() as connection:
            await save(connection, choices)


async def _load_heard(
    connection: AsyncConnection,
    nouns: Mapping[str, Service],
    settings: PolicySettings,
    since: datetime,
    until: datetime,
) -> dict[str, HeardLoad]:
    """What was heard of these services in [since, until), by name; outcomes of the last JUDGED_S of it."""
    names = list(nouns)
    windows = await load_windows(
        connection, names, window_s=settings.window_s, since=since, until=until
    )
    launches = await load_launch_times(connection, names)
    launch_s = {
        name: usual_launch_s(launches.get(name, {}), is_model=noun.llm is not None)
        for name, noun in nouns.items()
    }
    outcomes = await load_outcomes(
        connection,
        {name: OPENING_S + launch_s[name] for name in names},
        since=since,
        counted_from=until - timedelta(seconds=JUDGED_S),
        until=until,
    )
    return {
        name: HeardLoad(
            windows=windows.get(name),
            outcomes=outcomes.get(name, Outcomes()),
            percentile=noun.slo.target(settings.target_attainment),
            scaling=noun.scaling,
            launch_s=launch_s[name],
        )
        for name, noun in nouns.items()
    }


async def _bursting_projects(connection: AsyncConnection, now: datetime) -> Set[str]:
    """Projects of which a service was seen to burst within BURSTING_S."""
    statement = (
        select(service.c.project)
        .join(forecast_choice, forecast_choice.c.service == service.c.name)
        .where(
            service.c.deleted_at.is_(None),
            forecast_choice.c.burst_at > now - timedelta(seconds=BURSTING_S),
        )
        .distinct()
    )
    return set((await connection.execute(statement)).scalars())


async def _load_due(
    connection: AsyncConnection, before: datetime, limit: int
) -> dict[str, TechniqueChoice]:
    statement = (
        select(service.c.name, forecast_choice)
        .outerjoin(forecast_choice, forecast_choice.c.service == service.c.name)
        .where(
            service.c.deleted_at.is_(None),
            or_(forecast_choice.c.at.is_(None), forecast_choice.c.at <= before),
        )
        .order_by(forecast_choice.c.at.nulls_first(), service.c.name)
        .limit(limit)
    )
    rows: Sequence[AnyRow] = (await connection.execute(statement)).all()
    return {
        row.name: TechniqueChoice() if row.at is None else _choice(row) for row in rows
    }


def _choice(row: AnyRow) -> TechniqueChoice:
    return TechniqueChoice(
        technique=row.technique,
        seasons=msgspec.convert(row.seasons, tuple[Season, ...]),
        margin=row.margin,
        room=Room(row.room_factor, row.floor_rps, row.burst_rps),
        burst_until_s=row.burst_at.timestamp() if row.burst_at else 0.0,
        scores=msgspec.convert(row.scores, dict[str, ForecastScore]),
        judged_until_s=row.at.timestamp(),
    )
