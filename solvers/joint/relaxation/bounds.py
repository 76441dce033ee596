"""Lower bounds: what no plan can cost less than, from any duals and bounds on what patterns are worth under them.

Lagrange. Relax demand and replica rows at prices π, ν, ξ. What remains decomposes by GPU: a type of N_g GPUs can lower
the sum by at most N_g · max(0, W_g), where W_g bounds (worth of a pattern − price of an idle GPU) over its modes:

    cost ≥ Σ π_s λ_s + Σ ν_s m_s + Σ ξ_s M_s − Σ_g N_g · max(0, W_g)

Under branching limits the last sum is the least Σ_m (price_m − worth_m) · n_m over the counts n_m that the limits on
modes and types allow, and limits on kinds of patterns are relaxed at their duals like the other rows.

Farley. All prices may be scaled down by one factor t; worths shrink by at least as much, since the watts in them are
costs. The bound is concave and piecewise linear in t, with its kinks where some mode is worth just what it costs, so
that the best t is one of these. A type with as many GPUs as wanted must have W_g ≤ 0, which limits t.

A power budget of W watts is relaxed at ω: each GPU costs ω times its watts more, and the sum −ω·W is added.

Cuts (`cuts`) are rows like the others; with them a bound holds only for plans that serve everything.

Both hold for plans that serve everything. With shortages priced as in the master they hold for cost + price of what is
not served, so a plan that leaves u unserved compares with bound − Σ price_s · u_s.

Where the first F of Σ price_s · u_s cost nothing, that row is relaxed at τ in [0, 1], which allows π_s ≤ τ · price_s
and adds −τ · F: a bound on the cost alone of all plans that leave no more than F short.
"""

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.branching_rows import (
    NO_LIMITS,
    Limits,
    make_boxes,
    min_cost,
)
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation.master_solution import Duals

_TOLERANCE = 1e-6
"""A bound that exceeds a whole number of GPUs by less than this part of one is taken for that number."""


def lower_bound(
    tables: Tables,
    demand: CoverDemand,
    duals: Duals,
    worths: Reals,
    limits: Limits = NO_LIMITS,
) -> float:
    """What the duals prove; worths: (modes,) bounds on the worth of any pattern of each mode.

    Infinite when no plan is within the limits.
    """
    value = float(duals.rps @ demand.rate) + duals.rows_value
    value += _limits_value(duals, limits)
    boxes = make_boxes(tables, demand.stock, limits)
    gpu_types = tables.mode_types
    if duals.watt_price > 0.0:
        # What replicas draw is in their worths; the rest of a GPU's watts scales with the duals like these.
        worths = worths - duals.watt_price * tables.idle_w[gpu_types]
    prices = tables.mode_prices
    endless = np.isinf(boxes.type_high[gpu_types]) & np.isinf(boxes.mode_high)
    best = -np.inf
    for scale in _scales(prices, worths, endless):
        costs = prices - worths * scale
        # No endless mode is worth more than it costs at these scales, but for rounding.
        costs[endless] = np.maximum(costs[endless], 0.0)
        best = max(best, value * scale + min_cost(tables, boxes, costs))
    return best


def _scales(prices: Reals, worths: Reals, endless: npt.NDArray[np.bool_]) -> Reals:
    """Factors t at which Farley's bound may have its maximum: its kinks, and the ends of the range that is allowed."""
    scales = np.divide(prices, worths, out=np.ones(len(prices)), where=worths > prices)
    # An endless mode that is worth more than it costs would make the bound minus infinity.
    max_scale = scales[endless].min(initial=1.0)
    return np.unique(np.append(scales[scales <= max_scale], (0.0, max_scale)))


def _limits_value(duals: Duals, limits: Limits) -> float:
    """What limits on kinds of patterns add; those on whole modes and types are in the boxes."""
    total = 0.0
    for row, price in duals.limits.items():
        low, high = limits[row]
        # A limit of no GPUs is no relaxed row: pricing leaves its patterns out altogether.
        if row.ranges and high > 0.0:
            total += price * (low if price >= 0.0 else high)
    return total


def whole_gpus(tables: Tables, bound: float) -> float:
    """The bound rounded up to whole GPUs, where all cost the same whatever runs on them."""
    price = _one_price(tables)
    if price is None:
        return bound
    # A bound that rounding puts just above a whole number of GPUs must not be raised to the next one.
    return float(np.ceil(bound / price - _TOLERANCE) * price)


def min_to_reach(tables: Tables, cutoff: float) -> float:
    """The least bound that `whole_gpus` lifts to the cutoff."""
    price = _one_price(tables)
    if price is None or np.isinf(cutoff):
        return cutoff
    # Twice the tolerance, so that what reaches this surely passes the one of `whole_gpus`.
    return float((np.ceil(cutoff / price) - 1.0 + 2.0 * _TOLERANCE) * price)


def _one_price(tables: Tables) -> float | None:
    """USD per hour of every GPU; None where they differ, or where energy makes the cost depend on what runs."""
    prices = np.unique(tables.price)
    if len(prices) != 1 or any(mode.watt_price > 0.0 for mode in tables.modes):
        return None
    return float(prices[0]) if prices[0] > 0.0 else None
