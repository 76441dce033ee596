"""The season of a service, from coarse history: its usual rate at each moment of a day or an hour.

Ratio-to-level decomposition, made robust. The history is cut into periods (rows) of equal parts (columns), and
rate ≈ level of the period × shape of the part is fitted by turns:

    level = Σ arrivals / Σ shape · seconds   over the heard parts, so that a half-heard day is no quiet day;
    shape = mean of rate / level over the periods, a fifth of them cut off at either end: one burst is no season.

Each part's shape is then drawn towards its neighbours as far as Poisson noise alone explains that it differs (by up to
three standard deviations; the positive-part shrinkage of James and Stein), so that rare requests make a smooth season
and sharp hours stay sharp.
Periods in which nothing was asked for have no shape; parts that were never heard get their neighbours' shape.
"""

import numpy as np
import numpy.typing as npt

from solvers.forecast.spread import SURPRISE_DEVIATIONS
from solvers.forecast.types import Reals, RequestSeries, Season

Flags = npt.NDArray[np.bool_]

DAY_S = 86_400.0
HOUR_S = 3_600.0
COARSE_S = 300.0
"""Length of the windows that seasons are made from."""

MIN_PERIODS = 2
MIN_PARTS = 4
_MAX_PERIODS = {DAY_S: 28, HOUR_S: 72}
"""Older ones have no say: habits change. Four weeks of days, three days of hours."""
_LEVEL_PERIODS = 7
"""The usual level is the median of this many newest periods; what is special today is added from the newest minutes."""
_HEARD_SHARE = 0.5
"""A period counts when so much of it was heard."""
_ROUNDS = 3
_CUT_SHARE = 0.2
_MIN_TO_CUT = 3
"""From three periods on at least one is cut at either end; of three the middle one alone counts."""
_NEIGHBOURS = 3
"""Parts on either side that a part is compared with."""


def make_seasons(coarse: RequestSeries) -> tuple[Season, ...]:
    """The daily and the hourly season, each where the history has enough of it."""
    made = (make_season(coarse, period_s) for period_s in (DAY_S, HOUR_S))
    return tuple(season for season in made if season is not None)


def coarsen(series: RequestSeries, window_s: float) -> RequestSeries:
    """The counts in longer windows, which start at multiples of their length; less than half heard is not heard.

    What was not heard of a window is taken to be as the rest of it. A series of windows at least as long stays.
    """
    if series.window_s >= window_s or not len(series.arrivals):
        return series
    numbers = _window_numbers(series, window_s)
    places = (numbers - numbers[0]).astype(np.intp)
    heard = ~np.isnan(series.arrivals)
    seconds = np.bincount(places, weights=heard * series.window_s)
    counts = np.bincount(places, weights=np.nan_to_num(series.arrivals))
    enough = seconds >= _HEARD_SHARE * window_s
    return RequestSeries(
        start_s=float(numbers[0] * window_s),
        window_s=window_s,
        arrivals=_divide(counts * window_s, seconds, where=enough),
    )


def _window_numbers(series: RequestSeries, window_s: float) -> Reals:
    """(T,) for each window of the series, the number since 1970 of the longer window that it lies in."""
    places = np.arange(len(series.arrivals))
    # By their middles, so that a window whose start was rounded down still counts where it belongs.
    middles_s = series.start_s + (places + 0.5) * series.window_s
    numbers: Reals = np.floor(middles_s / window_s)
    return numbers


def _divide(left: npt.ArrayLike, right: npt.ArrayLike, *, where: Flags) -> Reals:
    """The quotient, in the shape of `left`; NaN elsewhere."""
    unknown = np.full(np.shape(left), np.nan)
    quotient: Reals = np.divide(left, right, out=unknown, where=where)
    return quotient


def make_season(coarse: RequestSeries, period_s: float) -> Season | None:
    """The season of one period; None with fewer than two heard periods, or windows too long for it.

    coarse: windows of a length that divides the period into at least four. O(windows · rounds).
    """
    parts = round(period_s / coarse.window_s)
    divides = abs(parts * coarse.window_s - period_s) <= 1e-6 * period_s
    if parts < MIN_PARTS or not divides or not len(coarse.arrivals):
        return None
    table = _known_periods(_by_period(coarse, parts)[-_MAX_PERIODS[period_s] :])
    if len(table) < MIN_PERIODS:
        return None
    shape, level = _decompose(table)
    shape = _smooth(shape, float(np.nansum(table)) * coarse.window_s)
    return Season(period_s=period_s, rates_rps=tuple((level * shape).tolist()))


def _by_period(coarse: RequestSeries, parts: int) -> Reals:
    """(periods, parts) rates in rps, NaN where nothing was heard; rows begin at multiples of the period."""
    first = round(coarse.start_s / coarse.window_s)
    before = first % parts
    after = -(before + len(coarse.arrivals)) % parts
    padded = np.concatenate(
        [np.full(before, np.nan), coarse.rates_rps, np.full(after, np.nan)]
    )
    return padded.reshape(-1, parts)


def _known_periods(table: Reals) -> Reals:
    """The rows of a (periods, parts) table that can tell a shape."""
    # What was heard of a period that has just begun tells nothing of its level.
    heard = np.mean(~np.isnan(table), axis=1) >= _HEARD_SHARE
    known: Reals = table[heard & (np.nansum(table, axis=1) > 0.0)]
    return known


def _decompose(table: Reals) -> tuple[Reals, float]:
    """(parts,) shape with mean 1, and the usual level in rps."""
    heard = ~np.isnan(table)
    rates = np.where(heard, table, 0.0)
    shape = np.ones(table.shape[1])
    for _ in range(_ROUNDS):
        expected = heard @ shape
        levels = rates.sum(axis=1) / np.where(expected > 0.0, expected, 1.0)
        columns = levels[:, None]
        ratios = _divide(table, columns, where=columns > 0.0)
        shape = _filled(_trimmed_means(ratios))
        # A season of nothing but outliers is no season.
        shape = shape / np.mean(shape) if shape.any() else np.ones_like(shape)
    return shape, float(np.median(levels[-_LEVEL_PERIODS:]))


def _trimmed_means(ratios: Reals) -> Reals:
    """(parts,) mean over the periods without the outer fifths; NaN where a part was never heard."""
    # NaN sorts last, so that the heard periods are the first ones of each column.
    ordered = np.sort(ratios, axis=0)
    heard = np.count_nonzero(~np.isnan(ratios), axis=0)
    cut = np.maximum(np.floor(_CUT_SHARE * heard), heard >= _MIN_TO_CUT)
    places = np.arange(len(ordered))[:, None]
    kept = (places >= cut) & (places < heard - cut)
    sums = np.where(kept, ordered, 0.0).sum(axis=0)
    numbers = kept.sum(axis=0)
    return _divide(sums, numbers, where=numbers > 0)


def _filled(shape: Reals) -> Reals:
    """Parts that were never heard lie on the line between their heard neighbours, around the end of the period."""
    known = np.flatnonzero(~np.isnan(shape))
    if len(known) == 0:
        return np.ones_like(shape)
    filled: Reals = np.interp(
        np.arange(len(shape)), known, shape[known], period=len(shape)
    )
    return filled


def _smooth(shape: Reals, requests: float) -> Reals:
    """The shape, drawn towards its neighbours where noise explains the difference; mean 1.

    requests: how many the whole shape rests on.
    """
    reach = min(_NEIGHBOURS, (len(shape) - 1) // 2)
    around = np.mean(
        [np.roll(shape, step) for step in range(-reach, reach + 1)], axis=0
    )
    differences = shape - around
    # Relative variance of a Poisson count is 1 / count.
    noise = SURPRISE_DEVIATIONS**2 * around * len(shape) / requests
    squares = differences**2
    explained = np.divide(
        noise, squares, out=np.ones_like(squares), where=squares > 0.0
    )
    smooth: Reals = around + np.maximum(0.0, 1.0 - explained) * differences
    smooth /= smooth.mean()
    return smooth
