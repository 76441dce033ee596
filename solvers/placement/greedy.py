"""Placement by rules: HetSev's worst fit in the order given, best fit, and filling GPU by GPU; the best one counts.

Source: HetSev §4.2, Algorithm 1, lines 5–14; its lines 1–4 (fair queues) are HetSev's own, whose order comes in as
`PlacementProblem.order`. Changed: worst fit looks among the open GPUs first and opens another one only when none of
them takes the replica; `place_as_printed` looks among all.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from solvers.placement.integer_problem import (
    Groups,
    Integers,
    Reals,
    TypePacking,
    canonical,
    has_all,
    score,
)

Fit = Literal["best", "worst"]


def place_greedily(packing: TypePacking, order: Sequence[str]) -> Groups:
    """The best, by `score`, of worst fit in that order, best fit by descending size, and filling GPU by GPU.

    Where none of them places all, best fit by descending value for size is tried as well.
    """
    sizes = _relative_sizes(packing)
    # Two measures of size: one dimension may be scarce, or all of them, and no rule is best for both.
    largest, total = sizes.max(axis=1), sizes.sum(axis=1)
    groups = [
        place_in_order(packing, _given_order(packing, order), fit="worst"),
        place_in_order(packing, _descending(largest), fit="best"),
        place_in_order(packing, _descending(total), fit="best"),
        fill_one_by_one(packing, total),
    ]
    if not any(has_all(packing, one) for one in groups):
        density = np.array(packing.values) / np.maximum(total, 1e-12)
        groups.append(place_in_order(packing, _descending(density), fit="best"))
    return max(groups, key=lambda one: score(packing, one))


def place_as_printed(packing: TypePacking, order: Sequence[str]) -> Groups:
    """Worst fit in that order among all GPUs, so that unused ones come first."""
    given = _given_order(packing, order)
    return place_in_order(packing, given, fit="worst", open_gpus=packing.gpus)


def place_in_order(
    packing: TypePacking, order: Sequence[int], *, fit: Fit, open_gpus: int = 0
) -> Groups:
    """Each replica, in that order of indices, to the open GPU with the most (worst) or least (best) room left.

    Room left is that of the scarcest dimension, relative to an empty GPU. `open_gpus`: that are open from the start.
    O(replicas · GPUs).
    """
    room = np.tile(packing.rooms, (packing.gpus, 1))
    taken = np.zeros((packing.label_count, packing.gpus), dtype=bool)
    groups: list[list[int]] = [[] for _ in range(open_gpus)]
    for index in order:
        labels = list(packing.labels[index])
        gpu = _choose(
            room[: len(groups)] - packing.sizes[index],
            taken[labels, : len(groups)],
            packing.rooms,
            fit,
        )
        if gpu is None:
            # Algorithm 1, lines 10 and 11: one that finds no GPU is passed over, and the next one tried.
            if len(groups) == packing.gpus:
                continue
            gpu = len(groups)
            groups.append([])
        groups[gpu].append(index)
        room[gpu] -= packing.sizes[index]
        taken[labels, gpu] = True
    return canonical(groups)


def _choose(
    left: Integers,
    taken: npt.NDArray[np.bool_],
    rooms: Integers,
    fit: Fit,
) -> int | None:
    """The open GPU to take, given what would be left on each (M, D) and where labels are taken (labels, M)."""
    possible = (left >= 0).all(axis=1) & ~taken.any(axis=0)
    if not possible.any():
        return None
    scarcest = (left / np.maximum(rooms, 1)).min(axis=1)
    # argmax and argmin take the first of equals, so that the GPU opened first wins and answers are repeatable.
    if fit == "worst":
        return int(np.argmax(np.where(possible, scarcest, -np.inf)))
    return int(np.argmin(np.where(possible, scarcest, np.inf)))


def fill_one_by_one(packing: TypePacking, preference: Reals) -> Groups:
    """GPU after GPU, each filled with what fits: most replicas left with its labels first, then by `preference` (N,).

    Labels force the replicas of a service apart, so those with many left must go onto every GPU they can. Alike
    replicas with a label queue up behind each other, since one GPU takes only one of them: O(GPUs · kinds · log kinds).
    """
    queues = _queues(packing, preference)
    left = Counter(label for labels in packing.labels for label in labels)

    def key(index: int) -> tuple[int, float, int]:
        max_left = max((left[label] for label in packing.labels[index]), default=0)
        return -max_left, -preference[index], index

    groups: list[list[int]] = []
    while queues and len(groups) < packing.gpus:
        first = (
            index
            for queue in queues
            for index in (queue if not packing.labels[queue[0]] else (queue[0],))
        )
        groups.append(_fill(packing, sorted(first, key=key)))
        left.subtract(label for index in groups[-1] for label in packing.labels[index])
        queues = _without(queues, groups[-1])
    return canonical(groups)


def _fill(packing: TypePacking, ranked: Sequence[int]) -> list[int]:
    """What one GPU takes of these replicas, in their order."""
    group: list[int] = []
    room = packing.rooms.copy()
    taken = set[int]()
    for index in ranked:
        labels = packing.labels[index]
        if taken.isdisjoint(labels) and (packing.sizes[index] <= room).all():
            group.append(index)
            room -= packing.sizes[index]
            taken.update(labels)
    return group


def _queues(packing: TypePacking, preference: Reals) -> list[deque[int]]:
    """The replicas, those that differ in name only behind each other."""
    alike: dict[object, deque[int]] = defaultdict(deque)
    for index, (labels, sizes) in enumerate(
        zip(packing.labels, packing.sizes.tolist(), strict=True)
    ):
        alike[labels, preference[index], tuple(sizes)].append(index)
    return list(alike.values())


def _without(queues: Sequence[deque[int]], gone: Sequence[int]) -> list[deque[int]]:
    """The queues that are left when some of their first replicas have gone."""
    placed = set(gone)
    for queue in queues:
        while queue and queue[0] in placed:
            queue.popleft()
    return [queue for queue in queues if queue]


def _relative_sizes(packing: TypePacking) -> Reals:
    relative: Reals = packing.sizes / np.maximum(packing.rooms, 1)
    return relative


def _given_order(packing: TypePacking, order: Sequence[str]) -> list[int]:
    place = {name: position for position, name in enumerate(order)}
    names = [replica.name for replica in packing.replicas]
    return sorted(
        range(len(names)),
        key=lambda index: (place.get(names[index], len(place)), index),
    )


def _descending(keys: Reals) -> list[int]:
    return [int(index) for index in np.argsort(-keys, kind="stable")]
