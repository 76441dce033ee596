"""Placement on one GPU type by CP-SAT: more value or fewer GPUs than a start, then the lowest peak SM percent.

Imports ortools: about 1 s. Deterministic but for the wall-clock limit: one worker, a seed, a work limit. Patterns
(`covering`) where they can be listed, else classes on GPUs (`assignment`).
"""

from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from solvers.placement import assignment, covering
from solvers.placement.bounds import lowest_peak, max_value, min_gpus
from solvers.placement.formulation import PlacementProgram, classes_of
from solvers.placement.integer_problem import (
    SM,
    Groups,
    TypePacking,
    canonical,
    has_all,
    peak,
    score,
)
from solvers.types.outcome import SolveStatus

STATUS = {
    cp_model.OPTIMAL: SolveStatus.OPTIMAL,
    cp_model.FEASIBLE: SolveStatus.FEASIBLE,
    cp_model.INFEASIBLE: SolveStatus.INFEASIBLE,
    cp_model.UNKNOWN: SolveStatus.TIME_LIMIT,  # The limits below are the only reason to stop without an answer.
    cp_model.MODEL_INVALID: SolveStatus.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveLimits:
    """How long one solve may take."""

    seconds: float
    work: float
    """CP-SAT's deterministic time; with it the answer is the same on every machine."""
    seed: int = 0
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """What a solve made of its start; never worse than it."""

    groups: Groups
    status: SolveStatus
    """OPTIMAL: nothing better exists. FEASIBLE: better than the start. Else the start stands: why."""
    value_bound: int
    """No placement has more value."""
    gpus_bound: int
    """No placement of as much value uses fewer GPUs."""


def place_better(
    packing: TypePacking,
    start: Groups,
    limits: SolveLimits,
) -> Improvement:
    """More value, or the same on fewer GPUs, than `start`."""
    if has_all(packing, start):
        return _use_fewer_gpus(packing, start, limits)
    return _place_more_value(packing, start, limits)


def _use_fewer_gpus(
    packing: TypePacking,
    start: Groups,
    limits: SolveLimits,
) -> Improvement:
    value = score(packing, start).value
    bound = min_gpus(packing)
    proven = Improvement(
        groups=start,
        status=SolveStatus.OPTIMAL,
        value_bound=value,
        gpus_bound=len(start),
    )
    if len(start) <= bound:
        return proven
    # With one GPU less than the start: where that is infeasible, the start is proven optimal.
    formulation = build(packing, len(start) - 1, needs_all=True, start=start)
    formulation.sat.add(formulation.used >= bound)
    formulation.sat.minimize(formulation.used)
    status, groups, solver_bound = _solve(formulation, limits)
    if status is SolveStatus.INFEASIBLE:
        return proven
    if groups is None:
        return replace(proven, status=status, gpus_bound=bound)
    return replace(
        proven, groups=groups, status=status, gpus_bound=max(bound, solver_bound)
    )


def _place_more_value(
    packing: TypePacking,
    start: Groups,
    limits: SolveLimits,
) -> Improvement:
    value_bound = max_value(packing)
    formulation = build(packing, packing.gpus, needs_all=False, start=start)
    # The bounds are constraints, too: they cut off what the solver would have to refute.
    formulation.sat.add(formulation.value >= score(packing, start).value)
    formulation.sat.add(formulation.value <= value_bound)
    # One unit of value outweighs all GPUs: the sum's optimum is the lexicographic one.
    weight = packing.gpus + 1
    formulation.sat.minimize(formulation.used - weight * formulation.value)
    status, groups, bound = _solve(formulation, limits)
    if groups is None:
        return Improvement(
            groups=start, status=status, value_bound=value_bound, gpus_bound=1
        )
    # used − weight · value ≥ bound, for every placement; and used ≤ weight − 1.
    return Improvement(
        groups=groups,
        status=status,
        value_bound=min(value_bound, (weight - 1 - bound) // weight),
        gpus_bound=max(1, bound + weight * score(packing, groups).value),
    )


def place_more_evenly(
    packing: TypePacking,
    start: Groups,
    limits: SolveLimits,
) -> tuple[Groups, SolveStatus]:
    """As much value on as many GPUs as `start` with a lower peak SM percent; status OPTIMAL when none is lower.

    Bisection on the peak: each step, with limits of its own, asks for a placement with that much less SM room.
    """
    needs_all = has_all(packing, start)
    value = score(packing, start).value
    # The bound holds for all replicas: where some are left out, another choice of them may be narrower.
    groups = start
    low = lowest_peak(packing, len(start)) if needs_all else 0
    while low < peak(packing, groups):
        tried = (low + peak(packing, groups)) // 2
        rooms = packing.rooms.copy()
        rooms[SM] = tried
        formulation = build(
            replace(packing, rooms=rooms), len(start), needs_all=needs_all, start=groups
        )
        formulation.sat.add(formulation.value >= value)
        status, found, _ = _solve(formulation, limits)
        if found is not None:
            groups = found
        elif status is SolveStatus.INFEASIBLE:
            low = tried + 1
        else:
            return groups, status
    return groups, SolveStatus.OPTIMAL


def build(
    packing: TypePacking,
    gpus: int,
    *,
    needs_all: bool,
    start: Groups,
) -> PlacementProgram:
    """By patterns where they are few enough, else by assignment; with `start` as a hint."""
    classes = classes_of(packing)
    return covering.build(
        packing, classes, gpus, needs_all=needs_all, start=start
    ) or assignment.build(packing, classes, gpus, needs_all=needs_all, start=start)


def _solve(
    formulation: PlacementProgram,
    limits: SolveLimits,
) -> tuple[SolveStatus, Groups | None, int]:
    """Status, placement if there is one, and the bound on the objective (meaningless without a placement)."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = limits.threads
    solver.parameters.random_seed = limits.seed
    solver.parameters.max_time_in_seconds = limits.seconds
    solver.parameters.max_deterministic_time = limits.work
    # No gap: a placement is called OPTIMAL only where that is proven.
    solver.parameters.relative_gap_limit = 0.0
    # Signals belong to the process: CP-SAT would end early at Ctrl-C, and leave it at its default afterwards.
    solver.parameters.catch_sigint_signal = False
    status = STATUS.get(solver.solve(formulation.sat), SolveStatus.UNKNOWN)
    if not status.has_solution:
        return status, None, 0
    return (
        status,
        canonical(formulation.decode(solver)),
        round(solver.best_objective_bound),
    )
