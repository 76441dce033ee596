"""Posterior mode: least squares that few samples cannot lead astray.

Every parameter has a normal prior, so that what the samples do not determine stays at a plausible value; large
residuals count with their size and not with its square (pseudo-Huber), so that a wrong sample pulls no harder than a
few right ones. Parameters are to be logarithms or logits of what must be positive or a share: all reals are allowed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize

from solvers.predict.data.samples import Reals

OUTLIER_FROM = 3.0
"""Standard deviations from which a residual counts with its size only."""
MAX_STEPS = 100
"""Of one local search; three times what measured samples need, so that absurd ones cannot hold it up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priors:
    """Independent normal distributions of M parameters."""

    mean: Reals
    sigma: Reals


def posterior_mode(
    residuals: Callable[[Reals], Reals],
    priors: Priors,
    *,
    starts: tuple[Reals, ...] = (),
    slopes: Callable[[Reals], Reals] | None = None,
) -> Reals:
    """(M,) the most probable parameters, the best of local searches from the priors' means and from `starts`.

    `residuals` gives, for (M,) parameters, deviations in units of their standard deviation, of any number N. `slopes`
    gives their (N, M) derivatives; without it they are found by evaluating the residuals M times.
    """

    def deviations(parameters: Reals) -> Reals:
        return np.concatenate(
            (_tamed(residuals(parameters)), (parameters - priors.mean) / priors.sigma)
        )

    def deviation_slopes(parameters: Reals) -> Reals:
        assert slopes is not None
        tamed = _tamed_slopes(residuals(parameters))[:, np.newaxis] * slopes(parameters)
        return np.vstack((tamed, np.diag(1.0 / priors.sigma)))

    jacobian: Callable[[Reals], Reals] | Literal["2-point"] = (
        "2-point" if slopes is None else deviation_slopes
    )
    searches = [
        optimize.least_squares(deviations, start, jac=jacobian, max_nfev=MAX_STEPS)
        for start in (priors.mean, *starts)
    ]
    best: Reals = min(searches, key=lambda search: float(search.cost)).x
    return best


def _tamed(residuals: Reals) -> Reals:
    """Residuals whose squares are the pseudo-Huber loss; nearly unchanged while small."""
    squares = (
        2.0 * OUTLIER_FROM**2 * (np.sqrt(1.0 + (residuals / OUTLIER_FROM) ** 2) - 1.0)
    )
    tamed: Reals = np.copysign(np.sqrt(squares), residuals)
    return tamed


def _tamed_slopes(residuals: Reals) -> Reals:
    """Derivative of what is tamed in the residual; 1 at 0."""
    sizes = np.abs(_tamed(residuals))
    growth = np.abs(residuals) / np.sqrt(1.0 + (residuals / OUTLIER_FROM) ** 2)
    return np.divide(growth, sizes, out=np.ones_like(sizes), where=sizes > 0.0)


_TAIL = 4.0  # ν. Neighbouring points of measured image networks differ by 3 % (median) but 5 % (root mean square).


def weigh(residuals: Reals) -> Reals:
    """Weights, at most 1.25, of residuals in standard deviations; of any shape."""
    return np.asarray((_TAIL + 1.0) / (_TAIL + residuals**2))
