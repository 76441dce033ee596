"""What no placement can beat, without any search: usually enough to prove a greedy answer optimal.

Source for the volume bound: Martello and Toth, Knapsack Problems (1990), §8.3.2, bound L2; here of every dimension, and
of the dimensions' mean (sizes relative to the room), which is a dimension that no GPU can exceed either.
"""

from collections import Counter

import numpy as np

from solvers.placement.integer_problem import SM, Integers, Reals, TypePacking

_MEAN_PARTS = 1 << 30
"""Whole parts of the mean dimension's room; its sizes are rounded down, so that the bound stays one."""


def min_gpus(packing: TypePacking) -> int:
    """A lower bound of the GPUs that carry all replicas: by volume in each dimension, and by label."""
    volumes = [
        _volume_bound(packing.sizes[:, d], int(room))
        for d, room in enumerate(packing.rooms)
    ]
    bearers = Counter(label for labels in packing.labels for label in labels)
    return max(
        *volumes, _volume_bound(_mean_sizes(packing), _MEAN_PARTS), *bearers.values()
    )


def lowest_peak(packing: TypePacking, used: int) -> int:
    """A lower bound of the peak SM percent, in the packing's unit, when all replicas are on `used` GPUs."""
    sizes = packing.sizes[:, SM]
    ranked = np.sort(sizes)[::-1]
    # Of the used + 1 widest replicas two share a GPU, at best the narrowest two of them.
    paired = int(ranked[used - 1] + ranked[used]) if len(ranked) > used else 0
    return max(int(sizes.max()), -(-int(sizes.sum()) // used), paired)


def max_value(packing: TypePacking) -> int:
    """An upper bound of the value placed: all replicas cut to pieces and poured into one GPU of all the room.

    Beforehand each label's replicas beyond one per GPU are dropped, the least valuable first, when labels do not mix.
    """
    kept = _kept_by_labels(packing)
    values = np.array(packing.values, dtype=np.float64)[kept]
    sizes = packing.sizes[kept]
    rooms = packing.rooms * packing.gpus
    return min(_poured(values, sizes[:, d], int(room)) for d, room in enumerate(rooms))


def _volume_bound(sizes: Integers, room: int) -> int:
    """L2: for every threshold t, replicas wider than room − t are alone, and those above half a GPU do not meet."""
    # Between two sizes nothing changes: the sizes themselves are all thresholds that count.
    halves = np.unique(sizes[2 * sizes <= room])
    return max(_threshold_bound(sizes, room, int(one)) for one in (0, *halves))


def _threshold_bound(sizes: Integers, room: int, threshold: int) -> int:
    alone = sizes > room - threshold
    wide = ~alone & (2 * sizes > room)
    narrow = (2 * sizes <= room) & (sizes >= threshold)
    left_beside_wide = int(wide.sum()) * room - int(sizes[wide].sum())
    # What the narrow ones need beyond that, poured into further GPUs without regard to where one ends.
    overflow = max(0, int(sizes[narrow].sum()) - left_beside_wide)
    return int(alone.sum()) + int(wide.sum()) - (-overflow // room if overflow else 0)


def _mean_sizes(packing: TypePacking) -> Integers:
    rooms = np.maximum(packing.rooms, 1)
    # A little less, since a mean that is rounded up could make the bound exceed what is possible.
    floored: Integers = np.floor(
        (packing.sizes / rooms).mean(axis=1) * (1.0 - 1e-12) * _MEAN_PARTS
    ).astype(np.int64)
    return floored


def _kept_by_labels(packing: TypePacking) -> list[int]:
    """All replicas, or where each has one label, the most valuable of each label up to the number of GPUs."""
    if any(len(labels) != 1 for labels in packing.labels):
        return list(range(len(packing.replicas)))
    taken: Counter[int] = Counter()
    kept = []
    for index in sorted(
        range(len(packing.replicas)), key=lambda index: -packing.values[index]
    ):
        # At most one replica with a label stands on a GPU, so that those beyond the number of GPUs are left out
        # anyway.
        (label,) = packing.labels[index]
        taken[label] += 1
        if taken[label] <= packing.gpus:
            kept.append(index)
    return sorted(kept)


def _poured(values: Reals, sizes: Integers, room: int) -> int:
    """The value of the densest replicas that fill the room, and of the part of the next one that still fits."""
    by_density = np.argsort(-values / np.maximum(sizes, 1e-9), kind="stable")
    filled = np.cumsum(sizes[by_density])
    fits = filled <= room
    total = float(values[by_density][fits].sum())
    if not fits.all():
        first = by_density[int(np.argmin(fits))]
        left = room - int(filled[fits][-1]) if fits.any() else room
        total += float(values[first]) * left / float(sizes[first])
    # Values are integers, so that the bound may be rounded down; 1e-6 is the sum's own rounding.
    return int(np.floor(total + 1e-6))
