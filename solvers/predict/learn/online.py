"""Online learning: what served executions say about the stated times of one network on one GPU type.

The true time of row r is its stated time times exp(c + o_r): c is common to all rows, o_r is the row's own. Both start
at 0 with variances that add up to the row's stated sigma², and drift as random walks. A Kalman filter follows them:

    state x = (c, o_1 … o_R) of the rows that were ever served;  reading of row r: y = c + o_r + noise
    predict  P ← P + drift·Δt;   update  K = P h / (hᵀ P h + R),  x ← x + K · clip(y − hᵀ x),  P ← P − K hᵀ P

* Robust: of one row's replicas the weighted median leads and the others are clipped around it (Huber), so that one slow
  GPU does not speak for all; and a period's surprise is clipped at CLIP_SDS of what was expected.
* What a row showed stays with that row; only the common part moves the others. A filter with a common part alone would
  chase its own plans: row A is slow, so B is planned, B is fast, so A is planned again.
* After a period whose error was out of its band the common variance is at least error²: a jump is followed within one
  more period, and a lone outlier is put right by it.
* Drift alarm: ALARM_PERIODS periods in a row out of the band; it ends after CALM_PERIODS in a row inside it.

Source: Kalman filter with clipped innovations: Masreliez and Martin, "Robust Bayesian estimation for the linear model
and robustifying the Kalman filter", IEEE TAC 1977. Half of the variance is common: between the shipped operating points
and the simulated truth (`python -m bench.catalogue_error`) the common part of ln(truth / stated) has a standard
deviation of 0.05 to 0.12 over networks, depending on the GPU type, and rows one of 0.06 to 0.09 around it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt
from typing import NamedTuple

import numpy as np

from solvers.predict.data.fit import NORMAL_95
from solvers.predict.data.samples import Reals

COMMON_SHARE = 0.5
"""Share of a row's variance; the rest is its own."""
MIN_SIGMA = 0.06
"""The filter doubts also rows that are stated as exact, or it could not learn that they are not."""
DRIFT_VARIANCE_PER_S = 0.02**2 / 60.0
"""GPUs and drivers change slowly: 2 % within a minute, 15 % within an hour, as a random walk; jumps raise the alarm."""
MIN_NOISE = 0.02
"""Standard deviation of a period's reading however many batches it has: they share temperature, load and clock."""
CLIP_SDS = 2.5
BAND_SDS = 3.0
MIN_BAND = 0.06
"""Errors below 6 % never raise an alarm: twice what the best offline fits reach."""
ALARM_PERIODS = 2
CALM_PERIODS = 3
MAX_ROWS = 24
ERROR_MEMORY = 0.7
"""Weight of the past in the error and the shortfall: about three periods."""
MAX_LOG_RATIO = 3.0
"""A factor of 20 either way: beyond it the reading is of something else."""


class RowKey(NamedTuple):
    """Which row a replica runs."""

    sm_percent: float
    batch: int
    clock_mhz: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionReading:
    """One replica's mean execution time over one period, against the stated one in the same conditions."""

    replica: str
    row: RowKey
    log_ratio: float
    """ln(observed / stated)."""
    variance: float
    """What chance and what the conditions leave open do to the log ratio; > 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterState:
    """The filter's state; entry 0 is the common part, entry i the own part of `rows[i - 1]`."""

    rows: tuple[RowKey, ...] = ()
    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """How well the stated times of one network on one GPU type hold, as of the last period that had readings."""

    belief: FilterState
    seen_until_s: float
    """End of that period, unix seconds; readings of earlier periods change nothing any more."""
    error: float = 0.0
    """Mean |ln(observed / expected)| of the last few periods, expected by the belief before each."""
    shortfall: float = 0.0
    """The same, of those that took longer than expected; the others count as 0."""
    band: float = MIN_BAND
    """Where the error of one period is out of the ordinary."""
    streak: int = 0
    """Periods in a row out of the band; negative: inside it."""
    alarm_since_s: float | None = None
    readings: int = 0
    """Counted since the stated times are in force."""

    @property
    def is_shaken(self) -> bool:
        """Whether the last period was out of the band, or the alarm still stands."""
        return self.streak > 0 or self.is_alarmed

    @property
    def is_alarmed(self) -> bool:
        """Whether the error left its band and is not back for good."""
        return self.alarm_since_s is not None


def new_fit_state(latency_sigma: Reals, seen_until_s: float) -> FitState:
    """Nothing was seen yet. `latency_sigma`: (N,) of all rows of the network on the GPU type."""
    common = COMMON_SHARE * float(np.mean(_doubted(latency_sigma) ** 2))
    return FitState(
        belief=FilterState(mean=(0.0,), covariance=((common,),)),
        seen_until_s=seen_until_s,
    )


def learn(
    health: FitState,
    readings: Sequence[ExecutionReading],
    sigma_of: Mapping[RowKey, float],
    until_s: float,
) -> FitState:
    """The health after one more period that ended at `until_s`; unchanged where that period, or a later one, was seen.

    `sigma_of`: stated sigma by row. A replica counts once; the order of the readings changes nothing.
    """
    of_rows = _combine(readings)
    # A period that is taken in twice would count as twice the evidence.
    if until_s <= health.seen_until_s or not of_rows:
        return health
    filtered = _Filter(health, sigma_of, prior=_prior_common(sigma_of))
    filtered.drift(until_s - health.seen_until_s)
    errors = [filtered.update(row, *of_rows[row]) for row in sorted(of_rows)]
    surprises, bands = zip(*errors, strict=True)
    judged = _judge(health, surprises, bands, until_s)
    return replace(
        judged,
        belief=filtered.belief(),
        seen_until_s=until_s,
        readings=health.readings + len({each.replica for each in readings}),
    )


def row_beliefs(
    health: FitState, keys: Sequence[RowKey], latency_sigma: Reals
) -> tuple[Reals, Reals, Reals]:
    """Mean, standard deviation now and at first of ln(true / stated): (N,) each, for rows with these stated sigmas."""
    state = health.belief
    place = {row: index for index, row in enumerate(state.rows, start=1)}
    served = np.array([place.get(key, 0) for key in keys], dtype=np.intp)
    is_served = served > 0
    means = np.array(state.mean)
    covariance = np.array(state.covariance)
    mean = means[0] + np.where(is_served, means[served], 0.0)
    first = _doubted(latency_sigma)
    # Var(c + o) = var c + var o + 2 cov(c, o); a row that was never served keeps its stated variance.
    seen_variance = covariance[served, served] + 2.0 * covariance[0, served]
    own = np.where(is_served, seen_variance, (1 - COMMON_SHARE) * first**2)
    return mean, np.sqrt(np.maximum(covariance[0, 0] + own, 0.0)), first


def log_factors(
    health: FitState, keys: Sequence[RowKey], latency_sigma: Reals, z: float
) -> Reals:
    """(N,) ln of what the stated times are multiplied by for planning, at the quantile of normal deviate z ≥ 0.

    Without evidence z · sigma: rows that are stated as exact stay as they are. Slower than stated is believed at once;
    faster only as far as the quantile of the evidence says, also where the row itself claims to be exact. Under alarm
    faster is not believed at all, and what fell short lately comes on top, as if it were a standard deviation.
    """
    mean, sd, first = row_beliefs(health, keys, latency_sigma)
    careful = np.maximum(mean, 0.0) + z * latency_sigma * np.minimum(sd / first, 1.0)
    if health.is_alarmed:
        return np.asarray(careful + NORMAL_95 * health.shortfall)
    return np.asarray(np.minimum(mean + z * sd, careful))


class _Filter:
    """The state while one period is worked in."""

    def __init__(
        self, health: FitState, sigma_of: Mapping[RowKey, float], prior: float
    ) -> None:
        self.rows = list(health.belief.rows)
        self.mean = np.array(health.belief.mean)
        self.covariance = np.array(health.belief.covariance)
        self._sigma_of = sigma_of
        # After a period out of its band the common part may have jumped by as much as the error.
        self._min_common = health.error**2 if health.is_shaken else 0.0
        self._max_common = max(prior, self._min_common)

    def drift(self, seconds: float) -> None:
        """Time alone makes everything less certain, up to what was stated."""
        step = DRIFT_VARIANCE_PER_S * seconds
        limits = [self._max_common, *(self._own_prior(row) for row in self.rows)]
        for index, limit in enumerate(limits):
            variance = self.covariance[index, index]
            self.covariance[index, index] = max(variance, min(variance + step, limit))
        self.covariance[0, 0] = max(self.covariance[0, 0], self._min_common)

    def update(
        self, row: RowKey, log_ratio: float, variance: float
    ) -> tuple[float, float]:
        """Take in one row's reading; returns the surprise, unclipped, and what would have been its band."""
        index = self._place(row)
        h = np.zeros(len(self.mean))
        h[[0, index]] = 1.0
        gained = self.covariance @ h
        # Of the reading, not of the state: its own noise is part of what may surprise.
        expected = sqrt(float(h @ gained) + variance)
        surprise = log_ratio - float(h @ self.mean)
        clipped = min(max(surprise, -CLIP_SDS * expected), CLIP_SDS * expected)
        self.mean = self.mean + gained * (clipped / expected**2)
        self.covariance = self.covariance - np.outer(gained, gained) / expected**2
        return surprise, max(MIN_BAND, BAND_SDS * expected)

    def belief(self) -> FilterState:
        """The state as data."""
        # Rounding makes it slightly unsymmetric, which would grow from period to period.
        covariance = (self.covariance + self.covariance.T) / 2.0
        return FilterState(
            rows=tuple(self.rows),
            mean=tuple(self.mean.tolist()),
            covariance=tuple(map(tuple, covariance.tolist())),
        )

    def _place(self, row: RowKey) -> int:
        """Index of a row in the state; the least known one makes room for a row too many."""
        if row in self.rows:
            return self.rows.index(row) + 1
        # The work of an update grows with the square of the rows, and new plans keep bringing new rows.
        if len(self.rows) >= MAX_ROWS:
            self._forget(1 + int(np.argmax(np.diag(self.covariance)[1:])))
        self.rows.append(row)
        self.mean = np.append(self.mean, 0.0)
        self.covariance = np.pad(self.covariance, (0, 1))
        self.covariance[-1, -1] = self._own_prior(row)
        return len(self.rows)

    def _forget(self, index: int) -> None:
        del self.rows[index - 1]
        self.mean = np.delete(self.mean, index)
        self.covariance = np.delete(np.delete(self.covariance, index, 0), index, 1)

    def _own_prior(self, row: RowKey) -> float:
        return (1.0 - COMMON_SHARE) * max(self._sigma_of.get(row, 0.0), MIN_SIGMA) ** 2


def _judge(
    health: FitState, surprises: Sequence[float], bands: Sequence[float], until_s: float
) -> FitState:
    """The health with error, streak and alarm after a period with these surprises, by row.

    The band is that of the belief before anything was out of it: afterwards the belief allows more.
    """
    error = float(np.mean(np.abs(surprises)))
    shortfall = float(np.mean(np.maximum(surprises, 0.0)))
    band = health.band if health.is_shaken else float(np.mean(bands))
    streak = max(health.streak, 0) + 1 if error > band else min(health.streak, 0) - 1
    # The first period has no past to be weighed with.
    past = ERROR_MEMORY if health.readings else 0.0
    return replace(
        health,
        # At most 1, so that one absurd period is forgotten within a few.
        error=past * health.error + (1.0 - past) * min(error, 1.0),
        shortfall=past * health.shortfall + (1.0 - past) * min(shortfall, 1.0),
        band=band,
        streak=streak,
        alarm_since_s=_alarm_since_s(health, streak, until_s),
    )


def _alarm_since_s(health: FitState, streak: int, until_s: float) -> float | None:
    if not health.is_alarmed:
        return until_s if streak >= ALARM_PERIODS else None
    # More periods end it than raise it, so that it does not flap.
    return None if streak <= -CALM_PERIODS else health.alarm_since_s


def _combine(readings: Sequence[ExecutionReading]) -> dict[RowKey, tuple[float, float]]:
    """(log ratio, variance) by row: the mean of its replicas' readings, clipped around their median."""
    # Sorted, so that of two readings of one replica the same one counts in every order.
    by_replica = {
        each.replica: each
        for each in sorted(readings, key=lambda each: (each.replica, each.log_ratio))
    }
    by_row: dict[RowKey, list[ExecutionReading]] = defaultdict(list)
    for each in by_replica.values():
        if abs(each.log_ratio) <= MAX_LOG_RATIO:
            by_row[each.row].append(each)
    return {row: _robust_mean(entries) for row, entries in by_row.items()}


def _robust_mean(entries: Sequence[ExecutionReading]) -> tuple[float, float]:
    weighed = sorted(
        (each.log_ratio, 1.0 / each.variance, each.variance) for each in entries
    )
    total = sum(weight for _, weight, _ in weighed)
    middle = _weighted_median([(value, weight) for value, weight, _ in weighed], total)
    clipped = 0.0
    for value, weight, variance in weighed:
        reach = CLIP_SDS * hypot(MIN_NOISE, sqrt(variance))
        clipped += weight * min(max(value, middle - reach), middle + reach)
    # Replicas of one period share load and temperature: no number of them makes a reading surer than MIN_NOISE.
    return clipped / total, max(1.0 / total, MIN_NOISE**2)


def _weighted_median(weighed: Sequence[tuple[float, float]], total: float) -> float:
    """The value up to which half of the weight lies; the mean of two where a half ends exactly between them."""
    below = 0.0
    for index, (value, weight) in enumerate(weighed):
        below += weight
        if below > total / 2.0 or index == len(weighed) - 1:
            return value
        if below == total / 2.0:
            return (value + weighed[index + 1][0]) / 2.0
    raise AssertionError("there is at least one reading")


def _prior_common(sigma_of: Mapping[RowKey, float]) -> float:
    sigma = np.array([sigma_of[row] for row in sorted(sigma_of)] or [0.0])
    return COMMON_SHARE * float(np.mean(_doubted(sigma) ** 2))


def _doubted(latency_sigma: Reals) -> Reals:
    return np.maximum(latency_sigma, MIN_SIGMA)
