"""The reserve of a service: the rate that its plans carry even while it is quiet, because its bursts come too suddenly.

A plan follows what was seen: it carries the highest rate of the last `hold_s` seconds, but new replicas are there only
`reaction_s` after the windows that asked for them. Where a burst is over sooner than that, no forecast from the last
minutes helps, and a service that is quiet between such bursts would miss its SLO with every one of them. So the past is
asked how much should have been there all the time:

    followed(t) = max rate in [t − reaction − hold, t − reaction], and Poisson's margin on it
    beyond(R)   = Σ max(0, rate(t) − max(followed(t), R)) / Σ rate(t)     share of the requests that came beyond

and the reserve is the smallest R with beyond(R) ≤ 1 − percentile: as many requests as the SLO forgives. This is a
critical fractile of requests, not of time: a service that is busy for a tenth of the time is judged by what comes then.

The `FORGIVEN_S` in which most came beyond are left out: one burst is an accident, from the second one on it is a habit.
Steady traffic, seasons and ramps are followed in time, so that they have no reserve.
"""

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from solvers.forecast.seasons import coarsen
from solvers.forecast.types import PLANNING_LEVEL, Reals, RequestSeries, normal_quantile

Flags = npt.NDArray[np.bool_]

FORGIVEN_S = 60.0
MIN_GRAIN_S = 5.0
"""In shorter windows rare requests look like bursts."""
MIN_MISSES = 1.0
"""Where the SLO forgives less than one request of all that came, they were too few to say anything."""
_HALVINGS = 20
"""A millionth of the highest rate."""


def reserve_rps(
    series: RequestSeries, *, percentile: float, hold_s: float, reaction_s: float
) -> float:
    """The rate that plans of a service should carry at least; 0 where they do without.

    series: of the past, an hour or so; windows that were not heard, or follow such, are left out. percentile: of the
    SLO, 0 to 1. O(windows · hold_s / window).
    """
    coarse = coarsen(series, MIN_GRAIN_S)
    window_s = coarse.window_s

    def windows(delay_s: float) -> int:
        return max(1, round(delay_s / window_s))

    held, lag = windows(hold_s), windows(reaction_s)
    rates = np.nan_to_num(coarse.rates_rps)
    followed = _followed(rates, held, lag, window_s)
    # Where plans looked back at windows that were not heard, what they would have carried is unknown.
    known = _known(~np.isnan(coarse.rates_rps), held, lag)
    beyond = np.where(known, np.maximum(0.0, rates - followed), 0.0)
    kept = _without_worst(beyond, windows(FORGIVEN_S)) & known
    forgiven_rps = (1.0 - percentile) * float(rates[kept].sum())
    if forgiven_rps * window_s < MIN_MISSES:
        return 0.0
    return _min_level(rates[kept], followed[kept], forgiven_rps)


def _followed(rates: Reals, held: int, lag: int, window_s: float) -> Reals:
    """(T,) what plans carried in each window that followed what was seen until `lag` windows before."""
    padded = np.concatenate([np.zeros(held + lag), rates])
    highest: Reals = sliding_window_view(padded, held + 1).max(axis=1)[: len(rates)]
    noise = np.sqrt(highest / window_s)
    carried: Reals = highest + normal_quantile(PLANNING_LEVEL) * noise
    return carried


def _known(heard: Flags, held: int, lag: int) -> Flags:
    """(T,) windows that were heard, and all that plans then looked back at."""
    padded = np.concatenate([np.zeros(held + lag, dtype=np.bool_), heard])
    looked_back: Flags = sliding_window_view(padded, held + 1).min(axis=1)
    return looked_back[: len(heard)] & heard


def _without_worst(beyond: Reals, width: int) -> Flags:
    """(T,) of bool: all windows but the `width` neighbours with the largest sum; none where there are no more."""
    if len(beyond) <= width:
        return np.zeros(len(beyond), dtype=np.bool_)
    first = int(sliding_window_view(beyond, width).sum(axis=1).argmax())
    kept = np.ones(len(beyond), dtype=np.bool_)
    kept[first : first + width] = False
    return kept


def _min_level(rates: Reals, followed: Reals, forgiven_rps: float) -> float:
    """The smallest level above which no more comes than is forgiven, by bisection; from above."""
    low, high = 0.0, float(rates.max())
    if np.maximum(0.0, rates - followed).sum() <= forgiven_rps:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        beyond = np.maximum(0.0, rates - np.maximum(followed, middle))
        # What is returned must be enough: `high` always is, `low` never.
        if beyond.sum() <= forgiven_rps:
            high = middle
        else:
            low = middle
    return high
