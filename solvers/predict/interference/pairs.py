"""Pairs: every (row, neighbour) of queries as columns, so that techniques compute on whole arrays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from solvers.predict.interference.factor import neighbour_counts
from solvers.predict.samples import Indices, Queries, Reals


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
        if values.ndim == 1:
            sums: Reals = np.bincount(self.row, weights=values, minlength=self.rows).astype(np.float64, copy=False)
            return sums
        columns = [np.bincount(self.row, weights=column, minlength=self.rows) for column in values.T]
        return np.stack(columns, axis=1)


def pairs_of(queries: Queries) -> Pairs:
    """The neighbours of these queries in columns."""
    counts = neighbour_counts(queries)
    everybody = list(chain.from_iterable(queries.neighbours)) if counts.any() else []
    return Pairs(
        row=np.repeat(np.arange(len(queries), dtype=np.intp), counts),
        network=tuple([neighbour.network for neighbour in everybody]),
        batch=np.array([neighbour.batch for neighbour in everybody], dtype=np.float64),
        sm_percent=np.array([neighbour.sm_percent for neighbour in everybody], dtype=np.float64),
        rows=len(queries),
    )


def networks_in(*columns: Iterable[str]) -> tuple[str, ...]:
    """The names that occur in any of these columns, sorted."""
    return tuple(sorted({network for column in columns for network in column}))


def positions(networks: Sequence[str], known: Sequence[str]) -> Indices:
    """(K,) position of each network among the M known ones; M for one that is not known."""
    index: Mapping[str, int] = {network: position for position, network in enumerate(known)}
    unknown = len(known)
    return np.array([index.get(network, unknown) for network in networks], dtype=np.intp)
