"""Pricing: under the present duals, good new patterns of every mode, and a proof that no other is better by more.

The subproblem of a mode is a knapsack with side limits (SM steps; memory, watts) whose items have no worth of their
own: what a replica carries depends on the pressure of the others. So patterns are split into cells in which that
pressure is nearly known, and each cell is a knapsack with worths at its optimistic end (`kernels.price`).

Cells cover all patterns of a mode: by the number of replicas and by intervals of their summed pressure. What a
candidate can carry at the optimistic end of a root cell depends on no price, so it is tabulated once.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from copy import copy

import numpy as np

from solvers.joint.kernels.knapsack import max_pressure
from solvers.joint.kernels.laws import root_capacities
from solvers.joint.kernels.price import price_mode
from solvers.joint.kernels.types import (
    Effort,
    GpuMode,
    Law,
    Numbers,
    PricedPatterns,
    PricingCells,
    PricingTask,
    Reals,
    Scratch,
    Worth,
)
from solvers.joint.patterns.columns import Pattern, Priced
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.tables import Tables, take

_LONG = 1000
"""A mode with this many candidates, times nodes of the search, takes long: its cells are priced a few at a time."""

ROOT_CELLS = 6
"""Intervals of pressure per number of replicas, before any is halved."""
_UNCAPPED_NODES = 30
"""This multiple of the nodes: with as few as elsewhere bounds of 100 GPUs stay 10 % too low, in as much time."""
MAX_HALVINGS = 7
"""A cell can be halved this often, which is what the pool has room for: 6 · 2^7 = 768 intervals of pressure then."""


class Pricer:
    """The cells of all modes, with multipliers that stay warm from one round to the next."""

    def __init__(self, tables: Tables, *, pool: Executor | None = None) -> None:
        self._tables = tables
        self._pool = pool
        self._is_late = never
        # Made when they are needed first: not every problem comes to be priced.
        self._cells: list[_ModeCells | None] = [None] * len(tables.modes)

    def on(
        self,
        pool: Executor | None,
        *,
        is_late: Callable[[], bool] = never,
    ) -> "Pricer":
        """The same cells, priced on the threads of an executor.

        As soon as it is late, pricing ends: it gives what was found until then, and infinite bounds.
        """
        # A shallow copy shares the list of cells, so that what the copy warms up is warm for all.
        other = copy(self)
        other._pool = pool
        other._is_late = is_late
        return other

    @property
    def executor(self) -> Executor | None:
        """Where modes are priced side by side; None for the thread that asks."""
        return self._pool

    def price(
        self,
        worth: Sequence[Worth],
        thresholds: Sequence[float],
        effort: Effort,
        *,
        watt_price: float = 0.0,
    ) -> list[Priced]:
        """One Priced per mode, given each mode's worth and what a GPU of it costs with its duals, ≥ 0.

        watt_price: USD per hour of a replica's watt, besides what its energy costs.
        Raises ValueError for an effort with more than MAX_HALVINGS.
        """
        if effort.halvings > MAX_HALVINGS:
            raise ValueError(
                f"cells can be halved {MAX_HALVINGS} times at most, not {effort.halvings}",
            )

        tasks = [
            PricingTask(
                _at_watt_price(mode, watt_price),
                self._tables.law,
                worth[number],
                thresholds[number],
                _effort(mode, effort),
            )
            for number, mode in enumerate(self._tables.modes)
        ]
        # Modes do not depend on each other, and kernels run without the interpreter's lock.
        run = map if self._pool is None else self._pool.map
        return list(run(self._price, range(len(tasks)), tasks))

    def _price(self, number: int, task: PricingTask) -> Priced:
        if self._is_late():
            return Priced(bound=np.inf, patterns=())
        cells = self._cells[number]
        if cells is None:
            cells = _ModeCells(task.mode, task.law, len(self._tables.rate))
            self._cells[number] = cells
        return cells.price(number, task, self._is_late)


def _effort(mode: GpuMode, effort: Effort) -> Effort:
    """Without SM limits only pressure bounds a set, so that the search must go deeper; its tables are small there."""
    if not mode.overload_ms.any():
        return effort
    return effort._replace(nodes=_UNCAPPED_NODES * effort.nodes)


class _ModeCells:
    """One mode's cells and working memory."""

    def __init__(self, mode: GpuMode, law: Law, services: int) -> None:
        self._edges = _edges(mode)
        self._capacities = root_capacities(mode, law, self._edges)
        self._multipliers = np.zeros((*self._capacities.shape[:2], 3))
        self._scratch = make_scratch(mode, services)

    def price(
        self,
        number: int,
        task: PricingTask,
        is_late: Callable[[], bool],
    ) -> Priced:
        """A bound for all cells, and the best patterns found in each; an infinite bound where it was too late."""
        slots = self._capacities.shape[0] * self._capacities.shape[1]
        found = make_slots(slots, task.mode.max_replicas)
        # The kernel improves the multipliers in place, so that the next round begins with good ones.
        cells = PricingCells(self._edges, self._capacities, self._multipliers)

        # A few cells at a time where one of them takes long, so that it is noticed in time when it is late.
        is_quick = len(task.mode.service) * max(1, task.effort.nodes) < _LONG
        stride = slots if is_quick else ROOT_CELLS
        bound = 0.0
        for first in range(0, slots, stride):
            if is_late():
                bound = np.inf
                break
            last = first + stride
            own_bound = price_mode(task, cells, self._scratch, found, first, last)
            bound = max(bound, own_bound)
        return Priced(bound=bound, patterns=_patterns(number, found))


def make_slots(slots: int, replicas: int) -> PricedPatterns:
    """Room for as many patterns, each of at most `replicas` replicas."""
    return PricedPatterns(
        items=np.zeros((slots, replicas), np.int32),
        size=np.zeros(slots, np.int32),
        worth=np.zeros(slots),
    )


def _patterns(mode: int, found: PricedPatterns) -> tuple[Pattern, ...]:
    """What was found, each pattern once, those of the highest worth first."""
    filled = np.flatnonzero(found.size)
    best_first = sorted(filled, key=lambda slot: -found.worth[slot])
    items = (found.items[slot, : found.size[slot]] for slot in best_first)
    # Several cells may find the same pattern, at their common edge for one; a dict keeps the order.
    patterns = dict.fromkeys(
        Pattern(mode, tuple(sorted(each.tolist()))) for each in items
    )
    return tuple(patterns)


def _at_watt_price(mode: GpuMode, more: float) -> GpuMode:
    return mode._replace(watt_price=mode.watt_price + more) if more > 0.0 else mode


def make_scratch(mode: GpuMode, services: int) -> Scratch:
    """Working memory for the cells of one mode."""
    # Made once per mode: the kernels run in every round, and making arrays would take longer than some of them.
    candidates = len(mode.service)
    replicas = mode.max_replicas
    steps = mode.steps
    return Scratch(
        ids=np.zeros(candidates, np.int32),
        value=np.zeros(candidates),
        adjusted=np.zeros(candidates),
        best=np.zeros((steps + 1, replicas), np.int32),
        filled=np.zeros(steps + 1, np.int32),
        short=np.zeros(steps * replicas + 1, np.int32),
        first=np.zeros(services + 2, np.int32),
        table=np.zeros((services + 2, replicas + 1, steps + 1)),
        solution=np.zeros(replicas, np.int32),
        # Each cell on the way down keeps the candidates that its halves begin with.
        pool=np.zeros(candidates * (MAX_HALVINGS + 1), np.int32),
    )


def _edges(mode: GpuMode) -> Reals:
    """(N + 1, K + 1) edges of the root cells; a number of replicas that cannot be has its last edge below the first."""
    lows, highs = pressure_range(mode)
    # From 0 down to −1: the cells of a number of replicas that cannot be are empty, and the kernel skips them.
    edges = np.zeros((mode.max_replicas + 1, ROOT_CELLS + 1))
    edges[:, 1:] = -1.0
    for replicas in range(1, mode.max_replicas + 1):
        if np.isfinite(highs[replicas]):
            edges[replicas] = np.linspace(
                lows[replicas],
                highs[replicas],
                ROOT_CELLS + 1,
            )
    return edges


def pressure_range(mode: GpuMode) -> tuple[Reals, Reals]:
    """(N + 1,) least and greatest summed pressure of 0 to N replicas of different services within the SM steps."""
    services = np.unique(mode.service)
    lightest = np.full(len(services), np.inf)
    np.minimum.at(lightest, np.searchsorted(services, mode.service), mode.pressure)
    lightest.sort()
    # Without regard to SM steps: a low end that is too low costs some empty cells, but no pattern.
    min_pressure = np.concatenate(([0.0], np.cumsum(lightest)))[: mode.max_replicas + 1]
    # There cannot be more replicas than services: such a number has no pressure at all.
    too_many = mode.max_replicas + 1 - len(min_pressure)
    min_pressure = np.pad(min_pressure, (0, too_many), constant_values=np.inf)
    return min_pressure, max_pressure(mode)


class NarrowPricer(Pricer):
    """A Pricer whose tables hold the candidates of some services; patterns bear the numbers of the whole tables.

    Its cells are narrower too, since they range over the pressure that just these services can have.
    """

    def __init__(
        self,
        tables: Tables,
        services: Numbers,
        *,
        like: Pricer | None = None,
    ) -> None:
        """`like`: on its threads, and late when it is late."""
        self._kept = [
            np.flatnonzero(np.isin(mode.service, services)) for mode in tables.modes
        ]
        modes = tuple(
            take(mode, kept)
            for mode, kept in zip(tables.modes, self._kept, strict=True)
        )
        super().__init__(tables._replace(modes=modes))
        if like is not None:
            self._pool = like._pool
            self._is_late = like._is_late

    def price(
        self,
        worth: Sequence[Worth],
        thresholds: Sequence[float],
        effort: Effort,
        *,
        watt_price: float = 0.0,
    ) -> list[Priced]:
        """As Pricer.price, with worths of the whole tables."""
        own = [
            one._replace(bonus=one.bonus[kept])
            for one, kept in zip(worth, self._kept, strict=True)
        ]
        priced = super().price(own, thresholds, effort, watt_price=watt_price)
        return [
            Priced(
                bound=entry.bound,
                patterns=tuple(
                    _renumbered(pattern, kept) for pattern in entry.patterns
                ),
            )
            for entry, kept in zip(priced, self._kept, strict=True)
        ]


def _renumbered(
    pattern: Pattern,
    kept: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Pattern:
    return Pattern(mode=pattern.mode, items=tuple(kept[list(pattern.items)].tolist()))
