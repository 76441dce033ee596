"""Locally weighted regression: how the latency departs from its trend, read off the nearest samples.

    latency_ms(x) = trend(x) · exp(c0 + c · x),   x = (ln batch, ln SM share, ln clock, ln time quota)
    (c0, c) minimise Σ_i w_i (ln measured_i / trend(x_i) - c0 - c · x_i)² + ridge · |(c0, c)|²
    w_i = n_i · exp(-2 (|x - x_i|² - d²) / h²),   |x|² = Σ (metric_j · x_j)²

with d the distance to the nearest of the measured conditions, h that to the (k + 1)-th nearest, and n_i how often
condition i was measured (repetitions are averaged). The trend is the linear-fractional fit. The number k and the metric
are those with the least leave-one-out error, which linear regression gives in closed form: e_i / (1 - l_ii), l_ii the
weight of sample i in its own prediction. The correction is tabulated at a mesh of conditions and interpolated between.

Source: InSS, section on GPU running time (LWR over batch and p · SMs), after Cleveland & Devlin 1988. Ours: logarithms,
so that errors are relative and latencies positive; residuals of a trend instead of plain latencies, which a few
samples across two decades do not carry; Gaussian weights, which leave no query without neighbours. Wins from a dozen
samples on, where steps of the hardware or the host depart from any formula. Limits: not monotone; an outlier pulls its
neighbourhood; of four conditions that all vary, the mesh holds little more than the measured values. Outside the
measured range the correction stays what it is at the edge, and no correction exceeds the largest seen.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from solvers.predict.data.fit import Coefficients, nest, nested
from solvers.predict.data.samples import Indices, Queries, Reals, Samples
from solvers.predict.latency import linear_fractional
from solvers.predict.latency.conditions import (
    BATCH,
    Flags,
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
    refine,
)

_NEIGHBOURS = (2, 3, 4, 6, 9, 13, 20)
"""Candidates for k."""
_METRICS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Candidates for the weight of a condition's distance; the batch's is 1."""
_ROUNDS = 2  # Of choosing one after the other; a third changes nothing that leave-one-out can tell.
# The nearest sample weighs 1: so a tenth of a sample that lies on the trend.
_RIDGE = 0.1
_MAX_JUDGED = 150  # Samples that leave-one-out asks; more do not change the choice and cost their square.
_MAX_NODES = 2000  # Of the table: 24 kB of JSON.
_ENOUGH_NODES = 1000  # Up to this number, gaps between measured values are divided.
_MAX_VALUES = 40  # Measured values of one condition that become nodes.
_DIGITS = 7  # Decimals of a kept logarithm: rounding moves no latency by more than a ten-millionth.
_MAX_WEIGHTS = 2_000_000  # At once: 16 MB.
_SMALLEST = 1e-9  # Squared distances below are rounding: of conditions that differ in millionths.
_TREND = "linear_fractional"
"""The technique whose coefficients are nested in these; `techniques.py` names it too."""
_AXES = "axes"
"""Under this name the table's nodes are nested, by the number of their condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """What is regressed: K measured conditions, along the D of them that vary."""

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
    axes = _axes(points, metric)
    table = _tabulate(points, mesh_points(axes), metric, neighbours)
    by_column = dict(zip(columns.astype(str), axes, strict=True))
    return Coefficients(
        arrays={
            **nest(trend, _TREND),
            **nest(Coefficients(arrays=by_column), _AXES),
            "metric": metric,
            "neighbours": np.array(float(neighbours)),
            "log_correction": table.reshape([len(axis) for axis in axes]),
        }
    )


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) latencies in ms."""
    trend = nested(coefficients, _TREND)
    axes = nested(coefficients, _AXES).arrays
    highest_mhz = float(trend.arrays["highest_clock_mhz"])
    logs = log_conditions(queries, highest_clock_mhz=highest_mhz)
    columns = sorted(map(int, axes))
    along = tuple(axes[str(column)] for column in columns)
    table = coefficients.arrays["log_correction"]
    correction = interpolate(along, table, logs[:, columns])
    return linear_fractional.predict(trend, queries) * np.exp(correction)


def _axes(points: Points, metric: Reals) -> tuple[Reals, ...]:
    """Per condition the nodes of the table: measured values, and more where points are far apart by the metric."""
    measured = tuple(
        make_nodes(values, max_nodes=_MAX_VALUES) for values in points.logs.T
    )
    return refine(
        limit_nodes(measured, max_nodes=_MAX_NODES),
        scales=metric,
        max_nodes=_ENOUGH_NODES,
    )


def _tabulate(points: Points, at: Reals, metric: Reals, neighbours: int) -> Reals:
    """(M,) corrections at (M, D) conditions, within those seen."""
    parts = np.array_split(at, -(-len(at) * len(points.count) // _MAX_WEIGHTS))
    corrections = np.concatenate(
        [regress(points, part, metric, neighbours)[0] for part in parts]
    )
    # Within the range of the samples' residuals: a local line may lead far off between distant samples.
    bounded = np.clip(corrections, points.residual.min(), points.residual.max())
    return np.asarray(bounded.round(_DIGITS))


def _merge(logs: Reals, residual: Reals) -> Points:
    """Repetitions of a condition as one point."""
    distinct, point_of_row = np.unique(logs, axis=0, return_inverse=True)
    count = np.bincount(point_of_row).astype(np.float64)
    return Points(
        logs=distinct,
        residual=np.bincount(point_of_row, weights=residual) / count,
        count=count,
    )


def _choose(points: Points, *, is_batch: Flags) -> tuple[Reals, int]:
    """The metric (D,) and k with the least leave-one-out error, by turns from 1 and the middle k."""
    judged = np.unique(
        np.linspace(0, len(points.count) - 1, _MAX_JUDGED).astype(np.intp)
    )

    @cache
    def error(metric: tuple[float, ...], neighbours: int) -> float:
        return _left_out_error(points, judged, np.array(metric), neighbours)

    metric = (1.0,) * len(is_batch)
    neighbours = _NEIGHBOURS[len(_NEIGHBOURS) // 2]
    for _ in range(_ROUNDS):
        for column in np.flatnonzero(~is_batch):
            candidates = [
                (*metric[:column], value, *metric[column + 1 :]) for value in _METRICS
            ]
            metric = min(candidates, key=lambda tried: error(tried, neighbours))
        neighbours = min(_NEIGHBOURS, key=lambda tried: error(metric, tried))
    return np.array(metric), neighbours


def _left_out_error(
    points: Points, judged: Indices, metric: Reals, neighbours: int
) -> float:
    """Mean |ln measured / predicted| of the judged points, each predicted without itself."""
    predicted, own_weight = regress(points, points.logs[judged], metric, neighbours)
    own_weight *= points.count[judged]  # At its own place a point's kernel weight is 1.
    left_out = (points.residual[judged] - predicted) / (1.0 - own_weight)
    return float(np.average(np.abs(left_out), weights=points.count[judged]))


def regress(
    points: Points, at: Reals, metric: Reals, neighbours: int
) -> tuple[Reals, Reals]:
    """(Q,) local regression at `at` (Q, D), and (Q,) the weight that a sample right there would have in it."""
    weight = _weights(points, at, metric, neighbours)
    centre = points.logs.mean(axis=0)
    known = _design(points.logs - centre)
    asked = _design(at - centre)
    size = known.shape[1]
    products = (known[:, :, None] * known[:, None, :]).reshape(len(known), size * size)
    normal = (weight @ products).reshape(len(at), size, size) + _RIDGE * np.eye(size)
    influence = np.linalg.solve(normal, asked[:, :, None])[:, :, 0]
    moments = weight @ (known * points.residual[:, None])
    return (influence * moments).sum(axis=1), (influence * asked).sum(axis=1)


def _weights(points: Points, at: Reals, metric: Reals, neighbours: int) -> Reals:
    """(Q, K): w_i of the module's docstring."""
    known = points.logs * metric
    asked = at * metric
    squared = (
        (asked**2).sum(axis=1)[:, None] + (known**2).sum(axis=1) - 2.0 * asked @ known.T
    )
    order = min(neighbours, squared.shape[1] - 1)
    by_distance = np.partition(squared, [0, order], axis=1)
    nearest = by_distance[:, :1]
    bandwidth = np.maximum(by_distance[:, order : order + 1], _SMALLEST)
    weight: Reals = points.count * np.exp(-2.0 * (squared - nearest) / bandwidth)
    return weight


def _design(logs: Reals) -> Reals:
    return np.concatenate([np.ones((len(logs), 1)), logs], axis=1)
