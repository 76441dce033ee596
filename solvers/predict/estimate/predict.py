"""Predict: fits and queries → latencies (alone × interference factor) with intervals, power and memory."""

from collections.abc import Iterator, Mapping

import numpy as np

from solvers.predict.data.fit import (
    LEVELS,
    Fit,
    Fits,
    Predictions,
    Quantity,
    TooFewSamples,
    interference_group,
)
from solvers.predict.data.interference_factor import (
    neighbour_counts,
    pairs_of,
    positions,
)
from solvers.predict.data.sample_checks import Flags, check_queries
from solvers.predict.data.sampled_range import widen
from solvers.predict.data.samples import Group, Indices, LayerCounts, Queries, Reals
from solvers.predict.data.techniques import (
    find_interference,
    predict_fit,
    ratio_quantile,
)
from solvers.predict.estimate.predict_alone import (
    ESTIMATES,
    AloneLatency,
    predict_alone,
)
from solvers.predict.interference.layer_counts import NO_LAYERS
from solvers.types.errors import InvalidInput

WIDEST_COVERAGE = 1.0 - 2.0 * LEVELS[0]
"""Of an interval whose ends are both known."""
MAX_WIDER = 2.0
"""Times an interference fit's interval up to which the interval alone is taken to be part of it, in logarithms: on
V100 pairs it is 1.0 to 1.5, and both together would hold 97 % instead of 90 %; with four samples per network it is 10
to 50, and the interference fit's own would hold half."""


def predict_latency(
    fits: Fits,
    queries: Queries,
    *,
    layers: Mapping[str, LayerCounts] = NO_LAYERS,
    coverage: float = 0.9,
) -> Predictions:
    """Execution times (N,) with the interval that holds the true one with that coverage, at most WIDEST_COVERAGE.

    A network without a fit on the GPU type is estimated where that can be done: from another type, or from its
    `layers` (by network). Outside the conditions at which it was sampled the interval is wider (`widening`). Raises
    InvalidInput with field `rows[i].column` for conditions that cannot be, and for networks and neighbours of which
    the fits know nothing.
    """
    check_queries(queries)
    levels = _levels(coverage)
    latency_ms, low, high, wider = (np.empty(len(queries)) for _ in range(4))
    technique, is_estimated = (
        np.empty(len(queries), dtype=object),
        np.zeros(len(queries), dtype=bool),
    )
    for group, rows in queries.groups().items():
        alone = _alone(fits, group, queries, rows, layers, levels)
        latency_ms[rows], low[rows], high[rows] = (
            alone.latency_ms,
            alone.low_ratio,
            alone.high_ratio,
        )
        wider[rows] = alone.widening
        technique[rows], is_estimated[rows] = (
            alone.technique,
            alone.technique in ESTIMATES,
        )
    for fit, rows in _neighbour_sets(fits, queries):
        neighbours = queries.take(rows)
        latency_ms[rows] *= find_interference(fit.technique).predict(
            fit.coefficients, neighbours, latency_ms[rows]
        )
        low_ratio, high_ratio = (ratio_quantile(fit.quality, level) for level in levels)
        # The fit's error is that of the whole chain at sampled conditions, for the networks that it saw next to others.
        # What is unsure of another network's latency alone, or far less sure, does not become surer next to neighbours.
        is_near = np.log(high[rows] / low[rows]) <= MAX_WIDER * np.log(
            high_ratio / low_ratio
        )
        is_judged = _is_sampled(fit, neighbours.network) & ~is_estimated[rows] & is_near
        low[rows] = np.where(is_judged, low_ratio, np.minimum(low[rows], low_ratio))
        high[rows] = np.where(is_judged, high_ratio, np.maximum(high[rows], high_ratio))
        technique[rows] += f"+{fit.technique}"
    return Predictions(
        latency_ms=latency_ms,
        # A biased fit's quantiles may both lie on one side of what it says.
        latency_ms_low=latency_ms * widen(np.minimum(low, 1.0), wider),
        latency_ms_high=latency_ms * widen(np.maximum(high, 1.0), wider),
        technique=tuple(technique.tolist()),
    )


def predict_quantity(fits: Fits, quantity: Quantity, queries: Queries) -> Reals:
    """(N,) values of queries alone on their GPU; NaN where the quantity was not fitted for a query's group."""
    values = np.full(len(queries), np.nan)
    for group, rows in queries.groups().items():
        fit = fits.find(quantity, group)
        if fit is not None:
            values[rows] = predict_fit(fit, queries.take(rows))
    return values


def _levels(coverage: float) -> tuple[float, float]:
    # The sum that gave WIDEST_COVERAGE is not exact.
    if not 0.0 < coverage <= WIDEST_COVERAGE + 1e-9:
        raise InvalidInput(
            "coverage",
            f"must be above 0 and at most {WIDEST_COVERAGE:g}, not {coverage:g}",
        )
    return (1.0 - coverage) / 2.0, (1.0 + coverage) / 2.0


def _alone(
    fits: Fits,
    group: Group,
    queries: Queries,
    rows: Indices,
    layers: Mapping[str, LayerCounts],
    levels: tuple[float, float],
) -> AloneLatency:
    part = queries if len(rows) == len(queries) else queries.take(rows)
    try:
        return predict_alone(fits, part, layers=layers, levels=levels)
    except TooFewSamples as error:
        raise InvalidInput(f"rows[{rows[0]}].network", _unknown(fits, group)) from error


def _neighbour_sets(fits: Fits, queries: Queries) -> Iterator[tuple[Fit, Indices]]:
    """The rows with neighbours, by the interference fit that speaks for them."""
    colocated = np.flatnonzero(neighbour_counts(queries) > 0)
    gpu_types = np.array(
        [queries.gpu_type[row] for row in colocated.tolist()], dtype=object
    )
    for gpu_type in sorted(set(gpu_types.tolist())):
        rows = colocated[gpu_types == gpu_type]
        known, strangers = (
            fits.find(quantity, interference_group(gpu_type))
            for quantity in ("interference", "stranger_interference")
        )
        if known is None:
            problem = f"the fits know of no neighbours on {gpu_type}; fit samples that have `neighbours` there"
            raise InvalidInput(f"rows[{rows[0]}].neighbours", problem)
        pairs = pairs_of(queries.take(rows))
        is_stranger = ~_is_sampled(known, pairs.network) & (
            "networks" in known.coefficients.labels
        )
        is_beside_stranger = pairs.sum_per_row(is_stranger.astype(np.float64)) > 0.0
        yield known, rows[~is_beside_stranger]
        yield strangers or known, rows[is_beside_stranger]


def _is_sampled(fit: Fit, networks: tuple[str, ...]) -> Flags:
    """(K,) whether an interference fit has seen these networks; a constant does not remember whom it saw."""
    sampled = fit.coefficients.labels.get("networks", ())
    return positions(networks, sampled) < len(sampled)


def _unknown(fits: Fits, group: Group) -> str:
    known = [" on ".join(fit.group) for fit in fits.of("latency_ms")]
    shown = ", ".join(known[:8]) + (
        f" and {len(known) - 8} more" if len(known) > 8 else ""
    )
    return f"the fits know nothing of {' on '.join(group)}; they know {shown or 'no latency at all'}"
