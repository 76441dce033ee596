"""Which technique forecasts each service: judged next to the tick, a few services at a time, on what really came.

Every window is judged once: the back-test of a service covers what came since the last one (at most an hour of it), and
its scores are added to the earlier ones, which count less from day to day. The tick only applies the choice.
"""

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from app.loop.forecast import complete_windows, horizon_s, is_heard, make_series
from app.loop.observe import age_s
from app.store.store import ServiceWindow, Snapshot
from app.store.windows import MAX_WINDOWS, WINDOWS_IN_SNAPSHOT
from solvers.forecast.back_test import BackTestOrigin, ForecastScore, back_test
from solvers.forecast.choose_technique import TechniqueChoice, choose, margin_of, merge
from solvers.forecast.room import (
    Outcomes,
    Reaction,
    Room,
    factor_of,
    has_burst,
    learn_room,
    spent_share,
)
from solvers.forecast.seasonal import PERIODS_S
from solvers.forecast.seasons import make_seasons
from solvers.forecast.techniques import forecast_by
from solvers.forecast.types import History, RequestSeries, Season, widen, windows_ahead
from solvers.types.state import Scaling

CHOOSE_PERIOD_S = 60.0
"""Between two runs of `choose_forecasts`."""

MAX_SERVICES = 16
"""Judged in one run, 60 ms each: as many every minute, eighty every five minutes, a thousand within about an hour."""

REJUDGE_S = 60.0
"""A service is judged again after so long at the earliest: soon after its first burst it keeps room for the next."""

JUDGED_S = 3600.0
"""After a longer time without judgement only the newest hour is judged."""

MAX_ORIGINS = 120
"""Forecasts of each technique in one judgement: every 2.5 s of the five minutes."""

OPENING_S = 15.0
"""What is late until a service's first replica has started, and so long afterwards, is no want of room."""

BURSTING_S = 7 * 86_400.0
"""So long after a burst the load of its project is known to burst."""

SHOWN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardLoad:
    """What was heard of one service in the last hour, and how fast plans follow it."""

    windows: RequestSeries | None
    """The loop's windows, and those of a little before; None: nothing was heard."""
    outcomes: Outcomes
    percentile: float
    """That is to be attained, 0 to 1."""
    scaling: Scaling
    launch_s: float
    """From the start of a new replica until it is ready."""

    @property
    def reaction(self) -> Reaction:
        """The loop is woken by the first window in which a burst shows."""
        window_s = 0.0 if self.windows is None else self.windows.window_s
        scaling = self.scaling
        return Reaction(
            # A tick looks back at no more windows.
            hold_s=min(scaling.downscale_delay_s, MAX_WINDOWS * window_s),
            reaction_s=scaling.upscale_delay_s + window_s + self.launch_s,
        )

    @property
    def has_burst(self) -> bool:
        """Whether more came within the last hour than could be followed, by far."""
        return self.windows is not None and has_burst(self.windows, self.reaction)

    def room(self, *, bursts: bool) -> Room:
        """What plans of the service carry. bursts: whether the load of its project bursts."""
        spent = spent_share(self.percentile, self.outcomes)
        if self.windows is None:
            return Room(factor_of(spent))
        return learn_room(
            self.windows,
            self.reaction,
            percentile=self.percentile,
            spent=spent,
            bursts=bursts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One service to be judged."""

    service: str
    project: str
    bursts: bool
    """Whether a service of the project was seen to burst within BURSTING_S."""
    choice: TechniqueChoice
    rates: RequestSeries | None
    """Five minutes each, over weeks; None: there are none."""
    until_s: float
    """Windows that end before this moment are complete, seconds since 1970."""
    horizon_s: float
    load: HeardLoad


class ForecastHistory(Protocol):
    """What is remembered for the choice; `app.db.predictions.forecasts.PostgresForecasts`."""

    async def load_cases(self, now: datetime, limit: int) -> tuple[Case, ...]:
        """Services that were not judged for REJUDGE_S, those first that waited longest."""
        ...

    async def save_choices(self, choices: Mapping[str, TechniqueChoice]) -> None:
        """Keep the choices of these services."""
        ...


async def choose_forecasts(
    history: ForecastHistory, now: datetime
) -> Mapping[str, TechniqueChoice]:
    """Judge up to MAX_SERVICES services that are due, and keep what was chosen; returns it by service."""
    cases = await history.load_cases(now, MAX_SERVICES)
    bursting = await asyncio.to_thread(_bursting, cases)
    # One by one: between two services the tick gets its turn.
    chosen = {
        case.service: await asyncio.to_thread(
            judge, case, bursts=case.project in bursting
        )
        for case in cases
    }
    await history.save_choices(chosen)
    return chosen


def _bursting(cases: Sequence[Case]) -> Set[str]:
    """Projects whose load bursts."""
    return {case.project for case in cases if case.bursts or case.load.has_burst}


def judge(case: Case, *, bursts: bool = False) -> TechniqueChoice:
    """The choice after what came since the last judgement; the old one, where nothing was heard.

    bursts: whether the load of its project does.
    """
    old, windows = case.choice, case.load.windows
    seasons_now = () if case.rates is None else make_seasons(case.rates)
    # The scores stay as they are: silence is no proof against a technique.
    if windows is None:
        return _chosen(case, old.technique, old.scores, seasons_now, bursts=bursts)
    from_s = max(old.judged_until_s, case.until_s - JUDGED_S)
    # Seasons of the time before: a technique must not be judged by what it was fitted to.
    before = () if case.rates is None else make_seasons(_until(case.rates, from_s))
    question = BackTestOrigin(
        horizon_s=case.horizon_s, lookback=WINDOWS_IN_SNAPSHOT, max_origins=MAX_ORIGINS
    )
    margins = {name: margin_of(score) for name, score in old.scores.items()}
    first = max(1, _first_origin(windows, from_s, case.horizon_s))
    new = back_test(windows, question, lambda _: before, margins=margins, since=first)
    scores = merge(old.scores, new, elapsed_s=case.until_s - old.judged_until_s)
    technique = choose(scores, old.technique)
    return _chosen(case, technique, scores, seasons_now, bursts=bursts)


def _first_origin(windows: RequestSeries, from_s: float, horizon_s: float) -> int:
    """The number of windows before the first forecast whose outcome has not been judged yet."""
    seen = round((from_s - windows.start_s) / windows.window_s)
    return seen - windows_ahead(windows, horizon_s) + 1


def _chosen(
    case: Case,
    technique: str,
    scores: Mapping[str, ForecastScore],
    seasons: tuple[Season, ...],
    *,
    bursts: bool,
) -> TechniqueChoice:
    return TechniqueChoice(
        # Only the seasons that the chosen technique reads: they are loaded into every tick's snapshot.
        technique=technique,
        seasons=tuple(
            season for season in seasons if season.period_s == PERIODS_S.get(technique)
        ),
        margin=margin_of(scores.get(technique)),
        room=case.load.room(bursts=bursts),
        burst_until_s=case.until_s
        if case.load.has_burst
        else case.choice.burst_until_s,
        scores=scores,
        judged_until_s=case.until_s,
    )


def _until(series: RequestSeries, end_s: float) -> RequestSeries:
    # Rounded down: a window that ends after the moment knows of what comes after it.
    return series.part(0, max(0, int((end_s - series.start_s) // series.window_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastView:
    """What the loop expects of one service, and what it rests on."""

    service: str
    technique: str
    """The one that was chosen."""
    margin: float
    """Factor on its spread that the back-tests ask for, ≥ 1."""
    room: Room
    """What plans carry of what they follow."""
    telemetry: Literal["heard", "stopped", "never"]
    """stopped, never: the service was not reported lately, or ever; the planned rate stays."""
    silent_for_s: float | None
    """Since the end of the newest window; None: never heard in the windows that the loop looks at."""
    horizon_s: float
    levels: tuple[float, ...]
    rates_rps: tuple[float, ...]
    """Quantiles at `levels`, without room; empty where telemetry is missing. All 0: a quiet service."""
    scores: Mapping[str, ForecastScore]
    """Back-test of each technique; empty before the first one."""
    judged_until_s: float
    """Seconds since 1970; 0: never."""


def view_forecast(
    snapshot: Snapshot, service: str, choice: TechniqueChoice
) -> ForecastView:
    """The forecast of one service as the loop makes it. choice: with scores, as the database has it."""
    windows = [window for window in snapshot.windows if window.service == service]
    rates_rps = _shown_rates(windows, snapshot, choice)
    return ForecastView(
        service=service,
        technique=choice.technique,
        margin=choice.margin,
        room=choice.room,
        telemetry="heard" if rates_rps else "stopped" if windows else "never",
        silent_for_s=max(0.0, age_s(windows[-1], snapshot.at)) if windows else None,
        horizon_s=horizon_s(snapshot.settings),
        levels=SHOWN_LEVELS,
        rates_rps=rates_rps,
        scores=choice.scores,
        judged_until_s=choice.judged_until_s,
    )


def _shown_rates(
    windows: Sequence[ServiceWindow], snapshot: Snapshot, choice: TechniqueChoice
) -> tuple[float, ...]:
    # Where nothing is reported there is no forecast: the loop keeps the planned rate, and guesses nothing.
    if not is_heard(windows, snapshot):
        return ()
    history = History(
        recent=make_series(complete_windows(windows, snapshot)), seasons=choice.seasons
    )
    made = forecast_by(
        choice.technique,
        history,
        horizon_s=horizon_s(snapshot.settings),
        levels=SHOWN_LEVELS,
    )
    return () if made is None else widen(made, choice.margin).rates_rps
