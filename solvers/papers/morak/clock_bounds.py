"""Clock bounds: the least clock that meets a latency, and the highest that keeps a power cap.

The inverse of any latency and power prediction over the clocks that a GPU type offers. Where the latency falls and the
power rises with the clock, every clock between the two keeps both, and none does where the least is above the highest.
Source: Morak §V (constraints 3 and 4), whose governor searches by feedback what is read off the predictions here.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from solvers.predict.data.samples import Queries, Reals

Predict: TypeAlias = Callable[[Queries], Reals]
"""Queries (N rows) to (N,) values, e.g. functools.partial(technique.predict, coefficients)."""


def min_clock(
    latency_ms: Predict,
    queries: Queries,
    *,
    clocks_mhz: Sequence[float],
    limit_ms: npt.ArrayLike,
) -> Reals:
    """(N,) the least of the clocks at which the predicted latency is at most the limit; NaN where none is enough.

    The queries' own clocks are not looked at. `limit_ms`: one, or (N,). Clocks in any order. The latency is predicted
    once, for all rows at all clocks; it need not fall with the clock. Raises ValueError without clocks.
    """
    clocks = _ascending(clocks_mhz)
    meets = _at_clocks(latency_ms, queries, clocks) <= _column(limit_ms)
    return np.where(meets.any(axis=1), clocks[meets.argmax(axis=1)], np.nan)


def highest_clock(
    power_w: Predict,
    queries: Queries,
    *,
    clocks_mhz: Sequence[float],
    cap_w: npt.ArrayLike,
) -> Reals:
    """(N,) the highest of the clocks at which the predicted watts are at most the cap; NaN where all exceed it.

    As `min_clock`; `cap_w` is one, or (N,).
    """
    clocks = _ascending(clocks_mhz)[::-1]
    keeps = _at_clocks(power_w, queries, clocks) <= _column(cap_w)
    return np.where(keeps.any(axis=1), clocks[keeps.argmax(axis=1)], np.nan)


def _at_clocks(predict: Predict, queries: Queries, clocks: Reals) -> Reals:
    """(N, K) predictions for every query at every clock."""
    rows = np.repeat(np.arange(len(queries)), len(clocks))
    repeated = replace(queries.take(rows), clock_mhz=np.tile(clocks, len(queries)))
    return predict(repeated).reshape(len(queries), len(clocks))


def _ascending(clocks_mhz: Sequence[float]) -> Reals:
    if not len(clocks_mhz):
        raise ValueError(
            "no clocks to choose from: name at least one of the GPU type's clocks_mhz"
        )
    return np.sort(np.asarray(clocks_mhz, dtype=np.float64))


def _column(values: npt.ArrayLike) -> Reals:
    return np.asarray(values, dtype=np.float64).reshape(-1, 1)
