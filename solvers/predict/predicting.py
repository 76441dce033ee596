"""Predict: fits and queries → latencies (solo fit × interference factor) with intervals, power and memory."""

from collections.abc import Iterator

import numpy as np

from solvers.errors import InvalidInput
from solvers.predict.fit import LEVELS, Fit, Quality, Quantity
from solvers.predict.fits import Fits, Predictions, interference_group
from solvers.predict.interference.factor import neighbour_counts
from solvers.predict.samples import Company, Group, Indices, Queries, Reals
from solvers.predict.techniques import find_interference, find_learner


def predict_latency(fits: Fits, queries: Queries, *, coverage: float = 0.9) -> Predictions:
    """Execution times (N,) with the interval that holds the true one with that coverage.

    Raises InvalidInput with field `rows[i].network` where the fits know nothing of a query's network on its GPU type.
    """
    levels = (1.0 - coverage) / 2.0, (1.0 + coverage) / 2.0
    latency_ms, low, high = (np.empty(len(queries)) for _ in range(3))
    technique = np.empty(len(queries), dtype=object)
    for group, rows in queries.groups().items():
        fit = fits.find("latency_ms", group)
        if fit is None:
            raise InvalidInput(f"rows[{rows[0]}].network", _unknown(fits, group))
        latency_ms[rows] = predict_fit(fit, queries if len(rows) == len(queries) else queries.take(rows))
        low[rows], high[rows] = (latency_ms[rows] * ratio_quantile(fit.quality, level) for level in levels)
        technique[rows] = fit.technique
    for fit, rows in _companies(fits, queries):
        factor = find_interference(fit.technique).predict(fit.coefficients, queries.take(rows), latency_ms[rows])
        latency_ms[rows] *= factor
        low[rows], high[rows] = (latency_ms[rows] * ratio_quantile(fit.quality, level) for level in levels)
        technique[rows] = [f"{name}+{fit.technique}" for name in technique[rows]]
    return Predictions(latency_ms=latency_ms, latency_ms_low=low, latency_ms_high=high, technique=tuple(technique))


def predict_quantity(fits: Fits, quantity: Quantity, queries: Queries) -> Reals:
    """(N,) values of queries alone on their GPU; NaN where the quantity was not fitted for a query's group."""
    values = np.full(len(queries), np.nan)
    for group, rows in queries.groups().items():
        fit = fits.find(quantity, group)
        if fit is not None:
            values[rows] = predict_fit(fit, queries.take(rows))
    return values


def predict_fit(fit: Fit, queries: Queries) -> Reals:
    """(N,) what one fit says of queries of its group, neighbours not looked at."""
    return find_learner(fit.quantity, fit.technique).predict(fit.coefficients, queries)


def ratio_quantile(quality: Quality, level: float) -> float:
    """The quantile of measured / predicted at a level; between the known levels its logarithm is interpolated."""
    return float(np.exp(np.interp(level, LEVELS, np.log(quality.ratio_quantiles))))


def _companies(fits: Fits, queries: Queries) -> Iterator[tuple[Fit, Indices]]:
    """The rows with neighbours, by the interference fit that speaks for them."""
    rows = np.flatnonzero(neighbour_counts(queries) > 0)
    chosen: dict[tuple[Quantity, str], list[int]] = {}
    for row in rows.tolist():
        gpu_type = queries.gpu_type[row]
        fit = fits.find("interference", interference_group(gpu_type))
        if fit is None:
            problem = f"the fits know of no neighbours on {gpu_type}; fit samples that have `neighbours` there"
            raise InvalidInput(f"rows[{row}].neighbours", problem)
        chosen.setdefault((_speaker(fit, queries.neighbours[row]), gpu_type), []).append(row)
    for (quantity, gpu_type), members in chosen.items():
        fit = fits.find(quantity, interference_group(gpu_type)) or fits.find(
            "interference", interference_group(gpu_type)
        )
        assert fit is not None
        yield fit, np.array(members, dtype=np.intp)


def _speaker(fit: Fit, company: Company) -> Quantity:
    """Which of the two interference fits knows the company: a constant knows everybody, others whom they sampled."""
    sampled = fit.coefficients.labels.get("networks")
    is_known = sampled is None or all(neighbour.network in sampled for neighbour in company)
    return "interference" if is_known else "stranger_interference"


def _unknown(fits: Fits, group: Group) -> str:
    known = [" on ".join(fit.group) for fit in fits.of("latency_ms")]
    shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    return f"the fits know nothing of {' on '.join(group)}; they know {shown or 'no latency at all'}"
