"""Constant interference: one factor per GPU type and number of neighbours, the same for all networks.

    factor(n neighbours) = median of latency / alone latency over the samples with n neighbours

Between counts that were seen the factor is interpolated from 1 at none; beyond the last one the part above 1 grows in
proportion to the count. It never falls with the count. Source: the simplest thing that can work; on measured V100
pairs it errs by 3.2 % where ignoring neighbours errs by 9 %, so every other technique is held against it.
Wins with a handful of samples or neighbours that are all alike; cannot tell partners apart.
"""

import numpy as np

from solvers.predict.data.fit import Coefficients
from solvers.predict.data.interference_factor import (
    clip_factors,
    known_rows,
    neighbour_counts,
)
from solvers.predict.data.samples import Queries, Reals, Samples


def fit(samples: Samples, alone_ms: Reals) -> Coefficients:
    """The factor of every number of neighbours among the samples; raises TooFewSamples where none is known."""
    rows = known_rows(samples, alone_ms)
    counts = neighbour_counts(samples.at)[rows]
    factors = samples.latency_ms[rows] / alone_ms[rows]
    seen = np.unique(counts)
    # The median, since one sample from a noisy host would otherwise decide a count with few samples.
    medians = np.array([np.median(factors[counts == count]) for count in seen])
    return Coefficients(
        arrays={
            "counts": seen.astype(np.float64),
            "factors": np.maximum.accumulate(np.maximum(medians, 1.0)),
        }
    )


def predict(coefficients: Coefficients, queries: Queries, alone_ms: Reals) -> Reals:  # noqa: ARG001  the same for any neighbours
    """(N,) factors; `alone_ms` does not matter here."""
    counts = neighbour_counts(queries).astype(np.float64)
    seen = np.concatenate(([0.0], coefficients.arrays["counts"]))
    factors = np.concatenate(([1.0], coefficients.arrays["factors"]))
    beyond = np.maximum(1.0, counts / seen[-1])
    growth = (np.interp(counts, seen, factors) - 1.0) * beyond
    return clip_factors(queries, 1.0 + growth)
