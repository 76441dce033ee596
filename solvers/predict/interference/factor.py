"""The interference factor: by how much neighbours stretch a replica's latency, and what a technique for it looks like.

    factor = latency next to the neighbours / latency alone under the same conditions

It is 1 for a replica that is alone and at least 1 in truth; measured ones may lie a little below. An interference
technique learns all networks of one GPU type together, since every pair tells about two networks.
"""

from typing import Protocol

import numpy as np

from solvers.predict.fit import Coefficients, TooFewSamples
from solvers.predict.samples import Indices, Queries, Reals, Samples

MIN_FACTOR = 0.95
"""No technique predicts less: 1 less the noise of measured pairs (their median standard deviation is 1 %)."""
MAX_FACTOR = 10.0
"""No technique predicts more: twice the worst mean measured without SM limits (4.1, A100), rounded up."""


class InterferenceTechnique(Protocol):
    """A module that learns factors of one GPU type."""

    def fit(self, samples: Samples, alone_ms: Reals) -> Coefficients:
        """Coefficients from samples of one GPU type; raises TooFewSamples.

        `alone_ms` (N,): the latency of each row without its neighbours, from a solo fit or measured; NaN = not known.
        Rows without neighbours may be among the samples: only their hardware counters are read.
        """
        ...

    def predict(self, coefficients: Coefficients, queries: Queries, alone_ms: Reals) -> Reals:
        """(N,) factors for queries of that GPU type, given their latencies alone (N,) > 0; 1 without neighbours."""
        ...


def neighbour_counts(queries: Queries) -> Indices:
    """(N,) how many neighbours each row has."""
    if not any(queries.neighbours):
        return np.zeros(len(queries), dtype=np.intp)
    return np.fromiter(map(len, queries.neighbours), dtype=np.intp, count=len(queries))


def colocated_rows(samples: Samples) -> Indices:
    """Positions of the rows with neighbours and a positive latency.

    Raises TooFewSamples when there are none, ValueError when the samples are of more than one GPU type.
    """
    gpu_types = sorted(set(samples.at.gpu_type))
    if len(gpu_types) > 1:
        raise ValueError(f"interference is fitted for one GPU type at a time, got {', '.join(gpu_types)}")
    is_measured = np.isfinite(samples.latency_ms) & (samples.latency_ms > 0.0)
    rows = np.flatnonzero((neighbour_counts(samples.at) > 0) & is_measured)
    if not len(rows):
        raise TooFewSamples("no sample has neighbours: nothing to learn interference from")
    return rows


def known_rows(samples: Samples, alone_ms: Reals) -> Indices:
    """Positions of the rows with neighbours whose latency alone is known; raises like `colocated_rows`."""
    rows = colocated_rows(samples)
    rows = rows[np.isfinite(alone_ms[rows]) & (alone_ms[rows] > 0.0)]
    if not len(rows):
        raise TooFewSamples("no sample with neighbours has a known latency alone")
    return rows


def clip_factors(queries: Queries, factors: Reals) -> Reals:
    """The factors (N,) within [MIN_FACTOR, MAX_FACTOR], and 1 where there are no neighbours."""
    return np.where(neighbour_counts(queries) > 0, np.clip(factors, MIN_FACTOR, MAX_FACTOR), 1.0)
