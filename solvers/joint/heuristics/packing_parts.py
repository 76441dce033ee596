"""Parts: per mode, which candidates carry all that is wanted of their service, beside which neighbours; and greedy
packing."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.packing import (
    PackingCells,
    find_parts,
    longest_ms,
    next_pattern,
    price_parts,
)
from solvers.joint.kernels.types import (
    Effort,
    GpuMode,
    Numbers,
    PricedPatterns,
    PricingTask,
    Reals,
    Scratch,
    Worth,
)
from solvers.joint.patterns.columns import Pattern
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation.pricing import make_scratch, pressure_range

_LEVELS = 24
"""Ceilings of pressure for every number of replicas: patterns are sought below each of them."""
_EFFORT = Effort(steps=4, nodes=0, halvings=0, tolerance=1e-3)
_EDGE = 1.0 - 1e-9
"""Part of what is wanted that a replica must exceed: all of it, but for rounding."""
_MIN_VALUE = 1e-3
"""A part is worth at least its size times this share of a GPU's price: else services with dual 0 are never packed."""
_MIN_WORTH = 1e-9
"""Any pattern is worth at least this share of a GPU's price."""


class PackingDemand(NamedTuple):
    """What is to be packed, and what it is worth."""

    replicas: Numbers
    """(S,) 0 for services that are packed elsewhere or already."""
    stock: Reals
    """(G,) GPUs that are left."""
    values: Reals
    """(S,) USD per hour of one replica."""
    rents: Reals
    """(G,) USD per hour of one GPU beyond its price."""


class GreedyPacking(NamedTuple):
    """A greedy packing, and what was found on the way to it."""

    plan: list[Pattern]
    """One GPU each."""
    missing: int
    """Replicas that found no place."""
    better: list[Pattern]
    """Patterns worth more than they cost."""
    excess: float
    """The greatest worth found, over what it costs: the relaxation's bound is about the values' sum over this."""


class PartTables:
    """The parts of all modes."""

    def __init__(self, tables: Tables, rate: Reals) -> None:
        """rate: (S,) rps that a part of each service must carry; nothing is a part where it is 0."""
        self.tables, self.rate = tables, rate
        self.size = np.full(len(rate), np.inf)
        self.parts = [self._parts(mode) for mode in tables.modes]

    @property
    def is_part(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(S,) whether one replica can carry all that is wanted of the service."""
        finite: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.isfinite(self.size)
        return finite

    def _parts(self, mode: GpuMode) -> PackingCells:
        """The mode's cells; `size` falls to what the smallest parts take of its GPUs."""
        longest = longest_ms(mode, self.tables.law, self.rate)
        share = np.maximum(
            mode.width / mode.steps, mode.memory / max(mode.memory_mib, 1e-9)
        )
        share = np.maximum(share, mode.power / max(mode.power_w, 1e-9))
        np.minimum.at(self.size, mode.service[longest > 0.0], share[longest > 0.0])
        ceiling = _ceilings(mode)
        replicas = np.repeat(np.arange(len(ceiling)), _LEVELS).astype(np.int32)
        inside = find_parts(mode, longest, replicas, ceiling.ravel())
        ends = np.concatenate(([0], np.cumsum(inside.sum(axis=1)))).astype(np.int32)
        first = np.column_stack(
            (ends[:-1].reshape(-1, _LEVELS), ends[_LEVELS::_LEVELS])
        )
        return PackingCells(
            ceiling, np.ascontiguousarray(first), np.nonzero(inside)[1].astype(np.int32)
        )


def _ceilings(mode: GpuMode) -> Reals:
    """(N + 1, L) ladders of pressure; a number of replicas that cannot be has one below any pressure."""
    least, most = pressure_range(mode)
    ceiling = np.full((mode.max_replicas + 1, _LEVELS), -1.0)
    for replicas in range(1, mode.max_replicas + 1):
        if np.isfinite(most[replicas]):
            ceiling[replicas] = np.linspace(
                least[replicas], most[replicas], _LEVELS + 1
            )[1:]
    return ceiling


class _Cells:
    """What one mode's kernel works with; multipliers and ceilings stay warm from one packing to the next."""

    def __init__(self, mode: GpuMode, services: int) -> None:
        self.start = np.full(mode.max_replicas + 1, _LEVELS // 2, np.int32)
        self.multipliers = np.zeros((mode.max_replicas + 1, _LEVELS, 3))
        self.scratch: Scratch = make_scratch(mode, services)


class Packer:
    """Packs greedily, the best pattern of the services that are left first. Of several each may have its thread."""

    def __init__(self, parts: PartTables) -> None:
        self._parts, self._tables = parts, parts.tables
        self._cells = [_Cells(mode, len(parts.rate)) for mode in parts.tables.modes]

    def pack(
        self, wanted: PackingDemand, is_late: Callable[[], bool] = never
    ) -> GreedyPacking:
        """All of it in patterns of positive worth; what is left when no more fits, or when it is late, is missing."""
        price = float(self._tables.price.max())
        left, stock = (
            np.where(self._parts.is_part, wanted.replicas, 0),
            wanted.stock.copy(),
        )
        floor = (
            _MIN_VALUE * price * np.where(self._parts.is_part, self._parts.size, 0.0)
        )
        values = np.where(left > 0, np.maximum(wanted.values, floor), 0.0)
        stairs = np.column_stack((np.zeros(len(values)), values))
        tasks = [
            self._task(number, stairs, _MIN_WORTH * price)
            for number in range(len(self._parts.parts))
        ]
        prices = [task.mode.price + wanted.rents[task.mode.gpu_type] for task in tasks]
        founds = [
            self._price(at, task, 0.5 * cost)
            for at, (task, cost) in enumerate(zip(tasks, prices, strict=True))
        ]
        better = [
            _pattern(number, found, slot)
            for number, (found, cost) in enumerate(zip(founds, prices, strict=True))
            for slot in np.flatnonzero((found.size > 0) & (found.worth > cost)).tolist()
        ]
        excess = max(
            (
                found.worth.max() / cost
                for found, cost in zip(founds, prices, strict=True)
            ),
            default=0.0,
        )
        plan: list[Pattern] = []
        while left.any() and not is_late():
            pattern = self._next(tasks, founds, prices, stock)
            if pattern is None:
                break
            plan.append(pattern)
            mode = self._tables.modes[pattern.mode]
            services = mode.service[list(pattern.items)]
            left[services] -= 1
            stock[mode.gpu_type] -= 1.0
            stairs[services[left[services] <= 0], 1] = 0.0
        return GreedyPacking(
            plan=plan, missing=int(left.sum()), better=better, excess=float(excess)
        )

    def _task(self, number: int, stairs: Reals, threshold: float) -> PricingTask:
        mode = self._tables.modes[number]
        none = np.zeros(len(stairs))
        worth = Worth(
            self._parts.rate,
            none,
            np.zeros(len(mode.service)),
            np.array([_EDGE]),
            stairs,
        )
        return PricingTask(mode, self._tables.law, worth, threshold, _EFFORT)

    def _price(self, at: int, task: PricingTask, threshold: float) -> PricedPatterns:
        slots, cells = task.mode.max_replicas + 1, self._cells[at]
        found = PricedPatterns(
            np.zeros((slots, slots - 1), np.int32),
            np.zeros(slots, np.int32),
            np.zeros(slots),
        )
        higher = task._replace(threshold=threshold)
        price_parts(
            higher,
            self._parts.parts[at],
            cells.start,
            cells.multipliers,
            cells.scratch,
            found,
        )
        return found

    def _next(
        self,
        tasks: Sequence[PricingTask],
        founds: Sequence[PricedPatterns],
        prices: Sequence[float],
        stock: Reals,
    ) -> Pattern | None:
        """The pattern worth most for its price, among types of which a GPU is left."""
        best, most = None, 0.0
        for at, (task, found, price) in enumerate(
            zip(tasks, founds, prices, strict=True)
        ):
            if stock[task.mode.gpu_type] < 1.0:
                continue
            cells = self._cells[at]
            slot = next_pattern(
                task,
                self._parts.parts[at],
                cells.start,
                cells.multipliers,
                cells.scratch,
                found,
            )
            if slot >= 0 and found.worth[slot] > most * price:
                best, most = (
                    _pattern(at, found, slot),
                    found.worth[slot] / price,
                )
        return best


def _pattern(number: int, found: PricedPatterns, slot: int) -> Pattern:
    return Pattern(
        number, tuple(sorted(found.items[slot, : found.size[slot]].tolist()))
    )
