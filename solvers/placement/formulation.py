"""What both formulations of one GPU type's placement share. Imports ortools: about 1 s."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from solvers.placement.integer_problem import Integers, TypePacking


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
    sizes: Integers
    """(C, D)."""
    values: tuple[int, ...]
    """(C,)."""
    max_per_gpu: Integers
    """(C,) how many may stand on one GPU, as far as the class alone tells."""
    excludes: Integers
    """(C, C) 1 where two classes share a label, also with itself; such never share a GPU."""

    def counts(self, group: tuple[int, ...]) -> Integers:
        """(C,) how many replicas of each class a GPU carries."""
        return np.array(
            [len(set(members) & set(group)) for members in self.members], dtype=np.int64
        )


def classes_of(packing: TypePacking) -> Classes:
    """The packing's classes, in the order of their first replicas."""
    # Alike replicas are interchangeable: without classes the solver would try each of their permutations.
    alike: defaultdict[object, list[int]] = defaultdict(list)
    facts = zip(packing.labels, packing.values, packing.sizes.tolist(), strict=True)
    for index, (labels, value, sizes) in enumerate(facts):
        alike[labels, value, tuple(sizes)].append(index)
    members = tuple(map(tuple, alike.values()))
    firsts = [indices[0] for indices in members]
    return Classes(
        members=members,
        sizes=packing.sizes[firsts],
        values=tuple(packing.values[first] for first in firsts),
        max_per_gpu=_max_per_gpu(packing, members),
        excludes=_excludes(packing, firsts),
    )


def _excludes(packing: TypePacking, firsts: Sequence[int]) -> Integers:
    """(C, C) 1 where two classes, given by a member each, share a label."""
    labels_of = [set(packing.labels[first]) for first in firsts]
    return np.array(
        [[int(bool(one & other)) for other in labels_of] for one in labels_of]
    )


def _max_per_gpu(packing: TypePacking, members: Sequence[tuple[int, ...]]) -> Integers:
    """(C,) the fewer of what an empty GPU has room for and what its labels and number allow."""
    sizes = packing.sizes[[indices[0] for indices in members]]
    # What takes nothing of a dimension is not limited by it.
    per_dimension = np.where(
        sizes > 0, packing.rooms // np.maximum(sizes, 1), len(packing.replicas)
    )
    allowed = [1 if packing.labels[indices[0]] else len(indices) for indices in members]
    limits: Integers = np.minimum(per_dimension.min(axis=1), allowed)
    return limits
