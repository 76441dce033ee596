"""Alternatives: what else one GPU could run, and by how much a plan would be dearer with it at the relaxation's prices.

The loss of a pattern p of GPU type g is its reduced cost

    C_p − μ_g − Σ_{s ∈ p} (π_s · min(a_sp, λ_s) + ν_s + ξ_s)

with the prices of `solvers.joint.relaxation.dual_prices`: never negative at the relaxation's optimum, 0 for the
patterns that it uses. Two searches:

* One step away, all tried: every replica at every other row, in place of every replica one of every other service, one
  replica more, one fewer. Vectorised over the candidates of the GPU's mode.
* The same services, or some of them, on another GPU type or clock, rearranged: pricing over those services alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from solvers.explain.types import Alternative, ChangeKind
from solvers.joint.kernels.types import Effort, GpuMode, Numbers, Reals, Worth
from solvers.joint.patterns.columns import (
    Column,
    Pattern,
    Priced,
    capacities,
    make_column,
)
from solvers.joint.patterns.decode import SAFE, patterns_of
from solvers.joint.patterns.formulation import priced_problem
from solvers.joint.patterns.tables import Tables, make_tables
from solvers.joint.relaxation.pricing import Pricer
from solvers.joint.reserved import merged_name, split
from solvers.laws.operating_rows import CLOCK_TOLERANCE_MHZ
from solvers.types.outcome import Prices
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan
from solvers.types.problem import Objective, Problem

# A small tolerance: what is asked for is the best pattern, not one that is good enough.
_EFFORT = Effort(4, 2000, 2, 1e-6)
_NO_THRESHOLD = 1e-9
"""USD per hour: pricing shall find the best pattern of a few services, whether it pays or not."""


class Neighbourhood:
    """Finds alternatives to the GPUs of one plan, which are those of `split_plan(problem, plan)`."""

    def __init__(self, problem: Problem, plan: Plan, prices: Prices) -> None:
        # As the plan that runs, so that its own rows are candidates whatever dominates them.
        self._problem = split(replace(problem, current=plan))
        self._prices = prices
        self._tables = _tables(self._problem, prices)
        self._valuation = Valuation(self._problem, self._tables, prices)

    def alternatives(self, gpu: GpuPlan, max_count: int) -> tuple[Alternative, ...]:
        """The best of every kind of change, to every GPU type, smallest loss first; at most `max_count`."""
        # One of each kind: the runners-up of a kind differ little from its best one.
        best: dict[tuple[ChangeKind, str], Alternative] = {}
        for found in (*self._steps(gpu), *self._elsewhere(gpu)):
            key = found.change, found.gpu_type
            if key not in best or found.loss < best[key].loss:
                best[key] = found
        ordered = sorted(
            best.values(),
            key=lambda one: (one.loss, one.change, one.gpu_type),
        )
        return tuple(ordered[:max_count])

    def _steps(self, gpu: GpuPlan) -> Iterator[Alternative]:
        """Single changes; none of a GPU that breaks a rule."""
        own = Plan(policy="", gpus=(gpu,))
        for pattern in patterns_of(self._problem, self._tables, own):
            for change, changed in _single_changes(
                self._tables,
                pattern,
                self._valuation,
            ):
                yield self._valuation.alternative(change, changed)

    def _elsewhere(self, gpu: GpuPlan) -> Iterator[Alternative]:
        """The best pattern of its services in every other mode."""
        part = self._of_services(gpu)
        tables = _tables(part, self._prices)
        valuation = Valuation(part, tables, self._prices)

        def loss(pattern: Pattern) -> float:
            return valuation.loss(make_column(tables, pattern))

        for mode, priced in zip(tables.modes, _priced(tables, valuation), strict=True):
            # The other half of its own type is no other type.
            name = part.gpu_types[mode.gpu_type].name
            is_same_type = merged_name(name) == merged_name(gpu.gpu_type)
            is_same_clock = abs(mode.clock_mhz - gpu.clock_mhz) <= CLOCK_TOLERANCE_MHZ
            if priced.patterns and not (is_same_type and is_same_clock):
                change: ChangeKind = "clock" if is_same_type else "gpu_type"
                yield valuation.alternative(change, min(priced.patterns, key=loss))

    def _of_services(self, gpu: GpuPlan) -> Problem:
        """The problem of a GPU's services alone: pricing over few candidates is fast enough to be exact."""
        names = {replica.service for replica in gpu.replicas}
        services = tuple(
            service for service in self._problem.services if service.name in names
        )
        return replace(self._problem, services=services, current=None)


def _priced(tables: Tables, valuation: "Valuation") -> list[Priced]:
    """The best patterns of every mode, whether they pay or not."""
    worth = [
        Worth(tables.rate, valuation.per_rps, valuation.per_replica[mode.service])
        for mode in tables.modes
    ]
    return Pricer(tables).price(worth, [_NO_THRESHOLD] * len(tables.modes), _EFFORT)


def _tables(problem: Problem, prices: Prices) -> Tables:
    """Where the unit is not money, GPUs cost next to nothing."""
    is_money = prices.unit == "usd_per_hour"
    objective: Objective = "min_cost" if is_money else "max_goodput"
    return make_tables(priced_problem(replace(problem, objective=objective)))


class Valuation:
    """What patterns of a problem's tables cost and earn at given prices."""

    def __init__(self, problem: Problem, tables: Tables, prices: Prices) -> None:
        self._problem, self._tables = problem, tables
        self._is_money = prices.unit == "usd_per_hour"
        services = [prices.of_service(service.name) for service in problem.services]
        self.per_rps: Reals = np.array(
            [0.0 if price is None else price.per_rps for price in services]
        )
        self.per_replica: Reals = np.array(
            [0.0 if price is None else price.per_replica for price in services]
        )
        self.per_gpu: Reals = np.array(
            [prices.of_gpu_type(gpu_type.name) for gpu_type in problem.gpu_types]
        )

    def price(self, column: Column) -> float:
        """Price of a GPU with that pattern; 0 where the unit is not money."""
        return column.price if self._is_money else 0.0

    def earns(self, column: Column) -> float:
        """What its replicas are worth."""
        return float(self.earned(column.service, column.capacity))

    def earned(self, service: Numbers, capacity: Reals) -> Reals:
        """(…) what replicas of (…, n) services are worth together that can carry `capacity` rps."""
        useful = np.minimum(capacity, self._tables.rate[service])
        each = self.per_rps[service] * useful + self.per_replica[service]
        worth: Reals = each.sum(axis=-1)
        return worth

    def loss(self, column: Column) -> float:
        """Its reduced cost."""
        gpu_type = self._tables.modes[column.pattern.mode].gpu_type
        return self.price(column) + float(self.per_gpu[gpu_type]) - self.earns(column)

    def alternative(self, change: ChangeKind, pattern: Pattern) -> Alternative:
        """A pattern as an alternative, with all the rate that it can carry."""
        column = make_column(self._tables, pattern)
        mode = self._tables.modes[pattern.mode]
        return Alternative(
            change=change,
            gpu_type=merged_name(self._problem.gpu_types[mode.gpu_type].name),
            clock_mhz=mode.clock_mhz,
            replicas=tuple(self._replicas(column)),
            price=self.price(column),
            earns=self.earns(column),
            loss=self.loss(column),
        )

    def _replicas(self, column: Column) -> Iterator[ReplicaPlan]:
        mode = self._tables.modes[column.pattern.mode]
        gpu_type = self._problem.gpu_types[mode.gpu_type].name
        for item, number, capacity in zip(
            column.pattern.items, column.service.tolist(), column.capacity, strict=True
        ):
            service = self._problem.services[number]
            points = self._problem.points_of(service.network, gpu_type)
            assert points is not None, "a candidate has operating points"
            # Rows are read again: tables know SM steps, which would come back as percents with rounding.
            row = points.rows[int(mode.row[item])]
            yield ReplicaPlan(
                service=service.name,
                sm_percent=row.sm_percent,
                batch=row.batch,
                arrival_rate_rps=SAFE * min(float(capacity), service.arrival_rate_rps),
            )


def _single_changes(
    tables: Tables,
    pattern: Pattern,
    valuation: Valuation,
) -> Iterator[tuple[ChangeKind, Pattern]]:
    """The best of every kind of change to every replica of a pattern."""
    mode = tables.modes[pattern.mode]
    worth = _worth_beside(tables, mode, pattern.items, valuation)
    yield from _best("more", pattern.mode, pattern.items, worth)
    for leaving in pattern.items:
        rest = [item for item in pattern.items if item != leaving]
        if rest:
            yield "fewer", Pattern(pattern.mode, tuple(rest))
        own = mode.service == mode.service[leaving]
        worth = _worth_beside(tables, mode, rest, valuation)
        # The replica at its own row would be no change.
        worth[leaving] = -np.inf
        yield from _best("share", pattern.mode, rest, np.where(own, worth, -np.inf))
        yield from _best("partner", pattern.mode, rest, np.where(own, -np.inf, worth))


def _best(
    change: ChangeKind,
    mode: int,
    rest: Sequence[int],
    worth: Reals,
) -> Iterator[tuple[ChangeKind, Pattern]]:
    if len(worth) and np.isfinite(worth.max()):
        yield change, Pattern(mode, tuple(sorted((*rest, int(worth.argmax())))))


def _worth_beside(
    tables: Tables,
    mode: GpuMode,
    rest: Sequence[int],
    valuation: Valuation,
) -> Reals:
    """(C,) what each candidate together with the rest earns, its watts paid; −∞ where a rule forbids it."""
    worth = np.full(len(mode.service), -np.inf)
    members = np.array(rest, dtype=np.int32)
    if len(rest) >= mode.max_replicas:
        return worth
    free = _fitting(mode, members)
    items = np.column_stack([np.tile(members, (len(free), 1)), free])
    carried = capacities(mode, tables.law, items)
    # A new service may push a neighbour beyond its SLO, so all of them are looked at.
    is_lawful = ((carried > 0.0) | mode.may_idle[items]).all(axis=1)
    earned = valuation.earned(mode.service[items], carried)
    energy = mode.watt_price * mode.power[free]
    worth[free] = np.where(is_lawful, earned - energy, -np.inf)
    return worth


def _fitting(mode: GpuMode, members: Numbers) -> Numbers:
    """Candidates of other services that fit next to the members."""
    fits = (
        ~np.isin(mode.service, mode.service[members])
        & (mode.width + mode.width[members].sum() <= mode.steps)
        & (mode.memory + mode.memory[members].sum() <= mode.memory_mib)
        & (mode.power + mode.power[members].sum() <= mode.power_w)
    )
    return np.flatnonzero(fits).astype(np.int32)
