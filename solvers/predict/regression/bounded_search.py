"""Bounded search: parameters >= 0 whose residuals are minimal, found to the last digits.

    minimise Σ outlier² · (√(1 + (r / outlier)²) − 1)   over 0 <= x <= highest

The loss is the soft absolute error: a residual beyond `outlier` counts with its size, not with its square. Steps are
damped (Levenberg, Marquardt), taken among the parameters that no bound holds, and cut off at the bounds (Bertsekas
1982, "Projected Newton methods for optimization problems with simple constraints"). While they gain much, they follow
the slopes alone (Gauss, Newton); then the full curvature, whose negative directions are turned round, and they end
where no slope is left. So neither the unit of samples nor the rounding of a machine decides how far the search comes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from solvers.predict.data.samples import Reals

Flags = npt.NDArray[np.bool_]

_MAX_STEPS = 300  # Ten to forty are usual.
# Largest slope of the loss along a free parameter at which the search ends.
_SETTLED = 1e-12
_MIN_STEP = 1e-13  # Of every parameter: smaller ones are rounding.
_FIRST_DAMPING, _MIN_DAMPING, _MAX_DAMPING = 1e-3, 1e-13, 1e6
_EASED, _RAISED = 0.1, 4.0  # The damping after a step that was taken, or refused.
_MUCH = 0.0005  # Of the loss: while a step gains more, the full curvature is not worth its price.
_MIN_CURVATURE = 1e-9  # So that a step ends somewhere along a direction in which the loss is straight.
_MAX_TURNS = 1000  # Of what is held and what is free within one step; a few are usual.
_MIN_FALL = 1e-4  # Of what the slopes promise (Armijo).
_ROUNDING = 1e-14  # Of the loss: a rise by less is none.
_KEPT = 0.3
"""Share of a parameter that a step which gains much leaves: at 0 a power of it has no slope that would lead away."""
_DIFFERENCE = 1e-6  # Of a parameter, for the curvature; it guides the steps and does not move where they end.


class _Point(NamedTuple):
    """Parameters (P,) on the way, and what was found there."""

    x: Reals
    loss: float
    gradient: Reals
    """(P,)"""
    slopes: Reals
    """(N, P) of the residuals, weighed so that their products are the curvature of the loss but for their own bend."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundedSearch:
    """What is searched."""

    residuals: Callable[[Reals], Reals]
    """(N,) of (P,) parameters, each of which is about 1."""
    slopes: Callable[[Reals], Reals]
    """(N, P) their derivatives."""
    highest: Reals
    """(P,) upper bounds, > 0."""
    outlier: float

    def find(self, start: Reals) -> Reals:
        """(P,) the parameters at the bottom of the valley in which `start` (P,) lies."""
        at = self._evaluate(np.clip(start, 0.0, self.highest))
        damping = _FIRST_DAMPING
        is_exact = False
        for _ in range(_MAX_STEPS):
            # At a bound only a slope that leads back inside frees a parameter.
            is_at_zero = (at.x <= 0.0) & (at.gradient > 0.0)
            is_at_bound = (at.x >= self.highest) & (at.gradient < 0.0)
            is_free = ~(is_at_zero | is_at_bound)
            if np.abs(at.gradient[is_free]).max(initial=0.0) <= _SETTLED:
                break
            before = at
            at, damping = self._step(
                before, damping, is_free=is_free, is_exact=is_exact
            )
            if is_exact and np.abs(at.x - before.x).max() <= _MIN_STEP:
                break
            is_exact = is_exact or before.loss - at.loss < _MUCH * before.loss
        return at.x

    def _step(
        self, at: _Point, damping: float, *, is_free: Flags, is_exact: bool
    ) -> tuple[_Point, float]:
        """The next point, and the damping to try there first."""
        slopes = at.slopes[:, is_free]
        curvature = self._curvature(at, is_free) if is_exact else slopes.T @ slopes
        strengths, directions = np.linalg.eigh(curvature)
        lowest = np.zeros(len(at.x)) if is_exact else _KEPT * at.x
        above = directions.T @ (at.x - lowest)[is_free]
        along = directions.T @ at.gradient[is_free]
        while damping <= _MAX_DAMPING:
            # Minimum of the parabola that has this curvature, among what no bound forbids.
            roots = np.sqrt(np.maximum(np.abs(strengths), _MIN_CURVATURE) + damping)
            moved = at.x.copy()
            parabola = (roots[:, None] * directions.T, roots * above - along / roots)
            moved[is_free] = lowest[is_free] + nnls(*parabola, maxiter=_MAX_TURNS)[0]
            moved = np.minimum(moved, self.highest)
            if self._is_accepted(at, moved):
                return self._evaluate(moved), max(_EASED * damping, _MIN_DAMPING)
            damping *= _RAISED
        # No damping makes the step acceptable: the next round tries the exact curvature, or the search ends.
        return at, _FIRST_DAMPING

    def _is_accepted(self, at: _Point, moved: Reals) -> bool:
        """Whether a step lowers the loss by enough of what the slopes promise, but for rounding."""
        promised = float(at.gradient @ (at.x - moved))
        allowed = at.loss - _MIN_FALL * promised + _ROUNDING * at.loss
        return self._loss(self.residuals(moved)) <= allowed

    def _evaluate(self, x: Reals) -> _Point:
        residuals = self.residuals(x)
        slopes = self.slopes(x)
        widened = self._widened(residuals)
        return _Point(
            x,
            self._loss(residuals),
            (residuals / widened) @ slopes,
            slopes / widened[:, None] ** 1.5,
        )

    def _loss(self, residuals: Reals) -> float:
        # The docstring's sum, without a difference that would cancel.
        return float(np.sum(residuals**2 / (1.0 + self._widened(residuals))))

    def _widened(self, residuals: Reals) -> Reals:
        return np.asarray(np.sqrt(1.0 + (residuals / self.outlier) ** 2))

    def _curvature(self, at: _Point, is_free: Flags) -> Reals:
        """(F, F) second derivatives of the loss along the free parameters, by differences of the gradient."""
        rows = []
        for parameter in np.flatnonzero(is_free):
            moved = at.x.copy()
            moved[parameter] += _DIFFERENCE
            change = (self._evaluate(moved).gradient - at.gradient)[is_free]
            rows.append(change / _DIFFERENCE)
        # Differences are slightly unsymmetric, which the eigenvectors of a symmetric matrix must not be.
        curvature = np.array(rows)
        return np.asarray(0.5 * (curvature + curvature.T))
