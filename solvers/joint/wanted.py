"""What a Problem asks of the master problem: its demand, with prices for what nobody serves."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from solvers.joint.columns import Column
from solvers.joint.master import Demand
from solvers.joint.tables import Reals, Tables
from solvers.problem import Problem

_SHORTAGE_OVER_SINGLE = 8.0
"""A shortage costs so many times what serving it by GPUs of its own would, for the service that is dearest to serve."""
_MISSING_OVER_GPU = 10.0
"""A replica that is missing costs so many of the dearest GPU: it comes before cost, and what is served before both."""
_FREE = 1e-6
"""Of its price: what a GPU costs where all are paid for anyway. It decides between plans that serve the same."""


def priced_problem(problem: Problem) -> Problem:
    """The problem with prices as the formulation needs them: next to nothing where all GPUs are paid for anyway."""
    if problem.objective == "min_cost":
        return problem
    return replace(
        problem,
        energy_price_usd_per_kwh=_FREE * problem.energy_price_usd_per_kwh,
        gpu_types=tuple(
            replace(gpu_type, price_usd_per_hour=_FREE * gpu_type.price_usd_per_hour) for gpu_type in problem.gpu_types
        ),
    )


def cheapest_rps(tables: Tables, columns: Iterable[Column]) -> Reals:
    """(S,) USD per hour of one rps on the best single replica at hand; infinite where nothing can serve."""
    best = np.full(len(tables.rate), np.inf)
    for column in columns:
        if len(column.service) == 1:
            service = int(column.service[0])
            served = min(float(column.capacity[0]), tables.rate[service])
            if served > 0.0:
                best[service] = min(best[service], column.price / served)
    return best


def make_demand(problem: Problem, tables: Tables, cheapest: Reals) -> Demand:
    """The demand of all that can be served at all; priorities weigh shortages.

    cheapest: (S,) USD per hour of one rps, as `cheapest_rps` says.
    """
    can_run = np.zeros(len(tables.rate), dtype=bool)
    for mode in tables.modes:
        can_run[mode.service] = True
    rate = np.where(np.isfinite(cheapest), tables.rate, 0.0)
    most = [np.inf if service.max_replicas is None else float(service.max_replicas) for service in problem.services]
    fewest = np.where(can_run, [float(service.min_replicas) for service in problem.services], 0.0)
    return Demand(
        rate=rate,
        fewest=np.minimum(fewest, most),
        most=np.array(most),
        stock=tables.stock,
        shortage_price=_weight_price(problem, tables, rate, cheapest) * tables.priority,
        missing_price=np.full(len(rate), _MISSING_OVER_GPU * _gpu_price(tables)),
    )


def _weight_price(problem: Problem, tables: Tables, rate: Reals, cheapest: Reals) -> float:
    """USD per hour of one unit of Σ priority · rps that is not served."""
    wanted = rate > 0.0
    if not wanted.any():
        return 0.0
    if problem.objective == "max_goodput":
        return _gpu_price(tables) / _FREE / float((tables.priority * rate)[wanted].max())
    return _SHORTAGE_OVER_SINGLE * float((cheapest / tables.priority)[wanted].max())


def _gpu_price(tables: Tables) -> float:
    """USD per hour of the dearest GPU at full power."""
    return max((mode.price + mode.watt_price * mode.power_w for mode in tables.modes), default=0.0)
