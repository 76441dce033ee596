"""Placement on one GPU type by variables of class and GPU, for when patterns are too many. Imports ortools.

Sets         C classes of alike replicas, n_c in each; J GPUs; D dimensions.
Variables    x_cj ≥ 0, replicas of class c on GPU j; y_j = 1 when GPU j is used.
Constraints  Σ_j x_cj ≤ n_c, or = n_c; Σ_c size_cd x_cj ≤ room_d y_j; Σ_{c with label l} x_cj ≤ 1. GPUs are alike, so
             SM loads and y fall along j.
"""

import itertools

from ortools.sat.python import cp_model

from solvers.placement.formulation import Classes, PlacementProgram
from solvers.placement.integer_problem import SM, Groups, TypePacking


def build(
    packing: TypePacking,
    classes: Classes,
    gpus: int,
    *,
    needs_all: bool,
    start: Groups,
) -> PlacementProgram:
    """The formulation for at most that many GPUs, with `start` as a hint."""
    sat = cp_model.CpModel()
    counts = [
        [sat.new_int_var(0, limit, f"x_{number}_{gpu}") for gpu in range(gpus)]
        for number, limit in enumerate(classes.max_per_gpu.tolist())
    ]
    used = [sat.new_bool_var(f"y_{gpu}") for gpu in range(gpus)]
    for members, row in zip(classes.members, counts, strict=True):
        placed = cp_model.LinearExpr.sum(row)
        sat.add(placed == len(members) if needs_all else placed <= len(members))
    _limit_gpus(sat, packing, classes, counts, used)
    _hint(sat, packing, classes, counts, start)

    def decode(solver: cp_model.CpSolver) -> list[list[int]]:
        groups: list[list[int]] = [[] for _ in used]
        for members, row in zip(classes.members, counts, strict=True):
            # The members of a class are alike: only how many of them a GPU carries matters.
            waiting = iter(members)
            for group, count in zip(groups, row, strict=True):
                group += itertools.islice(waiting, round(solver.value(count)))
        return groups

    values = [
        value for value, row in zip(classes.values, counts, strict=True) for _ in row
    ]
    return PlacementProgram(
        sat=sat,
        used=cp_model.LinearExpr.sum(used),
        value=cp_model.LinearExpr.weighted_sum(list(itertools.chain(*counts)), values),
        decode=decode,
    )


def _limit_gpus(
    sat: cp_model.CpModel,
    packing: TypePacking,
    classes: Classes,
    counts: list[list[cp_model.IntVar]],
    used: list[cp_model.IntVar],
) -> None:
    label_sets = _sharing_a_label(packing, classes)
    loads = []
    for column, is_used in zip(zip(*counts, strict=True), used, strict=True):
        taken = [
            cp_model.LinearExpr.weighted_sum(column, sizes)
            for sizes in classes.sizes.T.tolist()
        ]
        # Room times y: an unused GPU carries nothing, and the relaxation is tighter than with two constraints.
        for expression, room in zip(taken, packing.rooms.tolist(), strict=True):
            sat.add(expression <= room * is_used)
        for bearers in label_sets:
            sat.add_at_most_one(column[number] for number in bearers)
        loads.append(taken[SM])
    # GPUs are alike: one order of them stands for all, and the solver need not look at the others.
    for falling in (loads, used):
        for left, right in itertools.pairwise(falling):
            sat.add(left >= right)


def _sharing_a_label(packing: TypePacking, classes: Classes) -> list[list[int]]:
    """For each label that several classes bear, those classes; each has at most one replica on a GPU."""
    bearers: list[list[int]] = [[] for _ in range(packing.label_count)]
    for number, members in enumerate(classes.members):
        for label in packing.labels[members[0]]:
            bearers[label].append(number)
    return [numbers for numbers in bearers if len(numbers) > 1]


def _hint(
    sat: cp_model.CpModel,
    packing: TypePacking,
    classes: Classes,
    counts: list[list[cp_model.IntVar]],
    start: Groups,
) -> None:
    """Suggest the start, fullest GPU first; those that the formulation has no place for are left out."""
    # The same order as the constraints ask for: another one would be no feasible hint.
    by_load = sorted(
        start, key=lambda group: -int(packing.sizes[list(group), SM].sum())
    )
    hints = [classes.counts(group).tolist() for group in by_load]
    for number, row in enumerate(counts):
        for gpu, count in enumerate(row):
            sat.add_hint(count, hints[gpu][number] if gpu < len(hints) else 0)
