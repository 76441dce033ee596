"""Least squares for the pressure law: the unknowns that explain measured factors, held near a prior.

Unknowns   launch (2): per neighbour and base; s (M), w (M): sensitivity and weight of each network; c (4): the shape
Law        factor = 1 + launch_fraction · (launch_0 · replicas + launch_1)
                    + run_fraction · s_own · Σ_j w_j · (shapes_j · c)
Objective  Σ soft_L1((ln factor − ln measured) / NOISE)² + Σ soft_L1((unknown − centre) / spread)²; ln s, ln w around 0
Bounds     launch ≥ 0, c ≥ 0, |ln s| and |ln w| ≤ 3
A row whose latency alone is unknown enters with the mean of its condition taken off on both sides.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from solvers.predict.data.interference_factor import Pairs
from solvers.predict.data.samples import Indices, Reals

KNOWN = -1
"""Condition of a row whose alone latency is known: it needs no comparison with others."""

SHAPE_CENTRE = np.array([0.07, 0.02, 0.03, 0.0])
"""c without samples: about what iGniter's V100 pairs give; two replicas then slow each other by 7–13 %."""
_SHAPE_SPREAD = 0.1
_NETWORK_SPREAD = 0.5
"""Standard deviation of ln s and ln w: two networks in three lie within a factor 1.65 of the mean."""
_LAUNCH_SPREAD = 2.0
"""Around 0. V100: 3.7 per neighbour from three replicas on."""
_NOISE = 0.02
"""Relative standard deviation of a measured factor around the law."""
_MAX_LOG = 3.0
_STEP_INSIDE = 1e-3
"""The search starts this far inside the bounds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PressureProgram:
    """What the law needs to know of N rows with K pairs and M networks."""

    launch_fraction: Reals
    """(N,) launch time / alone latency."""
    run_fraction: Reals
    """(N,) run time / alone latency."""
    replicas: Reals
    """(N,) replicas on the GPU, this one included."""
    own: Indices
    """(N,) network of the row, 0..M−1."""
    pairs: Pairs
    other: Indices
    """(K,) network of the neighbour, 0..M−1."""
    shapes: Reals
    """(K, 4) what c multiplies."""
    networks: int
    """M."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unknowns:
    """Values of the unknowns."""

    launch: Reals
    sensitivity: Reals
    weight: Reals
    shape: Reals


def solve(
    formulation: PressureProgram, log_factors: Reals, conditions: Indices
) -> Unknowns:
    """The unknowns of least misfit.

    `log_factors` (N,): ln of measured / alone, or of the measured latency itself where the latter is unknown.
    `conditions` (N,): KNOWN, or a number shared by the rows that must have the same unknown alone latency.
    """
    centre, spread = _prior(formulation.networks)
    lowest, highest = _bounds(formulation.networks)

    def misfit(vector: Reals) -> Reals:
        errors = np.log(_factors(formulation, _named(vector))) - log_factors
        residuals = _relative(errors, conditions) / _NOISE
        return np.concatenate((residuals, (vector - centre) / spread))

    def slopes(vector: Reals) -> Reals:
        unknowns = _named(vector)
        factors = _factors(formulation, unknowns)
        log_slopes = _factor_slopes(formulation, unknowns) / factors[:, None]
        # Subtracting a mean is linear, so the slopes are treated in the same way.
        residual_slopes = _relative(log_slopes, conditions) / _NOISE
        return np.vstack((residual_slopes, np.diag(1.0 / spread)))

    start = np.clip(centre, lowest + _STEP_INSIDE, highest)
    solution = scipy.optimize.least_squares(
        misfit, start, jac=slopes, bounds=(lowest, highest), loss="soft_l1"
    )
    return _named(np.asarray(solution.x, dtype=np.float64))


def _prior(networks: int) -> tuple[Reals, Reals]:
    centre = np.concatenate((np.zeros(2 + 2 * networks), SHAPE_CENTRE))
    spreads = (_LAUNCH_SPREAD, _NETWORK_SPREAD, _SHAPE_SPREAD)
    return centre, np.repeat(spreads, _sizes(networks))


def _bounds(networks: int) -> tuple[Reals, Reals]:
    sizes = _sizes(networks)
    lowest = np.repeat((0.0, -_MAX_LOG, 0.0), sizes)
    return lowest, np.repeat((np.inf, _MAX_LOG, np.inf), sizes)


def _sizes(networks: int) -> tuple[int, int, int]:
    """How many unknowns are launch, logarithms of networks, and shape."""
    return 2, 2 * networks, 4


def _named(vector: Reals) -> Unknowns:
    networks = (len(vector) - 6) // 2
    return Unknowns(
        launch=vector[:2],
        sensitivity=np.exp(vector[2 : 2 + networks]),
        weight=np.exp(vector[2 + networks : 2 + 2 * networks]),
        shape=vector[2 + 2 * networks :],
    )


def _relative(values: Reals, conditions: Indices) -> Reals:
    """Values (N,) or (N, C), less the mean of their condition where the alone latency is unknown."""
    relative = values.copy()
    for condition in np.unique(conditions[conditions != KNOWN]):
        rows = conditions == condition
        relative[rows] -= values[rows].mean(axis=0)
    return relative


def _factors(formulation: PressureProgram, unknowns: Unknowns) -> Reals:
    shapes = formulation.shapes @ unknowns.shape
    pressures = unknowns.weight[formulation.other] * shapes
    delay = unknowns.launch[0] * formulation.replicas + unknowns.launch[1]
    launched = 1.0 + formulation.launch_fraction * delay
    strength = formulation.run_fraction * unknowns.sensitivity[formulation.own]
    return np.asarray(launched + strength * formulation.pairs.sum_per_row(pressures))


def _factor_slopes(formulation: PressureProgram, unknowns: Unknowns) -> Reals:
    """(N, 2 + 2M + 4) derivatives of the factors by launch, ln s, ln w and c."""
    pairs = formulation.pairs
    own = formulation.own
    other = formulation.other
    strength = formulation.run_fraction * unknowns.sensitivity[own]
    weights = unknowns.weight[other]
    pressures = weights * (formulation.shapes @ unknowns.shape)
    launch = formulation.launch_fraction
    by_launch = np.column_stack((launch * formulation.replicas, launch))
    by_s = np.zeros((pairs.rows, formulation.networks))
    by_s[np.arange(pairs.rows), own] = strength * pairs.sum_per_row(pressures)
    by_w = np.zeros_like(by_s)
    # Not `+=`, which would count a network only once where it is there twice.
    np.add.at(by_w, (pairs.row, other), strength[pairs.row] * pressures)
    shapes = pairs.sum_per_row(weights[:, None] * formulation.shapes)
    return np.hstack((by_launch, by_s, by_w, strength[:, None] * shapes))
