"""Columns: patterns with what they carry and cost, as the master problem sees them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.laws import capacity_rps, execution_ms
from solvers.joint.pricing import Pattern
from solvers.joint.tables import Numbers, Reals, Tables


class Column(NamedTuple):
    """One pattern of one GPU."""

    pattern: Pattern
    service: Numbers
    """(n,) ascending."""
    capacity: Reals
    """(n,) rps that each replica can carry in this pattern; 0 only where it stands to be one of the fewest replicas."""
    price: float
    """USD per hour of the GPU with the watts of the pattern."""


class Columns:
    """All columns that were ever made of one Problem's tables, each once, numbered in the order of their making."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._made: list[Column] = []
        self._number: dict[Pattern, int] = {}

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, number: int) -> Column:
        return self._made[number]

    def __iter__(self) -> Iterator[Column]:
        return iter(self._made)

    def number(self, pattern: Pattern) -> int:
        """The number of a pattern that was added. Raises KeyError."""
        return self._number[pattern]

    def add(self, patterns: Iterable[Pattern]) -> list[int]:
        """Numbers of those that are new."""
        new = []
        for pattern in patterns:
            if pattern not in self._number:
                self._number[pattern] = len(self._made)
                self._made.append(make_column(self._tables, pattern))
                new.append(self._number[pattern])
        return new


def make_column(tables: Tables, pattern: Pattern) -> Column:
    """The column of a pattern, by the contract's laws."""
    mode = tables.modes[pattern.mode]
    items = np.array(pattern.items, dtype=np.int32)
    pressure = float(mode.pressure[items].sum())
    capacity = [
        capacity_rps(mode, tables.law, item, execution_ms(mode, item, len(items), max(0.0, pressure - own)))
        for item, own in zip(items, mode.pressure[items], strict=True)
    ]
    # Candidates ascend by service, so that the services do.
    return Column(
        pattern=pattern,
        service=mode.service[items],
        capacity=np.array(capacity),
        price=mode.price + mode.watt_price * float(mode.power[items].sum()),
    )


def single_patterns(tables: Tables, wanted: Reals) -> list[Pattern]:
    """For every mode and service the single replica that carries most of what is wanted, least watts among equals."""
    patterns = []
    for number, mode in enumerate(tables.modes):
        carried = np.array(
            [
                capacity_rps(mode, tables.law, item, execution_ms(mode, item, 1, 0.0))
                for item in range(len(mode.service))
            ]
        )
        served = np.minimum(carried, wanted[mode.service])
        for service in np.unique(mode.service):
            own = np.flatnonzero(mode.service == service)
            best = own[np.lexsort((mode.power[own], -served[own]))[0]]
            patterns.append(Pattern(mode=number, items=(int(best),)))
    return patterns
