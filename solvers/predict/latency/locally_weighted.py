"""Locally weighted regression: how the latency departs from its trend, read off the nearest samples.

    latency_ms(x) = trend(x) · exp(c0 + c · x),   x = (ln batch, ln SM share, ln clock, ln time quota)
    (c0, c) minimise Σ_i w_i (ln measured_i / trend(x_i) - c0 - c · x_i)² + ridge · |(c0, c)|²
    w_i = n_i · exp(-2 (|x - x_i|² - d²) / h²),   |x|² = Σ (metric_j · x_j)²

with d the distance to the nearest of the measured conditions, h that to the (k + 1)-th nearest, and n_i how often
condition i was measured (repetitions are averaged). The trend is the linear-fractional fit. The number k and the metric
are those with the least leave-one-out error, which linear regression gives in closed form: e_i / (1 - l_ii), l_ii the
weight of sample i in its own prediction.

Source: InSS, section on GPU running time (LWR over batch and p · SMs), after Cleveland & Devlin 1988. Ours: logarithms,
so that errors are relative and latencies positive; residuals of a trend instead of plain latencies, which a few
samples across two decades do not carry; Gaussian weights, which leave no query without neighbours. Wins from a dozen
samples on, where steps of the hardware or the host depart from any formula. Limits: not monotone; an outlier pulls its
neighbourhood; an answer costs as much as there are samples, so queries that repeat are answered once. Outside the
measured range the correction stays what it is at the edge, and no correction exceeds the largest seen.
"""

from dataclasses import dataclass

import numpy as np

from solvers.predict.fit import Coefficients
from solvers.predict.latency import linear_fractional
from solvers.predict.latency.conditions import (
    BATCH,
    Flags,
    MeasuredRange,
    clip_to_measured,
    highest_clock_mhz,
    log_conditions,
    measured_range,
    sorted_samples,
    varies,
)
from solvers.predict.samples import Indices, Queries, Reals, Samples

_NEIGHBOURS = (2, 3, 4, 6, 9, 13, 20)
"""Candidates for k."""
_METRICS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Candidates for the weight of a condition's distance; the batch's is 1."""
_ROUNDS = 2  # Of choosing one after the other; a third changes nothing that leave-one-out can tell.
_RIDGE = 0.1  # The nearest sample weighs 1: so a tenth of a sample that lies on the trend.
_MOST_JUDGED = 150  # Samples that leave-one-out asks; more do not change the choice and cost their square.
_CHUNK = 4096  # Queries at once: 13 MB of weights for 400 samples.
_SMALLEST = 1e-9  # Squared distances below are rounding: of conditions that differ in millionths.
_TREND = "trend."
"""Prefix of the trend's coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Points:
    """What is regressed: K measured conditions, of which D vary."""

    logs: Reals
    """(K, D)"""
    residual: Reals
    """(K,) mean ln measured / trend."""
    count: Reals
    """(K,) how often it was measured."""


def fit(samples: Samples) -> Coefficients:
    """Coefficients from samples of one group; raises TooFewSamples where the linear-fractional trend does."""
    ordered = sorted_samples(samples)
    trend = linear_fractional.fit(ordered)
    residual = np.log(ordered.latency_ms / linear_fractional.predict(trend, ordered.at))
    logs = log_conditions(ordered.at, highest_clock_mhz=highest_clock_mhz(ordered.at))
    columns = np.flatnonzero(varies(measured_range(logs)))
    points = _merge(logs[:, columns], residual)
    metric, neighbours = _choose(points, is_batch=columns == BATCH)
    return Coefficients(
        arrays={
            **{_TREND + name: array for name, array in trend.arrays.items()},
            "columns": columns.astype(np.float64),
            "metric": metric,
            "neighbours": np.array(float(neighbours)),
            "logs": points.logs,
            "residual": points.residual,
            "count": points.count,
        }
    )


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) latencies in ms; time and memory grow with the number of distinct conditions among the queries."""
    distinct, row_of_query = _distinct(queries)
    chunks = [distinct[start : start + _CHUNK] for start in range(0, len(distinct), _CHUNK)]
    answers = [_predict_distinct(coefficients, queries.take(chunk)) for chunk in chunks]
    return np.concatenate([*answers, np.empty(0)])[row_of_query]


def _distinct(queries: Queries) -> tuple[Indices, Indices]:
    """Positions of one query per condition, and for every query which of them is its own."""
    key: Indices = np.zeros(len(queries), dtype=np.intp)
    for column in (queries.batch, queries.sm_percent, queries.clock_mhz, queries.time_quota_percent):
        values, code = np.unique(column, return_inverse=True)
        if len(values) > 1:
            key = np.unique(key * len(values) + code, return_inverse=True)[1]
    _, first, row_of_query = np.unique(key, return_index=True, return_inverse=True)
    return first, row_of_query


def _predict_distinct(coefficients: Coefficients, queries: Queries) -> Reals:
    arrays = coefficients.arrays
    trend = Coefficients(
        arrays={name.removeprefix(_TREND): array for name, array in arrays.items() if name.startswith(_TREND)}
    )
    logs = log_conditions(queries, highest_clock_mhz=float(trend.arrays["highest_clock_mhz"]))
    inside, _ = clip_to_measured(logs, MeasuredRange(*trend.arrays["measured_range"]))
    points = _Points(logs=arrays["logs"], residual=arrays["residual"], count=arrays["count"])
    at = inside[:, arrays["columns"].astype(np.intp)]
    correction, _ = _regress(points, at, arrays["metric"], int(arrays["neighbours"]))
    bounded = np.clip(correction, points.residual.min(), points.residual.max())
    latency_ms: Reals = linear_fractional.predict(trend, queries) * np.exp(bounded)
    return latency_ms


def _merge(logs: Reals, residual: Reals) -> _Points:
    """Repetitions of a condition as one point."""
    distinct, point_of_row = np.unique(logs, axis=0, return_inverse=True)
    count = np.bincount(point_of_row).astype(np.float64)
    return _Points(logs=distinct, residual=np.bincount(point_of_row, weights=residual) / count, count=count)


def _choose(points: _Points, *, is_batch: Flags) -> tuple[Reals, int]:
    """The metric (D,) and k with the least leave-one-out error, by turns from 1 and the middle k."""
    judged = np.unique(np.linspace(0, len(points.count) - 1, _MOST_JUDGED).astype(np.intp))
    metric = np.ones(len(is_batch))
    neighbours = _NEIGHBOURS[len(_NEIGHBOURS) // 2]
    for _ in range(_ROUNDS):
        for column in np.flatnonzero(~is_batch):
            candidates = [np.where(np.arange(len(metric)) == column, value, metric) for value in _METRICS]
            metric = min(candidates, key=lambda tried: _left_out_error(points, judged, tried, neighbours))
        neighbours = min(_NEIGHBOURS, key=lambda tried: _left_out_error(points, judged, metric, tried))
    return metric, neighbours


def _left_out_error(points: _Points, judged: Indices, metric: Reals, neighbours: int) -> float:
    """Mean |ln measured / predicted| of the judged points, each predicted without itself."""
    predicted, own_weight = _regress(points, points.logs[judged], metric, neighbours)
    own_weight *= points.count[judged]  # At its own place a point's kernel weight is 1.
    left_out = (points.residual[judged] - predicted) / (1.0 - own_weight)
    return float(np.average(np.abs(left_out), weights=points.count[judged]))


def _regress(points: _Points, at: Reals, metric: Reals, neighbours: int) -> tuple[Reals, Reals]:
    """(Q,) local regression at `at` (Q, D), and (Q,) the weight that a sample right there would have in it."""
    weight = _weights(points, at, metric, neighbours)
    centre = points.logs.mean(axis=0)
    known, asked = _design(points.logs - centre), _design(at - centre)
    size = known.shape[1]
    products = (known[:, :, None] * known[:, None, :]).reshape(len(known), size * size)
    normal = (weight @ products).reshape(len(at), size, size) + _RIDGE * np.eye(size)
    influence = np.linalg.solve(normal, asked[:, :, None])[:, :, 0]
    moments = weight @ (known * points.residual[:, None])
    return (influence * moments).sum(axis=1), (influence * asked).sum(axis=1)


def _weights(points: _Points, at: Reals, metric: Reals, neighbours: int) -> Reals:
    """(Q, K): w_i of the module's docstring."""
    known, asked = points.logs * metric, at * metric
    squared = (asked**2).sum(axis=1)[:, None] + (known**2).sum(axis=1) - 2.0 * asked @ known.T
    order = min(neighbours, squared.shape[1] - 1)
    by_distance = np.partition(squared, [0, order], axis=1)
    nearest, bandwidth = by_distance[:, :1], np.maximum(by_distance[:, order : order + 1], _SMALLEST)
    weight: Reals = points.count * np.exp(-2.0 * (squared - nearest) / bandwidth)
    return weight


def _design(logs: Reals) -> Reals:
    return np.concatenate([np.ones((len(logs), 1)), logs], axis=1)
