"""Prices: what one more request per second, replica or GPU costs or saves, from the relaxation's dual solution.

By linear programming duality the optimum of the relaxation rises by −μ_g per GPU that the stock of type g has less, and
by ν_s + ξ_s per replica that s must or may have more, for changes so small that the same patterns stay the best. It is
convex in both: further GPUs save at most that much. A request per second of s that a pattern carries is worth π_s. One
more that is wanted costs less where patterns are cut at the rate, a_sp ≥ λ_s, since these carry it as well: by the
envelope theorem

    d optimum / d λ_s = π_s · (1 − Σ_{p: a_sp ≥ λ_s} x_p)

While something stays short, shortage prices outweigh all money. What is short pays exactly w · priority_s per rps, so
dividing by w turns prices into weighted requests per second: what one GPU more would let be served.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.carried import is_met
from solvers.joint.patterns.columns import Columns, single_patterns
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.decode import decode, patterns_of
from solvers.joint.patterns.formulation import (
    RAISE,
    RAISES,
    CoverDemand,
    cheapest_rps,
    make_demand,
    priced_problem,
)
from solvers.joint.patterns.tables import Tables, make_tables
from solvers.joint.relaxation.column_generation import Relaxation, generate
from solvers.joint.relaxation.pricing import Pricer
from solvers.types.outcome import GpuTypePrice, Prices, PriceUnit, ServicePrice
from solvers.types.plan import Plan
from solvers.types.problem import Problem

_NOTHING = 1e-6
"""A shortage below this share of a service's rate is rounding."""
_DIGITS = 9
"""Decimals of prices; what is below is rounding of the linear program."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxed:
    """A problem's relaxation as far as it was solved."""

    problem: Problem
    tables: Tables
    demand: CoverDemand
    columns: Columns
    relaxation: Relaxation

    @property
    def is_short(self) -> bool:
        """Whether even fractions of GPUs cannot serve everything."""
        return bool(_short(self.demand, self.relaxation).any())

    def prices(self) -> Prices:
        """Its prices."""
        return prices_of(self.problem, self.demand, self.columns, self.relaxation)

    @property
    def cost_usd_per_hour(self) -> float:
        """Cost of the optimum over the patterns at hand; shortages count at their prices."""
        return self.relaxation.solution.objective

    def as_plan(self) -> Plan:
        """Its patterns, one GPU of each: what a slightly different relaxation begins with."""
        counts = dict.fromkeys(self.relaxation.columns, 1)
        return decode(
            self.problem,
            self.tables,
            self.columns,
            counts,
            policy="relaxation",
        )


def relax(
    problem: Problem,
    *,
    start: Plan | None = None,
    pool: Executor | None = None,
    is_over: Callable[[], bool] = never,
) -> Relaxed | None:
    """Solve the relaxation, beginning with the patterns of a plan; None where there is nothing to serve.

    Prices on the threads of `pool`. Ends early, with what it has, when `is_over` says so.
    """
    tables = make_tables(priced_problem(problem))
    columns = Columns(tables)
    columns.add(single_patterns(tables, tables.rate))
    demand = make_demand(problem, tables, cheapest_rps(problem, tables, columns))
    if is_met(demand):
        return None
    patterns = patterns_of(problem, tables, start) if start is not None else {}
    columns.add(patterns)
    numbers: Sequence[int] = [columns.number(pattern) for pattern in patterns]
    pricer = Pricer(tables, pool=pool)
    # Under `max_goodput` shortages have the price of what they are worth, and no other.
    raises = 0 if problem.objective == "max_goodput" else RAISES
    for raises_left in range(raises, -1, -1):
        found = generate(
            tables, demand, pricer, columns, start=numbers, is_over=is_over
        )
        if not raises_left or is_over() or not _short(demand, found).any():
            break
        # Until no money that can be saved outweighs what is short.
        demand = replace(demand, shortage_price=RAISE * demand.shortage_price)
        numbers = found.columns
    return Relaxed(
        problem=problem,
        tables=tables,
        demand=demand,
        columns=columns,
        relaxation=found,
    )


def prices_of(
    problem: Problem,
    demand: CoverDemand,
    columns: Columns,
    relaxation: Relaxation,
) -> Prices:
    """The relaxation's prices. `demand`: the one that it was solved for, or one with other shortage prices."""
    short = _short(demand, relaxation)
    is_money = problem.objective == "min_cost" and not short.any()
    unit: PriceUnit = "usd_per_hour" if is_money else "weighted_rps"
    scale = 1.0 if is_money else _usd_per_weight(problem, demand, relaxation)
    names = [service.name for service in problem.services]
    return Prices(
        unit=unit,
        services=_service_prices(names, demand, columns, relaxation, scale),
        gpu_types=_gpu_type_prices(problem, relaxation, scale),
        short=tuple(name for name, is_one in zip(names, short, strict=True) if is_one),
        relaxation_usd_per_hour=relaxation.solution.objective if is_money else None,
        is_exact=relaxation.is_exact,
    )


def _service_prices(
    names: Sequence[str],
    demand: CoverDemand,
    columns: Columns,
    relaxation: Relaxation,
    scale: float,
) -> tuple[ServicePrice, ...]:
    duals = relaxation.solution.duals
    shares = _costly_share(demand, columns, relaxation)
    return tuple(
        ServicePrice(
            service=name,
            per_rps=_clean(per_rps / scale),
            per_rps_more=_clean(per_rps / scale * share),
            per_replica=_clean(per_replica / scale),
        )
        for name, per_rps, share, per_replica in zip(
            names,
            duals.rps,
            shares,
            duals.presence,
            strict=True,
        )
    )


def _gpu_type_prices(
    problem: Problem, relaxation: Relaxation, scale: float
) -> tuple[GpuTypePrice, ...]:
    duals = relaxation.solution.duals
    return tuple(
        # The dual of a stock is what one GPU more adds to the cost, so never positive; the price is what it saves.
        GpuTypePrice(gpu_type=gpu_type.name, per_gpu=_clean(-value / scale))
        for gpu_type, value in zip(problem.gpu_types, duals.stock, strict=True)
    )


def _costly_share(
    demand: CoverDemand,
    columns: Columns,
    relaxation: Relaxation,
) -> Reals:
    """(S,) the part of each service's rate that is not carried by patterns with room for more."""
    # Fractional GPUs may add up to more than the rate, hence the clip below.
    roomy = np.zeros(len(demand.rate))
    for number, count in zip(
        relaxation.columns,
        relaxation.solution.counts,
        strict=True,
    ):
        if count > 0.0:
            column = columns[number]
            roomy[column.service] += count * (
                column.capacity >= demand.rate[column.service]
            )
    return np.clip(1.0 - roomy, 0.0, 1.0)


def _usd_per_weight(
    problem: Problem,
    demand: CoverDemand,
    relaxation: Relaxation,
) -> float:
    """The w of the module's docstring, read off what is short; the demand's own where nothing is."""
    priority = np.array([service.priority for service in problem.services])
    short = _short(demand, relaxation)
    if short.any():
        paid = relaxation.solution.duals.rps[short]
        weight = priority[short]
    else:
        wanted = demand.rate > 0.0
        paid = demand.shortage_price[wanted]
        weight = priority[wanted]
    # Where nothing is wanted, or shortages cost nothing, any scale but 0 will do.
    return float((paid / weight).max(initial=0.0)) or 1.0


def _short(
    demand: CoverDemand,
    relaxation: Relaxation,
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    short: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        relaxation.solution.shortage_rps > _NOTHING * demand.rate
    )
    return short


def _clean(value: float) -> float:
    # Adding 0 turns −0 into 0.
    return round(float(value), _DIGITS) + 0.0
