"""Placement on one GPU type by CP-SAT: multi-dimensional bin packing or knapsack, then the lowest peak SM percent.

Imports ortools: about 1 s. Deterministic but for the wall-clock limit: one worker, a seed, a work limit.

Symmetry: replicas that differ in name only form a class, and the variables count a class on a GPU, x_cj; GPUs are
alike, so their SM loads are put in falling order. Only GPUs that can still improve on the start are modelled.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from solvers.outcome import SolveStatus
from solvers.placement.bounds import fewest_gpus, lowest_peak, most_value
from solvers.placement.packing import SM, Groups, Packing, canonical, has_all, peak, score

STATUS = {
    cp_model.OPTIMAL: SolveStatus.OPTIMAL,
    cp_model.FEASIBLE: SolveStatus.FEASIBLE,
    cp_model.INFEASIBLE: SolveStatus.INFEASIBLE,
    cp_model.UNKNOWN: SolveStatus.TIME_LIMIT,  # The limits below are the only reason to stop without an answer.
    cp_model.MODEL_INVALID: SolveStatus.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formulation:
    sat: cp_model.CpModel
    classes: tuple[tuple[int, ...], ...]
    on_gpu: tuple[tuple[cp_model.IntVar, ...], ...]
    """(C, J) how many replicas of the class are on the GPU."""
    sm_loads: tuple[cp_model.LinearExpr, ...]
    """(J,) falling."""


def place_better(packing: Packing, start: Groups, limits: Limits) -> Improvement:
    """More value, or the same on fewer GPUs, than `start`."""
    if has_all(packing, start):
        return _use_fewer_gpus(packing, start, limits)
    return _place_more_value(packing, start, limits)


def _use_fewer_gpus(packing: Packing, start: Groups, limits: Limits) -> Improvement:
    value, least = score(packing, start).value, fewest_gpus(packing)
    if len(start) <= least:
        return Improvement(groups=start, status=SolveStatus.OPTIMAL, value_bound=value, gpus_bound=len(start))
    formulation = build(packing, len(start) - 1, needs_all=True)
    used = _used(packing, formulation)
    for gpu in used[:least]:
        formulation.sat.add(gpu == 1)
    formulation.sat.minimize(sum(used))
    status, groups, bound = _solve(packing, formulation, start, limits)
    if status is SolveStatus.INFEASIBLE:
        return Improvement(groups=start, status=SolveStatus.OPTIMAL, value_bound=value, gpus_bound=len(start))
    if groups is None:
        return Improvement(groups=start, status=status, value_bound=value, gpus_bound=least)
    return Improvement(groups=groups, status=status, value_bound=value, gpus_bound=max(least, bound))


def _place_more_value(packing: Packing, start: Groups, limits: Limits) -> Improvement:
    value, most = score(packing, start).value, most_value(packing)
    formulation = build(packing, packing.gpus, needs_all=False)
    used = _used(packing, formulation)
    placed_value = _value(packing, formulation)
    formulation.sat.add(placed_value >= value)
    formulation.sat.add(placed_value <= most)
    # One unit of value outweighs all GPUs: the sum's optimum is the lexicographic one.
    weight = len(used) + 1
    formulation.sat.minimize(sum(used) - weight * placed_value)
    status, groups, bound = _solve(packing, formulation, start, limits)
    if groups is None:
        return Improvement(groups=start, status=status, value_bound=most, gpus_bound=1)
    # used − weight · value ≥ bound, for every placement; and used ≤ weight − 1.
    value = score(packing, groups).value
    return Improvement(
        groups=groups,
        status=status,
        value_bound=min(most, (weight - 1 - bound) // weight),
        gpus_bound=max(1, bound + weight * value),
    )


def place_more_evenly(packing: Packing, start: Groups, limits: Limits) -> tuple[Groups, SolveStatus]:
    """As much value on as many GPUs as `start` with a lower peak SM percent; status OPTIMAL when none is lower."""
    needs_all = has_all(packing, start)
    least = lowest_peak(packing, len(start)) if needs_all else 0
    if peak(packing, start) <= least:
        return start, SolveStatus.OPTIMAL
    formulation = build(packing, len(start), needs_all=needs_all)
    formulation.sat.add(formulation.sm_loads[0] >= least)
    formulation.sat.add(formulation.sm_loads[0] <= peak(packing, start) - 1)
    formulation.sat.add(_value(packing, formulation) >= score(packing, start).value)
    formulation.sat.minimize(formulation.sm_loads[0])
    status, groups, _ = _solve(packing, formulation, start, limits)
    return groups or start, SolveStatus.OPTIMAL if status is SolveStatus.INFEASIBLE else status


def build(packing: Packing, gpus: int, *, needs_all: bool) -> _Formulation:
    """Variables, and the constraints that every stage shares, for that many GPUs."""
    sat = cp_model.CpModel()
    classes = _classes(packing)
    on_gpu = tuple(
        tuple(sat.new_int_var(0, most, f"x_{number}_{gpu}") for gpu in range(gpus))
        for number, most in enumerate(_most_on_a_gpu(packing, members) for members in classes)
    )
    for members, counts in zip(classes, on_gpu, strict=True):
        placed = sum(counts)
        sat.add(placed == len(members) if needs_all else placed <= len(members))
    for gpu in range(gpus):
        for d, room in enumerate(packing.rooms.tolist()):
            sat.add(_load(packing, classes, [counts[gpu] for counts in on_gpu], d) <= room)
        for bearers in _sharing_a_label(packing, classes):
            sat.add_at_most_one(on_gpu[number][gpu] for number in bearers)
    loads = tuple(_load(packing, classes, [counts[gpu] for counts in on_gpu], SM) for gpu in range(gpus))
    for left, right in itertools.pairwise(loads):
        sat.add(left >= right)
    return _Formulation(sat=sat, classes=classes, on_gpu=on_gpu, sm_loads=loads)


def _classes(packing: Packing) -> tuple[tuple[int, ...], ...]:
    alike: dict[object, list[int]] = defaultdict(list)
    for index, (labels, value) in enumerate(zip(packing.labels, packing.values, strict=True)):
        alike[labels, value, tuple(packing.sizes[index].tolist())].append(index)
    return tuple(tuple(members) for members in alike.values())


def _most_on_a_gpu(packing: Packing, members: Sequence[int]) -> int:
    if packing.labels[members[0]]:
        return 1
    sizes = packing.sizes[members[0]].tolist()
    fitting: list[int] = [room // size for room, size in zip(packing.rooms.tolist(), sizes, strict=True) if size > 0]
    return min(len(members), *fitting)


def _sharing_a_label(packing: Packing, classes: Sequence[Sequence[int]]) -> list[list[int]]:
    bearers: dict[int, list[int]] = defaultdict(list)
    for number, members in enumerate(classes):
        for label in packing.labels[members[0]]:
            bearers[label].append(number)
    return [numbers for _, numbers in sorted(bearers.items()) if len(numbers) > 1]


def _load(
    packing: Packing, classes: Sequence[Sequence[int]], counts: Sequence[cp_model.IntVar], dimension: int
) -> cp_model.LinearExpr:
    sizes = [int(packing.sizes[members[0], dimension]) for members in classes]
    return cp_model.LinearExpr.weighted_sum(counts, sizes)


def _value(packing: Packing, formulation: _Formulation) -> cp_model.LinearExpr:
    terms = [
        (count, packing.values[members[0]])
        for members, counts in zip(formulation.classes, formulation.on_gpu, strict=True)
        for count in counts
    ]
    return cp_model.LinearExpr.weighted_sum([count for count, _ in terms], [value for _, value in terms])


def _used(packing: Packing, formulation: _Formulation) -> list[cp_model.IntVar]:
    """y_j, falling: 0 forbids every replica on GPU j. Tied to the rooms, which is tighter than to each variable."""
    used = [formulation.sat.new_bool_var(f"y_{gpu}") for gpu in range(len(formulation.sm_loads))]
    for gpu, is_used in enumerate(used):
        counts = [counts[gpu] for counts in formulation.on_gpu]
        for d, room in enumerate(packing.rooms.tolist()):
            formulation.sat.add(_load(packing, formulation.classes, counts, d) <= room * is_used)
    for left, right in itertools.pairwise(used):
        formulation.sat.add(left >= right)
    return used


def _solve(
    packing: Packing, formulation: _Formulation, start: Groups, limits: Limits
) -> tuple[SolveStatus, Groups | None, int]:
    """Status, placement if there is one, and the bound on the objective (meaningless without a placement)."""
    _hint(packing, formulation, start)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = limits.threads
    solver.parameters.random_seed = limits.seed
    solver.parameters.max_time_in_seconds = limits.seconds
    solver.parameters.max_deterministic_time = limits.work
    solver.parameters.relative_gap_limit = 0.0
    status = STATUS.get(solver.solve(formulation.sat), SolveStatus.UNKNOWN)
    if not status.has_solution:
        return status, None, 0
    gpus: list[list[int]] = [[] for _ in formulation.sm_loads]
    for members, counts in zip(formulation.classes, formulation.on_gpu, strict=True):
        waiting = list(members)
        for gpu, count in enumerate(counts):
            for _ in range(round(solver.value(count))):
                gpus[gpu].append(waiting.pop(0))
    return status, canonical(gpus), round(solver.best_objective_bound)


def _hint(packing: Packing, formulation: _Formulation, start: Groups) -> None:
    """Suggest the start, fullest GPU first; those that the formulation has no place for are left out."""
    class_of = {index: number for number, members in enumerate(formulation.classes) for index in members}
    by_load = sorted(start, key=lambda group: -int(packing.sizes[list(group), SM].sum()))
    for gpu in range(len(formulation.sm_loads)):
        numbers = [class_of[index] for index in by_load[gpu]] if gpu < len(by_load) else []
        for number, counts in enumerate(formulation.on_gpu):
            formulation.sat.add_hint(counts[gpu], numbers.count(number))
