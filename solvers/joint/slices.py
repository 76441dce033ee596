"""GPUs cut into MIG slices: layouts, and what runs in each slice, in one integer program with a bound.

Sets: types t with clocks c and layouts l (the largest ways to cut a GPU; what is cut need not be used); profiles k of
slices; services s; rows r of (network of s, t, k, c) by batch and processes, with capacity K_r and watts W_r.

    y_tcl   GPUs of type t at clock c in layout l                      whole
    x_sr    slices in which s runs by row r                            whole
    f_s     part of the rate of s that is served                       0 to 1
    m_s     replicas that s lacks of min_replicas                      ≥ 0

    served      max Σ_s priority_s · rate_s · f_s, less a little for Σ m_s
    cost        min Σ (price_t + energy price · idle_t) · y + Σ energy price · W_r · x, where no less is served

    rate_s · f_s ≤ Σ_r K_r · x_sr                                      each s
    Σ_s,r in (t,c,k) x_sr ≤ Σ_l l_k · y_tcl                            each t, c, k
    Σ_c,l y_tcl ≤ count_t                                              each t
    min_replicas_s − m_s ≤ Σ_r x_sr ≤ max_replicas_s                   each s

K_r = processes · 1000 · batch / execution_ms · ρ(percentile, batch, slo_ms / execution_ms). No slice changes anything
for another one (Robroek et al. 2024: 1.00 ± 0.01), so that a GPU needs no pattern of its own. Source of the problem:
Lee, Seong, Lee, Han: ParvaGPU, SC 2024, which cuts greedily.

A slice is given at most its part of the GPU's watts beyond idle, by GPCs: then no GPU exceeds its cap, whatever stands
in its other slices. Where that leaves rows out, the bound is no proof, and none is stated.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import coo_array

from solvers.laws.colocation import capacity_rps
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, Unserved, replica_order
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.slices import Layout, SlicePoint, SliceProfile, SliceUse, layouts
from solvers.types.state import GpuType

METHOD = "integer program over MIG layouts and slices (HiGHS)"
_OPTIMAL = 0
"""SciPy's status of a program that was solved to the end."""
_SERVED_TOLERANCE = 1e-6
"""As the contract's: less than this part of a rate is rounding, not shortage."""


class _Cut(NamedTuple):
    """GPUs of one type at one clock in one layout: a variable y."""

    gpu_type: GpuType
    clock_mhz: float
    layout: Layout


class _Choice(NamedTuple):
    """One row for one service in slices of one profile: a variable x."""

    service: ServiceDemand
    gpu_type: GpuType
    profile: SliceProfile
    row: SlicePoint
    capacity_rps: float


class _Program(NamedTuple):
    """The variables in their order: cuts, choices, then f and m of each service."""

    problem: Problem
    cuts: list[_Cut]
    choices: list[_Choice]
    is_exact: bool
    """Whether no row was left out for the sake of watts."""

    @property
    def size(self) -> int:
        return len(self.cuts) + len(self.choices) + 2 * len(self.problem.services)

    @property
    def served_at(self) -> int:
        """Where the f begin; the m follow them."""
        return len(self.cuts) + len(self.choices)


def make_slice_plan(problem: Problem, budget: Budget) -> tuple[Plan, PlanReport]:
    """The plan that serves most, then costs least, with a proven bound. Raises InvalidInput for whole GPUs beside."""
    if any(not gpu_type.slices for gpu_type in problem.gpu_types):
        raise InvalidInput(
            "gpu_types",
            "whole GPUs and GPUs cut into slices are not planned together yet; make two problems",
        )
    program = _program(problem)
    # First all of it; only where that cannot be, what serves most.
    found = _solve(program, _costs(program), budget, is_all_served=True)
    if found.x is not None:
        return _answer(program, found, bound=found.mip_dual_bound, is_most=True)
    most = _solve(program, _weights(program), budget)
    if most.x is None:
        return _answer(program, most, bound=None, is_most=False)
    least = LinearConstraint(
        _weights(program)[np.newaxis, :], ub=0.999_999_9 * most.fun
    )
    found = _solve(program, _costs(program), budget, least)
    is_most = bool(most.status == _OPTIMAL)
    if found.x is None:
        return _answer(program, most, bound=None, is_most=is_most)
    return _answer(program, found, bound=found.mip_dual_bound, is_most=is_most)


def _program(problem: Problem) -> _Program:
    cuts = [
        _Cut(gpu_type, clock, layout)
        for gpu_type in problem.gpu_types
        for layout in layouts(gpu_type.slices, problem.max_replicas_per_gpu)
        for clock in gpu_type.clocks_mhz
    ]
    possible = [
        choice for service in problem.services for choice in _rows(problem, service)
    ]
    choices = [each for each in possible if _is_within_watts(each)]
    is_exact = len(choices) == len(possible)
    return _Program(problem, cuts, choices, is_exact)


def _rows(problem: Problem, service: ServiceDemand) -> Iterator[_Choice]:
    """The rows with which a service may run that none beats in both capacity and watts."""
    for gpu_type in problem.gpu_types:
        if not service.allows(gpu_type.name):
            continue
        for profile in gpu_type.slices:
            usable = defaultdict(list)
            for row in problem.slice_rows(service.network, gpu_type.name, profile.name):
                capacity = _capacity_rps(problem, service, row)
                if capacity > 0.0 and row.memory_mib <= profile.memory_mib:
                    usable[row.clock_mhz].append(
                        _Choice(service, gpu_type, profile, row, capacity)
                    )
            for clock in gpu_type.clocks_mhz:
                yield from _undominated(usable[clock])


def _undominated(choices: list[_Choice]) -> Iterator[_Choice]:
    least_w = math.inf
    for choice in sorted(choices, key=lambda each: (-each.capacity_rps, each.row)):
        if choice.row.power_w < least_w:
            least_w = choice.row.power_w
            yield choice


def _is_within_watts(choice: _Choice) -> bool:
    """Whether a slice keeps to its part of the watts, so that any GPU of such slices keeps its cap."""
    gpu_type = choice.gpu_type
    whole = max(profile.gpcs for profile in gpu_type.slices)
    room_w = gpu_type.power_cap_w - gpu_type.idle_w
    return choice.row.power_w * whole <= room_w * choice.profile.gpcs


def _capacity_rps(problem: Problem, service: ServiceDemand, row: SlicePoint) -> float:
    one = capacity_rps(
        problem.capacity_law,
        percentile=service.percentile,
        batch=row.batch,
        slo_ms=service.slo_ms,
        execution_ms=row.execution_ms,
    )
    capacity = row.processes * one
    limit = service.max_replica_rps
    return capacity if limit is None else min(capacity, limit)


def _solve(
    program: _Program,
    objective: np.ndarray,
    budget: Budget,
    *further: LinearConstraint,
    is_all_served: bool = False,
) -> OptimizeResult:
    """The least of an objective within the budget; `x` is None where nothing was found."""
    services = len(program.problem.services)
    low, high = np.zeros(program.size), np.full(program.size, np.inf)
    served = slice(program.served_at, program.served_at + services)
    missing = slice(program.served_at + services, program.size)
    high[served] = 1.0
    if is_all_served:
        low[served], high[missing] = 1.0, 0.0
    whole = np.zeros(program.size)
    whole[: program.served_at] = 1
    parts = (_demand, _slices_cut, _stock, _replicas)
    options = {"mip_rel_gap": 0.0}
    if math.isfinite(budget.seconds):
        options["time_limit"] = max(0.05, budget.remaining_s())
    return milp(
        objective,
        constraints=[*(part(program) for part in parts), *further],
        bounds=Bounds(low, high),
        integrality=whole,
        options=options,
    )


class _Rows:
    """Rows of a sparse matrix over all variables, with their limits."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: list[tuple[int, int, float]] = []
        self._limits: list[tuple[float, float]] = []

    def add(
        self, entries: Sequence[tuple[int, float]], low: float, high: float
    ) -> None:
        """One row: low ≤ Σ factor · variable ≤ high."""
        row = len(self._limits)
        self._entries.extend((row, column, factor) for column, factor in entries)
        self._limits.append((low, high))

    def constraint(self) -> LinearConstraint:
        """All of them; where there are none, one that holds."""
        low, high = zip(*self._limits, strict=True) if self._limits else ((), ())
        rows, columns, factors = (
            zip(*self._entries, strict=True) if self._entries else ((), (), ())
        )
        matrix = coo_array(
            (
                np.array(factors, dtype=float),
                (np.array(rows, dtype=int), np.array(columns, dtype=int)),
            ),
            shape=(len(self._limits), self._size),
        )
        return LinearConstraint(matrix.tocsr(), low, high)


def _demand(program: _Program) -> LinearConstraint:
    rows = _Rows(program.size)
    for index, service in enumerate(program.problem.services):
        rate = service.arrival_rate_rps
        if rate <= 0.0:
            continue
        # In parts of the rate, so that the solver's tolerance means the same for small and large services.
        entries = [
            (column, choice.capacity_rps / rate)
            for column, choice in _of(program, service)
        ]
        rows.add([*entries, (program.served_at + index, -1.0)], 0.0, math.inf)
    return rows.constraint()


def _of(program: _Program, service: ServiceDemand) -> Iterator[tuple[int, _Choice]]:
    """The choices of a service with their columns."""
    for column, choice in enumerate(program.choices, start=len(program.cuts)):
        if choice.service is service:
            yield column, choice


def _slices_cut(program: _Program) -> LinearConstraint:
    entries: defaultdict[tuple[str, float, str], list[tuple[int, float]]] = defaultdict(
        list
    )
    for column, cut in enumerate(program.cuts):
        for profile, number in cut.layout.items():
            entries[cut.gpu_type.name, cut.clock_mhz, profile].append((column, -number))
    for column, choice in enumerate(program.choices, start=len(program.cuts)):
        key = (choice.gpu_type.name, choice.row.clock_mhz, choice.profile.name)
        entries[key].append((column, 1.0))
    rows = _Rows(program.size)
    for used in entries.values():
        rows.add(used, -math.inf, 0.0)
    return rows.constraint()


def _stock(program: _Program) -> LinearConstraint:
    rows = _Rows(program.size)
    for gpu_type in program.problem.gpu_types:
        if gpu_type.count is not None:
            entries = [
                (column, 1.0)
                for column, cut in enumerate(program.cuts)
                if cut.gpu_type is gpu_type
            ]
            rows.add(entries, -math.inf, gpu_type.count)
    budget_w = program.problem.power_budget_w
    if budget_w is not None:
        watts = [each.gpu_type.idle_w for each in program.cuts]
        watts += [each.row.power_w for each in program.choices]
        rows.add(list(enumerate(watts)), -math.inf, budget_w)
    return rows.constraint()


def _replicas(program: _Program) -> LinearConstraint:
    rows = _Rows(program.size)
    missing_at = program.served_at + len(program.problem.services)
    for index, service in enumerate(program.problem.services):
        entries = [(column, 1.0) for column, _ in _of(program, service)]
        if service.max_replicas is not None:
            rows.add(entries, -math.inf, service.max_replicas)
        if service.min_replicas:
            rows.add(
                [*entries, (missing_at + index, 1.0)], service.min_replicas, math.inf
            )
    return rows.constraint()


def _weights(program: _Program) -> np.ndarray:
    """(N,) what is served, as the first objective, to be minimised: −weight, and a little for missing replicas."""
    services = program.problem.services
    weights = np.array([each.priority * each.arrival_rate_rps for each in services])
    factors = np.zeros(program.size)
    factors[program.served_at : program.served_at + len(services)] = -weights
    # So little that no missing replica is worth a request that could be served, as the contract has it.
    factors[program.served_at + len(services) :] = 1e-7 * max(1.0, weights.sum())
    return factors


def _costs(program: _Program) -> np.ndarray:
    """(N,) USD per hour of each variable."""
    energy = program.problem.energy_price_usd_per_kwh / 1000.0
    factors = np.zeros(program.size)
    for column, cut in enumerate(program.cuts):
        factors[column] = cut.gpu_type.price_usd_per_hour + energy * cut.gpu_type.idle_w
    for column, choice in enumerate(program.choices, start=len(program.cuts)):
        factors[column] = energy * choice.row.power_w
    return factors


def _answer(
    program: _Program, found: OptimizeResult, *, bound: float | None, is_most: bool
) -> tuple[Plan, PlanReport]:
    """The plan of a solution, and its report. `is_most`: whether no plan is proven to serve more."""
    problem = program.problem
    plan = _plan(program, found)
    cost = cost_usd_per_hour(problem, plan)
    is_proven = bound is not None and is_most and program.is_exact
    # Rounding alone could put a bound above the cost.
    least = min(cost, max(0.0, bound)) if is_proven and bound is not None else None
    is_optimal = least is not None and found.status == _OPTIMAL
    report = PlanReport(
        status="optimal" if is_optimal else "feasible",
        cost_usd_per_hour=cost,
        lower_bound_usd_per_hour=least,
        gap_percent=None if least is None else _gap_percent(cost, least),
        method=METHOD,
        messages=tuple(_messages(program)),
    )
    if problem.objective == "min_cost":
        return plan, report
    weight = served_weight(problem, plan)
    return plan, replace(
        report,
        # All GPUs are paid for: there is no cost to bound, and the weight is proven or not.
        lower_bound_usd_per_hour=None,
        served_weight=weight,
        served_weight_upper_bound=weight if is_optimal else None,
        gap_percent=0.0 if is_optimal else None,
    )


def _gap_percent(cost: float, bound: float) -> float:
    return 100.0 * (cost - bound) / bound if bound else 0.0


def _messages(program: _Program) -> Iterator[str]:
    if not program.is_exact:
        yield "a slice has at most its part of a GPU's watts, so that the bound is none"
    if program.problem.migration_cost_usd_per_hour:
        yield "migration_cost_usd_per_hour does not count where GPUs are cut into slices"


def _plan(program: _Program, found: OptimizeResult) -> Plan:
    """The solution as GPUs, each slice with its part of its service's rate."""
    problem = program.problem
    numbers = np.zeros(program.size) if found.x is None else np.rint(found.x)
    capacity_rps: Counter[str] = Counter()
    for column, choice in enumerate(program.choices, start=len(program.cuts)):
        capacity_rps[choice.service.name] += choice.capacity_rps * numbers[column]
    loads = {
        service.name: min(1.0, service.arrival_rate_rps / capacity_rps[service.name])
        for service in problem.services
        if capacity_rps[service.name] > 0.0
    }
    waiting: defaultdict[tuple[str, float, str], list[ReplicaPlan]] = defaultdict(list)
    for column, choice in enumerate(program.choices, start=len(program.cuts)):
        replica = _replica(choice, loads.get(choice.service.name, 0.0))
        key = (choice.gpu_type.name, choice.row.clock_mhz, choice.profile.name)
        waiting[key].extend([replica] * int(numbers[column]))

    gpus: Counter[GpuPlan] = Counter()
    for column, cut in enumerate(program.cuts):
        for _ in range(int(numbers[column])):
            gpu = _filled(cut, waiting)
            if gpu.replicas:
                gpus[gpu] += 1
    return Plan(
        policy="joint",
        gpus=tuple(replace(gpu, count=count) for gpu, count in gpus.items()),
        unserved=tuple(_unserved(program, capacity_rps, numbers)),
    )


def _replica(choice: _Choice, load: float) -> ReplicaPlan:
    return ReplicaPlan(
        service=choice.service.name,
        sm_percent=100.0,
        batch=choice.row.batch,
        arrival_rate_rps=load * choice.capacity_rps,
        slice=SliceUse(profile=choice.profile.name, processes=choice.row.processes),
    )


def _filled(
    cut: _Cut, waiting: defaultdict[tuple[str, float, str], list[ReplicaPlan]]
) -> GpuPlan:
    """One GPU with what waits for its slices; those that nothing waits for stay empty."""
    replicas: list[ReplicaPlan] = []
    for profile, number in cut.layout.items():
        queue = waiting[cut.gpu_type.name, cut.clock_mhz, profile]
        replicas += [queue.pop() for _ in range(min(number, len(queue)))]
    return GpuPlan(
        gpu_type=cut.gpu_type.name,
        clock_mhz=cut.clock_mhz,
        replicas=tuple(sorted(replicas, key=replica_order)),
    )


def _unserved(
    program: _Program, capacity_rps: Counter[str], numbers: np.ndarray
) -> Iterator[Unserved]:
    for service in program.problem.services:
        own = list(_of(program, service))
        replicas = sum(int(numbers[column]) for column, _ in own)
        missing = max(0, service.min_replicas - replicas)
        short = service.arrival_rate_rps - capacity_rps[service.name]
        is_short = short > _SERVED_TOLERANCE * service.arrival_rate_rps
        if not (is_short or missing):
            continue
        is_full = service.max_replicas is not None and replicas >= service.max_replicas
        yield Unserved(
            service=service.name,
            rate_rps=max(0.0, short) if is_short else 0.0,
            reason="slo" if not own else "replicas" if is_full else "stock",
            replicas_missing=missing,
        )
