"""Evening out a placement: a lower peak SM percent on the same GPUs, by moves and swaps."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.placement.integer_problem import (
    SM,
    Groups,
    Integers,
    TypePacking,
    canonical,
)


@dataclass(slots=True, kw_only=True)
class _Loads:
    """A placement while it is being changed; M GPUs, K placed replicas, L labels."""

    packing: TypePacking
    gpu_of: Integers
    """(K,) for each of `placed`, its GPU."""
    placed: Integers
    """(K,) indices of the placed replicas."""
    loads: Integers
    """(M, D)."""
    bears: npt.NDArray[np.bool_]
    """(N, L)."""
    bearers: Integers
    """(M, L) how many replicas with the label a GPU carries."""


def even_out(packing: TypePacking, groups: Groups) -> Groups:
    """The same replicas on as many GPUs with a lower peak SM percent, or the same placement when nothing helps.

    Every step changes a fullest GPU and one other so that both end below the old peak. That lowers the sum of the
    squared SM percents, so it ends; it stops where no move or swap helps, which need not be the lowest peak.
    """
    if len(groups) < 2:
        return groups
    state = _start(packing, groups)
    while _step(state):
        pass
    gpus: list[list[int]] = [[] for _ in groups]
    for index, gpu in zip(state.placed.tolist(), state.gpu_of.tolist(), strict=True):
        gpus[gpu].append(index)
    return canonical(gpus)


def _start(packing: TypePacking, groups: Groups) -> _Loads:
    bears = np.zeros((len(packing.replicas), packing.label_count), dtype=bool)
    for index, labels in enumerate(packing.labels):
        bears[index, list(labels)] = True
    return _Loads(
        packing=packing,
        gpu_of=np.array([gpu for gpu, group in enumerate(groups) for _ in group]),
        placed=np.array([index for group in groups for index in group]),
        loads=np.array([packing.sizes[list(group)].sum(axis=0) for group in groups]),
        bears=bears,
        bearers=np.array([bears[list(group)].sum(axis=0) for group in groups]),
    )


def _step(state: _Loads) -> bool:
    """Relieve a fullest GPU by its best move or swap; False when it has none."""
    full = int(np.argmax(state.loads[:, SM]))
    options = [
        (peak, position, partner)
        for position in np.flatnonzero(state.gpu_of == full).tolist()
        for peak, partner in (_best_move(state, position), _best_swap(state, position))
        if peak < state.loads[full, SM]
    ]
    if not options:
        return False
    # The first of equals: for the same replica a move before a swap, since it changes less.
    _, position, partner = min(options, key=lambda option: option[0])
    if partner >= 0:
        other = int(state.gpu_of[partner])
        _carry(state, partner, full)
    else:
        other = -1 - partner
    _carry(state, position, other)
    return True


_NO_PEAK = np.iinfo(np.int64).max


def _best_move(state: _Loads, position: int) -> tuple[int, int]:
    """(the higher SM percent of the two GPUs afterwards, −1 − the other GPU)."""
    index = state.placed[position]
    full = state.gpu_of[position]
    after = state.loads + state.packing.sizes[index]
    has_label = (state.bearers[:, state.bears[index]] > 0).any(axis=1)
    possible = (after <= state.packing.rooms).all(axis=1) & ~has_label
    possible[full] = False
    left = state.loads[full, SM] - state.packing.sizes[index, SM]
    peaks = np.where(possible, np.maximum(after[:, SM], left), _NO_PEAK)
    # Where none is possible the first one is chosen, at a peak that no caller takes.
    other = int(np.argmin(peaks))
    return int(peaks[other]), -1 - other


def _best_swap(state: _Loads, position: int) -> tuple[int, int]:
    """(the higher SM percent of the two GPUs afterwards, the position of the replica that comes in exchange)."""
    index = state.placed[position]
    full = state.gpu_of[position]
    growth = state.packing.sizes[index] - state.packing.sizes[state.placed]
    after_other = state.loads[state.gpu_of] + growth
    after_full = state.loads[full] - growth
    fits = (
        (after_other <= state.packing.rooms) & (after_full <= state.packing.rooms)
    ).all(axis=1)
    possible = fits & ~_labels_meet(state, index, full) & (state.gpu_of != full)
    peaks = np.where(
        possible, np.maximum(after_other[:, SM], after_full[:, SM]), _NO_PEAK
    )
    partner = int(np.argmin(peaks))
    return int(peaks[partner]), partner


def _labels_meet(state: _Loads, index: int, full: int) -> npt.NDArray[np.bool_]:
    """(K,) whether a label would be twice on a GPU after the replica was exchanged for each placed one."""
    theirs = state.bears[state.placed]
    # Without the one that goes: a label that both bear is no obstacle.
    met_there = (state.bearers[state.gpu_of] - theirs)[:, state.bears[index]] > 0
    met_here = theirs & (state.bearers[full] - state.bears[index] > 0)
    meets: npt.NDArray[np.bool_] = met_there.any(axis=1) | met_here.any(axis=1)
    return meets


def _carry(state: _Loads, position: int, gpu: int) -> None:
    index = state.placed[position]
    before = state.gpu_of[position]
    for where, sign in ((before, -1), (gpu, 1)):
        state.loads[where] += sign * state.packing.sizes[index]
        state.bearers[where] += sign * state.bears[index]
    state.gpu_of[position] = gpu
