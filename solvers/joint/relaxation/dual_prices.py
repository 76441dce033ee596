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
        """Of the optimum over the patterns at hand; shortages count at their prices."""
        return self.relaxation.solution.objective

    def as_plan(self) -> Plan:
        """Its patterns, one GPU of each: what a slightly different relaxation begins with."""
        counts = dict.fromkeys(self.relaxation.columns, 1)
        return decode(
            self.problem, self.tables, self.columns, counts, policy="relaxation"
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
    demand = make_demand(problem, tables, cheapest_rps(tables, columns))
    if not demand.rate.any() and not demand.fewest.any():
        return None
    begin: Sequence[int] = ()
    if start is not None:
        patterns = patterns_of(problem, tables, start)
        columns.add(patterns)
        begin = [columns.number(pattern) for pattern in patterns]
    pricer = Pricer(tables, pool=pool)
    relaxation = generate(tables, demand, pricer, columns, start=begin, is_over=is_over)
    for _ in range(RAISES):
        if (
            problem.objective == "max_goodput"
            or is_over()
            or not _short(demand, relaxation).any()
        ):
            break
        # Until no money that can be saved outweighs what is short.
        demand = replace(demand, shortage_price=RAISE * demand.shortage_price)
        relaxation = generate(
            tables, demand, pricer, columns, start=relaxation.columns, is_over=is_over
        )
    return Relaxed(
        problem=problem,
        tables=tables,
        demand=demand,
        columns=columns,
        relaxation=relaxation,
    )


def prices_of(
    problem: Problem, demand: CoverDemand, columns: Columns, relaxation: Relaxation
) -> Prices:
    """The relaxation's prices. `demand`: the one that it was solved for, or one with other shortage prices."""
    duals, short = relaxation.solution.duals, _short(demand, relaxation)
    is_money = problem.objective == "min_cost" and not short.any()
    unit: PriceUnit = "usd_per_hour" if is_money else "weighted_rps"
    scale = 1.0 if is_money else _usd_per_weight(problem, demand, relaxation)
    return Prices(
        unit=unit,
        services=tuple(
            ServicePrice(
                service=service.name,
                per_rps=_clean(per_rps / scale),
                per_rps_more=_clean(per_rps / scale * share),
                per_replica=_clean(per_replica / scale),
            )
            for service, per_rps, share, per_replica in zip(
                problem.services,
                duals.rps,
                _costly_share(demand, columns, relaxation),
                duals.presence,
                strict=True,
            )
        ),
        gpu_types=tuple(
            GpuTypePrice(gpu_type=gpu_type.name, per_gpu=_clean(-value / scale))
            for gpu_type, value in zip(problem.gpu_types, duals.stock, strict=True)
        ),
        short=tuple(
            service.name
            for service, is_one in zip(problem.services, short, strict=True)
            if is_one
        ),
        relaxation_usd_per_hour=relaxation.solution.objective if is_money else None,
        is_exact=relaxation.is_exact,
    )


def _costly_share(
    demand: CoverDemand, columns: Columns, relaxation: Relaxation
) -> Reals:
    """(S,) the part of each service's rate that is not carried by patterns with room for more."""
    roomy = np.zeros(len(demand.rate))
    for number, count in zip(
        relaxation.columns, relaxation.solution.counts, strict=True
    ):
        if count > 0.0:
            column = columns[number]
            roomy[column.service] += count * (
                column.capacity >= demand.rate[column.service]
            )
    return np.clip(1.0 - roomy, 0.0, 1.0)


def _usd_per_weight(
    problem: Problem, demand: CoverDemand, relaxation: Relaxation
) -> float:
    """The w of the module's docstring, read off what is short; the demand's own where nothing is."""
    priority = np.array([service.priority for service in problem.services])
    short = _short(demand, relaxation)
    paid = (
        relaxation.solution.duals.rps[short]
        if short.any()
        else demand.shortage_price[demand.rate > 0.0]
    )
    weight = priority[short] if short.any() else priority[demand.rate > 0.0]
    return float((paid / weight).max(initial=0.0)) or 1.0


def _short(
    demand: CoverDemand, relaxation: Relaxation
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    short: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        relaxation.solution.shortage_rps > _NOTHING * demand.rate
    )
    return short


def _clean(value: float) -> float:
    return round(float(value), _DIGITS) + 0.0
