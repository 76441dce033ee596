"""The GPU while a window runs: watts and clock to report, and what makes the window worthless.

    GpuWatch(driver, gpu, is_ours=...).over(start_s, end_s) -> Seen(power_w, clock_mhz, memory_used_mib, objections)

A window does not count when power or heat held the clock back, when a process computed that is not ours, or when the
clock was not the one that was locked. NVML's calls take milliseconds, so they are made in a thread.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Protocol

from agents.base.device import NotSupported
from agents.gpu.nvml.types import GpuIdentity, GpuProcess, GpuSample

SAMPLE_PERIOD_S = 0.2
CLOCK_TOLERANCE_MHZ = 30.0
"""Two steps of 15 MHz: how far a locked clock may read off its value."""


class ProfileDriver(Protocol):
    """The part of `agents.gpu.nvml.session.Nvml` that is needed."""

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        """What a GPU does now."""
        ...

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        """Who computes on it; raises NotSupported where that cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A GPU over one window."""

    power_w: float | None
    """None here and of the clock: the driver does not tell it."""
    clock_mhz: float | None
    memory_mib: dict[int, float]
    """By process, where the driver tells."""
    held_back_by: tuple[str, ...]
    """What held the clock back: power limit, heat."""
    objections: tuple[str, ...]
    """Why the window does not count otherwise; empty = it does."""


class GpuWatch:
    """Looks at one GPU."""

    def __init__(
        self, driver: ProfileDriver, gpu: GpuIdentity, *, is_ours: Callable[[int], bool]
    ) -> None:
        """`is_ours`: whether a process belongs to this profile; asked once for each number."""
        self._driver = driver
        self._gpu = gpu
        self._is_ours = is_ours
        self._known: dict[int, bool] = {}
        self.cannot_list = ""
        """Why foreign processes are not seen; empty = they are."""

    async def over(
        self, start_s: float, end_s: float, *, clock_mhz: float | None
    ) -> Seen:
        """What is seen from one moment of the monotonic clock to the other, at both ends at least.

        `clock_mhz`: to which it is locked. Raises GpuLost, NoDriver.
        """
        await asyncio.sleep(max(0.0, start_s - time.monotonic()))
        samples: list[GpuSample] = []
        times_s: list[float] = []
        foreign: set[str] = set()
        memory_mib: dict[int, float] = {}
        while True:
            times_s.append(time.monotonic())
            samples.append(await asyncio.to_thread(self._driver.sample, self._gpu))
            for process in await asyncio.to_thread(self._processes):
                # Judged at once: whose process it was cannot be found out after it has ended.
                if self._belongs(process.pid):
                    memory_mib[process.pid] = process.memory_mib or 0.0
                else:
                    foreign.add(_named(process.pid))
            # The sample's own time decides, so that the energy counter is read at the window's end and not before it.
            if times_s[-1] >= end_s:
                break
            await asyncio.sleep(
                min(SAMPLE_PERIOD_S, max(0.0, end_s - time.monotonic()))
            )
        return Seen(
            power_w=_power_w(samples, times_s),
            clock_mhz=mean_of(each.clock_mhz for each in samples),
            memory_mib={pid: mib for pid, mib in memory_mib.items() if mib > 0.0},
            held_back_by=_held_back_by(samples),
            objections=(
                *_clock_objections(samples, clock_mhz),
                *(f"foreign process {each}" for each in sorted(foreign)),
            ),
        )

    async def foreign(self) -> tuple[str, ...]:
        """Processes on the GPU that are not ours, now."""
        found = await asyncio.to_thread(self._processes)
        return tuple(_named(each.pid) for each in found if not self._belongs(each.pid))

    async def memory_used_mib(self) -> float:
        """What is in use on the entire GPU now."""
        sample = await asyncio.to_thread(self._driver.sample, self._gpu)
        return sample.memory_used_mib or 0.0

    def _processes(self) -> tuple[GpuProcess, ...]:
        try:
            return self._driver.processes(self._gpu)
        except NotSupported as error:
            # Kept instead of raised: a profile without the list of processes is worth less, and its report says so.
            self.cannot_list = str(error)
            return ()

    def _belongs(self, pid: int) -> bool:
        # A PID that was foreign may be ours by now, never the reverse.
        if not self._known.get(pid, False):
            self._known[pid] = self._is_ours(pid)
        return self._known[pid]


def _power_w(samples: list[GpuSample], times_s: list[float]) -> float | None:
    """By the energy counter where it moved, else the mean of what was read."""
    first = samples[0].energy_j
    last = samples[-1].energy_j
    # The counter integrates on the board, while watts are read five times a second and miss what is shorter.
    if first is not None and last is not None and last > first:
        return (last - first) / (times_s[-1] - times_s[0])
    return mean_of(each.power_w for each in samples)


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of what is known; None where nothing is."""
    known = [each for each in values if each is not None]
    return fmean(known) if known else None


def _held_back_by(samples: list[GpuSample]) -> tuple[str, ...]:
    return tuple(sorted({reason for each in samples for reason in each.held_back_by}))


def _clock_objections(samples: list[GpuSample], clock_mhz: float | None) -> list[str]:
    if clock_mhz is None or _held_back_by(samples):
        return []
    # An idle GPU drops its clock although it is locked, which says nothing about the batches.
    shown = [
        each.clock_mhz
        for each in samples
        if each.clock_mhz is not None and "idle" not in each.event_reasons
    ]
    if all(abs(each - clock_mhz) <= CLOCK_TOLERANCE_MHZ for each in shown):
        return []
    return [f"clock at {min(shown):g} to {max(shown):g} MHz, not at {clock_mhz:g}"]


def _named(pid: int) -> str:
    """A number with its program's name, where this machine knows it."""
    try:
        return f"{pid} ({Path(f'/proc/{pid}/comm').read_text(encoding='utf-8', errors='replace').strip()})"
    except OSError:
        return str(pid)
