"""Tables: a Problem as arrays that compiled kernels read.

A *mode* is a GPU type at one clock: the clock is shared by everything on the GPU, so it belongs to the GPU. A
*candidate* of a mode is one service at one of its network's operating rows there. Candidates are sorted by service and
SM steps, and only those are kept that meet their SLO, fit the GPU by themselves, and are not dominated.

Candidate j dominates i of the same service when it takes no more SM steps, memory and watts, presses no more on its
neighbours, and carries no less of the service's rate next to any neighbours. Put j for i in any pattern that holds i:
limits still hold, watts cost no more, the other replicas meet less pressure and carry no less (capacity falls as
execution time rises), and j carries no less than i did. So patterns of undominated candidates are as good as all.

What is carried next to any neighbours is compared on knots of pressure 0 = P_0 < … < P_K that no neighbours exceed, for
every number of replicas that launch delays tell from others: what j carries at P_{k+1} is no less than what i carries
at P_k. Between the two, j carries no less than at the upper knot and i no more than at the lower. That loses little,
because a replica that carries the whole rate carries no more than it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.laws import find_dominated
from solvers.joint.kernels.types import Flags, GpuMode, Law, Numbers, Reals
from solvers.joint.patterns.candidates import (
    CANDIDATE_FIELDS,
    STEP_TOLERANCE,
    Rows,
    max_width,
    room_w,
    rows_of,
    sorted_candidates,
    utilisation_at,
)
from solvers.laws.colocation import launch_factor
from solvers.types.problem import (
    CapacityLaw,
    Problem,
)
from solvers.types.state import GpuType

_W_PER_KW = 1000.0
_KNOTS = 9
"""Pressures at which candidates are compared: the more, the fewer candidates stay, and the longer it takes."""
_BLOCK = 10_000
"""Candidates that are compared at a time: what they carry next to every set of neighbours takes memory."""
_MAY_IDLE = CANDIDATE_FIELDS.index("may_idle")
_INTEGERS, _REALS = range(4), range(4, _MAY_IDLE)
"""Places of the candidates' fields by their types; flags are last."""


class Tables(NamedTuple):
    """A whole Problem as arrays."""

    law: Law
    modes: tuple[GpuMode, ...]
    rate: Reals
    """(S,) arrival rates. Candidates that only higher ones could need are left out."""
    priority: Reals
    stock: Reals
    """(G,) GPUs of each type; infinite where as many as wanted."""
    price: Reals
    """(G,) USD per hour of an idle GPU."""
    idle_w: Reals = np.zeros(0)
    """(G,) what a GPU draws without any replica."""
    costs_nothing: Flags = np.zeros(0, np.bool_)
    """(G,) whether all GPUs of the type are paid for anyway, and energy is free: what runs there may stay as room."""

    @property
    def mode_types(self) -> Numbers:
        """(M,) the GPU type of each mode."""
        return np.array([mode.gpu_type for mode in self.modes], np.int32)

    @property
    def mode_prices(self) -> Reals:
        """(M,) USD per hour of an idle GPU in each mode."""
        return np.array([mode.price for mode in self.modes])


def make_tables(problem: Problem) -> Tables:
    """The tables of a problem. Modes by type and clock, candidates by service, SM steps, batch."""
    (tables,) = tables_at(problem, (1.0,))
    return tables


def tables_at(problem: Problem, headrooms: Sequence[float]) -> tuple[Tables, ...]:
    """The tables for rates times each of `headrooms`, made together: only which candidates stay differs."""
    law = _law(problem.capacity_law)
    rate = np.array([service.arrival_rate_rps for service in problem.services])
    rates = [headroom * rate for headroom in headrooms]
    common = Tables(
        law=law,
        modes=(),
        rate=rate,
        priority=np.array([service.priority for service in problem.services]),
        stock=stock_of(problem),
        price=np.array(
            [_idle_price(problem, gpu_type) for gpu_type in problem.gpu_types]
        ),
        idle_w=np.array([gpu_type.idle_w for gpu_type in problem.gpu_types]),
        costs_nothing=np.array(
            [
                one.is_owned and problem.energy_price_usd_per_kwh == 0.0
                for one in problem.gpu_types
            ]
        ),
    )
    return tuple(
        common._replace(modes=modes, rate=own)
        for modes, own in zip(_modes(problem, law, rates), rates, strict=True)
    )


def _modes(
    problem: Problem, law: Law, rates: Sequence[Reals]
) -> list[tuple[GpuMode, ...]]:
    """For each of the rates, by type and clock, without modes that nothing can run on."""
    rows = rows_of(problem)
    modes = [
        _undominated(
            problem, rows, _mode(problem, rows, index, clock_mhz, law), law, rates
        )
        for index, gpu_type in enumerate(problem.gpu_types)
        for clock_mhz in gpu_type.clocks_mhz
    ]
    # Without candidates there would be no patterns, and kernels ask for one candidate at least.
    return [
        tuple(mode[at] for mode in modes if len(mode[at].service))
        for at in range(len(rates))
    ]


def stock_of(problem: Problem) -> Reals:
    """(G,) GPUs of each type; infinite where as many as wanted."""
    counts = (gpu_type.count for gpu_type in problem.gpu_types)
    return np.array([np.inf if count is None else float(count) for count in counts])


def take(mode: GpuMode, kept: npt.NDArray[np.int64] | Flags | slice) -> GpuMode:
    """The mode with some of its candidates."""
    return mode._replace(
        **{name: getattr(mode, name)[kept] for name in CANDIDATE_FIELDS}
    )


def _law(law: CapacityLaw) -> Law:
    table = np.array(law.max_utilisation, dtype=np.float64)
    return Law(
        ratios=np.array(law.slo_ratios),
        utilisation=table.reshape(-1, len(law.slo_ratios)),
    )


def _idle_price(problem: Problem, gpu_type: GpuType) -> float:
    return (
        gpu_type.price_usd_per_hour
        + problem.energy_price_usd_per_kwh * gpu_type.idle_w / _W_PER_KW
    )


def _mode(
    problem: Problem, rows: Rows, index: int, clock_mhz: float, law: Law
) -> GpuMode:
    gpu_type = problem.gpu_types[index]
    table = sorted_candidates(problem, rows, gpu_type, clock_mhz, law)
    service, row, width, law_row = (
        np.ascontiguousarray(table[:, at], dtype=np.int32) for at in _INTEGERS
    )
    # In the greatest common divisor of all shares: the dynamic program of pricing takes time in proportion to steps.
    unit = max(1, int(np.gcd.reduce(width)))
    return GpuMode(
        gpu_type=index,
        clock_mhz=float(clock_mhz),
        steps=int(max_width(problem, gpu_type)) // unit,
        max_replicas=problem.max_replicas_per_gpu,
        # Whole numbers are floats too, but not to compiled kernels.
        memory_mib=float(gpu_type.memory_mib),
        power_w=room_w(gpu_type),
        price=float(_idle_price(problem, gpu_type)),
        watt_price=problem.energy_price_usd_per_kwh / _W_PER_KW,
        launch_factor=_launch_factors(gpu_type, problem.max_replicas_per_gpu),
        service=service,
        row=row,
        width=width // unit,
        law=law_row,
        may_idle=table[:, _MAY_IDLE] > 0.0,
        shares_label=_shared_labels(problem),
        **{CANDIDATE_FIELDS[at]: np.ascontiguousarray(table[:, at]) for at in _REALS},
    )


def _shared_labels(problem: Problem) -> Flags:
    """(S, S) which services may not share a GPU; (0, 0) without labels."""
    if not problem.has_labels:
        return np.zeros((0, 0), np.bool_)
    return np.array(
        [
            [not one.may_share_with(other) for other in problem.services]
            for one in problem.services
        ]
    )


def _launch_factors(gpu_type: GpuType, max_replicas: int) -> Reals:
    """(N + 1,) by the number of replicas on the GPU."""
    return np.array(
        [launch_factor(gpu_type, count) for count in range(max_replicas + 1)]
    )


def _undominated(
    problem: Problem, rows: Rows, mode: GpuMode, law: Law, rates: Sequence[Reals]
) -> list[GpuMode]:
    """For each of the rates, the mode without dominated candidates, but with all that run now: staying costs no
    migration.
    """
    if len(mode.service) == 0:
        return [mode] * len(rates)
    neighbour_sets = _neighbour_sets(mode)
    dominated = zip(
        *(
            _are_dominated(take(mode, block), law, rates, *neighbour_sets)
            for block in _blocks(mode)
        ),
        strict=True,
    )
    runs = _is_running(problem, rows, mode)
    return [take(mode, ~np.concatenate(each) | runs) for each in dominated]


def _blocks(mode: GpuMode) -> list[slice]:
    """Candidates of entire services, at most `_BLOCK` at a time where no service has more."""
    ends = np.append(
        np.flatnonzero(np.diff(mode.service)) + 1, len(mode.service)
    ).tolist()
    # Domination is between candidates of one service, so that no service may be split.
    blocks, begin, last = [], 0, 0
    for end in ends:
        if end - begin > _BLOCK and last > begin:
            blocks.append(slice(begin, last))
            begin = last
        last = end
    return [*blocks, slice(begin, last)]


def _are_dominated(
    mode: GpuMode,
    law: Law,
    rates: Sequence[Reals],
    launch_factor: Reals,
    pressure: Reals,
) -> Iterator[Flags]:
    """For each of the rates, (C,); sets of neighbours as in `_capacity`."""
    count = len(mode.service)
    capacity = _capacity(mode, law, launch_factor, pressure)
    needs = np.column_stack(
        (mode.width.astype(np.float64), mode.memory, mode.power, mode.pressure)
    )
    for rate in rates:
        carried = np.minimum(capacity, rate[mode.service][:, None, None])
        yield find_dominated(
            np.searchsorted(mode.service, np.arange(len(rate) + 1)),
            needs,
            # The upper knot of one candidate against the lower knot of the other (see above), at all intervals.
            # Contiguous, since a compiled kernel is specialised on the layout of its arrays.
            np.ascontiguousarray(carried[:, :, 1:]).reshape(count, -1),
            np.ascontiguousarray(carried[:, :, :-1]).reshape(count, -1),
        )


def _neighbour_sets(mode: GpuMode) -> tuple[Reals, Reals]:
    """(N,) launch factors and (N, K) knots of pressure of all sets of neighbours that differ in effect: none first."""
    pressure = _max_pressure(mode)
    knots = np.linspace(0.0, pressure, _KNOTS if pressure > 0.0 else 2)
    alone = mode.launch_factor[1]
    others = np.unique(mode.launch_factor[2:])
    # Neighbours that neither press nor delay launches are as good as none.
    if pressure <= 0.0:
        others = others[others != alone]
    pressures = np.vstack((np.zeros(len(knots)), np.tile(knots, (len(others), 1))))
    return np.append(alone, others), pressures


def _max_pressure(mode: GpuMode) -> float:
    """What no neighbours exceed: by the number of replicas and by SM steps."""
    heaviest = np.zeros(int(mode.service[-1]) + 1)
    np.maximum.at(heaviest, mode.service, mode.pressure)
    by_count = np.sort(heaviest)[::-1][: mode.max_replicas - 1].sum()
    return float(min(by_count, mode.steps * (mode.pressure / mode.width).max()))


def _capacity(mode: GpuMode, law: Law, launch_factor: Reals, pressure: Reals) -> Reals:
    """(C, N, K) rps that each candidate can carry next to N sets of neighbours, whatever its service is asked.

    launch_factor: (N,), pressure: (N, K).
    """
    own = np.arange(len(mode.service))[:, None, None]
    # As in the contract's laws: launches slow down with the count, execution with the pressure of neighbours.
    launch_ms = mode.launch_ms[own] * launch_factor[:, None]
    duration_ms = mode.alone_ms[own] + launch_ms + mode.growth_ms[own] * pressure
    duration_ms += mode.overload_ms[own] * np.maximum(0.0, pressure - mode.room[own])
    utilisation = utilisation_at(law, mode.law, mode.slo_ms[own] / duration_ms)
    capacity: Reals = 1000.0 * mode.batch[own] / duration_ms * utilisation
    return np.minimum(capacity, mode.max_rps[own])


def _is_running(problem: Problem, rows: Rows, mode: GpuMode) -> Flags:
    """(C,) candidates with the SM percent of a replica of their service that runs on the type now."""
    gpu_type = problem.gpu_types[mode.gpu_type].name
    running = np.zeros(len(mode.service), np.bool_)
    for number, percent in _running_shares(problem, gpu_type):
        table = rows.get((problem.services[number].network, gpu_type))
        if table is None:
            continue
        own = slice(*np.searchsorted(mode.service, (number, number + 1)))
        running[own] |= np.abs(table[mode.row[own], 0] - percent) <= STEP_TOLERANCE
    return running


def _running_shares(problem: Problem, gpu_type: str) -> set[tuple[int, float]]:
    """(service, SM percent) of what runs on a type, whatever its batch: a replica may change that without a start."""
    gpus = problem.current.gpus if problem.current is not None else ()
    # What runs may be of a service that the problem does not have any more.
    number = {service.name: at for at, service in enumerate(problem.services)}
    return {
        (number[each.service], each.sm_percent)
        for gpu in gpus
        if gpu.gpu_type == gpu_type
        for each in gpu.replicas
        if each.service in number
    }
