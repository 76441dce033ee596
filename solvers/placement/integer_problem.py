"""One GPU type's part of a placement problem in whole numbers: what the greedy, the bounds and the solver work on."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from solvers.placement.problem import (
    MILLIONTHS,
    GpuStock,
    PendingReplica,
    PlacementProblem,
)

Integers: TypeAlias = npt.NDArray[np.int64]
Reals: TypeAlias = npt.NDArray[np.float64]

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""The used GPUs of one type, each as the ascending indices of its replicas."""

SM = 0
"""The column of SM percent in sizes and rooms; memory, watts and places follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypePacking:
    """The replicas of one GPU type that fit on an empty GPU, and those GPUs. N replicas, D = 4 dimensions."""

    stock: GpuStock
    replicas: tuple[PendingReplica, ...]
    """By name."""
    gpus: int
    """How many GPUs may be used; never more than replicas."""
    sizes: Integers
    """(N, D) in units of their own per dimension."""
    rooms: Integers
    """(D,) of one empty GPU, in the same units."""
    values: tuple[int, ...]
    """(N,) in millionths of the largest value, at least 1, without common divisor: how finely values are compared."""
    value_unit: float
    """What one unit of `values` stands for."""
    value_rounding: float
    """By how much the true value of all replicas together can exceed `values` · `value_unit`."""
    labels: tuple[tuple[int, ...], ...]
    """(N,) the numbers of each replica's labels; all labels together are 0 .. L − 1."""

    @property
    def label_count(self) -> int:
        """L, the number of different labels."""
        return 1 + max(
            (label for labels in self.labels for label in labels), default=-1
        )


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlacementScore:
    """How good a placement on one type is: higher is better, the first difference decides."""

    value: int
    fewer_gpus: int
    """Minus the used GPUs."""
    evenness: int
    """Minus the peak SM percent, in the packing's unit."""


def score(packing: TypePacking, groups: Groups) -> PlacementScore:
    """The score of a placement."""
    return PlacementScore(
        value=sum(packing.values[index] for group in groups for index in group),
        fewer_gpus=-len(groups),
        evenness=-peak(packing, groups),
    )


def peak(packing: TypePacking, groups: Groups) -> int:
    """The largest SM percent of a GPU, in the packing's unit; 0 when none is used."""
    return max(
        (int(packing.sizes[list(group), SM].sum()) for group in groups), default=0
    )


def has_all(packing: TypePacking, groups: Groups) -> bool:
    """Whether every replica of the packing is placed."""
    return sum(map(len, groups)) == len(packing.replicas)


def canonical(groups: Sequence[Sequence[int]]) -> Groups:
    """The same placement with its used GPUs and their replicas in ascending order."""
    return tuple(sorted(tuple(sorted(group)) for group in groups if group))


def split(problem: PlacementProblem) -> tuple[TypePacking, ...]:
    """The problem's parts by GPU type, by name; without the types that have nothing to place."""
    parts = []
    for stock in sorted(problem.gpus, key=lambda stock: stock.gpu_type):
        rooms = stock.rooms()
        replicas = [
            replica
            for replica in sorted(problem.replicas, key=lambda replica: replica.name)
            if replica.gpu_type == stock.gpu_type
            and all(
                size <= room for size, room in zip(replica.sizes(), rooms, strict=True)
            )
        ]
        # More GPUs than replicas are never used, and "as many as wanted" is no number.
        gpus = len(replicas) if stock.count is None else min(stock.count, len(replicas))
        if gpus > 0:
            parts.append(_packing(stock, tuple(replicas), gpus))
    return tuple(parts)


def _packing(
    stock: GpuStock,
    replicas: tuple[PendingReplica, ...],
    gpus: int,
) -> TypePacking:
    sizes = np.array([replica.sizes() for replica in replicas])
    # In units of their common divisor: smaller numbers are easier for the solver. Rooms may be rounded down to them,
    # since no sum of sizes lies between two multiples.
    units = np.maximum(np.gcd.reduce(sizes, axis=0), 1)
    largest = max(replica.value for replica in replicas)
    # At least 1, so that no replica is left out as worthless.
    values = [
        max(1, round(replica.value / largest * MILLIONTHS)) for replica in replicas
    ]
    unit = gcd(*values)
    labels = sorted({label for replica in replicas for label in replica.labels})
    numbers = {label: number for number, label in enumerate(labels)}
    return TypePacking(
        stock=stock,
        replicas=replicas,
        gpus=gpus,
        sizes=sizes // units,
        rooms=np.array(stock.rooms()) // units,
        values=tuple(value // unit for value in values),
        value_unit=largest * unit / MILLIONTHS,
        value_rounding=len(replicas) * largest / (2 * MILLIONTHS),
        labels=tuple(
            tuple(sorted({numbers[label] for label in replica.labels}))
            for replica in replicas
        ),
    )
