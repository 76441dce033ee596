"""FTRL-Proximal: follow the leader among all gradients so far, held near every earlier point and near the start.

    w ← argmin  Σ_s g_s·w + ½ Σ_s ‖Q_s^½ (w − w_s)‖² + ½ λ₂ ‖w − c‖² + λ₁ ‖w − c‖₁

g_s gradients, w_s the weights at which they were taken, c the weights at the start. Two choices of Q are here:

* `CoordinateWeights`: Q diagonal, each coordinate with a learning rate of its own (OLTunes, Algorithm 1):
      n ← n + g²,   σ = (√n_new − √n_old) / η,   z ← z + g − σ (w − c),
      w = c − (z − sgn(z) λ₁) / ((ζ + √n) / η + λ₂)   where |z| > λ₁, else c.
  As printed the algorithm leaves out σ w, without which it is dual averaging: it forgets where it was and each step
  starts from the origin again. We take McMahan's form, whose steps are those of AdaGrad when λ₁ = λ₂ = 0.
* `RowWeights`: Q_s = x xᵀ, the curvature of the squared loss in one short row of weights (λ₁ = 0). The argmin is then
  ridge regression on all residuals so far, kept up to date by the Sherman-Morrison formula in O(m²). A row that sees
  few samples learns from each what there is to learn; a diagonal Q needs many passes for the same.

Source: McMahan, "Follow-the-Regularized-Leader and Mirror Descent" (AISTATS 2011), section 2, where Q_s is any positive
semidefinite matrix; OLTunes section 3.3.1. Weights start at c instead of 0, so that λ₁ and λ₂ pull towards what is
known before the first sample.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from solvers.predict.data.samples import Reals


@dataclass(frozen=True, slots=True, kw_only=True)
class FtrlRates:
    """How fast coordinates learn and what holds them."""

    eta: float
    """η > 0: scale of a coordinate's steps."""
    zeta: float
    """ζ > 0: damps the first steps."""
    l1: float = 0.0
    l2: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class CoordinateWeights:
    """Weights of any shape with a learning rate per coordinate; `step` changes them in place."""

    rates: FtrlRates
    start: Reals
    values: Reals
    gradient_sum: Reals
    """z: gradients so far, less the pull towards earlier points."""
    square_sum: Reals
    """n: squared gradients so far."""

    @classmethod
    def at(cls, start: Reals, rates: FtrlRates) -> Self:
        """Weights that have seen nothing."""
        start = np.array(start, dtype=np.float64)
        return cls(
            rates=rates,
            start=start,
            values=start.copy(),
            gradient_sum=np.zeros_like(start),
            square_sum=np.zeros_like(start),
        )

    def step(self, gradient: Reals) -> None:
        """One gradient, of the shape of the weights; coordinates with gradient 0 stay as they are."""
        rates = self.rates
        old_root = np.sqrt(self.square_sum)
        self.square_sum += gradient * gradient
        root = np.sqrt(self.square_sum)
        self.gradient_sum += (
            gradient - (root - old_root) * (self.values - self.start) / rates.eta
        )
        pull = self.gradient_sum
        if rates.l1:
            pull = np.sign(pull) * np.maximum(np.abs(pull) - rates.l1, 0.0)
        self.values = self.start - pull / ((root + rates.zeta) / rates.eta + rates.l2)


@dataclass(slots=True, kw_only=True, eq=False)
class RowWeights:
    """One short row of weights per target, learned with the full curvature; `step` changes them in place."""

    values: Reals
    """(targets, m)."""
    covariance: Reals
    """(targets, m, m) (λ₂ D + Σ x xᵀ)⁻¹."""

    @classmethod
    def at(cls, targets: int, penalty: Reals) -> Self:
        """Weights 0 that have seen nothing; penalty: (m,) λ₂ of each weight, > 0."""
        return cls(
            values=np.zeros((targets, len(penalty))),
            covariance=np.tile(np.diag(1.0 / penalty), (targets, 1, 1)),
        )

    def step(self, inputs: Reals, residual: Reals, clip: float) -> Reals:
        """Learn a residual (targets,) at inputs (targets, m); returns the residual (targets,) that is left.

        A residual beyond clip · √(1 + xᵀ C x) is cut off: far out for this row, as uncertain as it still is.
        """
        reach = np.matmul(self.covariance, inputs[:, :, None])[:, :, 0]
        spread = 1.0 + (inputs * reach).sum(axis=1)
        # A row that is hardly known may be far off; one that is known well is not moved by an outlier.
        limit = clip * np.sqrt(spread)
        taken = np.minimum(np.maximum(residual, -limit), limit)
        gain = reach / spread[:, None]
        self.values += gain * taken[:, None]
        self.covariance -= gain[:, :, None] * reach[:, None, :]
        return np.asarray(residual - taken * (1.0 - 1.0 / spread))
