"""Solve a Problem with GPUs that may be cut into slices: the joint planner's own steps, on tables with more modes.

`solve_with_slices` is the way in. Version 1 of the contract can say neither what networks do on slices nor what runs
on them: offers come beside the Problem, and the plan has nouns of its own for GPUs that are cut.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.joint.heuristics.integer_plans import (
    IntegerPlan,
    IntegerPlans,
    shortage_cost,
    state_plan,
)
from solvers.joint.heuristics.residual import SearchContext, prune
from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.columns import Column, Columns, single_patterns
from solvers.joint.patterns.deadline import Deadline
from solvers.joint.patterns.decode import SAFE, decode
from solvers.joint.patterns.formulation import CoverDemand, cheapest_rps, make_demand
from solvers.joint.patterns.slice_layouts import PlacedSlice, place
from solvers.joint.patterns.slice_tables import SliceOffer, with_slices
from solvers.joint.patterns.tables import Tables, make_tables
from solvers.joint.relaxation.branch_and_price import Incumbent, branch
from solvers.joint.relaxation.column_generation import generate
from solvers.joint.relaxation.column_pool import ColumnPool
from solvers.joint.relaxation.pricing import Pricer
from solvers.types.outcome import Budget
from solvers.types.plan import GpuPlan
from solvers.types.problem import Problem

_RELAXATION_SHARE, _SEARCH_SHARE = 0.3, 0.4
"""Of the budget, and of what is left then; the rest is for branching."""
_TO_SERVE_COMES_FIRST = 8000.0
"""Factor on shortage prices."""
_GAP = 1e-5
"""Relative gap from which branching stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceReplica:
    """One replica on a slice of its own."""

    place: PlacedSlice
    service: str
    batch: int
    arrival_rate_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedGpu:
    """Identical GPUs, each cut in the same way."""

    gpu_type: str
    count: int
    clock_mhz: float
    replicas: tuple[SliceReplica, ...]
    """By place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedPlan:
    """What runs where, and what is proven of other plans."""

    shared: tuple[GpuPlan, ...]
    """GPUs that are not cut."""
    sliced: tuple[SlicedGpu, ...]
    unserved_rps: Mapping[str, float]
    """By service, where above 0."""
    cost_usd_per_hour: float
    cost_bound: float
    """No plan that serves as much costs less."""


def solve_with_slices(
    problem: Problem, offers: Sequence[SliceOffer], budget: Budget
) -> SlicedPlan:
    """The best plan found under `min_cost`: every GPU shared or cut, whichever is cheaper for the whole."""
    tables = with_slices(problem, make_tables(problem), offers)
    deadline = Deadline(budget, tables)
    columns = Columns(tables)
    columns.add(single_patterns(tables, tables.rate))
    demand = make_demand(problem, tables, cheapest_rps(tables, columns))
    demand = replace(
        demand, shortage_price=_TO_SERVE_COMES_FIRST * demand.shortage_price
    )
    pricer = Pricer(tables)
    relaxation = generate(
        tables, demand, pricer, columns, is_over=deadline.part(_RELAXATION_SHARE)
    )
    whole = IntegerPlans(
        SearchContext(tables, pricer, columns, ColumnPool(tables, columns)),
        demand,
        seed=budget.seed,
    )
    is_over = deadline.part(_SEARCH_SHARE)
    whole.sketch(relaxation)
    whole.dive(relaxation, is_over)
    whole.improve(relaxation, is_over)
    plan = whole.best
    found = branch(
        tables,
        demand,
        pricer,
        columns,
        relaxation,
        incumbent=Incumbent(counts=plan.counts, cost_usd_per_hour=_cost(demand, plan)),
        is_over=deadline.part(1.0),
        gap=_GAP,
    )
    bound = relaxation.bound
    if found.incumbent is not None:
        kept = prune(tables, columns, demand, found.incumbent.counts)
        plan = min(
            plan,
            state_plan(tables, columns, demand, kept),
            key=lambda one: _cost(demand, one),
        )
    if not plan.shortage_rps.any() and not plan.replicas_missing.any():
        # With shortages it may be a bound on plans that have none.
        bound = max(bound, found.bound)
    bound -= shortage_cost(demand, plan)
    return _stated(problem, tables, offers, columns, plan, bound)


def _cost(demand: CoverDemand, plan: IntegerPlan) -> float:
    return plan.cost_usd_per_hour + shortage_cost(demand, plan)


def _stated(
    problem: Problem,
    tables: Tables,
    offers: Sequence[SliceOffer],
    columns: Columns,
    plan: IntegerPlan,
    bound: float,
) -> SlicedPlan:
    rate = np.array([service.arrival_rate_rps for service in problem.services])
    carried = np.zeros((2, len(rate)))
    cut: dict[int, int] = {}
    shared: dict[int, int] = {}
    for number, count in plan.counts.items():
        column = columns[number]
        is_cut = tables.slicing[column.pattern.mode] is not None
        (cut if is_cut else shared)[number] = count
        carried[int(is_cut), column.service] += count * column.capacity
    total = carried.sum(axis=0)
    share = np.minimum(
        SAFE, np.divide(rate, total, out=np.zeros_like(rate), where=total > 0.0)
    )
    return SlicedPlan(
        shared=decode(
            _with_rates(problem, carried[0] * share),
            tables,
            columns,
            shared,
            policy="joint",
        ).gpus,
        sliced=tuple(
            _sliced_gpu(problem, tables, offers, columns[number], count, share)
            for number, count in cut.items()
        ),
        unserved_rps={
            service.name: float(short)
            for service, short in zip(problem.services, plan.shortage_rps, strict=True)
            if short > 0.0
        },
        cost_usd_per_hour=plan.cost_usd_per_hour,
        cost_bound=min(max(0.0, float(bound)), plan.cost_usd_per_hour),
    )


def _with_rates(problem: Problem, rps: Reals) -> Problem:
    """The problem of the rates that GPUs which are not cut carry."""
    services = zip(problem.services, rps.tolist(), strict=True)
    return replace(
        problem,
        services=tuple(replace(one, arrival_rate_rps=rate) for one, rate in services),
    )


def _sliced_gpu(
    problem: Problem,
    tables: Tables,
    offers: Sequence[SliceOffer],
    column: Column,
    count: int,
    share: Reals,
) -> SlicedGpu:
    mode, slicing = (
        tables.modes[column.pattern.mode],
        tables.slicing[column.pattern.mode],
    )
    assert slicing is not None, "only GPUs that are cut are stated so"
    gpu_type = problem.gpu_types[mode.gpu_type].name
    profiles = next(offer.profiles for offer in offers if offer.gpu_type == gpu_type)
    taken = slicing.profile[list(column.pattern.items)]
    places = list(place(profiles, np.bincount(taken, minlength=len(profiles)).tolist()))

    def replicas() -> Iterator[SliceReplica]:
        for at, (item, profile) in enumerate(
            zip(column.pattern.items, taken.tolist(), strict=True)
        ):
            own = next(one for one in places if one.profile == profiles[profile].name)
            places.remove(own)
            service = int(column.service[at])
            yield SliceReplica(
                place=own,
                service=problem.services[service].name,
                batch=int(mode.batch[item]),
                arrival_rate_rps=float(column.capacity[at] * share[service]),
            )

    return SlicedGpu(
        gpu_type=gpu_type,
        count=count,
        clock_mhz=mode.clock_mhz,
        replicas=tuple(sorted(replicas(), key=lambda replica: replica.place.start)),
    )
