"""Carried: what GPUs of some columns carry and take, and what that leaves of a demand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.columns import Columns
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables

_NOTHING = 1e-9
"""Less than this share of a rate is not wanted any more: it is rounding."""
_SHORTAGE_OVER_GPU = 8.0
"""A shortage of all that is wanted of a service costs at least this many of the dearest GPU; without that, the linear
program leaves small rests unserved."""
_MAX_RAISE = 1e6
"""Limit to the raise of shortage prices, for the sake of the linear program's numbers."""


class Carried(NamedTuple):
    """What GPUs carry and take."""

    rps: Reals
    """(S,)"""
    replicas: Reals
    """(S,)"""
    gpus: Reals
    """(G,)"""
    cost: float
    """USD per hour."""

    def plus(self, other: "Carried") -> "Carried":
        """Both together."""
        return Carried(
            rps=self.rps + other.rps,
            replicas=self.replicas + other.replicas,
            gpus=self.gpus + other.gpus,
            cost=self.cost + other.cost,
        )


def carried(tables: Tables, columns: Columns, counts: Mapping[int, int]) -> Carried:
    """What these GPUs of each column carry together."""
    if not counts:
        return _nothing(tables)
    services = len(tables.rate)
    types = len(tables.stock)
    # By number: sums of floats depend on the order of their terms.
    numbers = sorted(counts)
    used = [columns[number] for number in numbers]
    gpus = np.array([counts[number] for number in numbers], dtype=np.float64)
    service = np.concatenate([column.service for column in used])
    replicas = np.repeat(gpus, [len(column.service) for column in used])
    rps = replicas * np.concatenate([column.capacity for column in used])
    gpu_type = [tables.modes[column.pattern.mode].gpu_type for column in used]
    return Carried(
        rps=_summed(service, rps, services),
        replicas=_summed(service, replicas, services),
        gpus=_summed(np.array(gpu_type, np.int32), gpus, types),
        cost=float(gpus @ np.array([column.price for column in used])),
    )


def _nothing(tables: Tables) -> Carried:
    services = np.zeros(len(tables.rate))
    gpus = np.zeros(len(tables.stock))
    return Carried(rps=services, replicas=services.copy(), gpus=gpus, cost=0.0)


def _summed(places: Numbers, values: Reals, size: int) -> Reals:
    return np.bincount(places, values, size).astype(np.float64)


def left_of(demand: CoverDemand, taken: Carried) -> CoverDemand:
    """What is still wanted, and what may still be used, once so much is taken."""
    rate = np.maximum(demand.rate - taken.rps, 0.0)
    # A rest that is only rounding would ask for a replica of its own.
    rate[rate <= _NOTHING * demand.rate] = 0.0
    return replace(
        demand,
        rate=rate,
        fewest=np.maximum(demand.fewest - taken.replicas, 0.0),
        most=np.maximum(demand.most - taken.replicas, 0.0),
        stock=np.maximum(demand.stock - taken.gpus, 0.0),
    )


def rest_of(demand: CoverDemand, tables: Tables, taken: Carried) -> CoverDemand:
    """The same with shortages so dear that none of it pays."""
    left = left_of(demand, taken)
    raised = _raise(demand, tables, left.rate)
    return replace(
        left,
        shortage_price=raised * demand.shortage_price,
        missing_price=raised * demand.missing_price,
    )


def _raise(demand: CoverDemand, tables: Tables, rate: Reals) -> float:
    """One factor for all services, so that their priorities stay."""
    wanted = rate > 0.0
    if not wanted.any():
        return 1.0
    cheapest = float((rate[wanted] * demand.shortage_price[wanted]).min())
    # A shortage that costs nothing would need an infinite factor; the limit below applies to it.
    factor = _SHORTAGE_OVER_GPU * tables.price.max() / max(cheapest, 1e-300)
    return float(np.clip(factor, 1.0, _MAX_RAISE))


def is_met(demand: CoverDemand) -> bool:
    """Whether nothing is wanted any more."""
    return not demand.rate.any() and not demand.fewest.any()
