"""What both formulations of one GPU type's placement share. Imports ortools: about 1 s."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from solvers.placement.integer_problem import TypePacking, Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProgram:
    """A placement on at most a given number of GPUs, ready for an objective."""

    sat: cp_model.CpModel
    used: cp_model.LinearExpr
    """GPUs that carry a replica."""
    value: cp_model.LinearExpr
    """Placed value, in the packing's units."""
    decode: Callable[[cp_model.CpSolver], list[list[int]]]
    """The GPUs' replicas by index, from a solver that holds a solution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """The replicas of a packing, those that differ in name only taken together; C classes."""

    members: tuple[tuple[int, ...], ...]
    """(C,) indices."""
    sizes: Whole
    """(C, D)."""
    values: tuple[int, ...]
    """(C,)."""
    most: Whole
    """(C,) how many may stand on one GPU, as far as the class alone tells."""
    excludes: Whole
    """(C, C) 1 where two classes share a label, also with itself; such never share a GPU."""

    def counts(self, group: tuple[int, ...]) -> Whole:
        """(C,) how many replicas of each class a GPU carries."""
        return np.array(
            [len(set(members) & set(group)) for members in self.members], dtype=np.int64
        )


def classes_of(packing: TypePacking) -> Classes:
    """The packing's classes, in the order of their first replicas."""
    alike: dict[object, list[int]] = defaultdict(list)
    for index, (labels, value) in enumerate(
        zip(packing.labels, packing.values, strict=True)
    ):
        alike[labels, value, tuple(packing.sizes[index].tolist())].append(index)
    members = tuple(tuple(indices) for indices in alike.values())
    firsts = [indices[0] for indices in members]
    sizes = packing.sizes[firsts]
    borne = [set(packing.labels[first]) for first in firsts]
    fitting = np.where(
        sizes > 0, packing.rooms // np.maximum(sizes, 1), len(packing.replicas)
    ).min(axis=1)
    alone = np.array(
        [
            1 if one else len(indices)
            for one, indices in zip(borne, members, strict=True)
        ]
    )
    return Classes(
        members=members,
        sizes=sizes,
        values=tuple(packing.values[first] for first in firsts),
        most=np.minimum(fitting, alone),
        excludes=np.array(
            [[int(bool(one & other)) for other in borne] for one in borne]
        ),
    )
