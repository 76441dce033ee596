"""Evening out a placement: a lower peak SM percent on the same GPUs, by moves and swaps."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.placement.integer_problem import SM, Groups, TypePacking, Whole, canonical


@dataclass(slots=True, kw_only=True)
class _Loads:
    """A placement while it is being changed; M GPUs, K placed replicas, L labels."""

    packing: TypePacking
    gpu_of: Whole
    """(K,) for each of `placed`, its GPU."""
    placed: Whole
    """(K,) indices of the placed replicas."""
    loads: Whole
    """(M, D)."""
    bears: npt.NDArray[np.bool_]
    """(N, L)."""
    bearers: Whole
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
    best: tuple[int, int, int] | None = None
    for position in np.flatnonzero(state.gpu_of == full).tolist():
        for peak, partner in (_best_move(state, position), _best_swap(state, position)):
            if peak < state.loads[full, SM] and (best is None or peak < best[0]):
                best = (peak, position, partner)
    if best is None:
        return False
    _, position, partner = best
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
    index, full = state.placed[position], state.gpu_of[position]
    after = state.loads + state.packing.sizes[index]
    possible = (after <= state.packing.rooms).all(axis=1) & ~(
        state.bearers[:, state.bears[index]] > 0
    ).any(axis=1)
    possible[full] = False
    left = state.loads[full, SM] - state.packing.sizes[index, SM]
    peaks = np.where(possible, np.maximum(after[:, SM], left), _NO_PEAK)
    other = int(np.argmin(peaks))
    return int(peaks[other]), -1 - other


def _best_swap(state: _Loads, position: int) -> tuple[int, int]:
    """(the higher SM percent of the two GPUs afterwards, the position of the replica that comes in exchange)."""
    index, full = state.placed[position], state.gpu_of[position]
    growth = state.packing.sizes[index] - state.packing.sizes[state.placed]
    after_other = state.loads[state.gpu_of] + growth
    after_full = state.loads[full] - growth
    rooms = state.packing.rooms
    theirs = state.bears[state.placed]
    met_there = (state.bearers[state.gpu_of] - theirs)[:, state.bears[index]] > 0
    met_here = theirs & (state.bearers[full] - state.bears[index] > 0)
    possible = (after_other <= rooms).all(axis=1) & (after_full <= rooms).all(axis=1)
    possible &= ~met_there.any(axis=1) & ~met_here.any(axis=1) & (state.gpu_of != full)
    peaks = np.where(
        possible, np.maximum(after_other[:, SM], after_full[:, SM]), _NO_PEAK
    )
    partner = int(np.argmin(peaks))
    return int(peaks[partner]), partner


def _carry(state: _Loads, position: int, gpu: int) -> None:
    index, before = state.placed[position], state.gpu_of[position]
    for where, sign in ((before, -1), (gpu, 1)):
        state.loads[where] += sign * state.packing.sizes[index]
        state.bearers[where] += sign * state.bears[index]
    state.gpu_of[position] = gpu
