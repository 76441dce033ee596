"""Gaussian process (kriging): a trend in logarithms, and what the samples show besides it.

    y = ln latency_ms = h(x)·β + g(x) + noise       x = (ln batch, ln share, ln clock, ln quota)
    h = (1, ln b, ln s, s, ln(b + 2), ln b · ln s, ln f, ln q),   β ~ N(β₀, diag Σ₀)
    g ~ GP(0, a² · Matérn 5/2 of |(x - x') / lengths|),   noise Student's with scale σ

The trend's coefficients have a prior (latency falls about as share^-0.8, …), so that two samples already give a curve
and many override it. a, σ and the lengths are those of a small fixed grid with the greatest marginal likelihood times a
log-normal prior of a and σ; with many samples, judged on an even choice of them. Reweighting makes the noise Student's.
The posterior mean is tabulated at the measured values of every condition that varies, and interpolated in logarithms.

Source: universal kriging with a Gaussian prior of the trend, Rasmussen and Williams 2006, "Gaussian processes for
machine learning", §2.7 and §5.4.1. Wins where latencies are smooth and one network was measured at 30 points or more,
as with batches and shares of TensorRT engines. Limits: jumps and knees are rounded; what the trend says is trusted only
as far as twice the measured range, and only along conditions that vary; beyond that `clip_to_measured`.
"""

from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import Queries, Reals, Samples, even_choice
from solvers.predict.latency.conditions import (
    BATCH,
    SM_PERCENT,
    MeasuredRange,
    clip_to_measured,
    highest_clock_mhz,
    log_conditions,
    measured_range,
    sorted_samples,
    varies,
)
from solvers.predict.regression.mesh import (
    interpolate,
    limit_nodes,
    make_nodes,
    mesh_points,
)
from solvers.predict.regression.posterior_mode import weigh

# In the order of the conditions' columns.
_AXES = ("log_batch", "log_sm_percent", "log_clock", "log_time_quota_percent")
_MIN_CONDITIONS = 2
_MAX_SAMPLES = 800  # Time grows with the cube: 800 take a quarter of a second.
# On which the grid is judged: 108 factorisations of 128² take 50 ms.
_JUDGED_SAMPLES = 128

_TREND_MEAN = np.array([0.0, 0.8, -0.8, 0.0, 0.0, 0.0, -0.7, -1.0])
_TREND_SPREAD = np.array([2.0, 0.3, 0.3, 0.3, 0.5, 0.1, 0.3, 0.5])
"""Prior of the terms of h: measured networks lie between a host's floor (exponents 0) and a full GPU (1 and -1)."""
_SMALL_BATCH = 2.0  # ln(b + 2) bends where the first requests of a batch cost less than the later ones, or more.

_AMPLITUDES = (0.04, 0.12, 0.36)
_NOISES = (0.003, 0.01, 0.03)
"""From a mean over thousands of batches to a host that other work disturbs."""
_BATCH_LENGTHS = (1.0, 2.0, 4.0)
_OTHER_LENGTHS = (0.4, 0.8, 1.6, 3.2)
# The prior's centres; a factor e away costs half a unit of likelihood.
_USUAL_AMPLITUDE, _USUAL_NOISE = 0.12, 0.01
_REWEIGHTINGS = 2  # More do not change the error on held-out rows.

# How far beyond the measured range the trend holds: twice as much, or half.
_TRUSTED = float(np.log(2.0))
_WIDEST_CELL = 0.35  # A factor 1.4; between nodes nearer than this the curve is as good as straight.
_MAX_NODES = 4000  # Of the table: 48 kB of JSON.
_MAX_VALUES = 40  # Measured values of one condition that become nodes.
_DIGITS = 7  # Decimals of a kept logarithm: rounding moves no latency by more than a ten-millionth.


class _Scales(NamedTuple):
    amplitude: float
    noise: float
    lengths: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Posterior:
    """The curve, given samples."""

    logs: Reals
    """(N, 4) where the samples are."""
    centre: Reals
    level: float
    scales: _Scales
    pull: Reals
    """(N,) (K + noise)⁻¹ (y - prior mean)."""


def fit(samples: Samples) -> Coefficients:
    """Coefficients from samples of one group.

    Raises TooFewSamples for fewer than two distinct conditions. 400 samples take 0.1 to 0.3 s.
    """
    samples = sorted_samples(samples)
    if len(samples) > _MAX_SAMPLES:
        samples = samples.take(even_choice(len(samples), max_rows=_MAX_SAMPLES))
    highest = highest_clock_mhz(samples.at)
    logs = log_conditions(samples.at, highest_clock_mhz=highest)
    distinct = len(np.unique(logs, axis=0))
    if distinct < _MIN_CONDITIONS:
        raise TooFewSamples(
            f"{distinct} condition was measured; measure at least {_MIN_CONDITIONS}"
        )
    posterior = _learn(logs, np.log(samples.latency_ms))
    trusted = _trusted_range(logs)
    axes = _axes(logs, trusted)
    table = _read(posterior, mesh_points(axes)).round(_DIGITS)
    return Coefficients(
        arrays={
            **dict(zip(_AXES, axes, strict=True)),
            "log_latency": table.reshape([len(axis) for axis in axes]),
            "trusted_range": np.stack(trusted),
            "highest_clock_mhz": np.array(highest),
        }
    )


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) latencies in ms."""
    arrays = coefficients.arrays
    axes = tuple(arrays[name] for name in _AXES)
    logs = log_conditions(queries, highest_clock_mhz=float(arrays["highest_clock_mhz"]))
    inside, growth = clip_to_measured(logs, MeasuredRange(*arrays["trusted_range"]))
    # Along an axis of one node nothing changes, and each axis doubles the work of an interpolation.
    used = [column for column, axis in enumerate(axes) if len(axis) > 1]
    if not used:
        return np.full(len(queries), np.exp(arrays["log_latency"].item())) * growth
    table = arrays["log_latency"].squeeze()
    along = tuple(axes[column] for column in used)
    return np.asarray(np.exp(interpolate(along, table, inside[:, used])) * growth)


def _learn(logs: Reals, measured: Reals) -> _Posterior:
    """The curve through (N,) measured logarithms at (N, 4) conditions."""
    centre = logs.mean(axis=0)
    trend = _trend(logs, centre)
    level = float(np.mean(measured - trend @ _TREND_MEAN))
    surprise = measured - trend @ _TREND_MEAN - level
    chosen = even_choice(len(logs), max_rows=_JUDGED_SAMPLES)
    scales = _choose_scales(logs[chosen], trend[chosen], surprise[chosen])
    covariance = _covariance(logs, logs, trend, trend, scales)
    weight = np.ones(len(logs))
    for _ in range(1 + _REWEIGHTINGS):
        noisy = covariance + np.diag(scales.noise**2 / weight)
        factor = cho_factor(noisy, lower=True, check_finite=False)
        pull = cho_solve(factor, surprise, check_finite=False)
        weight = weigh((surprise - covariance @ pull) / scales.noise)
    return _Posterior(logs=logs, centre=centre, level=level, scales=scales, pull=pull)


def _read(posterior: _Posterior, logs: Reals) -> Reals:
    """(M,) posterior mean at (M, 4) conditions."""
    trend = _trend(logs, posterior.centre)
    known = _trend(posterior.logs, posterior.centre)
    covariance = _covariance(logs, posterior.logs, trend, known, posterior.scales)
    return np.asarray(
        trend @ _TREND_MEAN + posterior.level + covariance @ posterior.pull
    )


def _choose_scales(logs: Reals, trend: Reals, surprise: Reals) -> _Scales:
    """The scales of the grid with the greatest posterior probability; of equals the first."""
    by_trend = (trend * _TREND_SPREAD**2) @ trend.T
    amplitude, noise = np.array(list(product(_AMPLITUDES, _NOISES))).T
    log_prior = -0.5 * (
        np.log(amplitude / _USUAL_AMPLITUDE) ** 2 + np.log(noise / _USUAL_NOISE) ** 2
    )
    best = _Scales(_USUAL_AMPLITUDE, _USUAL_NOISE, (1.0, 1.0, 1.0, 1.0))
    best_score = -np.inf
    for batch_length, length in product(_BATCH_LENGTHS, _OTHER_LENGTHS):
        lengths = (batch_length, length, length, length)
        # All amplitudes and noises at once: they share the distances, and one call factorises them all.
        alike = _matern(logs, logs, lengths)
        covariance = by_trend + amplitude[:, None, None] ** 2 * alike
        covariance += noise[:, None, None] ** 2 * np.eye(len(logs))
        scores = _log_likelihood(covariance, surprise) + log_prior
        chosen = int(np.argmax(scores))
        if scores[chosen] > best_score:
            best_score = scores[chosen]
            best = _Scales(float(amplitude[chosen]), float(noise[chosen]), lengths)
    return best


def _log_likelihood(covariance: Reals, surprise: Reals) -> Reals:
    """(S,) of (N,) values under S covariances (S, N, N), less a constant.

    The last row of the factor of [[K, y], [yᵀ, c]] is L⁻¹y: with it, one call factorises and solves.
    """
    count, size = covariance.shape[:2]
    bordered = np.empty((count, size + 1, size + 1))
    bordered[:, :size, :size] = covariance
    bordered[:, size, :size] = bordered[:, :size, size] = surprise
    bordered[:, size, size] = np.finfo(np.float64).max  # Any c that is large enough.
    factor = np.linalg.cholesky(bordered)
    whitened = factor[:, size, :size]
    diagonal = np.diagonal(factor, axis1=1, axis2=2)[:, :size]
    return np.asarray(-0.5 * (whitened**2).sum(axis=1) - np.log(diagonal).sum(axis=1))


def _trend(logs: Reals, centre: Reals) -> Reals:
    """(N, 8) values of h, each 0 at the centre."""
    # In the order of the conditions' columns.
    batch, share, clock, quota = (logs - centre).T
    requests, percent = np.exp(logs[:, [BATCH, SM_PERCENT]]).T
    centre_requests, centre_percent = np.exp(centre[[BATCH, SM_PERCENT]])
    bent = np.log((requests + _SMALL_BATCH) / (centre_requests + _SMALL_BATCH))
    more_percent = (percent - centre_percent) / 100.0
    level = np.ones(len(logs))
    columns = (level, batch, share, more_percent, bent, batch * share, clock, quota)
    return np.stack(columns, axis=1)


def _covariance(
    logs: Reals, others: Reals, trend: Reals, other_trend: Reals, scales: _Scales
) -> Reals:
    """(M, N) covariance of trend and deviation between (M, 4) and (N, 4) conditions."""
    by_trend = (trend * _TREND_SPREAD**2) @ other_trend.T
    return np.asarray(
        by_trend + scales.amplitude**2 * _matern(logs, others, scales.lengths)
    )


def _matern(
    logs: Reals, others: Reals, lengths: tuple[float, float, float, float]
) -> Reals:
    """Matérn correlation of smoothness 5/2: curvature is continuous, no more."""
    scaled = np.sqrt(5.0) * cdist(logs / np.array(lengths), others / np.array(lengths))
    return np.asarray((1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled))


def _trusted_range(logs: Reals) -> MeasuredRange:
    """The measured range, and as far beyond it as the trend is trusted, along the conditions that vary."""
    measured = measured_range(logs)
    beyond = np.where(varies(measured), _TRUSTED, 0.0)
    full = np.log(100.0)
    # No batch is below 1, no share or quota above 100 %, and no clock above the highest, to which it is relative.
    lowest = np.array([0.0, -np.inf, -np.inf, -np.inf])
    highest = np.array([np.inf, full, 0.0, full])
    low = np.minimum(np.maximum(measured.low - beyond, lowest), measured.low)
    high = np.maximum(np.minimum(measured.high + beyond, highest), measured.high)
    return MeasuredRange(low, high)


def _axes(logs: Reals, trusted: MeasuredRange) -> tuple[Reals, ...]:
    """Per condition the nodes of the table: measured values, the range's ends, and some in wide gaps."""
    axes = []
    for column, ends in enumerate(np.stack(trusted, axis=1)):
        values = make_nodes(logs[:, column], max_nodes=_MAX_VALUES)
        values = make_nodes(np.append(values, ends), max_nodes=_MAX_VALUES + 2)
        parts = [
            np.linspace(
                low, high, int(np.ceil((high - low) / _WIDEST_CELL)), endpoint=False
            )
            for low, high in pairwise(values)
        ]
        axes.append(np.concatenate([*parts, values[-1:]]))
    return limit_nodes(tuple(axes), max_nodes=_MAX_NODES)
