"""GPUs cut into MIG slices: layouts, what runs in each slice, and whole GPUs next to them, in one integer program.

Sets: types t with clocks c and layouts l (the largest ways to cut a GPU; what is cut need not be used); profiles k of
slices; services s; rows r of (network of s, t, k, c) by batch and processes, with capacity K_r and watts W_r; patterns
p of whole GPUs with what they carry, a_ps, and cost, C_p (`solvers.joint.patterns.formulation`).

    y_tcl   GPUs of type t at clock c in layout l                      whole
    x_sr    slices in which s runs by row r                            whole
    z_p     whole GPUs that run pattern p                              whole
    f_s     part of the rate of s that is served                       0 to 1
    m_s     replicas that s lacks of min_replicas                      ≥ 0

    served      max Σ_s priority_s · rate_s · f_s, less a little for Σ m_s
    cost        min Σ (price_t + energy price · idle_t) · y + Σ energy price · W_r · x + Σ C_p · z,
                where no less is served

    rate_s · f_s ≤ Σ_r K_r · x_sr + Σ_p min(a_ps, rate_s) · z_p        each s            π_s
    Σ_s,r in (t,c,k) x_sr ≤ Σ_l l_k · y_tcl                            each t, c, k
    Σ_c,l y_tcl + Σ_p of t z_p ≤ count_t                               each t            μ_t
    min_replicas_s − m_s ≤ Σ_r x_sr + Σ_p∋s z_p ≤ max_replicas_s       each s            ν_s, ξ_s
    Σ watts of all GPUs ≤ power budget                                 where there is    ω

K_r = processes · 1000 · batch / execution_ms · ρ(percentile, batch, slo_ms / execution_ms). No slice changes anything
for another one (Robroek et al. 2024: 1.00 ± 0.01), so that a GPU in slices needs no pattern of its own. Source of the
problem: Lee, Seong, Lee, Han: ParvaGPU, SC 2024, which cuts greedily.

A slice is given at most its part of the GPU's watts beyond idle, by GPCs: then no GPU exceeds its cap, whatever stands
in its other slices. Where that leaves rows out, the bound is of the relaxation with all rows.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.columns import Column
from solvers.joint.patterns.formulation import priced_problem
from solvers.joint.patterns.tables import Tables
from solvers.laws.colocation import capacity_rps
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.slices import Layout, SlicePoint, SliceProfile, layouts
from solvers.types.state import GpuType


class GpuCut(NamedTuple):
    """GPUs of one type at one clock in one layout: a variable y."""

    gpu_type: GpuType
    clock_mhz: float
    layout: Layout


class SliceChoice(NamedTuple):
    """One row for one service in slices of one profile: a variable x."""

    service: ServiceDemand
    gpu_type: GpuType
    profile: SliceProfile
    row: SlicePoint
    capacity_rps: float


@dataclass(frozen=True, kw_only=True, eq=False)
class SliceProgram:
    """The variables in their order: cuts, choices, patterns of whole GPUs, then f and m of each service."""

    problem: Problem
    cuts: tuple[GpuCut, ...]
    choices: tuple[SliceChoice, ...]
    tables: Tables | None = None
    """The patterns' tables; None where all GPUs are cut."""
    columns: tuple[Column, ...] = ()

    @property
    def size(self) -> int:
        """Variables."""
        return self.served_at + 2 * len(self.problem.services)

    @property
    def columns_at(self) -> int:
        """Where the patterns begin."""
        return len(self.cuts) + len(self.choices)

    @property
    def served_at(self) -> int:
        """Where the f begin."""
        return self.columns_at + len(self.columns)

    @property
    def missing_at(self) -> int:
        """Where the m begin."""
        return self.served_at + len(self.problem.services)

    @cached_property
    def carriers(self) -> tuple[list[tuple[int, float]], ...]:
        """By service: the variables with a replica of it, and the rps that each carries."""
        found: tuple[list[tuple[int, float]], ...] = tuple(
            [] for _ in self.problem.services
        )
        for service, at, rps in self._replicas():
            found[service].append((at, rps))
        return found

    def _replicas(self) -> Iterator[tuple[int, int, float]]:
        """Service, variable and rps."""
        index = {each.name: at for at, each in enumerate(self.problem.services)}
        for at, choice in enumerate(self.choices, start=len(self.cuts)):
            # Whatever else stands on its GPU: no slice slows another one.
            yield index[choice.service.name], at, choice.capacity_rps
        for at, column in enumerate(self.columns, start=self.columns_at):
            services, capacities = column.service.tolist(), column.capacity.tolist()
            for service, rps in zip(services, capacities, strict=True):
                yield service, at, rps


def make_program(problem: Problem) -> SliceProgram:
    """The program of the types that are cut, without any whole GPU."""
    cuts = tuple(
        GpuCut(gpu_type, clock, layout)
        for gpu_type in problem.gpu_types
        if gpu_type.slices
        for layout in layouts(gpu_type.slices, problem.max_replicas_per_gpu)
        for clock in gpu_type.clocks_mhz
    )
    choices = (
        choice for service in problem.services for choice in _choices(problem, service)
    )
    return SliceProgram(problem=problem, cuts=cuts, choices=tuple(choices))


def within_watts(program: SliceProgram) -> SliceProgram:
    """The program without the choices that draw more than their part of a GPU's watts; the same if there are none."""
    choices = tuple(each for each in program.choices if _is_within_watts(each))
    if len(choices) == len(program.choices):
        return program
    return replace(program, choices=choices)


def _choices(problem: Problem, service: ServiceDemand) -> Iterator[SliceChoice]:
    """The rows with which a service may run that none beats in both capacity and watts."""
    for gpu_type in problem.gpu_types:
        profiles = gpu_type.slices if service.allows(gpu_type.name) else ()
        for profile in profiles:
            rows = problem.slice_rows(service.network, gpu_type.name, profile.name)
            choices = (
                SliceChoice(
                    service,
                    gpu_type,
                    profile,
                    row,
                    _capacity_rps(problem, service, row),
                )
                for row in rows
                if row.memory_mib <= profile.memory_mib
            )
            yield from _undominated(choices)


def _undominated(choices: Iterable[SliceChoice]) -> Iterator[SliceChoice]:
    """Those that carry something; at each clock, those that none beats in both capacity and watts."""
    min_w: defaultdict[float, float] = defaultdict(lambda: math.inf)
    for choice in sorted(choices, key=lambda each: (-each.capacity_rps, each.row)):
        clock, power_w = choice.row.clock_mhz, choice.row.power_w
        if choice.capacity_rps > 0.0 and power_w < min_w[clock]:
            min_w[clock] = power_w
            yield choice


def _is_within_watts(choice: SliceChoice) -> bool:
    """Whether a slice keeps to its part of the watts, so that any GPU of such slices keeps its cap."""
    gpu_type = choice.gpu_type
    # Of the largest slice, since a GPU may have compute parts that no slice gets: seven of A100's eight are sold.
    gpcs = max(profile.gpcs for profile in gpu_type.slices)
    room_w = gpu_type.power_cap_w - gpu_type.idle_w
    return choice.row.power_w * gpcs <= room_w * choice.profile.gpcs


def _capacity_rps(problem: Problem, service: ServiceDemand, row: SlicePoint) -> float:
    one = capacity_rps(
        problem.capacity_law,
        percentile=service.percentile,
        batch=row.batch,
        slo_ms=service.slo_ms,
        execution_ms=row.execution_ms,
    )
    # Each process has a queue of its own, and was measured next to the others.
    capacity = row.processes * one
    limit = service.max_replica_rps
    return capacity if limit is None else min(capacity, limit)


def types_of_gpus(program: SliceProgram) -> Iterator[str]:
    """The GPU type of each variable that stands for GPUs; those of slices have none: their GPU is in a cut."""
    yield from (cut.gpu_type.name for cut in program.cuts)
    yield from ("" for _ in program.choices)
    if program.tables is not None:
        modes, types = program.tables.modes, uncut_types(program.problem)
        yield from (
            types[modes[each.pattern.mode].gpu_type].name for each in program.columns
        )


def uncut_types(problem: Problem) -> tuple[GpuType, ...]:
    """The types whose GPUs may stay whole, as the tables number them."""
    return tuple(each for each in problem.gpu_types if not each.is_sliced_only)


def weights(program: SliceProgram) -> Reals:
    """(N,) what is served, as an objective to be minimised: −priority · rate, and a little for missing replicas."""
    services = program.problem.services
    served = np.array([each.priority * each.arrival_rate_rps for each in services])
    factors = np.zeros(program.size)
    factors[program.served_at : program.missing_at] = -served
    # So little that no missing replica is worth a request that could be served, as the contract has it.
    factors[program.missing_at :] = 1e-7 * max(1.0, served.sum())
    return factors


def costs(program: SliceProgram) -> Reals:
    """(N,) USD per hour of each variable; next to nothing where all GPUs are paid for anyway."""
    problem = priced_problem(program.problem)
    energy = problem.energy_price_usd_per_kwh / 1000.0
    factors = np.zeros(program.size)
    for at, cut in enumerate(program.cuts):
        price = problem.gpu_type(cut.gpu_type.name).price_usd_per_hour
        factors[at] = price + energy * cut.gpu_type.idle_w
    for at, choice in enumerate(program.choices, start=len(program.cuts)):
        factors[at] = energy * choice.row.power_w
    for at, column in enumerate(program.columns, start=program.columns_at):
        factors[at] = column.price
    return factors
