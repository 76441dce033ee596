"""What is proven of plans: bounds on cost, each with the prices of shortages that it was proven at.

One proof says of every plan q

    cost_q + max(0, Σ_s P_s u_qs − F) + Σ_s M_s v_qs ≥ B

where u and v are the requests and replicas that q leaves short, P and M their prices, and F what may be short for
nothing. Of a plan p follows that every q that serves no less weight (P_s is the same per unit of weight for all
services) and misses no more replicas (M_s is the same for all) costs at least

    B − max(0, Σ_s P_s u_ps − F) − Σ_s M_s v_ps

Low prices P bound the cost well, since they let shortages be traded for cost at their worth; so does F = Σ_s P_s u_ps.
High prices bound the weight: no q costs more than all GPUs and misses more than all replicas, hence

    Σ_s P_s u_qs ≥ F + B − Σ_g N_g · max_cost_g − Σ_s M_s m_s        where that is more than F

The first of the two counts only plans that miss no more replicas: with the others a replica that nothing but
`min_replicas` asks for would never be part of an optimum. The second counts all.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solvers.joint.heuristics.integer_plans import NOTHING, IntegerPlan, shortage_cost
from solvers.joint.patterns.formulation import CoverDemand, gpu_prices
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation.bounds import whole_gpus


class _Proof(NamedTuple):
    demand: CoverDemand
    bound: float
    is_of_full: bool
    """Whether it holds only for plans that leave nothing short."""


class Proofs:
    """All that is proven so far of one problem."""

    def __init__(self, tables: Tables, demand: CoverDemand) -> None:
        self._tables = tables
        self._proofs: list[_Proof] = []
        self._total_weight = float(tables.priority @ demand.rate)
        self._max_cost = _max_fleet_cost(tables)

    def add(
        self,
        demand: CoverDemand,
        bound: float,
        *,
        is_of_full: bool = False,
    ) -> None:
        """One more, at the prices of a demand."""
        self._proofs.append(_Proof(demand, bound, is_of_full))

    def cost_bound(self, plan: IntegerPlan) -> float:
        """USD per hour that no plan costs less than that serves as much and misses no more replicas."""
        is_full = not leaves_short(plan)
        proven = (
            bound - short_cost(demand, plan)
            for demand, bound, is_of_full in self._proofs
            if is_full or not is_of_full
        )
        # Every proof holds on its own, so the best one counts; none at all proves nothing.
        return whole_gpus(self._tables, max(proven, default=-np.inf))

    def served_bound(self) -> float:
        """Σ priority · rps that no plan serves more than."""
        return self._total_weight - max(
            (self._min_short(proof) for proof in self._proofs),
            default=0.0,
        )

    def _min_short(self, proof: _Proof) -> float:
        """Σ priority · rps that every plan leaves short."""
        demand = proof.demand
        wanted = demand.shortage_price > 0.0
        # A proof of full plans presumes that nothing is short, so it cannot show that something must be.
        if proof.is_of_full or not wanted.any():
            return 0.0
        missing = float(demand.missing_price @ demand.fewest)
        beyond_free = proof.bound - self._max_cost - missing
        if beyond_free <= 0.0:
            return 0.0
        # P_s is the same per unit of weight for all services but for rounding: the maximum keeps the bound valid.
        price = float((demand.shortage_price / self._tables.priority)[wanted].max())
        return (demand.free_shortage + beyond_free) / price


def leaves_short(plan: IntegerPlan) -> bool:
    """Whether a plan leaves some request or replica short."""
    return bool(plan.shortage_rps.any() or plan.replicas_missing.any())


def free_for(demand: CoverDemand, plan: IntegerPlan) -> CoverDemand:
    """The demand at which what a plan leaves short costs nothing, so that only the cost of its GPUs counts."""
    # A little more than the plan's own shortage: rounding must not make the plan itself infeasible.
    shortage = float(demand.shortage_price @ plan.shortage_rps) * (1.0 + NOTHING)
    return replace(demand, free_shortage=shortage)


def short_cost(demand: CoverDemand, plan: IntegerPlan) -> float:
    """USD per hour of what a plan leaves short, less what is free."""
    missing = float(demand.missing_price @ plan.replicas_missing)
    # Only requests may be short for nothing; missing replicas are always paid for.
    requests = shortage_cost(demand, plan) - missing
    return missing + max(0.0, requests - demand.free_shortage)


def _max_fleet_cost(tables: Tables) -> float:
    """USD per hour of all GPUs at full power; infinite where a type has no end."""
    prices = gpu_prices(tables)
    # Without this, an infinite stock of a type that can run nothing would be ∞ · 0 = NaN.
    used = prices > 0.0
    return float(tables.stock[used] @ prices[used])
