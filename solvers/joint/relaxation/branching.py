"""Where to branch: the coarsest number of GPUs that is fractional in a solution of the relaxation.

From coarse to fine: GPUs of a type, of a mode (type and clock), replicas of a service on a type, on a mode, and last
replicas of a service on a mode from some candidate on (wider SM shares, or the same share with larger batches). The
coarse ones decide most: of few GPUs, how many there are of each type and clock is most of what a plan costs.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.branching_rows import BranchingRow, type_rows
from solvers.joint.patterns.columns import Column
from solvers.joint.patterns.tables import Tables

TOLERANCE = 1e-6
"""A number of GPUs this near to a whole one is whole."""


class Split(NamedTuple):
    """A row to branch on and its value in the solution, which is not whole."""

    row: BranchingRow
    value: float


def find_split(
    tables: Tables,
    columns: Sequence[Column],
    counts: Reals,
    idle: Reals,
) -> Split | None:
    """The most fractional row of the coarsest level that has one; None where all of them are whole.

    counts: (columns,) GPUs of each column; idle: (M,) GPUs that serve nothing.
    """
    activity, of_mode = _activity(tables, columns, counts, idle)
    # Generators, from coarse to fine: what a coarser level decides is never computed on the finer ones.
    levels = (
        _types(tables, of_mode),
        _modes(of_mode),
        _services_on_types(tables, activity),
        _services_on_modes(tables, activity),
        _candidates(tables, activity),
    )
    for level in levels:
        best = max(level, key=lambda split: _distance(split.value), default=None)
        if best is not None and _distance(best.value) > TOLERANCE:
            return best
    return None


def _activity(
    tables: Tables, columns: Sequence[Column], counts: Reals, idle: Reals
) -> tuple[list[Reals], Reals]:
    """By mode (C,) GPUs that run each candidate, and (M,) all GPUs of each mode."""
    of_candidates = [np.zeros(len(mode.service)) for mode in tables.modes]
    # Idle GPUs count for modes and types, as in the rows of the master.
    of_mode = idle.copy()
    for at in np.flatnonzero(counts > 0.0).tolist():
        pattern = columns[at].pattern
        of_mode[pattern.mode] += counts[at]
        of_candidates[pattern.mode][list(pattern.items)] += counts[at]
    return of_candidates, of_mode


def is_integer(values: Reals) -> bool:
    """Whether all values are whole numbers."""
    return bool((np.abs(values - np.round(values)) <= TOLERANCE).all())


def _distance(value: float) -> float:
    return abs(value - round(value))


def _types(tables: Tables, of_mode: Reals) -> Iterator[Split]:
    for row in type_rows(tables).values():
        yield Split(row, float(of_mode[list(row.modes)].sum()))


def _modes(of_mode: Reals) -> Iterator[Split]:
    for mode, value in enumerate(of_mode):
        yield Split(BranchingRow((mode,)), float(value))


def _services_on_types(tables: Tables, activity: Sequence[Reals]) -> Iterator[Split]:
    for modes, _ in type_rows(tables).values():
        for service in range(len(tables.rate)):
            ranges = tuple(_range(tables, mode, service) for mode in modes)
            value = sum(
                activity[mode][slice(*one)].sum()
                for mode, one in zip(modes, ranges, strict=True)
            )
            yield Split(BranchingRow(modes, ranges), float(value))


def _services_on_modes(tables: Tables, activity: Sequence[Reals]) -> Iterator[Split]:
    for mode, values in enumerate(activity):
        for service in range(len(tables.rate)):
            first, last = _range(tables, mode, service)
            yield Split(
                BranchingRow((mode,), ((first, last),)),
                float(values[first:last].sum()),
            )


def _candidates(tables: Tables, activity: Sequence[Reals]) -> Iterator[Split]:
    """Candidates of one service ascend by SM steps and batch, so the ones from some candidate on are a range."""
    for mode, values in enumerate(activity):
        for service in range(len(tables.rate)):
            first, last = _range(tables, mode, service)
            for at in first + np.flatnonzero(values[first:last]):
                yield Split(
                    BranchingRow((mode,), ((int(at), last),)),
                    float(values[at:last].sum()),
                )


def _range(tables: Tables, mode: int, service: int) -> tuple[int, int]:
    first, last = np.searchsorted(tables.modes[mode].service, (service, service + 1))
    return int(first), int(last)
