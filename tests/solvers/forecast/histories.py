"""Histories written down as rates, and signals that every technique must understand."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from solvers.forecast.types import (
    Forecast,
    ForecastTechnique,
    History,
    RequestSeries,
    Season,
    make_forecast,
)

Reals = npt.NDArray[np.float64]
NAN = float("nan")


def a_series(
    rates_rps: Sequence[float] | Reals, *, window_s: float = 1.0, start_s: float = 0.0
) -> RequestSeries:
    """Windows that counted exactly these rates; NaN where nothing was heard."""
    return RequestSeries(
        start_s=start_s,
        window_s=window_s,
        arrivals=np.asarray(rates_rps, dtype=float) * window_s,
    )


def a_history(
    rates_rps: Sequence[float] | Reals,
    *,
    window_s: float = 1.0,
    start_s: float = 0.0,
    seasons: tuple[Season, ...] = (),
) -> History:
    return History(
        recent=a_series(rates_rps, window_s=window_s, start_s=start_s), seasons=seasons
    )


def forecast_of(
    technique: ForecastTechnique,
    history: History,
    *,
    horizon_s: float,
    levels: Sequence[float],
) -> Forecast | None:
    expected = technique(history, horizon_s)
    if expected is None:
        return None
    return make_forecast("any", expected, horizon_s=horizon_s, levels=levels)


def rate_of(
    technique: ForecastTechnique,
    history: History,
    *,
    level: float = 0.95,
    horizon_s: float | None = None,
) -> float:
    """One quantile, of the next window where nothing else is said."""
    made = forecast_of(
        technique,
        history,
        horizon_s=horizon_s or history.recent.window_s,
        levels=(level,),
    )
    assert made is not None
    assert made.levels == (level,)
    return made.rates_rps[0]


def poisson_rates(
    draw: np.random.Generator, means_rps: Reals, window_s: float
) -> Reals:
    return draw.poisson(means_rps * window_s) / window_s


def daily_means(days: int, window_s: float, *, mean_rps: float = 20.0) -> Reals:
    """A sine over the day around the mean, from nearly nothing at midnight to twice the mean at noon."""
    times_s = (np.arange(round(days * 86_400 / window_s)) + 0.5) * window_s
    return mean_rps * (1.0 - 0.95 * np.cos(2.0 * np.pi * times_s / 86_400.0))
