"""Predict: queries → latencies with intervals, and power and memory, from fits."""

import numpy as np

from solvers.errors import InvalidInput
from solvers.predict.fit import LEVELS, Fit, Quality, Quantity
from solvers.predict.fits import Fits, Predictions
from solvers.predict.samples import Queries, Reals
from solvers.predict.techniques import find_learner


def predict_latency(fits: Fits, queries: Queries, *, coverage: float = 0.9) -> Predictions:
    """Execution times (N,) with the interval that holds the true one with that coverage.

    Raises InvalidInput with field `rows[i].network` where the fits know nothing of a query's network on its GPU type.
    """
    return _predict_alone(fits, queries, coverage=coverage)


def predict_quantity(fits: Fits, quantity: Quantity, queries: Queries) -> Reals:
    """(N,) power_w or memory_mib; NaN where that was not fitted for a query's group."""
    values = np.full(len(queries), np.nan)
    for group, rows in queries.groups().items():
        fit = fits.find(quantity, group)
        if fit is not None:
            values[rows] = predict_fit(fit, queries.take(rows))
    return values


def predict_fit(fit: Fit, queries: Queries) -> Reals:
    """(N,) what one fit says of queries of its group."""
    return find_learner(fit.quantity, fit.technique).predict(fit.coefficients, queries)


def ratio_quantile(quality: Quality, level: float) -> float:
    """The quantile of measured / predicted at a level; between the known levels straight in ln ratio over level."""
    return float(np.exp(np.interp(level, LEVELS, np.log(quality.ratio_quantiles))))


def _predict_alone(fits: Fits, queries: Queries, *, coverage: float) -> Predictions:
    latency_ms, low, high = (np.empty(len(queries)) for _ in range(3))
    technique = np.empty(len(queries), dtype=object)
    for group, rows in queries.groups().items():
        fit = fits.find("latency_ms", group)
        if fit is None:
            raise InvalidInput(f"rows[{rows[0]}].network", _unknown(fits, *group))
        latency_ms[rows] = predict_fit(fit, queries.take(rows))
        low[rows] = latency_ms[rows] * ratio_quantile(fit.quality, (1.0 - coverage) / 2.0)
        high[rows] = latency_ms[rows] * ratio_quantile(fit.quality, (1.0 + coverage) / 2.0)
        technique[rows] = fit.technique
    return Predictions(latency_ms=latency_ms, latency_ms_low=low, latency_ms_high=high, technique=tuple(technique))


def _unknown(fits: Fits, network: str, gpu_type: str) -> str:
    known = [f"{fit.group.network} on {fit.group.gpu_type}" for fit in fits.of("latency_ms")]
    shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    return f"the fits know nothing of {network} on {gpu_type}; they know {shown}"
