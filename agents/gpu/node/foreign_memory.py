"""Memory of a GPU that others hold than this node's replicas: what promises alone do not tell.

    ForeignMemory(driver, …)
        mib(gpu, replicas)              -> held by others, measured at most LOOK_S ago
        objection(gpu, replicas, …)     -> why a replica must not start now, measured now; empty = it may
        problem(gpu)                    -> what an operator should know

A replica may take all that it was promised at any time, used or not. So what counts is how much is used beyond all
promises, or, where that is more, what the driver says of processes that are none of ours. Up to OVERHEAD_MIB are the
driver's own, contexts and the MPS daemon, and leave the promises as they are.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from agents.base.device import MEMORY_TOLERANCE, DeviceError
from agents.gpu.nvml.types import GpuIdentity, GpuProcess, GpuSample
from agents.processes.procfs import is_marked

OVERHEAD_MIB = 512.0
LOOK_S = 5.0
MAX_NAMED = 5
"""Processes that a message names."""


class ProcessLister(Protocol):
    """The part of `agents.gpu.nvml.session.Nvml` that is needed."""

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        """What the GPU does now."""
        ...

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        """Who computes on it."""
        ...


class Holder(Protocol):
    """One that was promised memory: a replica or a task."""

    @property
    def gpu_index(self) -> int:
        """The index of its GPU."""
        ...

    @property
    def memory_mib(self) -> float:
        """What it was promised."""
        ...

    @property
    def state(self) -> str:
        """One that is `failed` holds nothing."""
        ...

    @property
    def pid(self) -> int | None:
        """The id of its own process; None: it has none yet, or none that is known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was found on one GPU."""

    at_s: float
    mib: float
    who: str
    """Which processes, in words."""


class ForeignMemory:
    """Finds what foreign processes hold of all GPUs of a node."""

    def __init__(
        self,
        driver: ProcessLister,
        *,
        look_s: float = LOOK_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver, self._look_s, self._now_s = driver, look_s, now_s
        self._seen: dict[int, _Seen] = {}

    def mib(self, gpu: GpuIdentity, replicas: Iterable[Holder]) -> float:
        """Memory that others hold; what was seen last of a GPU that does not answer, which is told elsewhere."""
        seen = self._seen.get(gpu.index)
        if seen is None or self._now_s() >= seen.at_s + self._look_s:
            seen = self._look(gpu, replicas)
        return seen.mib

    def objection(
        self, gpu: GpuIdentity, replicas: Iterable[Holder], needed_mib: float
    ) -> str:
        """Why a replica that needs so much has no room next to those and what others hold now."""
        mine = [each for each in replicas if each.gpu_index == gpu.index]
        promised_mib = _promised_mib(mine)
        seen = self._look(gpu, mine)
        if promised_mib + seen.mib + needed_mib <= gpu.memory_mib * (
            1.0 + MEMORY_TOLERANCE
        ):
            return ""
        others = (
            f", and {seen.mib:.0f} are held beyond that{seen.who}" if seen.mib else ""
        )
        return f"of the {gpu.memory_mib:g} of GPU {gpu.index} {promised_mib:g} are promised to others{others}"

    def problem(self, gpu: GpuIdentity) -> str:
        """That others hold memory here; empty = they do not."""
        seen = self._seen.get(gpu.index)
        if seen is None or not seen.mib:
            return ""
        return (
            f"GPU {gpu.index}: {seen.mib:.0f} MiB are held beyond what this node's replicas and tasks were "
            f"granted{seen.who}; a replica that has no room next to it waits"
        )

    def _look(self, gpu: GpuIdentity, replicas: Iterable[Holder]) -> _Seen:
        mine = [each for each in replicas if each.gpu_index == gpu.index]
        seen = self._seen.get(gpu.index, _Seen(at_s=0.0, mib=0.0, who=""))
        try:
            used_mib = self._driver.sample(gpu).memory_used_mib or 0.0
            leaders = {each.pid for each in mine if each.pid is not None}
            foreign = self._foreign_processes(gpu, leaders)
            # Neither alone is enough: some drivers list no processes, and parts that use less than promised hide
            # others.
            held_mib = max(
                used_mib - _promised_mib(mine),
                sum(each.memory_mib or 0.0 for each in foreign),
            )
            is_noted = held_mib > OVERHEAD_MIB
            who = _named(foreign) or _left_behind(mine)
            seen = _Seen(
                at_s=self._now_s(),
                mib=held_mib if is_noted else 0.0,
                who=who if is_noted else "",
            )
        except DeviceError:
            # A GPU that does not answer keeps its last value, which is safer than calling it free.
            seen = _Seen(at_s=self._now_s(), mib=seen.mib, who=seen.who)
        self._seen[gpu.index] = seen
        return seen

    def _foreign_processes(
        self, gpu: GpuIdentity, leaders: set[int]
    ) -> list[GpuProcess]:
        """Processes on the GPU that are none of ours; none where the driver cannot list them."""
        try:
            return [
                each
                for each in self._driver.processes(gpu)
                if _is_foreign(each.pid, leaders)
            ]
        except DeviceError:
            return []


def _is_foreign(pid: int, leaders: set[int]) -> bool:
    try:
        session = os.getsid(pid)
    except (
        OSError
    ):  # gone, or in another PID namespace, where it is unknown whose it is
        return False
    # The mark finds processes that began a session of their own.
    return session not in leaders and not is_marked(pid)


def _promised_mib(replicas: Iterable[Holder]) -> float:
    return sum(each.memory_mib for each in replicas if each.state != "failed")


def _left_behind(mine: list[Holder]) -> str:
    """Tasks that were swapped out hold nothing that was granted to them; their programs keep their CUDA contexts."""
    out = [each for each in mine if each.state in ("swapping", "swapped")]
    pids = sorted(each.pid for each in out if each.pid is not None)
    shown = ", ".join(map(str, pids[:MAX_NAMED]))
    return (
        f" (tasks that were swapped out may have left it: process {shown})"
        if pids
        else ""
    )


def _named(foreign: list[GpuProcess]) -> str:
    largest = sorted(foreign, key=lambda each: (-(each.memory_mib or 0.0), each.pid))[
        :MAX_NAMED
    ]
    names = ", ".join(
        f"{each.pid} ({each.memory_mib or 0.0:.0f} MiB)" for each in largest
    )
    return f" (process {names})" if names else ""
