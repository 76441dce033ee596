"""The reserve of a service: the rate that its plans carry even while it is quiet, because its bursts come too suddenly.

A plan follows what was seen: it carries the highest rate of the last `hold_s` seconds, but new replicas are there only
`reaction_s` after the windows that asked for them. What a burst brings until then is late unless room stood ready. So
the past is asked how much should have been there all the time:

    followed(t) = max rate in [t − reaction − hold, t − reaction], and Poisson's margin on it
    beyond(R)   = Σ_t max(0, rate(t) − max(followed(t), R))       the requests that came beyond

and the reserve is the smallest R whose late requests the SLO forgives, with what is not known yet on either side:

    caution(n) · (beyond(R) + PRIOR_BURSTS · burst(R)) ≤ (1 − percentile) · (requests heard + PRIOR_S · usual rate)

* n bursts were seen, and more or fewer may come: their rate is distributed as Gamma(n + PRIOR_BURSTS, heard seconds +
  PRIOR_S) a posteriori, and `caution` is this distribution's quantile at `confidence` over its mean.
* burst(R) is what a burst of a service that nobody knows brings beyond R: a jump to between 1.5 and 4 times its usual
  rate. So the prior counts like PRIOR_S seconds of the service's own past: a service that stays calm loses its reserve.

This is a critical fractile of requests, not of time: a service that is busy for a tenth of the time is judged by what
comes then. Steady traffic, seasons and ramps are followed in time, so that they have no reserve but the prior's.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import gammaincinv

from solvers.forecast.seasons import coarsen
from solvers.forecast.types import PLANNING_LEVEL, Reals, RequestSeries, normal_quantile

Flags = npt.NDArray[np.bool_]

MIN_GRAIN_S = 5.0
"""In shorter windows rare requests look like bursts."""
MIN_MISSES = 1.0
"""Where the SLO forgives less than one request of all that came, they were too few to say anything."""
PRIOR_BURSTS = 0.15
PRIOR_S = 150.0
"""A service that nobody knows is given a burst in 17 minutes; after half an hour of calm that counts a thirteenth."""
USUAL_S = 300.0
"""The usual rate is the median of so long: longer than most bursts, shorter than the time of day takes to change it."""
_PRIOR_JUMPS: Reals = np.linspace(1.5, 4.0, 26)
_HALVINGS = 20
"""A millionth of the highest rate."""


class _Past(NamedTuple):
    """What the past says; rates in requests per second."""

    window_s: float
    rates: Reals
    """(T,) of the windows in which it is known what plans would have carried."""
    followed: Reals
    """(T,) what they would have carried."""
    usual: float
    reaction_s: float


def reserve_rps(
    series: RequestSeries,
    *,
    percentile: float,
    hold_s: float,
    reaction_s: float,
    confidence: float,
) -> float:
    """The rate that plans of a service should carry at least; 0 where they do without.

    series: of the past, an hour or so; windows that were not heard, or follow such, are left out. percentile: of the
    SLO, 0 to 1. confidence: 0 to 1, that no more bursts come than are reckoned with. O(windows · hold_s / window).
    """
    past = _past(series, hold_s, reaction_s)
    heard = past.window_s * float(past.rates.sum())
    if confidence == 0.0 or (1.0 - percentile) * heard < MIN_MISSES:
        return 0.0
    forgiven = (1.0 - percentile) * (heard + PRIOR_S * past.usual)
    return _min_level(past, _caution(_count_bursts(past), confidence), forgiven)


def _past(series: RequestSeries, hold_s: float, reaction_s: float) -> _Past:
    coarse = coarsen(series, MIN_GRAIN_S)
    window_s = coarse.window_s

    def windows(delay_s: float) -> int:
        return max(1, round(delay_s / window_s))

    held, lag = windows(hold_s), windows(reaction_s)
    rates = np.nan_to_num(coarse.rates_rps)
    # Where plans looked back at windows that were not heard, what they would have carried is unknown.
    known = _known(~np.isnan(coarse.rates_rps), held, lag)
    newest = rates[known][-windows(USUAL_S) :]
    return _Past(
        window_s=window_s,
        rates=rates[known],
        followed=_followed(rates, held, lag, window_s)[known],
        usual=float(np.median(newest)) if len(newest) else 0.0,
        reaction_s=reaction_s,
    )


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


def _count_bursts(past: _Past) -> int:
    """How often more began to come than was carried."""
    is_beyond = past.rates > past.followed
    return int(np.count_nonzero(is_beyond[1:] & ~is_beyond[:-1])) + int(is_beyond[0])


def _caution(bursts: int, confidence: float) -> float:
    """By how much more bursts are reckoned with than were seen: a quantile of their rate over its mean."""
    shape = PRIOR_BURSTS + bursts
    # The distribution's scale, the seconds heard, changes quantile and mean alike.
    return float(gammaincinv(shape, confidence)) / shape


def _late(past: _Past, level: float) -> float:
    """How many requests come beyond a reserve, in the past and in the bursts of the prior."""
    carried = np.maximum(past.followed, level)
    beyond = np.maximum(0.0, past.rates - carried)
    jumps = np.maximum(0.0, _PRIOR_JUMPS * past.usual - level)
    burst = past.reaction_s * float(jumps.mean())
    return past.window_s * float(beyond.sum()) + PRIOR_BURSTS * burst


def _min_level(past: _Past, caution: float, forgiven: float) -> float:
    """The smallest reserve beyond which no more comes than is forgiven, by bisection; from above."""
    low, high = 0.0, max(float(past.rates.max()), float(_PRIOR_JUMPS[-1]) * past.usual)
    if caution * _late(past, low) <= forgiven:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        # What is returned must be enough: `high` always is, `low` never.
        if caution * _late(past, middle) <= forgiven:
            high = middle
        else:
            low = middle
    return high
