"""Placement on one GPU type as a covering by whole-GPU patterns. Imports ortools.

Sets         C classes of alike replicas, n_c in each; P patterns: how many of each class one GPU carries, allowed by
             every constraint, and maximal (nothing more fits).
Variables    z_p ≥ 0, GPUs of pattern p; s_c ≤ n_c, replicas of class c that are placed.
Constraints  Σ_p a_pc z_p ≥ s_c: a pattern may carry fewer than it could; Σ_p z_p ≤ GPUs.

GPUs have no names here, so there is no symmetry, and the linear relaxation is nearly tight: it proves within
milliseconds what the assignment formulation does not in seconds. It needs patterns that can be listed: up to about a
dozen classes always, thirty when three or four share a GPU.
"""

import numpy as np
from ortools.sat.python import cp_model

from solvers.placement.formulation import Classes, PlacementProgram
from solvers.placement.integer_problem import Groups, Integers, TypePacking

MAX_PARTIAL_PATTERNS = 20_000
"""Beyond it listing patterns costs more (about 20 ms) than it gains."""


def build(
    packing: TypePacking,
    classes: Classes,
    gpus: int,
    *,
    needs_all: bool,
    start: Groups,
) -> PlacementProgram | None:
    """The formulation for at most that many GPUs, with `start` as a hint; None when there are too many patterns."""
    patterns = maximal_patterns(packing, classes)
    if patterns is None:
        return None
    sat = cp_model.CpModel()
    counts = [
        sat.new_int_var(0, gpus, f"z_{number}") for number in range(len(patterns))
    ]
    placed = []
    for number, members in enumerate(classes.members):
        total, min_placed = len(members), len(members) if needs_all else 0
        placed.append(sat.new_int_var(min_placed, total, f"s_{number}"))
        carried = cp_model.LinearExpr.weighted_sum(counts, patterns[:, number].tolist())
        # At least, so that maximal patterns are enough: one with a replica less is never needed.
        sat.add(carried >= placed[-1])
    used = cp_model.LinearExpr.sum(counts)
    sat.add(used <= gpus)
    hints = _hints(patterns, classes, start)
    for count, hint in zip(counts, hints.tolist(), strict=True):
        sat.add_hint(count, hint)

    def decode(solver: cp_model.CpSolver) -> list[list[int]]:
        times = [round(solver.value(count)) for count in counts]
        totals = [round(solver.value(total)) for total in placed]
        return _unfold(np.repeat(patterns, times, axis=0), classes, totals)

    value = cp_model.LinearExpr.weighted_sum(placed, list(classes.values))
    return PlacementProgram(sat=sat, used=used, value=value, decode=decode)


def maximal_patterns(packing: TypePacking, classes: Classes) -> Integers | None:
    """(P, C) every maximal pattern; None when more than MAX_PARTIAL_PATTERNS have to be looked at.

    Level by level: all patterns of k replicas are extended by one replica of the last class in them or a later one.
    """
    width = len(classes.members)
    patterns = np.zeros((1, width), dtype=np.int64)
    last = np.zeros(1, dtype=np.int64)
    maximal: list[Integers] = []
    looked_at = 1
    while len(patterns):
        left = packing.rooms - patterns @ classes.sizes
        can_add = (left[:, None, :] >= classes.sizes).all(axis=2)
        can_add &= patterns < classes.max_per_gpu
        can_add &= (patterns > 0).astype(np.int64) @ classes.excludes == 0
        # Maximal by all classes, extended by the later ones only: so every pattern is made once, in one order.
        maximal.append(patterns[~can_add.any(axis=1)])
        which, added = np.nonzero(can_add & (np.arange(width) >= last[:, None]))
        looked_at += len(which)
        if looked_at > MAX_PARTIAL_PATTERNS:
            return None
        patterns, last = patterns[which], added
        patterns[np.arange(len(patterns)), added] += 1
    return np.concatenate(maximal)


def _hints(patterns: Integers, classes: Classes, start: Groups) -> Integers:
    """(P,) how often each pattern is used when every GPU of the start takes the first pattern that covers it."""
    hints = np.zeros(len(patterns), dtype=np.int64)
    for group in start:
        covers = (patterns >= classes.counts(group)).all(axis=1)
        if covers.any():
            hints[int(np.argmax(covers))] += 1
    return hints


def _unfold(gpus: Integers, classes: Classes, totals: list[int]) -> list[list[int]]:
    """Replicas for the places of each GPU (M, C), until each class's total is reached."""
    groups: list[list[int]] = [[] for _ in gpus]
    for number, (members, total) in enumerate(
        zip(classes.members, totals, strict=True)
    ):
        waiting = list(members[:total])
        for group, places in zip(groups, gpus[:, number].tolist(), strict=True):
            group += waiting[:places]
            waiting = waiting[places:]
    return groups
