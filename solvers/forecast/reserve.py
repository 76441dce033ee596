"""The reserve of a service: the rate that its plans carry even while it is quiet, because its bursts come too suddenly.

A plan follows what was seen: it carries the highest rate of the last `hold_s` seconds, but new replicas are there only
`reaction_s` after the windows that asked for them. What a burst brings until then is late unless room stood ready. So
the past is asked how much should have been there all the time:

    followed(t) = max rate in [t − reaction − hold, t − reaction], and Poisson's margin on it
    beyond(R)   = Σ_t max(0, rate(t) − max(followed(t), R))       the requests that came beyond

and the reserve is the smallest R whose late requests the SLO forgives, with what is not known yet on either side:

    caution(n) · (beyond(R) + u · PRIOR_BURSTS · burst(R))
        ≤ (1 − percentile) · (requests heard + u · PRIOR_S · usual rate)

* n bursts were seen, and more or fewer may come: their rate is distributed as Gamma(n + u · PRIOR_BURSTS, heard seconds
  + u · PRIOR_S) a posteriori, and `caution` is this distribution's quantile at `confidence` over its mean.
* burst(R) is what a burst of a service that nobody knows brings beyond R: a jump to between 1.5 and 4 times its usual
  rate. So the prior counts like PRIOR_S seconds of the service's own past: a service that stays calm loses its reserve.
* u says how far bursts are to be expected, 0 to 1, by the load of all services (`unsteadiness`). Where rates move by no
  more than Poisson's noise within the reaction, nothing says that they burst, so that steady services pay nothing.

This is a critical fractile of requests, not of time: a service that is busy for a tenth of the time is judged by what
comes then. Steady traffic, seasons and ramps are followed in time, so that they have no reserve but the prior's.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
from numpy.lib.stride_tricks import sliding_window_view

from solvers.forecast.seasons import coarsen
from solvers.forecast.spread import NORMAL_PER_MEDIAN, SURPRISE_DEVIATIONS
from solvers.forecast.types import PLANNING_LEVEL, Reals, RequestSeries, normal_quantile

Flags = npt.NDArray[np.bool_]

MIN_GRAIN_S = 5.0
"""In shorter windows rare requests look like bursts."""
MIN_MISSES = 1.0
"""Where the SLO forgives less than one request of all that came, they were too few to say anything."""
PRIOR_BURSTS = 1.5
PRIOR_S = 300.0
"""A service that nobody knows is given a burst every 200 s; after half an hour that counts a seventh."""
CALM_S = 300.0
"""So long a calm makes it e times less likely that load bursts at all."""
UNSTEADY = 0.08
"""Load whose rate moves by such a share within the reaction is as unsteady as counts."""
USUAL_S = 300.0
"""The usual rate is the median of so long: longer than most bursts, shorter than the time of day takes to change it."""
_PRIOR_JUMPS: Reals = np.linspace(1.5, 4.0, 26)
_MIN_MOVES = 6
_BURSTING_ODDS = 9.0
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
    unsteadiness: float
    slack: float


def unsteadiness(pasts: Sequence[RequestSeries], reaction_s: float) -> float:
    """How far services that have shown no burst yet are to be expected to burst, 0 to 1, by the pasts of all.

    The median of how much their rates move within the reaction beyond Poisson's noise, 1 by UNSTEADY: services burst
    together, and one of a few requests says little alone. Unless most of them have burst, it counts the less the longer
    they were heard: load that bursts every CALM_S is calm for T seconds with the probability exp(−T / CALM_S), load
    that never bursts always is, and nine of ten unsteady loads are taken for the former at first. O(windows).
    """
    if not pasts:
        return 0.0
    coarse = [coarsen(past, MIN_GRAIN_S) for past in pasts]
    # Cut at 1: of two services, one that bursts from silence must not speak for both.
    moves = float(np.median([min(1.0, _moves(past, reaction_s)) for past in coarse]))
    if moves <= 0.0:
        return 0.0
    if np.mean([_has_burst(past, reaction_s) for past in coarse]) > 0.5:
        return moves
    heard_s = max(past.window_s * len(past.heard) for past in coarse)
    odds = _BURSTING_ODDS * math.exp(-heard_s / CALM_S)
    return moves * odds / (1.0 + odds)


def _lag(series: RequestSeries, reaction_s: float) -> int:
    return max(1, round(reaction_s / series.window_s))


def _moves(series: RequestSeries, reaction_s: float) -> float:
    """The variance of a rate's moves within the reaction beyond noise, over UNSTEADY's; negative by chance."""
    rates, lag = series.rates_rps, _lag(series, reaction_s)
    moves = rates[lag:] - rates[:-lag]
    moves = moves[~np.isnan(moves)]
    mean = float(np.nanmean(rates)) if len(moves) >= _MIN_MOVES else 0.0
    if mean == 0.0:
        return 0.0
    # A difference has the variance of two windows. Its median, so that a single crowd is no unsteadiness.
    variance = float(np.median(moves**2)) * NORMAL_PER_MEDIAN**2 / 2.0
    return (variance - mean / series.window_s) / (UNSTEADY * mean) ** 2


def _has_burst(series: RequestSeries, reaction_s: float) -> bool:
    """Whether a rate ever rose within the reaction as in the prior's usual burst, beyond what noise explains."""
    rates, lag = series.rates_rps, _lag(series, reaction_s)
    before = rates[:-lag]
    noise = SURPRISE_DEVIATIONS * np.sqrt(before / series.window_s)
    # What was not heard compares as false.
    return bool(np.any(rates[lag:] > _PRIOR_JUMPS.mean() * (before + noise)))


def reserve_rps(
    series: RequestSeries,
    *,
    percentile: float,
    hold_s: float,
    reaction_s: float,
    confidence: float,
    unsteadiness: float,
    slack: float = 1.0,
) -> float:
    """The rate that plans of a service should carry at least; 0 where they do without.

    series: of the past, an hour or so; windows that were not heard, or follow such, are left out. percentile: of the
    SLO, 0 to 1. confidence: 0 to 1, that no more bursts come than are reckoned with. unsteadiness: of the load, 0 to 1.
    slack: so many times the planned rate is carried for as long as a reaction takes.
    O(windows · hold_s / window).
    """
    past = _past(series, hold_s, reaction_s, unsteadiness)._replace(slack=slack)
    heard = past.window_s * float(past.rates.sum())
    shape = _count_bursts(past) + unsteadiness * PRIOR_BURSTS
    if min(confidence, shape) == 0.0 or (1.0 - percentile) * heard < MIN_MISSES:
        return 0.0
    known = heard + unsteadiness * PRIOR_S * past.usual
    forgiven = (1.0 - percentile) * known
    return _min_level(past, _caution(shape, confidence), forgiven)


def _past(
    series: RequestSeries, hold_s: float, reaction_s: float, unsteadiness: float
) -> _Past:
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
        unsteadiness=unsteadiness,
        slack=1.0,
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
    is_beyond = (past.rates > past.followed).astype(np.int8)
    return int(np.count_nonzero(np.diff(is_beyond, prepend=0) > 0))


def _caution(shape: float, confidence: float) -> float:
    """By how much more bursts are reckoned with than were seen: a quantile of their rate over its mean."""
    # The distribution's scale, the seconds heard, changes quantile and mean alike.
    return float(scipy.special.gammaincinv(shape, confidence)) / shape


def _late(past: _Past, level: float) -> float:
    """How many requests come beyond a reserve, in the past and in the bursts of the prior."""
    carried = past.slack * np.maximum(past.followed, level)
    beyond = np.maximum(0.0, past.rates - carried)
    jumps = np.maximum(0.0, _PRIOR_JUMPS * past.usual - past.slack * level)
    burst = past.reaction_s * float(jumps.mean())
    prior = past.unsteadiness * PRIOR_BURSTS * burst
    return past.window_s * float(beyond.sum()) + prior


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
