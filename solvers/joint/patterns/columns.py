"""Columns: patterns with what they carry and cost, as the master problem sees them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.types import GpuMode, Law, Numbers, Reals
from solvers.joint.patterns.tables import Tables


class Pattern(NamedTuple):
    """What one GPU runs: candidates of a mode."""

    mode: int
    items: tuple[int, ...]
    """Ascending."""


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

    def taken(self, numbers: Sequence[int]) -> "Columns":
        """Some of the columns, renumbered in that order; what is added to them is not added here."""
        some = Columns(self._tables)
        some._made = [self._made[number] for number in numbers]
        some._number = {
            column.pattern: number for number, column in enumerate(some._made)
        }
        return some

    def numbered(self, plan: Mapping[Pattern, int]) -> Counter[int]:
        """GPUs by column; patterns that are new become columns."""
        self.add(plan)
        return Counter({self.number(one): count for one, count in plan.items()})

    def number(self, pattern: Pattern) -> int:
        """The number of a pattern that was added. Raises KeyError."""
        return self._number[pattern]

    def add(self, patterns: Iterable[Pattern]) -> list[int]:
        """Numbers of those that are new."""
        # Each once, in the order in which they came: a set would number them by chance.
        new = [
            pattern
            for pattern in dict.fromkeys(patterns)
            if pattern not in self._number
        ]
        numbers = list(range(len(self._made), len(self._made) + len(new)))
        self._number.update(zip(new, numbers, strict=True))
        self._made += make_columns(self._tables, new)
        return numbers


def make_column(tables: Tables, pattern: Pattern) -> Column:
    """The column of a pattern, by the contract's laws."""
    return make_columns(tables, (pattern,))[0]


def make_columns(tables: Tables, patterns: Sequence[Pattern]) -> list[Column]:
    """The columns of many patterns: those with as many replicas on the same mode at once."""
    made: dict[Pattern, Column] = {}
    for (number, _), positions in by_shape(patterns).items():
        mode = tables.modes[number]
        alike = [patterns[at] for at in positions]
        items = np.array([pattern.items for pattern in alike], dtype=np.int32)
        # Candidates ascend by service, so that the services do.
        service = mode.service[items]
        capacity = capacities(mode, tables.law, items)
        prices = _prices(mode, items).tolist()
        columns = map(Column, alike, service, capacity, prices)
        made.update(zip(alike, columns, strict=True))
    # In the order of asking: columns are numbered by it.
    return [made[pattern] for pattern in patterns]


def by_shape(patterns: Iterable[Pattern]) -> dict[tuple[int, int], list[int]]:
    """Positions of the patterns by mode and size: alike ones make one array, since numpy is slow on single ones."""
    positions: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at, pattern in enumerate(patterns):
        positions[pattern.mode, len(pattern.items)].append(at)
    return positions


def price_of(tables: Tables, pattern: Pattern) -> float:
    """USD per hour of a GPU with the watts of the pattern."""
    return float(
        _prices(tables.modes[pattern.mode], np.array([pattern.items], np.int32))[0],
    )


def power_w(tables: Tables, pattern: Pattern) -> float:
    """Watts of a GPU with the pattern at full load, idle watts included."""
    mode = tables.modes[pattern.mode]
    return float(tables.idle_w[mode.gpu_type] + mode.power[list(pattern.items)].sum())


def _prices(mode: GpuMode, items: Numbers) -> Reals:
    """(P,) USD per hour of a GPU with each row's candidates."""
    prices: Reals = mode.price + mode.watt_price * mode.power[items].sum(axis=1)
    return prices


def capacities(mode: GpuMode, law: Law, items: Numbers) -> Reals:
    """(P, n) rps that count of each candidate's next to the others of its row, whatever rules they break together."""
    pressure = mode.pressure[items]
    # A sum less one of its terms may come out a little below 0.
    others = np.maximum(0.0, pressure.sum(axis=1, keepdims=True) - pressure)
    launch_ms = mode.launch_ms[items] * mode.launch_factor[items.shape[1]]
    duration_ms = mode.alone_ms[items] + launch_ms + mode.growth_ms[items] * others
    duration_ms += mode.overload_ms[items] * np.maximum(0.0, others - mode.room[items])
    utilisation = _utilisation(law, mode.law[items], mode.slo_ms[items] / duration_ms)
    capacity: Reals = 1000.0 * mode.batch[items] / duration_ms * utilisation
    return np.minimum(capacity, mode.max_rps[items])


def _utilisation(law: Law, row: Numbers, ratio: Reals) -> Reals:
    """The law's rows at these ratios of SLO to duration, linear between its points, 0 below the first one.

    As np.interp, which takes one row at a time only.
    """
    grid = law.ratios
    low = np.clip(
        np.searchsorted(grid, ratio, side="right") - 1,
        0,
        max(0, len(grid) - 2),
    )
    high = np.minimum(low + 1, len(grid) - 1)
    at_low = law.utilisation[row, low]
    at_high = law.utilisation[row, high]
    # A law with one ratio only has no interval to divide by.
    part = np.divide(
        ratio - grid[low],
        grid[high] - grid[low],
        out=np.zeros_like(ratio),
        where=high > low,
    )
    between = at_low + (at_high - at_low) * np.clip(part, 0.0, 1.0)
    return np.where(ratio < grid[0], 0.0, between)


def alone(mode: GpuMode, law: Law) -> Reals:
    """(C,) rps that each candidate of a mode can carry on a GPU of its own."""
    items = np.arange(len(mode.service), dtype=np.int32)
    return capacities(mode, law, items[:, None])[:, 0]


def single_patterns(tables: Tables, wanted: Reals) -> list[Pattern]:
    """For every mode and service the single replica that carries most of what is wanted, least watts among equals."""
    patterns = []
    for number, mode in enumerate(tables.modes):
        served = np.minimum(alone(mode, tables.law), wanted[mode.service])
        order = np.lexsort((mode.power, -served, mode.service))
        _, firsts = np.unique(mode.service[order], return_index=True)
        patterns += [
            Pattern(mode=number, items=(best,)) for best in order[firsts].tolist()
        ]
    return patterns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """What pricing says of one mode."""

    bound: float
    """No pattern of the mode is worth more."""
    patterns: tuple[Pattern, ...]
