"""Parts: per mode, which candidates carry all that is wanted of their service, next to which neighbours; and greedy
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
from solvers.joint.relaxation.pricing import make_scratch, make_slots, pressure_range

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
        is_part = longest > 0.0
        np.minimum.at(self.size, mode.service[is_part], _shares(mode)[is_part])
        return _cells(mode, longest)


def _cells(mode: GpuMode, longest: Reals) -> PackingCells:
    """The mode's cells; longest: (C,) ms that an execution of each candidate may last."""
    ceiling = _ceilings(mode)
    replicas = np.repeat(np.arange(len(ceiling)), _LEVELS).astype(np.int32)
    inside = find_parts(mode, longest, replicas, ceiling.ravel())
    items = np.nonzero(inside)[1].astype(np.int32)
    ends = np.concatenate(([0], np.cumsum(inside.sum(axis=1)))).astype(np.int32)
    # Cells lie end to end, so that the last one of a row ends where the next row begins.
    begins = ends[:-1].reshape(-1, _LEVELS)
    first = np.column_stack((begins, ends[_LEVELS::_LEVELS]))
    # Contiguous: kernels are compiled for one layout of arrays.
    return PackingCells(ceiling, np.ascontiguousarray(first), items)


def _shares(mode: GpuMode) -> Reals:
    """(C,) of a GPU that each candidate takes: of what it needs most of."""
    share: Reals = np.maximum(
        mode.width / mode.steps, mode.memory / max(mode.memory_mib, 1e-9)
    )
    return np.maximum(share, mode.power / max(mode.power_w, 1e-9))


def _ceilings(mode: GpuMode) -> Reals:
    """(N + 1, L) ladders of pressure; a number of replicas that cannot be has one below any pressure."""
    least, most = pressure_range(mode)
    ceiling = np.full((mode.max_replicas + 1, _LEVELS), -1.0)
    for replicas in range(1, mode.max_replicas + 1):
        if np.isfinite(most[replicas]):
            # Nothing has less pressure than the lowest end, so that a ceiling there is of no use.
            low = least[replicas]
            high = most[replicas]
            ceiling[replicas] = np.linspace(low, high, _LEVELS + 1)[1:]
    return ceiling


class _Memory(NamedTuple):
    """What one mode's kernel works with; multipliers and ceilings stay warm from one packing to the next."""

    start: Numbers
    """(N + 1,) the ceilings that were best the last time."""
    multipliers: Reals
    """(N + 1, L, 3)"""
    scratch: Scratch


def _memory(mode: GpuMode, services: int) -> _Memory:
    return _Memory(
        start=np.full(mode.max_replicas + 1, _LEVELS // 2, np.int32),
        multipliers=np.zeros((mode.max_replicas + 1, _LEVELS, 3)),
        scratch=make_scratch(mode, services),
    )


class Packer:
    """Packs greedily, the best pattern of the services that are left first. Of several each may have its thread."""

    def __init__(self, parts: PartTables) -> None:
        self._parts, self._tables = parts, parts.tables
        self._memories = [_memory(mode, len(parts.rate)) for mode in parts.tables.modes]

    def pack(
        self, wanted: PackingDemand, is_late: Callable[[], bool] = never
    ) -> GreedyPacking:
        """All of it in patterns of positive worth; what is left when no more fits, or when it is late, is missing."""
        price = float(self._tables.price.max())
        left = np.where(self._parts.is_part, wanted.replicas, 0)
        values = np.where(left > 0, self._values(wanted, price), 0.0)
        # Shared by the tasks of all modes: a service that is packed is worth nothing to any of them.
        stairs = np.column_stack((np.zeros(len(values)), values))
        offers = [
            self._offer(number, stairs, _MIN_WORTH * price, wanted.rents)
            for number in range(len(self._parts.parts))
        ]
        better = _better(offers)
        ratios = [offer.found.worth.max() / offer.price for offer in offers]
        # `left` and the stairs are used up by the packing, so it comes last.
        plan = self._pack_all(offers, left, wanted.stock.copy(), stairs, is_late)
        return GreedyPacking(
            plan=plan,
            missing=int(left.sum()),
            better=better,
            excess=float(max(ratios, default=0.0)),
        )

    def _values(self, wanted: PackingDemand, price: float) -> Reals:
        """(S,) USD per hour of one replica, in proportion to its size at least; price: that of a GPU."""
        sizes = np.where(self._parts.is_part, self._parts.size, 0.0)
        values: Reals = np.maximum(wanted.values, _MIN_VALUE * price * sizes)
        return values

    def _pack_all(
        self,
        offers: Sequence["_Offers"],
        left: Numbers,
        stock: Reals,
        stairs: Reals,
        is_late: Callable[[], bool],
    ) -> list[Pattern]:
        """One GPU after the other while anything is left and fits; `left` and `stock` say what is left then."""
        plan: list[Pattern] = []
        while left.any() and not is_late():
            pattern = self._next(offers, stock)
            if pattern is None:
                break
            plan.append(pattern)
            mode = self._tables.modes[pattern.mode]
            services = mode.service[list(pattern.items)]
            left[services] -= 1
            stock[mode.gpu_type] -= 1.0
            stairs[services[left[services] <= 0], 1] = 0.0
        return plan

    def _offer(
        self, number: int, stairs: Reals, threshold: float, rents: Reals
    ) -> "_Offers":
        """The best patterns of one mode for what is wanted at first."""
        slots = len(self._memories[number].start)
        task = self._task(number, stairs, threshold)
        price = task.mode.price + rents[task.mode.gpu_type]
        found = make_slots(slots, slots - 1)
        # What is not worth half of its price is priced only when nothing better is left (`next_pattern`).
        higher = task._replace(threshold=0.5 * price)
        # The fields one by one: kernels are slower where they take a tuple out of another one.
        price_parts(higher, self._parts.parts[number], *self._memories[number], found)
        return _Offers(number, task, price, found)

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

    def _next(self, offers: Sequence["_Offers"], stock: Reals) -> Pattern | None:
        """The pattern worth most for its price, among types of which a GPU is left."""
        best, best_ratio = None, 0.0
        for at, offer in enumerate(offers):
            if stock[offer.task.mode.gpu_type] < 1.0:
                continue
            slot = next_pattern(
                offer.task, self._parts.parts[at], *self._memories[at], offer.found
            )
            if slot >= 0 and offer.found.worth[slot] > best_ratio * offer.price:
                best = _pattern(offer, slot)
                best_ratio = offer.found.worth[slot] / offer.price
        return best


class _Offers(NamedTuple):
    """What one mode has to offer in one packing."""

    number: int
    """Position of the mode in the tables."""
    task: PricingTask
    price: float
    """USD per hour of a GPU, its rent included."""
    found: PricedPatterns


def _better(offers: Sequence[_Offers]) -> list[Pattern]:
    """The patterns that are worth more than they cost."""
    return [
        _pattern(offer, slot)
        for offer in offers
        for slot in np.flatnonzero(offer.found.worth > offer.price).tolist()
        if offer.found.size[slot] > 0
    ]


def _pattern(offer: _Offers, slot: int) -> Pattern:
    items = offer.found.items[slot, : offer.found.size[slot]]
    return Pattern(offer.number, tuple(sorted(items.tolist())))
