"""The rows of the program over slices and whole GPUs, its solution, and the prices of its relaxation."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp
from scipy.sparse import coo_array, csr_array, diags_array

from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.columns import power_w
from solvers.joint.slices.program import (
    SliceProgram,
    costs,
    types_of_gpus,
    uncut_types,
    weights,
)
from solvers.types.outcome import Budget
from solvers.types.problem import Problem
from solvers.types.state import GpuType

_MIN_S = 0.05
"""Also a plan that was begun late has so long."""
_SHORTAGE_OVER_COST = 10.0
"""To leave a service out costs this multiple of what the cheapest choice would that serves it alone."""
RowName = tuple[str, ...]
"""What a row is of: its kind, then names."""
_Rows = Iterator[tuple[RowName, "Constraint"]]


class Constraint(NamedTuple):
    """One row: low ≤ Σ factor · variable ≤ high."""

    entries: Sequence[tuple[int, float]]
    low: float
    high: float


def solve_integers(
    program: SliceProgram,
    objective: Reals,
    budget: Budget,
    *further: Constraint,
    is_all_served: bool = False,
) -> OptimizeResult:
    """The least of an objective, in whole GPUs and slices, within the budget; `x` is None where nothing was found."""
    rows = [*_rows(program).values(), *further]
    lows, highs = _limits(rows)
    integrality = np.zeros(program.size, np.int8)
    integrality[: program.served_at] = 1
    return milp(
        objective,
        constraints=LinearConstraint(_matrix(program, rows), lows, highs),
        bounds=_bounds(program, is_all_served=is_all_served),
        integrality=integrality,
        options={
            "mip_rel_gap": 0.0,
            # HiGHS takes infinity for no limit, and 0 s too.
            "time_limit": max(_MIN_S, budget.remaining_s()),
        },
    )


def _bounds(program: SliceProgram, *, is_all_served: bool) -> Bounds:
    low, high = np.zeros(program.size), np.full(program.size, np.inf)
    served = slice(program.served_at, program.missing_at)
    high[served] = 1.0
    if is_all_served:
        low[served], high[program.missing_at :] = 1.0, 0.0
    return Bounds(low, high)


class PartBound(NamedTuple):
    """What the relaxation proves of all plans that serve everything."""

    relaxed: float
    """USD per hour of the relaxation over the patterns at hand."""
    excess: tuple[float, ...] = ()
    """By type of whole GPU: the most that another pattern of it may be worth beyond its cost, USD per hour."""

    def lower_bound(self, problem: Problem, known_usd_per_hour: float) -> float:
        """USD per hour that no plan undercuts, where one is known that costs so much."""
        types = uncut_types(problem)
        bound = self.relaxed
        for gpu_type, excess in zip(types, self.excess, strict=True):
            count = known_usd_per_hour / gpu_type.price_usd_per_hour
            if gpu_type.count is not None:
                count = min(count, gpu_type.count)
            # Nothing times infinity is nothing here.
            bound -= count * excess if excess > 0.0 else 0.0
        return bound


def relax(program: SliceProgram) -> tuple[PartBound, dict[RowName, float]]:
    """The least cost where nothing need be whole, and what it grows by with the limit of each row.

    What is not served has a price here, so that there is always a solution.
    """
    names, rows = zip(*_rows(program).items(), strict=True)
    lows, highs = _limits(rows)
    # No row has two finite sides, and the solver knows upper ones only.
    signs = np.where(np.isfinite(highs), 1.0, -1.0)
    bounds = _bounds(program, is_all_served=False)
    # Without that price a shortage of columns would leave no solution, and no duals to make others by.
    objective = _penalised(program)
    found = linprog(
        objective,
        A_ub=diags_array(signs) @ _matrix(program, rows),
        b_ub=np.where(signs > 0.0, highs, -lows),
        bounds=list(zip(bounds.lb.tolist(), bounds.ub.tolist(), strict=True)),
        method="highs",
    )
    if found.fun is None:
        # Nothing served is a solution, and no objective is endless; but HiGHS may fail, and then nothing is proven.
        return PartBound(0.0), {}
    served = slice(program.served_at, program.missing_at)
    prices = (signs * found.ineqlin.marginals).tolist()
    bound = PartBound(float(found.fun - objective[served].sum()))
    return bound, dict(zip(names, prices, strict=True))


def _penalised(program: SliceProgram) -> Reals:
    """(N,) costs, less what is saved by serving, with a price on missing replicas."""
    problem = program.problem
    max_price = max(each.price_usd_per_hour for each in problem.gpu_types)
    factors = costs(program)
    served = slice(program.served_at, program.missing_at)
    if problem.objective == "max_goodput":
        factors[served] = weights(program)[served]
    else:
        factors[served] = -_SHORTAGE_OVER_COST * max_price * _alone(program)
    factors[program.missing_at :] = _SHORTAGE_OVER_COST * max_price
    return factors


def _alone(program: SliceProgram) -> Reals:
    """(S,) GPUs that would serve each service with a GPU for each of its replicas, one at least."""
    services = program.problem.services
    best = np.array(
        [max((rps for _, rps in own), default=np.inf) for own in program.carriers]
    )
    rates = np.array([each.arrival_rate_rps for each in services])
    gpus: Reals = np.maximum(1.0, rates / best)
    return gpus


def _limits(rows: Sequence[Constraint]) -> tuple[Reals, Reals]:
    """(R,) the low and the high side of each row."""
    return np.array([row.low for row in rows]), np.array([row.high for row in rows])


def _matrix(program: SliceProgram, rows: Sequence[Constraint]) -> csr_array:
    entries = [
        (number, column, factor)
        for number, row in enumerate(rows)
        for column, factor in row.entries
    ]
    numbers, columns, factors = zip(*entries, strict=True) if entries else ((), (), ())
    at = (np.array(numbers, dtype=int), np.array(columns, dtype=int))
    values = np.array(factors, dtype=float)
    return coo_array((values, at), shape=(len(rows), program.size)).tocsr()


def _rows(program: SliceProgram) -> dict[RowName, Constraint]:
    """All rows by what they are of."""
    return {
        **dict(_demand(program)),
        **dict(_slices_cut(program)),
        **dict(_stock(program)),
        **dict(_replicas(program)),
        **dict(_watts(program)),
    }


def _demand(program: SliceProgram) -> _Rows:
    for index, service in enumerate(program.problem.services):
        rate = service.arrival_rate_rps
        if rate <= 0.0:
            continue
        # Rows are in parts of the rate, so that the solver's tolerance means the same for small and large services.
        # What a GPU carries beyond the whole rate serves no request; the relaxation would count it.
        entries = [(at, min(1.0, rps / rate)) for at, rps in program.carriers[index]]
        served = (program.served_at + index, -1.0)
        yield ("demand", service.name), Constraint([*entries, served], 0.0, math.inf)


def _slices_cut(program: SliceProgram) -> _Rows:
    used: defaultdict[RowName, list[tuple[int, float]]] = defaultdict(list)
    for at, cut in enumerate(program.cuts):
        for profile, number in cut.layout.items():
            used[_slices_row(cut.gpu_type, cut.clock_mhz, profile)].append(
                (at, -number)
            )
    for at, choice in enumerate(program.choices, start=len(program.cuts)):
        row = _slices_row(choice.gpu_type, choice.row.clock_mhz, choice.profile.name)
        used[row].append((at, 1.0))
    for key, entries in used.items():
        yield key, Constraint(entries, -math.inf, 0.0)


def _slices_row(gpu_type: GpuType, clock_mhz: float, profile: str) -> RowName:
    return "slices", gpu_type.name, f"{clock_mhz}", profile


def _stock(program: SliceProgram) -> _Rows:
    for gpu_type in program.problem.gpu_types:
        if gpu_type.count is not None:
            entries = [
                (at, 1.0)
                for at, name in enumerate(types_of_gpus(program))
                if name == gpu_type.name
            ]
            limit = Constraint(entries, -math.inf, gpu_type.count)
            yield ("stock", gpu_type.name), limit


def _watts(program: SliceProgram) -> _Rows:
    budget_w = program.problem.power_budget_w
    if budget_w is not None:
        watts = [each.gpu_type.idle_w for each in program.cuts]
        watts += [each.row.power_w for each in program.choices]
        if program.tables is not None:
            watts += [power_w(program.tables, each.pattern) for each in program.columns]
        yield ("watts",), Constraint(list(enumerate(watts)), -math.inf, budget_w)


def _replicas(program: SliceProgram) -> _Rows:
    for index, service in enumerate(program.problem.services):
        entries = [(at, 1.0) for at, _ in program.carriers[index]]
        if service.max_replicas is not None:
            maximum = Constraint(entries, -math.inf, service.max_replicas)
            yield ("max", service.name), maximum
        if service.min_replicas:
            missing = (program.missing_at + index, 1.0)
            minimum = Constraint([*entries, missing], service.min_replicas, math.inf)
            yield ("min", service.name), minimum
