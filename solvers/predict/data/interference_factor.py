"""The interference factor: by how much neighbours stretch a replica's latency, and what a technique for it looks like.

    factor = latency next to the neighbours / latency alone under the same conditions

It is 1 for a replica that is alone and at least 1 in truth; measured ones may lie a little below. An interference
technique learns all networks of one GPU type together, since every pair tells about two networks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import Indices, Queries, Reals, Samples

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

    def predict(
        self, coefficients: Coefficients, queries: Queries, alone_ms: Reals
    ) -> Reals:
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
        raise ValueError(
            f"interference is fitted for one GPU type at a time, got {', '.join(gpu_types)}"
        )
    is_measured = np.isfinite(samples.latency_ms) & (samples.latency_ms > 0.0)
    rows = np.flatnonzero((neighbour_counts(samples.at) > 0) & is_measured)
    if not len(rows):
        raise TooFewSamples(
            "no sample has neighbours: nothing to learn interference from"
        )
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
    clipped = np.clip(factors, MIN_FACTOR, MAX_FACTOR)
    return np.where(neighbour_counts(queries) > 0, clipped, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """The neighbours of all rows, one after the other: K pairs of a row and one of its neighbours."""

    row: Indices
    """(K,) which query this is a neighbour of."""
    network: tuple[str, ...]
    batch: Reals
    sm_percent: Reals
    rows: int
    """Number of queries N."""

    def sum_per_row(self, values: Reals) -> Reals:
        """(N,) or (N, C) sums over each row's neighbours of values (K,) or (K, C)."""
        if values.ndim > 1:
            return np.stack([self.sum_per_row(column) for column in values.T], axis=1)
        # Without any pair `bincount` counts in integers, whatever the weights are.
        sums = np.bincount(self.row, weights=values, minlength=self.rows)
        return np.asarray(sums, dtype=np.float64)


def pairs_of(queries: Queries) -> Pairs:
    """The neighbours of these queries in columns."""
    counts = neighbour_counts(queries)
    everybody = list(chain.from_iterable(queries.neighbours)) if counts.any() else []
    batches = [neighbour.batch for neighbour in everybody]
    shares = [neighbour.sm_percent for neighbour in everybody]
    return Pairs(
        row=np.repeat(np.arange(len(queries), dtype=np.intp), counts),
        network=tuple([neighbour.network for neighbour in everybody]),
        # The type is stated, since an empty list would make integers or objects.
        batch=np.array(batches, dtype=np.float64),
        sm_percent=np.array(shares, dtype=np.float64),
        rows=len(queries),
    )


def networks_in(*columns: Iterable[str]) -> tuple[str, ...]:
    """The names that occur in any of these columns, sorted."""
    return tuple(sorted({network for column in columns for network in column}))


def positions(networks: Sequence[str], known: Sequence[str]) -> Indices:
    """(K,) position of each network among the M known ones; M for one that is not known."""
    index = {network: position for position, network in enumerate(known)}
    # M is the row that every table of a technique keeps for unknown networks.
    unknown = len(known)
    found = [index.get(network, unknown) for network in networks]
    return np.array(found, dtype=np.intp)
