"""Profiling plan: which few conditions to measure next, so that the whole grid of a network becomes known best.

A Gaussian process without measurements already knows how sure it would be after measuring somewhere: its posterior
variance depends on where one measures, not on what comes out. Greedily, the next point is the one that takes most
variance from the whole grid (A-optimal design; Krause, Singh and Guestrin, "Near-optimal sensor placements in Gaussian
processes", JMLR 9, 2008, for why greedy is good enough).
"""

import numpy as np

from solvers.predict.data.samples import Queries, Reals
from solvers.predict.latency.conditions import (
    BATCH,
    CLOCK_MHZ,
    SM_PERCENT,
    highest_clock_mhz,
    log_conditions,
)
from solvers.types.errors import InvalidInput

MAX_POINTS = 16
"""A network is worth that many minutes of a GPU, no more."""
MAX_GRID = 2000
"""The covariance of the grid is a dense matrix: 32 MB at this size."""

_DEVIATION = 0.3
"""Standard deviation of ln latency around its trend: what measured curves of different networks differ by once level
and slopes fit."""
_TREND_DEVIATION = 2.0
"""Standard deviation of ln level and of the slopes in ln batch, ln share and ln clock, before anything is known."""
_NOISE = 0.03
"""Standard deviation of one measurement of ln latency."""
_LENGTHS = (1.4, 0.7, 0.3)
"""Distances in ln batch, ln share and ln clock over which a curve keeps its shape: two doublings of the batch, one of
the share (where the knee lies), and about a third of the clock's range."""


def make_profiling_plan(
    grid: Queries, *, done: Queries, count: int = MAX_POINTS
) -> Queries:
    """At most `count` rows of the grid, the most informative first, given the conditions that were measured already.

    Grid and `done` are of one network on one GPU type, alone. A row of the grid is proposed at most once; fewer rows
    come back when the grid has no more. Raises InvalidInput for a count above MAX_POINTS and a grid above
    MAX_GRID. Time: O(count · rows²).
    """
    if not 0 <= count <= MAX_POINTS:
        raise InvalidInput("count", f"must be 0 to {MAX_POINTS}, not {count}")
    if len(grid) > MAX_GRID:
        raise InvalidInput(
            "grid", f"has {len(grid)} conditions; thin it to at most {MAX_GRID}"
        )
    # Sorted, so that ties (the grid is often symmetric) do not depend on the caller's order.
    highest = max(highest_clock_mhz(grid), highest_clock_mhz(done))
    grid = grid.take(np.lexsort(_features(grid, highest).T))
    covariance = _posterior(_features(grid, highest), _features(done, highest))
    chosen = _choose_greedily(covariance, min(count, len(grid)))
    return grid.take(np.array(chosen, dtype=np.intp))


def _choose_greedily(covariance: Reals, count: int) -> list[int]:
    """Rows that take most variance from all of them, one after the other; the covariance is used up."""
    is_free = np.ones(len(covariance), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < count:
        # What is left of the variance of all rows after measuring row i falls by column i's squares over its variance.
        gain = (covariance**2).sum(axis=0) / (np.diag(covariance) + _NOISE**2)
        # Rounded, so that rows that tie by symmetry tie on every machine.
        best = int(np.argmax(np.where(is_free, np.round(gain, 12), -np.inf)))
        column = covariance[:, best].copy()
        covariance -= np.outer(column, column) / (column[best] + _NOISE**2)
        is_free[best] = False
        chosen.append(best)
    return chosen


def _features(queries: Queries, highest_mhz: float) -> Reals:
    """(N, 3) logarithms of batch, share and clock, each over its length; an unknown clock is the highest."""
    logs = log_conditions(queries, highest_clock_mhz=highest_mhz)
    features: Reals = logs[:, [BATCH, SM_PERCENT, CLOCK_MHZ]] / np.array(_LENGTHS)
    return features


def _prior(one: Reals, other: Reals) -> Reals:
    """(N, M) covariance of ln latency: a trend in the logarithms plus a smooth deviation from it."""
    distance = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2)
    trend = 1.0 + (one * np.array(_LENGTHS)) @ (other * np.array(_LENGTHS)).T
    near = np.exp(-distance / 2.0)
    return np.asarray(_TREND_DEVIATION**2 * trend + _DEVIATION**2 * near)


def _posterior(grid: Reals, done: Reals) -> Reals:
    """(N, N) covariance of the grid's ln latencies once the conditions `done` were measured."""
    centre = grid.mean(axis=0) if len(grid) else 0.0
    grid, done = grid - centre, done - centre
    covariance = _prior(grid, grid)
    if not len(done):
        return covariance
    cross = _prior(grid, done)
    measured = _prior(done, done) + _NOISE**2 * np.eye(len(done))
    return covariance - cross @ np.linalg.solve(measured, cross.T)
