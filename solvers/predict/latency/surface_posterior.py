"""The most probable surfaces of one network: how z of `launch_and_run` is found from samples of the maximum.

    u = argmin ½ |u|² + Σ loss(residual of z / noise),   z = mean + root · u,   root · rootᵀ = covariance

A few Gauss-Newton steps along an ever sharper maximum lead near it, for the maximum is not linear and a step from afar
would give a sample to the wrong surface. Newton steps then end where the gradient is 0, so that neither the unit of the
samples nor the rounding of a machine decides where. In u nothing is known but N(0, 1): the covariance is never
inverted, however alike its rows are. Nocedal, Wright 2006, "Numerical optimization", §3.1 (Armijo) and §3.4.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

from solvers.predict.data.samples import Reals
from solvers.predict.latency.launch_and_run import (
    SHARPNESS,
    Gaussian,
    SurfaceReadings,
    longer_of,
)
from solvers.predict.regression.posterior_mode import bend, loss, weigh

# A blunt maximum first: both surfaces then feel every sample.
_SHARPENING = (2.0, 3.5, 5.0, 6.5)
_PLAIN_STEPS = 3  # Without reweighting: before, a sample off the first guess would pass for an outlier.
# Of a full step; damps the flipping of a sample between the two surfaces.
_WEIGHED_STEP = 0.8
_MAX_STEPS = 100  # Of Newton; three to ten are usual.
_SETTLED = 1e-8
"""Length of the gradient at which the steps end: z is then about as near to where they go, in standard deviations."""
# Of what the gradient promises for a step (Armijo); else half of it is tried.
_MIN_FALL = 1e-4
_MAX_HALVINGS = 40
_BENT = 1e-6  # Of less than that the corner between the surfaces adds nothing to a step, as at most samples.
_ROUNDING = 1e-12  # Of the misfit: a rise by less is none.


class Posterior(NamedTuple):
    """z after N samples, and what the M-step of the population asks of them."""

    mode: Reals
    covariance: Reals
    squared_noise: float
    """Σ weight · expected squared residual of the logarithm."""


def find_posterior(
    readings: SurfaceReadings,
    measured: Reals,
    prior: Gaussian,
    *,
    start: Reals,
    noise: float,
    is_near: bool,
) -> Posterior:
    """The most probable z for (N,) measured logarithms of that noise; Laplace's covariance around it.

    `is_near`: the start is an earlier solution; the maximum is sharp and samples are weighed from the first step on.
    """
    search = _Search(
        run=readings.run @ prior.mean,
        launch=readings.launch @ prior.mean,
        run_slope=readings.run @ prior.root,
        launch_slope=readings.launch @ prior.root,
        measured=measured,
        noise=noise,
    )
    u = np.asarray(
        solve_triangular(prior.root, start - prior.mean, lower=True, check_finite=False)
    )
    at = search.descend(u if is_near else search.approach(u))
    factor = np.linalg.cholesky(_curvature((at.slope, at.weight)))
    half = solve_triangular(factor, prior.root.T, lower=True, check_finite=False)
    uncertain = solve_triangular(factor, at.slope.T, lower=True, check_finite=False)
    squared = float(at.weight @ (at.residual**2 + (uncertain**2).sum(axis=0)))
    return Posterior(
        prior.mean + prior.root @ at.u, np.asarray(half.T @ half), noise**2 * squared
    )


class _Point(NamedTuple):
    """A u (D,) on the way; all else in units of the noise."""

    u: Reals
    residual: Reals
    """(N,)"""
    weight: Reals
    """(N,)"""
    slope: Reals
    """(N, D) how the logarithms change with u."""
    gradient: Reals
    """(D,) of the misfit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Search:
    """The way to the u of least misfit."""

    run: Reals
    launch: Reals
    """(N,) either surface at u = 0."""
    run_slope: Reals
    launch_slope: Reals
    """(N, D) how they change with u."""
    measured: Reals
    noise: float

    def approach(self, u: Reals) -> Reals:
        """A few Gauss-Newton steps from a first guess."""
        for number, sharpness in enumerate(_SHARPENING):
            is_weighing = number >= _PLAIN_STEPS
            at = self._evaluate(u, sharpness=sharpness, is_weighing=is_weighing)
            step = _solve(_curvature((at.slope, at.weight)), at.gradient)
            u = u - (_WEIGHED_STEP if is_weighing else 1.0) * step
        return u

    def descend(self, u: Reals) -> _Point:
        """Newton steps to where the gradient is 0."""
        misfit = self._misfit(u)
        for _ in range(_MAX_STEPS):
            at = self._evaluate(u)
            if np.linalg.norm(at.gradient) <= _SETTLED:
                return at
            step = self._newton_step(at)
            promised = float(at.gradient @ step)
            for share in 0.5 ** np.arange(_MAX_HALVINGS):
                u = at.u - share * step
                moved = self._misfit(u)
                allowed = misfit - _MIN_FALL * share * promised
                if moved <= allowed + _ROUNDING * (1.0 + misfit):
                    break
            misfit = moved
        return self._evaluate(u)

    def _evaluate(
        self, u: Reals, *, sharpness: float = SHARPNESS, is_weighing: bool = True
    ) -> _Point:
        run, launch = self._surfaces(u)
        longer = longer_of(run, launch, sharpness)
        residual = (self.measured - longer) / self.noise
        weight = weigh(residual) if is_weighing else np.ones(len(residual))
        share = np.exp(sharpness * (run - longer))[:, None]
        slope = share * self.run_slope + (1.0 - share) * self.launch_slope
        slope = slope / self.noise
        return _Point(u, residual, weight, slope, u - (weight * residual) @ slope)

    def _newton_step(self, at: _Point) -> Reals:
        """The step of the full curvature where that is positive definite, or else Gauss and Newton's."""
        run, launch = self._surfaces(at.u)
        share = np.exp(SHARPNESS * (run - longer_of(run, launch, SHARPNESS)))
        bent = -at.weight * at.residual * SHARPNESS * share * (1.0 - share) / self.noise
        both = np.abs(bent) > _BENT
        difference = self.run_slope[both] - self.launch_slope[both]
        full = _curvature((at.slope, bend(at.residual)), (difference, bent[both]))
        try:
            return _solve(full, at.gradient)
        except LinAlgError:
            # Between the surfaces, or at outliers, the misfit may bend downwards.
            return _solve(_curvature((at.slope, at.weight)), at.gradient)

    def _surfaces(self, u: Reals) -> tuple[Reals, Reals]:
        return self.run + self.run_slope @ u, self.launch + self.launch_slope @ u

    def _misfit(self, u: Reals) -> float:
        longer = longer_of(*self._surfaces(u), SHARPNESS)
        residual = (self.measured - longer) / self.noise
        return float(0.5 * u @ u + loss(residual).sum())


def _curvature(*parts: tuple[Reals, Reals]) -> Reals:
    """(D, D) 1 + Σ slopeᵀ · diag(weight) · slope over (N, D) slopes and (N,) weights."""
    slopes, weights = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    curvature = (weights[:, None] * slopes).T @ slopes
    curvature[np.diag_indices_from(curvature)] += 1.0
    return np.asarray(curvature)


def _solve(curvature: Reals, gradient: Reals) -> Reals:
    """Raises LinAlgError where the curvature is not positive definite."""
    factor = cho_factor(curvature, lower=True, check_finite=False)
    return np.asarray(cho_solve(factor, gradient, check_finite=False))
