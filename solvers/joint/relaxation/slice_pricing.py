"""Pricing of modes whose GPUs are cut into slices: exact, so that the best pattern is the bound too."""

import numpy as np

from solvers.joint.kernels.slices import (
    Choices,
    fill,
    min_charge,
    search_slices,
    slice_values,
    trace,
)
from solvers.joint.kernels.types import GpuMode, Law, PricingTask, Reals
from solvers.joint.patterns.columns import Pattern, Priced, alone
from solvers.joint.patterns.slice_layouts import Slicing

_MAX_PATTERNS = 40
"""Per call, besides the best one: the best of other multisets."""


class SliceCells:
    """One sliced mode; there is nothing to keep between calls."""

    def __init__(self, mode: GpuMode, law: Law, slicing: Slicing) -> None:
        self._slicing = slicing
        self._size = slicing.layouts.counts.sum(axis=1).astype(np.int32)
        self._capacity = alone(mode, law)

    def price(self, number: int, task: PricingTask) -> Priced:
        """The worth of the best pattern, 0 where none is worth anything, and good patterns above the threshold."""
        value = slice_values(task, self._capacity)
        kept = self._kept(task.mode, value)
        if len(kept) == 0:
            return Priced(bound=0.0, patterns=())
        choices = self._choices(task.mode, value, kept)
        charge = min_charge(choices)
        program = fill(choices, charge)
        items = np.zeros(int(self._size.max()) + 1, np.int64)
        bound, worth, size = search_slices(choices, program, charge, items)
        goal = task.threshold * (1.0 + task.effort.tolerance)
        found = [(worth, items[:size].copy())] if worth > goal else []
        for multiset in np.argsort(-program.table[-1])[:_MAX_PATTERNS]:
            size = trace(choices, program, int(multiset), items)
            if (
                program.table[-1, multiset] > -np.inf
                and choices.watts[items[:size]].sum() <= choices.room_w
            ):
                worth = float(choices.value[items[:size]].sum())
                if worth > goal:
                    found.append((worth, items[:size].copy()))
        found.sort(key=lambda entry: -entry[0])
        patterns = (
            Pattern(number, tuple(np.sort(kept[chosen]).tolist()))
            for _, chosen in found
        )
        return Priced(bound=bound, patterns=tuple(dict.fromkeys(patterns)))

    def _kept(
        self, mode: GpuMode, value: Reals
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Candidates that are worth something, without those that another of service and profile beats in watts too."""
        order = np.lexsort((-value, mode.power, self._slicing.profile, mode.service))
        order = order[value[order] > 0.0]
        kept: list[int] = []
        seen: dict[tuple[int, int], float] = {}
        for item in order.tolist():
            key = (int(mode.service[item]), int(self._slicing.profile[item]))
            if value[item] > seen.get(key, 0.0):
                seen[key] = value[item]
                kept.append(item)
        return np.array(kept, dtype=np.int64)

    def _choices(
        self,
        mode: GpuMode,
        value: Reals,
        kept: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> Choices:
        starts = np.flatnonzero(np.diff(mode.service[kept], prepend=-1))
        return Choices(
            first=np.append(starts, len(kept)).astype(np.int32),
            profile=self._slicing.profile[kept],
            value=value[kept],
            watts=mode.power[kept],
            room_w=mode.power_w,
            less=self._slicing.layouts.less,
            size=self._size,
        )
