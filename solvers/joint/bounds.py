"""Lower bounds: what no plan can cost less than, from any duals and bounds on what patterns are worth under them.

Lagrange. Relax demand and replica rows at prices π, ν, ξ. What remains decomposes by GPU: a type of N_g GPUs can lower
the sum by at most N_g · max(0, W_g), where W_g bounds (worth of a pattern − price of an idle GPU) over its modes:

    cost ≥ Σ π_s λ_s + Σ ν_s m_s + Σ ξ_s M_s − Σ_g N_g · max(0, W_g)

Farley. A type with as many GPUs as wanted must have W_g ≤ 0. All prices are divided by the factor that makes it so;
worths shrink by at least that factor, since the watts in them are costs.

Both hold for plans that serve everything. With shortages priced as in the master they hold for cost + price of what is
not served, so a plan that leaves u unserved compares with bound − Σ price_s · u_s.
"""

import numpy as np

from solvers.joint.master import Demand, Duals
from solvers.joint.tables import Reals, Tables

_WHOLE_TOLERANCE = 1e-6
"""Of a GPU: a bound this near above a whole number of GPUs is taken for that number."""


def lower_bound(tables: Tables, demand: Demand, duals: Duals, worths: Reals) -> float:
    """The greater of what the duals prove; worths: (modes,) bounds on the worth of any pattern of each mode."""
    value = float(duals.rps @ demand.rate) + duals.replicas_value
    excess, factor = np.zeros(len(demand.stock)), 1.0
    for mode, worth in zip(tables.modes, worths, strict=True):
        if np.isinf(demand.stock[mode.gpu_type]):
            factor = max(factor, worth / mode.price)
    for mode, worth in zip(tables.modes, worths, strict=True):
        excess[mode.gpu_type] = max(excess[mode.gpu_type], worth / factor - mode.price)
    limited = np.isfinite(demand.stock)
    return value / factor - float(demand.stock[limited] @ excess[limited])


def whole_gpus(tables: Tables, bound: float) -> float:
    """The bound rounded up to whole GPUs, where all cost the same whatever runs on them."""
    prices = np.unique(tables.price)
    if len(prices) > 1 or any(mode.watt_price > 0.0 for mode in tables.modes):
        return bound
    return float(np.ceil(bound / prices[0] - _WHOLE_TOLERANCE) * prices[0])
