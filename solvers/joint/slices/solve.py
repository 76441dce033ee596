"""The rows of the program over slices and whole GPUs, its solution, and the prices of its relaxation."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp
from scipy.sparse import coo_array, csr_array, vstack

from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.columns import power_w
from solvers.joint.slices.program import SliceProgram, types_of_gpus
from solvers.types.outcome import Budget

_MIN_S = 0.05
"""Also a plan that was begun late has so long."""
RowName = tuple[str, ...]
"""What a row is of: its kind, then names."""
_Rows = Iterator[tuple[RowName, "Constraint"]]


class Constraint(NamedTuple):
    """One row: low ≤ Σ factor · variable ≤ high."""

    entries: Sequence[tuple[int, float]]
    low: float
    high: float


class SliceDuals(NamedTuple):
    """Prices of the rows that whole GPUs have a part in, in USD per hour."""

    rps: Reals
    """(S,) π ≥ 0, of one more rps."""
    presence: Reals
    """(S,) ν + ξ, of one more replica."""
    stock: dict[str, float]
    """μ ≤ 0, of one more GPU of a type; types without a limit are left out."""
    watt: float
    """ω ≥ 0, of one watt less."""


def solve_whole(
    program: SliceProgram,
    objective: Reals,
    budget: Budget,
    *further: Constraint,
    is_all_served: bool = False,
) -> OptimizeResult:
    """The least of an objective, in whole GPUs and slices, within the budget; `x` is None where nothing was found."""
    low, high = np.zeros(program.size), np.full(program.size, np.inf)
    served = slice(program.served_at, program.missing_at)
    high[served] = 1.0
    if is_all_served:
        low[served], high[program.missing_at :] = 1.0, 0.0
    whole = np.zeros(program.size, np.int8)
    whole[: program.served_at] = 1
    rows = [*_rows(program).values(), *further]
    return milp(
        objective,
        constraints=LinearConstraint(
            _matrix(program, rows),
            [row.low for row in rows],
            [row.high for row in rows],
        ),
        bounds=Bounds(low, high),
        integrality=whole,
        options={
            "mip_rel_gap": 0.0,
            # HiGHS takes infinity for no limit, and 0 s too.
            "time_limit": max(_MIN_S, budget.remaining_s()),
        },
    )


def relax(program: SliceProgram, objective: Reals) -> tuple[OptimizeResult, SliceDuals]:
    """The least of an objective where nothing need be whole, and the prices of the rows."""
    rows = _rows(program)
    matrix = _matrix(program, list(rows.values()))
    lows = np.array([row.low for row in rows.values()])
    highs = np.array([row.high for row in rows.values()])
    has_low, has_high = np.isfinite(lows), np.isfinite(highs)
    limits: list[tuple[float, float | None]] = [(0.0, None)] * program.size
    limits[program.served_at : program.missing_at] = [(0.0, 1.0)] * len(
        program.problem.services
    )
    found = linprog(
        objective,
        A_ub=vstack([-matrix[has_low], matrix[has_high]]),
        b_ub=np.concatenate([-lows[has_low], highs[has_high]]),
        bounds=limits,
        method="highs",
    )
    # A row has one finite side only, but for replicas, whose two prices are added up anyway.
    marginals = found.ineqlin.marginals
    prices = np.zeros(len(rows))
    prices[has_low] -= marginals[: has_low.sum()]
    prices[has_high] += marginals[has_low.sum() :]
    return found, _duals(program, dict(zip(rows, prices.tolist(), strict=True)))


def _duals(program: SliceProgram, prices: dict[RowName, float]) -> SliceDuals:
    services = program.problem.services
    return SliceDuals(
        # The rows of demand are in parts of the rate.
        rps=np.array(
            [
                max(0.0, prices.get(("demand", each.name), 0.0)) / each.arrival_rate_rps
                if each.arrival_rate_rps > 0.0
                else 0.0
                for each in services
            ]
        ),
        presence=np.array(
            [
                prices.get(("fewest", each.name), 0.0)
                + prices.get(("most", each.name), 0.0)
                for each in services
            ]
        ),
        stock={
            each.name: min(0.0, prices["stock", each.name])
            for each in program.problem.gpu_types
            if each.count is not None
        },
        watt=max(0.0, -prices.get(("watts",), 0.0)),
    )


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
        # In parts of the rate, so that the solver's tolerance means the same for small and large services.
        entries = [
            (column, capacity / rate) for column, capacity in carriers(program, index)
        ]
        served = (program.served_at + index, -1.0)
        yield ("demand", service.name), Constraint([*entries, served], 0.0, math.inf)


def carriers(
    program: SliceProgram, service: int, *, is_cut: bool = True
) -> Iterator[tuple[int, float]]:
    """The variables with a replica of the service, and what that carries; `is_cut`: not more than its whole rate."""
    demand = program.problem.services[service]
    for at, choice in enumerate(program.choices, start=len(program.cuts)):
        if choice.service is demand:
            yield at, choice.capacity_rps
    for at, column in enumerate(program.columns, start=program.columns_at):
        for position in np.flatnonzero(column.service == service).tolist():
            # What a GPU carries beyond the whole rate serves nobody; the relaxation would count it.
            limit = demand.arrival_rate_rps if is_cut else math.inf
            yield at, min(float(column.capacity[position]), limit)


def _slices_cut(program: SliceProgram) -> _Rows:
    used: defaultdict[RowName, list[tuple[int, float]]] = defaultdict(list)
    for at, cut in enumerate(program.cuts):
        for profile, number in cut.layout.items():
            key: RowName = ("slices", cut.gpu_type.name, f"{cut.clock_mhz}", profile)
            used[key].append((at, -number))
    for at, choice in enumerate(program.choices, start=len(program.cuts)):
        clock = f"{choice.row.clock_mhz}"
        key = ("slices", choice.gpu_type.name, clock, choice.profile.name)
        used[key].append((at, 1.0))
    for key, entries in used.items():
        yield key, Constraint(entries, -math.inf, 0.0)


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
        entries = [(at, 1.0) for at, _ in carriers(program, index)]
        if service.max_replicas is not None:
            most = Constraint(entries, -math.inf, service.max_replicas)
            yield ("most", service.name), most
        if service.min_replicas:
            missing = (program.missing_at + index, 1.0)
            fewest = Constraint([*entries, missing], service.min_replicas, math.inf)
            yield ("fewest", service.name), fewest
