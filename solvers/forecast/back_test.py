"""How well each technique would have forecast what came: rolling origins over a service's own history.

At each origin every technique sees the windows before it, as many as the loop would see, and is judged by the window
that ends a horizon later (Tashman, *Out-of-sample tests of forecasting accuracy*, 2000). The measure is the pinball
loss at the planning level τ (Koenker and Bassett 1978), which the true quantile makes least:

    loss = τ · (observed − forecast) where more came, (1 − τ) · (forecast − observed) where less came.

A technique's spread is a promise that the back-test checks: the margin is the factor that it needs, so that the stated
share of the windows stays below (split conformal prediction: Vovk et al., *Algorithmic Learning in a Random World*,
2005; here with the technique's own spread as the scale). Margins that are known already are applied before judging.

Windows of which nothing was heard are no origin's judge. Where a technique has nothing to say the default speaks in its
place, as it does in the loop, so that all are judged by the same windows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from solvers.forecast.techniques import TECHNIQUES, forecast_by
from solvers.forecast.types import (
    PLANNING_LEVEL,
    History,
    Numbers,
    Reals,
    RequestSeries,
    Season,
    normal_quantile,
    windows_ahead,
)

INTERVAL = (0.05, 0.95)
"""Levels of the ends of the 90 % interval."""
MAX_MARGIN = 3.0
"""A service that needs more does not have a margin but another technique."""
_SEASON_TIMES = 12
"""Seasons are remade so often over a back-test: that is the costly part."""

SeasonsBefore = Callable[[float], tuple[Season, ...]]
"""Seconds since 1970 → the seasons as they were known then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastScore:
    """How a technique did, as means over its forecasts."""

    forecasts: float
    """How many; a fraction where older ones count less."""
    pinball_rps: float
    """At the planning level."""
    coverage: float
    """Share of the windows that stayed below the forecast of the planning level."""
    interval_coverage: float
    """Share within the 90 % interval."""
    error_rps: float
    """|observed − median|."""
    observed_rps: float
    margin: float = 1.0
    """Factor on the technique's own spread with which the planning level would have been kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackTestOrigin:
    """What is asked at every origin."""

    horizon_s: float
    level: float = PLANNING_LEVEL
    """Above 0.5, so that a wider spread is more."""
    lookback: int = 60
    """Windows that a technique sees."""
    max_origins: int = 120
    """The cost is bounded by it; origins are spread evenly over the history."""


def back_test(
    series: RequestSeries,
    question: BackTestOrigin,
    seasons_before: SeasonsBefore = lambda _: (),
    *,
    margins: Mapping[str, float] = MappingProxyType({}),
    since: int = 1,
) -> Mapping[str, ForecastScore]:
    """A score of every technique; empty where no window can be judged.

    margins: factor on the spread, by technique; 1 where one is missing. since: first origin, as number of windows
    before it, ≥ 1. O(origins · techniques · lookback).
    """
    ahead = windows_ahead(series, question.horizon_s)
    origins = _origins(series, ahead, max(1, since), question.max_origins)
    made: list[list[tuple[float, float]]] = []
    observed_rps: list[float] = []
    for origin, seasons in _with_seasons(series, origins, seasons_before):
        pairs = _forecasts(series, origin, question, seasons)
        if pairs is not None:
            made.append(pairs)
            observed_rps.append(series.rates_rps[origin + ahead - 1])
    if not made:
        return {}

    # (origins, techniques, 2), so that every technique is judged by the same windows.
    forecasts, observed = np.array(made), np.array(observed_rps)
    return {
        name: _score(
            forecasts[:, place, :],
            observed,
            level=question.level,
            margin=margins.get(name, 1.0),
        )
        for place, name in enumerate(TECHNIQUES)
    }


def _origins(
    series: RequestSeries, ahead: int, first: int, max_origins: int
) -> Numbers:
    """Origins, as numbers of windows before them, whose judging window was heard; at most `max_origins`, even."""
    origins = np.arange(first, len(series.arrivals) - ahead + 1)
    origins = origins[~np.isnan(series.arrivals[origins + ahead - 1])]
    if len(origins) <= max_origins:
        return origins
    places = np.linspace(0, len(origins) - 1, max_origins).round()
    spread: Numbers = origins[places.astype(int)]
    return spread


def _with_seasons(
    series: RequestSeries, origins: Numbers, seasons_before: SeasonsBefore
) -> list[tuple[int, tuple[Season, ...]]]:
    """Each origin with the seasons of the newest block of origins that began before it."""
    block = max(1, -(-len(origins) // _SEASON_TIMES))
    pairs: list[tuple[int, tuple[Season, ...]]] = []
    for number, origin in enumerate(origins.tolist()):
        if number % block == 0:
            seasons = seasons_before(series.start_s + origin * series.window_s)
        pairs.append((origin, seasons))
    return pairs


def _forecasts(
    series: RequestSeries,
    origin: int,
    question: BackTestOrigin,
    seasons: tuple[Season, ...],
) -> list[tuple[float, float]] | None:
    """(techniques, 2) median and spread. None where nothing was heard."""
    history = History(
        recent=series.part(origin - question.lookback, origin), seasons=seasons
    )
    made = [
        forecast_by(name, history, horizon_s=question.horizon_s, levels=())
        for name in TECHNIQUES
    ]
    pairs = [(one.expected_rps, one.spread_rps) for one in made if one is not None]
    return pairs if len(pairs) == len(made) else None


def _score(
    forecasts: Reals, observed: Reals, *, level: float, margin: float
) -> ForecastScore:
    """forecasts: (N, 2) medians and spreads; observed: (N,) what came."""
    expected, spread = forecasts.T
    planned, low, high = (
        np.maximum(0.0, expected + normal_quantile(one) * margin * spread)
        for one in (level, *INTERVAL)
    )
    above = observed - planned
    # A forecast that is exactly right is covered, also after rounding.
    slack = 1e-9 * (1.0 + observed)
    return ForecastScore(
        forecasts=float(len(observed)),
        pinball_rps=float(np.mean(np.maximum(level * above, (level - 1.0) * above))),
        coverage=float(np.mean(observed <= planned + slack)),
        interval_coverage=float(
            np.mean((observed >= low - slack) & (observed <= high + slack))
        ),
        error_rps=float(np.mean(np.abs(observed - expected))),
        observed_rps=float(np.mean(observed)),
        margin=_needed_margin(expected, spread, observed, level),
    )


def _needed_margin(
    expected: Reals, spread: Reals, observed: Reals, level: float
) -> float:
    """Between 0 and MAX_MARGIN; 1 where no forecast had a spread."""
    wide = spread > 0.0
    if not wide.any():
        return 1.0
    needed = (observed - expected)[wide] / spread[wide] / normal_quantile(level)
    return float(np.quantile(np.clip(needed, 0.0, MAX_MARGIN), level))
