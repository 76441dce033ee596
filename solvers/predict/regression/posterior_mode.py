"""Posterior mode: least squares that few samples cannot lead astray.

Every parameter has a normal prior, so that what the samples do not determine stays at a plausible value; large
residuals count with their size and not with its square (pseudo-Huber), so that a wrong sample pulls no harder than a
few right ones. Parameters are to be logarithms or logits of what must be positive or a share: all reals are allowed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
from scipy import optimize

from solvers.predict.data.samples import Reals

OUTLIER_FROM = 3.0
"""Standard deviations from which a residual counts with its size only."""
MAX_STEPS = 300
"""Steps of one local search; twice what measured samples need, so that absurd ones cannot hold it up."""
SETTLED = 1e-9
"""Largest slope of the loss, and largest relative step, with which a search ends: its rounding decides nothing then."""
MIN_FALL = 1e-15
"""Relative fall of the loss: so flat are valleys whose bottom is not yet reached."""
_STEP = 1e-30
"""Along the imaginary axis; its square is lost next to any number."""


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

    `residuals` gives, for (M,) parameters, deviations in units of their standard deviation, of any number N; it is made
    of functions that numpy has for complex numbers too. `slopes` gives their (N, M) derivatives; without it they are
    found by evaluating the residuals M times.
    """

    def deviations(parameters: Reals) -> Reals:
        # A prior acts as one more measurement of its parameter; it is not tamed, so that no parameter runs away.
        from_prior = (parameters - priors.mean) / priors.sigma
        return np.concatenate((_tamed(residuals(parameters)), from_prior))

    def deviation_slopes(parameters: Reals) -> Reals:
        own = _slopes(residuals, parameters) if slopes is None else slopes(parameters)
        tamed = _tamed_slopes(residuals(parameters))[:, np.newaxis] * own
        return np.vstack((tamed, np.diag(1.0 / priors.sigma)))

    search_from = partial(
        optimize.least_squares,
        deviations,
        jac=deviation_slopes,
        ftol=MIN_FALL,
        xtol=SETTLED,
        gtol=SETTLED,
        max_nfev=MAX_STEPS,
    )
    # Of equally good ends the first counts, which is the one from the priors' means.
    searches = map(search_from, (priors.mean, *starts))
    best: Reals = min(searches, key=lambda search: float(search.cost)).x
    return best


def slope_along(
    residuals: Callable[[Reals], Reals], parameters: Reals, direction: Reals
) -> Reals:
    """(N,) derivatives of the residuals along a direction (M,), to the last digits.

    By a step along the imaginary axis, where nothing is subtracted that could cancel. Source: Squire, Trapp 1998,
    "Using complex variables to estimate derivatives of real functions".
    """
    moved = parameters + 1j * _STEP * direction
    return np.asarray(residuals(cast(Reals, moved)).imag / _STEP)


def _slopes(residuals: Callable[[Reals], Reals], parameters: Reals) -> Reals:
    units = np.eye(len(parameters))
    return np.stack(
        [slope_along(residuals, parameters, unit) for unit in units], axis=1
    )


def _tamed(residuals: Reals) -> Reals:
    """Residuals whose squares are the pseudo-Huber loss; nearly unchanged while small."""
    return np.asarray(residuals * np.sqrt(2.0 / (1.0 + _widened(residuals))))


def _tamed_slopes(residuals: Reals) -> Reals:
    """Derivative of what is tamed in the residual; 1 at 0."""
    widened = _widened(residuals)
    return np.asarray(np.sqrt(0.5 * (1.0 + widened)) / widened)


def _widened(residuals: Reals) -> Reals:
    return np.asarray(np.sqrt(1.0 + (residuals / OUTLIER_FROM) ** 2))


_TAIL = 4.0  # ν. Neighbouring points of measured image networks differ by 3 % (median) but 5 % (root mean square).


def weigh(residuals: Reals) -> Reals:
    """Weights, at most 1.25, of residuals in standard deviations; of any shape."""
    return np.asarray((_TAIL + 1.0) / (_TAIL + residuals**2))


def loss(residuals: Reals) -> Reals:
    """Negative logarithms of the density, 0 at residual 0; their derivatives are weight · residual."""
    return np.asarray(0.5 * (_TAIL + 1.0) * np.log1p(residuals**2 / _TAIL))


def bend(residuals: Reals) -> Reals:
    """Second derivatives of the loss; negative where an outlier pulls the less, the further off it is."""
    squared = residuals**2
    return np.asarray((_TAIL + 1.0) * (_TAIL - squared) / (_TAIL + squared) ** 2)
