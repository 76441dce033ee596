"""What the restricted master problem answers: GPUs of each column, what is short, and the prices of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.branching_rows import BranchingRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Duals:
    """Prices of the rows."""

    rps: Reals
    """(S,) USD per hour of one more rps wanted, ≥ 0."""
    presence: Reals
    """(S,) USD per hour of one more replica: duals of `least` and `most` together."""
    stock: Reals
    """(G,) ≤ 0"""
    replicas_value: float
    """Σ ν_s · fewest_s + Σ ξ_s · most_s: what the replica rows add to the dual objective."""
    stairs: Reals = field(default_factory=lambda: np.zeros((0, 0)))
    """(S, B + 1) USD per hour that the cuts pay for a replica, by how many of their edges it exceeds; empty where there
    are no cuts."""
    cuts_value: float = 0.0
    """Σ σ: what the cuts add to the dual objective."""
    free_value: float = 0.0
    """τ · free shortage, ≤ 0: what that adds."""
    limits: Mapping[BranchingRow, float] = field(default_factory=dict)
    """USD per hour of one more GPU of the kind, for the limits that hold."""
    watt_price: float = 0.0
    """ω ≥ 0, USD per hour that a watt more would save, besides what the energy costs."""
    watts_value: float = 0.0
    """−ω · power budget: what that adds to the dual objective."""

    @property
    def rows_value(self) -> float:
        """What all rows but those of rates, stock and limits add to the dual objective."""
        replicas_and_cuts = self.replicas_value + self.cuts_value
        return replicas_and_cuts + self.free_value + self.watts_value


def replica_duals(prices: Reals, services: int) -> tuple[Reals, Reals]:
    """(S,) duals of the fewest replicas, ≥ 0, and of the most, ≤ 0, where these rows come after those of the rates."""
    # Each is cut to the sign that its row allows: a rounding error must not make a bound too good.
    min_value = np.maximum(prices[services : 2 * services], 0.0)
    max_value = np.minimum(prices[2 * services : 3 * services], 0.0)
    return min_value, max_value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """An optimum of the restricted master."""

    objective: float
    counts: Reals
    """(columns,) GPUs of each column, in the order of their adding."""
    shortage_rps: Reals
    """(S,)"""
    replicas_missing: Reals
    """(S,)"""
    idle: Reals
    """(M,) GPUs of each mode that stand idle only because limits ask for them."""
    cuts_missing: Reals
    """(S,) by which cuts of the service fall short, all together."""
    limits_missing: float
    """GPUs by which limits fall short of their low sides."""
    duals: Duals
