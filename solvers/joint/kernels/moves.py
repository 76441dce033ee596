"""One pass over all columns at hand: what a new GPU of each costs beyond what it is worth, its starts included.

c_p + κ f_p + ρ n_p − μ_g(p) − Σ_{s ∈ p} (π_s · min(a_sp, wanted_s) + ν_s + ξ_s) − Σ_{r ∈ p} σ_r    (`replanning.moves`)

Infinite where stock or most replicas forbid p.
"""

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.scan import Prices, Stack, reduced_costs
from solvers.joint.tables import Reals

Kinds = npt.NDArray[np.int64]


@compiled
def move_costs(stack: Stack, start_prices: Reals, kinds: Kinds, prices: Prices, kind_prices: Reals) -> Reals:
    """(C,) USD per hour.

    start_prices: (C,) κ f_p + ρ n_p. kinds: (C, N) position of each replica's kind among those that run, negative for
    others. kind_prices: (K,) σ_r.
    """
    costs = reduced_costs(stack, prices)
    for column in range(costs.shape[0]):
        costs[column] += start_prices[column]
        for at in range(kinds.shape[1]):
            if kinds[column, at] >= 0:
                costs[column] -= kind_prices[kinds[column, at]]
    return costs
