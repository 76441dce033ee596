"""Rounding cuts: what whole GPUs imply that fractions of GPUs do not.

With z = capacity of a replica over the service's rate, capped at 1, all of the rate is served only if Σ z_p x_p ≥ 1.
Multiply by k(1 + ε), round the coefficients up, which whole x_p allow, then the right side (Chvátal and Gomory):

    Σ_p ⌈k(1 + ε) z_p⌉ x_p ≥ k + 1          k = 1, 2, …

For k = 1: a replica that carries the whole rate counts 2, any other 1, and 2 are wanted: either one that carries all or
two that do not. The linear relaxation of the plain rows would buy 1.1 replicas of capacity 0.9.

A replica's coefficient is a rising step function of its capacity, so the bounds of pricing stay bounds. The cuts hold
only for plans that serve everything: the least shortage would satisfy them.
"""

from fractions import Fraction
from typing import Final

import numpy as np

from solvers.joint.tables import Numbers, Reals

MOST = 5
"""Multiples k. On 16 GPUs and 12 services k = 1 raises the relaxation by 3 %, up to 5 by 4.4 %; more add little."""
_EPSILON = 1e-5
"""Above what plan checks tolerate: a replica that lacks less of the rate counts as carrying all."""
_FRACTIONS = sorted({Fraction(part, k) for k in range(1, MOST + 1) for part in range(1, k + 1)})
EDGES: Final[Reals] = np.array([float(one) for one in _FRACTIONS]) / (1.0 + _EPSILON)
"""(B,) parts of the rate above which some coefficient is greater."""
STEPS: Final[Reals] = np.array([[1.0, *(float(int(k * one) + 1) for one in _FRACTIONS)] for k in range(1, MOST + 1)])
"""(MOST, B + 1) coefficient in each cut by how many edges the capacity exceeds; 0 without any capacity."""
WANTED: Final[Reals] = np.arange(2.0, MOST + 2.0)
"""(MOST,) right sides."""


def coefficients(capacity: Reals, rate: Reals) -> Reals:
    """(n, MOST) of replicas with (n,) capacities in the cuts of their services, which want (n,) rates."""
    levels: Numbers = (EDGES * rate[:, None] < capacity[:, None]).sum(axis=1).astype(np.int32)
    return np.where(capacity[:, None] > 0.0, STEPS[:, levels].T, 0.0)
