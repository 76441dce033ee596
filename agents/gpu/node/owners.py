"""Whose a process on a GPU is, and the parts of a GPU with the processes that the agent started for them."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from agents.base.successors import base_id
from agents.gpu.node.attribution import OTHERS, GrantedPart, Key
from agents.gpu.nvml.types import GpuCapabilities, GpuIdentity
from agents.replicas.replica import ReplicaView

MAX_ANCESTORS = 16
MPS_SERVER = "nvidia-cuda-mps"
"""How its name begins in /proc/PID/comm, which holds 15 characters."""


class TaskPlace(Protocol):
    """A task on a GPU, see `agents.tasks.task.TaskHolder`."""

    @property
    def name(self) -> str:
        """The name under which the control plane knows it."""
        ...

    @property
    def gpu_index(self) -> int:
        """The index of its GPU."""
        ...

    @property
    def sm_percent(self) -> float:
        """What it was granted."""
        ...

    @property
    def memory_mib(self) -> float:
        """What it was granted; 0 while it holds none."""
        ...

    @property
    def pid(self) -> int | None:
        """The id of its own process; None: it has none yet, or none that is known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PartProcesses:
    """A part with its processes."""

    part: GrantedPart
    pids: tuple[int, ...]
    """The processes that the agent started for it; what those started is found from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """A GPU and what is known of it."""

    gpu: GpuIdentity
    capabilities: GpuCapabilities
    is_limited: bool
    """MPS limits each part to its SM percent."""


def owner_of(pid: int, leaders: Mapping[int, Key]) -> Key | None:
    """Whose a process is, from the parts by the PIDs of their leaders; `OTHERS`, or None where it has no owner."""
    try:
        # Each replica leads a session of its own, which its children stay in; this is the cheapest answer.
        session, parent = os.getsid(pid), pid
        if session in leaders:
            return leaders[session]
        # A process that made its own session is still found by who started it.
        for _ in range(MAX_ANCESTORS):
            if parent in leaders:
                return leaders[parent]
            if parent <= 1:
                break
            parent = _parent(parent)
        is_server = (
            Path(f"/proc/{pid}/comm")
            .read_text(encoding="utf-8", errors="replace")
            .startswith(MPS_SERVER)
        )
    except OSError:
        return None
    # A server of MPS works for its clients, whose use is counted with them.
    return None if is_server else OTHERS


def _parent(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # The name, in parentheses, may hold blanks and parentheses; behind it: state and parent.
    return int(text[text.rindex(")") + 2 :].split()[1])


def placed_replica(
    view: ReplicaView, shared: SharedGpu, busy_share: float | None
) -> PartProcesses:
    """A replica as a part of its GPU."""
    # One that sleeps has memory alone.
    is_awake = view.state != "asleep"
    seen = view.sm_count if is_awake else None
    total = shared.gpu.sm_count
    part = GrantedPart(
        kind="replica",
        # A successor is measured under the id of the replica that it replaces: the control plane knows only that one.
        name=base_id(view.id),
        owner=view.service,
        sm_percent=view.sm_percent if is_awake else 0.0,
        memory_mib=view.memory_mib,
        busy_share=busy_share if is_awake else 0.0,
        is_limited=shared.is_limited,
        proven_sm_percent=100.0 * seen / total
        if shared.is_limited and seen and total
        else None,
    )
    return PartProcesses(part=part, pids=() if view.pid is None else (view.pid,))


def placed_task(task: TaskPlace, shared: SharedGpu) -> PartProcesses:
    """A task as a part of its GPU; one without memory there was granted no SMs."""
    holds = task.memory_mib > 0.0
    part = GrantedPart(
        kind="task",
        name=task.name,
        sm_percent=task.sm_percent if holds else 0.0,
        # What is left of one that was swapped out, as its CUDA context, is no overuse.
        memory_mib=task.memory_mib if holds else math.inf,
        is_limited=shared.is_limited,
    )
    return PartProcesses(part=part, pids=() if task.pid is None else (task.pid,))


def placed_together(one: PartProcesses, other: PartProcesses) -> PartProcesses:
    """Both were granted what they have; of what they used the mean over their SM percents stands for both."""
    total_percent = one.part.sm_percent + other.part.sm_percent
    proven = (one.part.proven_sm_percent, other.part.proven_sm_percent)
    # One that does not tell must not count as idle.
    known = [each.part for each in (one, other) if each.part.busy_share is not None]
    part = replace(
        one.part,
        sm_percent=total_percent,
        memory_mib=one.part.memory_mib + other.part.memory_mib,
        busy_share=sum((each.busy_share or 0.0) * each.sm_percent for each in known)
        / total_percent
        if known
        else None,
        proven_sm_percent=None
        if None in proven
        else sum(each for each in proven if each is not None),
    )
    return PartProcesses(part=part, pids=(*one.pids, *other.pids))
