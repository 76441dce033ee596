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
"""Coverage of the widest interval whose ends are both known."""
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
    rows = _PredictedRows(len(queries))
    for at in queries.groups().values():
        rows.set_alone(at, _alone(fits, queries, at, layers, levels))
    for fit, at in _neighbour_sets(fits, queries):
        rows.add_neighbours(at, fit, queries.take(at), levels)
    return rows.predictions()


class _PredictedRows:
    """The columns of N rows while they are filled in, group by group."""

    def __init__(self, count: int) -> None:
        self._latency_ms = np.empty(count)
        self._low, self._high, self._widening = (np.empty(count) for _ in range(3))
        self._technique = np.empty(count, dtype=object)
        self._is_estimated = np.zeros(count, dtype=bool)

    def set_alone(self, at: Indices, alone: AloneLatency) -> None:
        self._latency_ms[at] = alone.latency_ms
        self._low[at] = alone.low_ratio
        self._high[at] = alone.high_ratio
        self._widening[at] = alone.widening
        self._technique[at] = alone.technique
        self._is_estimated[at] = alone.technique in ESTIMATES

    def add_neighbours(
        self, at: Indices, fit: Fit, queries: Queries, levels: tuple[float, float]
    ) -> None:
        """Multiply rows, whose queries these are, by their factor, and judge what that does to their interval."""
        interference = find_interference(fit.technique)
        self._latency_ms[at] *= interference.predict(
            fit.coefficients, queries, self._latency_ms[at]
        )
        self._technique[at] += f"+{fit.technique}"

        # The fit's error is that of the whole chain at sampled conditions, for the networks that it saw next to others.
        # What is unsure of another network's latency alone, or far less sure, does not become surer next to neighbours.
        low = self._low[at]
        high = self._high[at]
        low_ratio, high_ratio = (ratio_quantile(fit.quality, level) for level in levels)
        max_width = MAX_WIDER * np.log(high_ratio / low_ratio)
        is_sampled = _is_sampled(fit, queries.network) & ~self._is_estimated[at]
        is_judged = is_sampled & (np.log(high / low) <= max_width)
        self._low[at] = np.where(is_judged, low_ratio, np.minimum(low, low_ratio))
        self._high[at] = np.where(is_judged, high_ratio, np.maximum(high, high_ratio))

    def predictions(self) -> Predictions:
        # A biased fit's quantiles may both lie on one side of what it says.
        low = widen(np.minimum(self._low, 1.0), self._widening)
        high = widen(np.maximum(self._high, 1.0), self._widening)
        return Predictions(
            latency_ms=self._latency_ms,
            latency_ms_low=self._latency_ms * low,
            latency_ms_high=self._latency_ms * high,
            technique=tuple(self._technique.tolist()),
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
        problem = f"must be above 0 and at most {WIDEST_COVERAGE:g}, not {coverage:g}"
        raise InvalidInput("coverage", problem)
    return (1.0 - coverage) / 2.0, (1.0 + coverage) / 2.0


def _alone(
    fits: Fits,
    queries: Queries,
    rows: Indices,
    layers: Mapping[str, LayerCounts],
    levels: tuple[float, float],
) -> AloneLatency:
    # Most calls ask for one group only, whose rows need not be copied: they are in order already.
    part = queries if len(rows) == len(queries) else queries.take(rows)
    try:
        return predict_alone(fits, part, layers=layers, levels=levels)
    except TooFewSamples as error:
        group = Group(part.network[0], part.gpu_type[0])
        raise InvalidInput(f"rows[{rows[0]}].network", _unknown(fits, group)) from error


def _neighbour_sets(fits: Fits, queries: Queries) -> Iterator[tuple[Fit, Indices]]:
    """The rows with neighbours, by the interference fit that speaks for them."""
    colocated = np.flatnonzero(neighbour_counts(queries) > 0)
    gpu_types = np.array([queries.gpu_type[row] for row in colocated.tolist()], object)
    for gpu_type in sorted(set(gpu_types.tolist())):
        rows = colocated[gpu_types == gpu_type]
        known = fits.interference(gpu_type)
        if known is None:
            problem = f"the fits know of no neighbours on {gpu_type}; fit samples that have `neighbours` there"
            raise InvalidInput(f"rows[{rows[0]}].neighbours", problem)
        unknown = fits.find("stranger_interference", interference_group(gpu_type))
        is_unknown = _is_beside_unknown(known, queries.take(rows))
        yield known, rows[~is_unknown]
        yield unknown or known, rows[is_unknown]


def _is_beside_unknown(fit: Fit, queries: Queries) -> Flags:
    """(N,) whether any neighbour is of a network that the fit has not seen; a constant would say so of all."""
    if "networks" not in fit.coefficients.labels:
        return np.zeros(len(queries), dtype=bool)
    pairs = pairs_of(queries)
    is_unknown = ~_is_sampled(fit, pairs.network)
    return np.asarray(pairs.sum_per_row(is_unknown.astype(np.float64)) > 0.0)


def _is_sampled(fit: Fit, networks: tuple[str, ...]) -> Flags:
    """(K,) whether an interference fit has seen these networks; a constant does not remember whom it saw."""
    sampled = fit.coefficients.labels.get("networks", ())
    return positions(networks, sampled) < len(sampled)


def _unknown(fits: Fits, group: Group) -> str:
    known = [" on ".join(fit.group) for fit in fits.of("latency_ms")]
    # A catalogue of hundreds of fits would hide the one line that matters.
    more = f" and {len(known) - 8} more" if len(known) > 8 else ""
    shown = ", ".join(known[:8]) + more
    return f"the fits know nothing of {' on '.join(group)}; they know {shown or 'no latency at all'}"
