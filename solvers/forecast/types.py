"""Nouns of the forecast: what was counted, what is asked for, and the answer.

A count that is NaN is a missing metric: no report came. A count of 0 is a quiet service. No technique mixes them: a
missing window tells nothing and is left out, a quiet one pulls the forecast down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from solvers.types.errors import InvalidInput

Reals = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]

PLANNING_LEVEL = 0.95
"""Forecasts are judged and shown by this quantile of the arrival rate; plans follow the median."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestSeries:
    """Requests counted in windows of one length that follow each other without gaps. Raises InvalidInput."""

    start_s: float
    """Seconds since 1970 (UTC) at which the first window starts."""
    window_s: float
    arrivals: Reals
    """(T,) oldest first; NaN: nothing was heard in that window."""

    def __post_init__(self) -> None:
        if not (0.0 < self.window_s < np.inf and np.isfinite(self.start_s)):
            raise InvalidInput(
                "window_s", f"{self.window_s} or start_s {self.start_s} out of range"
            )
        if self.arrivals.ndim != 1:
            raise InvalidInput(
                "arrivals", f"must have the shape (T,), not {self.arrivals.shape}"
            )
        # NaN fails both comparisons, as it should.
        if (self.arrivals < 0.0).any() or (self.arrivals == np.inf).any():
            raise InvalidInput("arrivals", "must be NaN or finite and not negative")

    @property
    def end_s(self) -> float:
        """Seconds since 1970 at which the last window ends."""
        return self.start_s + self.window_s * len(self.arrivals)

    @property
    def rates_rps(self) -> Reals:
        """(T,) arrivals per second; NaN where nothing was heard."""
        return self.arrivals / self.window_s

    @property
    def heard(self) -> Numbers:
        """Numbers of the windows in which something was heard, from 0 on."""
        return np.flatnonzero(~np.isnan(self.arrivals))

    def ages_s(self, numbers: Numbers) -> Reals:
        """Seconds from the middle of each of these windows to the end of the series."""
        return (len(self.arrivals) - 0.5 - numbers.astype(np.float64)) * self.window_s

    def starts_s(self, numbers: Numbers) -> Reals:
        """Seconds since 1970 at which each of these windows starts; numbers past the end are future windows."""
        return self.start_s + numbers.astype(np.float64) * self.window_s

    def part(self, first: int, end: int) -> "RequestSeries":
        """The windows `first` to `end` − 1."""
        # A negative start would count from the end, as slices do.
        first = max(0, first)
        return RequestSeries(
            start_s=self.start_s + first * self.window_s,
            window_s=self.window_s,
            arrivals=self.arrivals[first:end],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Season:
    """What a service usually gets at each moment of a day or an hour."""

    period_s: float
    rates_rps: tuple[float, ...]
    """(B,) usual rate in each of the period's B equal parts, the first one from a multiple of `period_s` in UTC on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that a forecast may use."""

    recent: RequestSeries
    """Up to the present moment."""
    seasons: tuple[Season, ...] = ()
    """At most one per period; made from older windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Quantiles of the arrival rate in the window that ends `horizon_s` after the history."""

    technique: str
    horizon_s: float
    expected_rps: float
    """The median."""
    spread_rps: float
    """Standard deviation of one window's rate."""
    levels: tuple[float, ...]
    rates_rps: tuple[float, ...]
    """The rate that stays below with the chance of the same position in `levels`; ≥ 0."""


class ExpectedRate(NamedTuple):
    """The arrival rate that a technique expects in one window: a normal distribution, cut off at 0."""

    median_rps: float
    spread_rps: float
    """Standard deviation of one window's rate."""


class ForecastTechnique(Protocol):
    """A way to forecast. A technique is a function; its module's docstring has formula, source and limits."""

    def __call__(self, history: History, horizon_s: float) -> ExpectedRate | None:
        """The rate in the window that ends `horizon_s` ahead; None where the history says nothing to this technique.

        A history in which nothing was heard gives None; one in which only silence was heard gives a rate of 0.
        """
        ...


def make_forecast(
    technique: str, expected: ExpectedRate, *, horizon_s: float, levels: Sequence[float]
) -> Forecast:
    """The quantiles at `levels` (0 < level < 1) of what a technique expects. Raises InvalidInput."""
    # Plain floats, whatever scalars a technique computed with.
    return Forecast(
        technique=technique,
        horizon_s=horizon_s,
        expected_rps=float(expected.median_rps),
        spread_rps=float(expected.spread_rps),
        levels=tuple(levels),
        rates_rps=tuple(
            max(
                0.0,
                float(
                    expected.median_rps + normal_quantile(level) * expected.spread_rps
                ),
            )
            for level in levels
        ),
    )


def widen(forecast: Forecast, margin: float) -> Forecast:
    """The forecast with `margin` times its spread."""
    if margin == 1.0:
        return forecast
    wide = ExpectedRate(forecast.expected_rps, margin * forecast.spread_rps)
    return make_forecast(
        forecast.technique, wide, horizon_s=forecast.horizon_s, levels=forecast.levels
    )


@lru_cache(maxsize=64)
def normal_quantile(level: float) -> float:
    """The normal variable's quantile, in standard deviations above its mean. Raises InvalidInput."""
    if not 0.0 < level < 1.0:
        raise InvalidInput("level", f"must be above 0 and below 1, not {level}")
    return NormalDist().inv_cdf(level)


def windows_ahead(series: RequestSeries, horizon_s: float) -> int:
    """Number of the window, 1 = the next one, that ends about `horizon_s` after the history. Raises InvalidInput."""
    if not 0.0 < horizon_s < np.inf:
        raise InvalidInput("horizon_s", f"must be above 0 and finite, not {horizon_s}")
    return max(1, round(horizon_s / series.window_s))
