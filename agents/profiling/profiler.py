"""A whole profile: every cell of every set of benches, into the journal, until done or out of time.

    Profiler(site, watch, journal, rules=..., listener=..., ...).run(cells) -> ProfileReport

A cell that cannot be measured is told, left out and tried again when the profile is resumed; the run goes on. It ends
early when the budget is over (behind the cell that runs then), or when no set of benches comes up at all.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agents.base.device import DeviceError, LaunchFailed
from agents.profiling.bench_processes import BenchPool, BenchProcess, Site
from agents.profiling.cells import (
    BenchFailed,
    BenchLost,
    BenchSet,
    MeasurementCell,
    ProfileError,
    by_bench_set,
)
from agents.profiling.journal import Journal, Measurement
from agents.profiling.watch import GpuWatch
from agents.profiling.windows import Rules, measure

MAX_FAILED_STARTS = 3
"""Sets of benches in a row that do not come up before any did: then none will."""


class ProfileListener(Protocol):
    """Who shows how far it is."""

    def begun(self, *, cells: int, done: int) -> None:
        """A profile of `cells` cells begins, of which some were measured before."""
        ...

    def measured(self, measurement: Measurement) -> None:
        """One more."""
        ...

    def failed(self, cell: MeasurementCell, why: str) -> None:
        """One that is left out."""
        ...


class ClockLock(Protocol):
    """Locks the clock of the GPU."""

    async def lock_mhz(self, clock_mhz: float | None) -> None:
        """None: unlock. Raises DeviceError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileReport:
    """What a run came to."""

    measured: int
    """Cells, in this run."""
    failed: tuple[tuple[MeasurementCell, str], ...]
    left: int
    """Cells for which there was no time."""


@dataclass(slots=True, kw_only=True)
class Profiler:
    """One run."""

    site: Site
    watch: GpuWatch
    journal: Journal
    rules: Rules
    listener: ProfileListener
    seed: int = 0
    budget_s: float = math.inf
    clock: ClockLock | None = None
    """None: no clock is touched; cells with a clock are refused."""
    now_s: Callable[[], float] = time.monotonic
    _measured: int = 0
    _failed: list[tuple[MeasurementCell, str]] = field(default_factory=list)
    _left: int = 0
    _end_s: float = math.inf
    _failed_starts: int = 0
    _has_started: bool = False

    async def run(self, cells: Sequence[MeasurementCell]) -> ProfileReport:
        """Measure what the journal does not have. Raises DeviceError when nothing can be measured at all."""
        if self.clock is None and any(cell.clock_mhz is not None for cell in cells):
            raise LaunchFailed(
                "cells ask for a clock, and this profile may not lock any"
            )
        self._end_s = self.now_s() + self.budget_s
        plan = by_bench_set(cells, seed=self.seed)
        total = sum(len(group) for _, group in plan)
        todo = [
            (bench_set, [cell for cell in group if not self.journal.has(cell)])
            for bench_set, group in plan
        ]
        self.listener.begun(
            cells=total, done=total - sum(len(group) for _, group in todo)
        )
        async with BenchPool(site=self.site) as pool:
            for place, (bench_set, group) in enumerate(todo):
                later = [each for each, cells in todo[place + 1 :] if cells]
                await self._measure_set(pool, bench_set, group, later)
        return ProfileReport(
            measured=self._measured, failed=tuple(self._failed), left=self._left
        )

    async def _measure_set(
        self,
        pool: BenchPool,
        bench_set: BenchSet,
        group: list[MeasurementCell],
        later: Sequence[BenchSet],
    ) -> None:
        """All cells of one set of processes; after a lost process the rest with new ones."""
        while group:
            if self.now_s() >= self._end_s:
                self._left += len(group)
                return
            used_mib = self.watch.memory_used_mib
            await pool.make_room(bench_set, later, used_mib)
            # Read before the benches start: what the GPU holds more afterwards is theirs.
            base_mib = None if pool.is_up(bench_set) else await used_mib()
            try:
                benches = await pool.take(bench_set)
            except LaunchFailed as error:
                if await pool.end_others():
                    continue  # Once more with the GPU's memory to themselves.
                self._fail_start(group, str(error))
                return
            self._has_started = True
            await self._measure_cells(pool, benches, group, base_mib)
            await pool.unload(benches)

    async def _measure_cells(
        self,
        pool: BenchPool,
        benches: tuple[BenchProcess, ...],
        group: list[MeasurementCell],
        base_mib: float | None,
    ) -> None:
        """Cells are taken from the group as they are dealt with; it returns early when a process is lost."""
        while group and self.now_s() < self._end_s:
            # Taken out before it is measured: a cell that loses its process is not tried again with the next one.
            cell = group.pop(0)
            try:
                if self.clock is not None:
                    await self.clock.lock_mhz(cell.clock_mhz)
                measurement = await measure(
                    cell, benches, self.watch, self.rules, base_mib=base_mib
                )
            except BenchLost as error:
                self._fail(cell, str(error))
                await pool.end(benches)
                return
            except BenchFailed as error:
                # It may be memory that it lacked, which those hold that wait for their turn.
                if await pool.end_others(benches):
                    group.insert(0, cell)
                else:
                    self._fail(cell, str(error))
                continue
            except ProfileError as error:
                self._fail(cell, str(error))
                continue
            # In a thread, because fsync may take long and the loop still serves the pipes of the benches.
            await asyncio.to_thread(self.journal.write, measurement)
            self._measured += 1
            self.listener.measured(measurement)

    def _fail_start(self, group: list[MeasurementCell], why: str) -> None:
        """Raises LaunchFailed when it looks as if none will start."""
        for cell in group:
            self._fail(cell, why)
        self._failed_starts += 1
        # Once something has started the site works, and a network that does not come up is only that network's problem.
        if not self._has_started and self._failed_starts >= MAX_FAILED_STARTS:
            raise LaunchFailed(
                f"none of the first {MAX_FAILED_STARTS} sets of processes came up; the last: {why}"
            )

    def _fail(self, cell: MeasurementCell, why: str) -> None:
        self._failed.append((cell, why))
        self.listener.failed(cell, why)


async def refuse_foreign(watch: GpuWatch, site: Site) -> None:
    """Raises DeviceError when somebody computes on the GPU before anything of ours runs."""
    if foreign := await watch.foreign():
        raise DeviceError(
            f"GPU {site.gpu.index} is not free: processes {', '.join(foreign)} compute on it. Stop them first (the "
            "node's agent and its MPS daemon, too): what is measured next to them is worth nothing"
        )
