"""Batch by Gaussian process and lower confidence bound: few trials of an objective that is dear to try.

Sets         B candidates (batches), tried one after the other.
Parameters   x_b = log2 b; the values y of what was tried; LENGTH, NOISE; β_n.
Variables    the next candidate to try.
Objective    minimise μ(b) − √β_n · σ(b) over candidates not yet tried.
Constraints  fewer than 25 trials; a candidate that cannot keep its limits has no value, and counts as WORSE than any.

μ and σ are mean and standard deviation of a Gaussian process with kernel exp(−(x − x')² / (2 · LENGTH²)), by Cholesky
factorisation, on values scaled to mean 0 and variance 1. The search ends when no bound lies below the best value by
GAIN of it.

Source: Mudi (EuroSys 2025), "Adaptive batching", whose slide prints √β_n · √σ. With σ the standard deviation that is no
bound of anything (it depends on the unit of y, and shrinks too slowly); the bound is that of GP-UCB, μ − √β · σ
(Srinivas et al., ICML 2010), whose β_n = 2 ln(|B| n² π² / (6 δ)) this takes with δ = 0.1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve

from solvers.types.errors import InvalidInput

Reals = npt.NDArray[np.float64]

MAX_TRIALS = 24
"""Mudi needs fewer than 25."""
LENGTH = 1.0
"""The kernel's length, in doublings of the batch."""
NOISE = 1e-4
"""Variance of a value next to the process's 1: what is tried is computed, not measured."""
WORSE = 2.0
"""A candidate without a value is taken to be this many times as bad as the worst that has one."""
GAIN = 0.01
"""What may gain less than this part of the best value is not worth a trial."""
_DELTA = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate that was tried."""

    batch: int
    value: float | None
    """None: it cannot keep its limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LcbSearch:
    """What was tried, in its order."""

    trials: tuple[Trial, ...]

    @property
    def best(self) -> int | None:
        """The batch with the least value, of equals the smaller; None where none has one."""
        valued = [
            (trial.value, trial.batch)
            for trial in self.trials
            if trial.value is not None
        ]
        return min(valued)[1] if valued else None


def search_batch(
    batches: Sequence[int],
    value_of: Callable[[int], float | None],
    *,
    first: int | None = None,
) -> LcbSearch:
    """Try batches until none can be expected to be better; `first`: where to begin, else in the middle.

    Values must be ≥ 0. Raises InvalidInput for a batch below 1. At most MAX_TRIALS calls of `value_of`, each batch
    once; the order of `batches` changes nothing.
    """
    left = sorted(set(batches))
    if left and left[0] < 1:
        raise InvalidInput("batches", f"must be at least 1, not {left[0]}")
    trials: list[Trial] = []
    # First where the replica runs: if nothing is better, nothing has to change.
    following = first if first in left else None
    if following is None and left:
        following = left[len(left) // 2]
    while following is not None and len(trials) < MAX_TRIALS:
        left.remove(following)
        trials.append(Trial(batch=following, value=value_of(following)))
        following = _next(left, trials)
    return LcbSearch(trials=tuple(trials))


def posterior(tried: Reals, values: Reals, asked: Reals) -> tuple[Reals, Reals]:
    """Mean and standard deviation (M,) of a process with mean 0 and variance 1 at `asked` (M,), given values (N,)."""
    factor = np.linalg.cholesky(_kernel(tried, tried) + NOISE * np.eye(len(tried)))
    across = _kernel(tried, asked)
    mean: Reals = across.T @ cho_solve((factor, True), values)
    explained = np.linalg.solve(factor, across)
    # Rounding makes the variance of a candidate next to a tried one negative at times.
    return mean, np.sqrt(np.maximum(0.0, 1.0 - (explained**2).sum(axis=0)))


def lower_bounds(
    mean: Reals,
    deviation: Reals,
    *,
    trial: int,
    candidates: int,
) -> Reals:
    """μ − √β_n · σ with β_n of the `trial`-th trial (from 1 on) among `candidates`."""
    beta = 2.0 * math.log(candidates * trial**2 * math.pi**2 / (6.0 * _DELTA))
    bounds: Reals = mean - math.sqrt(beta) * deviation
    return bounds


def _next(left: Sequence[int], trials: Sequence[Trial]) -> int | None:
    """The candidate with the lowest bound; None where that is not worth a trial."""
    if not left:
        return None
    values = _filled(trials)
    best = values.min()
    # Equal values, or a single one, tell nothing of how much they differ: then by as much as they are.
    spread = values.std() or best or 1.0
    # The process has mean 0 and variance 1, so that values are brought to that; log2, since batches double.
    mean, deviation = posterior(
        np.log2([trial.batch for trial in trials]),
        (values - values.mean()) / spread,
        np.log2(left),
    )
    bounds = lower_bounds(
        mean, deviation, trial=len(trials), candidates=len(left) + len(trials)
    )
    at = int(np.argmin(bounds))
    is_promising = values.mean() + spread * bounds[at] < best - GAIN * best
    return left[at] if is_promising else None


def _filled(trials: Sequence[Trial]) -> Reals:
    """(N,) values, with WORSE times the worst where there is none."""
    known = [trial.value for trial in trials if trial.value is not None]
    # A bad value instead of none, so that the process turns away from its neighbours, which are likely to fail as
    # well.
    worst = WORSE * max(known) if known else 1.0
    return np.array([worst if trial.value is None else trial.value for trial in trials])


def _kernel(one: Reals, other: Reals) -> Reals:
    kernel: Reals = np.exp(-0.5 * ((one[:, None] - other[None, :]) / LENGTH) ** 2)
    return kernel
