"""The formulation: entire GPUs as patterns, a covering program over them, and what is proven by its duals.

Sets and parameters
    s ∈ S           services: rate λ_s, SLO, percentile, priority w_s, fewest m_s and most M_s replicas
    g ∈ G           GPU types: count N_g (infinite where as many as wanted), price, memory, power cap, U_g SM steps
    m ∈ M           modes: a type at one clock, since the clock is shared by everything on a GPU
    i ∈ I_m         candidates of a mode: a service at one of its network's rows (SM steps ρ_i, batch, memory,
                    watts, pressure, times); dominated ones are left out (`tables`)
    p ∈ P_m         patterns of a mode: sets of candidates that may share one GPU (below)
    a_ps            rps that the pattern's replica of service s can carry, with its neighbours in that very pattern;
                    0 where it has none
    b_ps            1 where the pattern has a replica of s, else 0
    C_p             USD per hour: the GPU's price and the energy of idle watts and of its replicas' watts

A pattern is at most `max_replicas_per_gpu` candidates of pairwise different services with

    Σ ρ_i ≤ U_g      Σ memory_i ≤ memory_g      Σ watts_i ≤ cap_g − idle_g

and n = its size and Π_i = Σ pressure of the others decide, by the contract's laws, how long a batch of i takes and what
it carries within its SLO. A pattern decides type, clock, co-location, SM percents and batches of a GPU in one.

Variables
    x_p ∈ {0, 1, …}   GPUs that run pattern p        u_s ≥ 0   rps of s not served        v_s ≥ 0   replicas missing

Objective and constraints (the linear relaxation and its duals: `master`)

    min  Σ_p C_p x_p + Σ_s (h_s u_s + k v_s)
         Σ_p min(a_ps, λ_s) x_p + u_s ≥ λ_s          every s            π_s ≥ 0
         Σ_p b_ps x_p + v_s           ≥ m_s          where m_s > 0      ν_s ≥ 0
         Σ_p b_ps x_p                 ≤ M_s          where finite       ξ_s ≤ 0
         Σ_{p of type g} x_p          ≤ N_g          where finite       μ_g ≤ 0
         Σ_p watts_p x_p              ≤ W            where there is a   ω ≥ 0, USD per hour of a watt
                                                     power budget       (`power_budget`)

Single GPUs do not appear, so there is no symmetry between them, and the size depends on services and types only. A
capacity counts up to λ_s: that changes no integer solution and tightens the relaxation. Of a service that must survive
a loss only so much of it is in a_ps as one replica may carry (`solvers.tick.survive`). Under `min_cost` shortage
prices h_s (in proportion to w_s) are so high that serving comes before saving (below); under `max_goodput` GPUs cost
next to nothing, since all are paid for anyway, and h_s is the weight of what is not served. So do GPUs of types that
are owned, under either; a type of which some are reserved is two types here (`reserved`).

There are far too many patterns to write down, so they are made as they are needed (`generate`): under the duals π, ν,
ξ, μ, pricing looks in every mode for the pattern of the greatest worth,

    W_m = max over p ∈ P_m of  Σ_s (π_s min(a_ps, λ_s) + (ν_s + ξ_s) b_ps) − energy of its watts

and adds those that are worth more than a GPU of the mode costs (`pricing`, `kernels`). Upper bounds on W_m make a lower
bound on all plans (`bounds`), so a plan's distance from the best one is known without knowing the best one.

Integer plans: `heuristics` (round, dive, pack, eliminate GPUs, ruin and recreate), and for small fleets
`relaxation.branch_and_price` (branch and price, to a proven optimum). `replan` adds to C_p what starts cost.

Sources: Gilmore and Gomory 1961, 1963 (patterns and column generation for cutting stock); Farley 1990 and Lasdon 1970
(bounds on the way); Barnhart et al. 1998 (branch and price); Shaw 1998 (ruin and recreate); the laws of co-location are
those of InSS (section 4.1) and the contract.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from solvers.joint.kernels.types import Flags, Reals
from solvers.joint.patterns.columns import Column
from solvers.joint.patterns.tables import Tables
from solvers.types.problem import Problem

_SHORTAGE_OVER_SINGLE = 8.0
"""A shortage costs this multiple of serving it by GPUs of its own, for the service that is dearest to serve."""
_MISSING_OVER_GPU = 10.0
"""A missing replica costs this many of the dearest GPU: it comes before cost, and what is served before both."""
RAISE, RAISES = 20.0, 3
"""While something is short, shortage prices rise by that factor, as often at most: to serve comes before saving."""
_FREE = 1e-6
"""A GPU costs this share of its price where all are paid for anyway: it decides between plans that serve the same."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoverDemand:
    """What a master problem asks for: the whole problem, or what a part of a plan leaves over."""

    rate: Reals
    """(S,) rps."""
    fewest: Reals
    """(S,) replicas."""
    most: Reals
    """(S,) replicas; infinite where there is no limit."""
    stock: Reals
    """(G,) GPUs; infinite where as many as wanted."""
    shortage_price: Reals
    """(S,) USD per hour of one rps that is not served."""
    missing_price: Reals
    """(S,) USD per hour of a replica that is missing."""
    watts: float = np.inf
    """That all GPUs may draw together, idle watts included; infinite where there is no such limit."""
    free_shortage: float = 0.0
    """USD per hour of shortages, at their prices, that cost nothing: what may be short when only the cost counts."""


def priced_problem(problem: Problem) -> Problem:
    """The problem with prices as the formulation needs them: next to nothing for GPUs that are paid for anyway."""
    all_paid = problem.objective == "max_goodput"
    if not all_paid and not any(one.is_owned for one in problem.gpu_types):
        return problem
    energy_share = _FREE if all_paid else 1.0
    return replace(
        problem,
        energy_price_usd_per_kwh=energy_share * problem.energy_price_usd_per_kwh,
        gpu_types=tuple(
            replace(gpu_type, price_usd_per_hour=_FREE * gpu_type.price_usd_per_hour)
            if all_paid or gpu_type.is_owned
            else gpu_type
            for gpu_type in problem.gpu_types
        ),
    )


def cheapest_rps(problem: Problem, tables: Tables, columns: Iterable[Column]) -> Reals:
    """(S,) USD per hour of one rps on the best single replica at hand; infinite where nothing can serve.

    Of a service that may run on rented GPUs, the best of those: once owned ones are used up it is they that serve.
    """
    is_owned = [one.is_owned for one in problem.gpu_types]
    singles = [column for column in columns if len(column.service) == 1]
    rented = _cheapest(
        tables,
        (
            column
            for column in singles
            if not is_owned[tables.modes[column.pattern.mode].gpu_type]
        ),
    )
    # A shortage that costs a multiple of next to nothing would be cheaper than any rented GPU.
    return np.where(np.isfinite(rented), rented, _cheapest(tables, singles))


def _cheapest(tables: Tables, singles: Iterable[Column]) -> Reals:
    best = np.full(len(tables.rate), np.inf)
    for column in singles:
        service = int(column.service[0])
        # Capacity that is not wanted makes no request cheaper.
        served = min(float(column.capacity[0]), tables.rate[service])
        if served > 0.0:
            best[service] = min(best[service], column.price / served)
    return best


def make_demand(problem: Problem, tables: Tables, cheapest: Reals) -> CoverDemand:
    """The demand of all that can be served at all; priorities weigh shortages.

    cheapest: (S,) USD per hour of one rps, as `cheapest_rps` says.
    """
    # What no GPU can serve is left out: at any price it would be short in every plan, and blur what others cost.
    rate = np.where(np.isfinite(cheapest), tables.rate, 0.0)
    services = problem.services
    max_replicas = [
        np.inf if one.max_replicas is None else float(one.max_replicas)
        for one in services
    ]
    min_replicas = [float(one.min_replicas) for one in services]
    missing_price = _MISSING_OVER_GPU * _gpu_price(tables)
    return CoverDemand(
        rate=rate,
        # The maximum is a limit and comes first: replicas beyond it are not missing.
        fewest=np.minimum(np.where(_can_run(tables), min_replicas, 0.0), max_replicas),
        most=np.array(max_replicas),
        stock=tables.stock,
        shortage_price=_weight_price(problem, tables, rate, cheapest) * tables.priority,
        missing_price=np.full(len(rate), missing_price),
        watts=np.inf if problem.power_budget_w is None else problem.power_budget_w,
    )


def _can_run(tables: Tables) -> Flags:
    """(S,) services with a candidate on any GPU."""
    can_run = np.zeros(len(tables.rate), np.bool_)
    for mode in tables.modes:
        can_run[mode.service] = True
    return can_run


def _weight_price(
    problem: Problem,
    tables: Tables,
    rate: Reals,
    cheapest: Reals,
) -> float:
    """USD per hour of one unit of Σ priority · rps that is not served."""
    wanted = rate > 0.0
    if not wanted.any():
        return 0.0
    if problem.objective == "max_goodput":
        # At its full price a GPU is worth the heaviest service: numbers of a size that suits the linear program.
        max_weight = float((tables.priority * rate)[wanted].max())
        return _gpu_price(tables) / _FREE / max_weight
    return _SHORTAGE_OVER_SINGLE * float((cheapest / tables.priority)[wanted].max())


def gpu_prices(tables: Tables) -> Reals:
    """(G,) USD per hour of a GPU of each type at full power; 0 where it can run nothing."""
    prices = np.zeros(len(tables.stock))
    for mode in tables.modes:
        full = mode.price + mode.watt_price * mode.power_w
        prices[mode.gpu_type] = max(prices[mode.gpu_type], full)
    return prices


def _gpu_price(tables: Tables) -> float:
    """USD per hour of the dearest GPU at full power."""
    return float(gpu_prices(tables).max(initial=0.0))
