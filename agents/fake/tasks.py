"""Fake tasks: they take memory and time like real ones, compute nothing, and come on by the clock.

The states and their changes are those of `agents.base.device`. Progress is worked out when somebody asks, at the pace
that the GPU has then.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from agents.base.clock import Clock
from agents.base.device import (
    SWAP_MIB_PER_S,
    GpuState,
    LaunchFailed,
    RunningTask,
    UnknownPart,
    running_task,
    task_reading,
)
from agents.base.protocol import TaskCommand, TaskReading, TaskState

IterationTime: TypeAlias = Callable[[TaskCommand, GpuState], float]
"""(task, its GPU as it is now) → seconds. Raises LaunchFailed where it is unknown."""


@dataclass(slots=True, kw_only=True)
class _Task:
    """One task; `at_s` is up to when its progress was worked out."""

    command: TaskCommand
    gpu_index: int
    state: TaskState
    at_s: float
    due_s: float = math.inf
    """When its start, or its way to or from the host, ends."""
    becomes: TaskState = "running"
    done: float
    done_read: float
    busy_s: float = 0.0
    """Since the last reading."""


class FakeTasks:
    """The tasks of one node."""

    def __init__(
        self, *, iteration_s: IterationTime, clock: Clock, launch_s: float
    ) -> None:
        """`launch_s`: start of a task, in seconds of the clock."""
        self._iteration_s = iteration_s
        self._clock = clock
        self._launch_s = launch_s
        self._tasks: dict[str, _Task] = {}

    def start(self, gpu: GpuState, task: TaskCommand, *, free_mib: float) -> None:
        """Begin to start a task on a GPU. Raises LaunchFailed."""
        if task.name in self._tasks:
            raise LaunchFailed(f"task {task.name} is there already; stop it first")
        _require_room(task, gpu.index, free_mib)
        self._iteration_s(
            task, gpu
        )  # A network that was not measured must fail here, not while it runs.
        now_s = self._clock.now_s()
        self._tasks[task.name] = _Task(
            command=task,
            gpu_index=gpu.index,
            state="starting",
            at_s=now_s,
            due_s=now_s + self._launch_s,
            done=task.done_iterations,
            done_read=task.done_iterations,
        )

    def stop(self, name: str) -> None:
        """End a task, or forget one that has finished. Raises UnknownPart."""
        self._find(name)
        del self._tasks[name]

    def swap_out(self, name: str) -> None:
        """Begin to move a running task's memory to the host. Raises UnknownPart."""
        each = self._find(name)
        if each.state == "running":
            self._swap(each, becomes="swapped")

    def swap_in(self, name: str, *, free_mib: float) -> None:
        """Begin to move a swapped task's memory back. Raises UnknownPart; LaunchFailed where there is no room."""
        each = self._find(name)
        if each.state == "swapped":
            _require_room(each.command, each.gpu_index, free_mib)
            self._swap(each, becomes="running")

    def gpu_of(self, name: str) -> int:
        """The index of the GPU that a task is on. Raises UnknownPart."""
        return self._find(name).gpu_index

    def on(self, gpu_index: int) -> tuple[RunningTask, ...]:
        """The tasks of a GPU as they were when progress was last worked out."""
        return tuple(
            running_task(each.command, each.state)
            for each in self._tasks.values()
            if each.gpu_index == gpu_index
        )

    def busy_s(self, gpu_index: int) -> float:
        """How long the busiest task of a GPU ran since the last reading."""
        return max(
            (
                each.busy_s
                for each in self._tasks.values()
                if each.gpu_index == gpu_index
            ),
            default=0.0,
        )

    def advance(self, gpus: Mapping[int, GpuState]) -> None:
        """Work out how far they have come."""
        now_s = self._clock.now_s()
        for each in self._tasks.values():
            # As of the time when it was due, so that progress does not depend on how often somebody asks.
            if each.due_s <= now_s:
                each.state, each.at_s, each.due_s = each.becomes, each.due_s, math.inf
            if each.state == "running":
                self._run(each, gpus[each.gpu_index], now_s)

    def read(self) -> tuple[TaskReading, ...]:
        """What they did since the last reading; a new window begins."""
        return tuple(map(_read, self._tasks.values()))

    def clear(self) -> None:
        """End them all."""
        self._tasks.clear()

    def _run(self, each: _Task, gpu: GpuState, now_s: float) -> None:
        iteration_s = self._iteration_s(each.command, gpu)
        left_s = (each.command.iterations - each.done) * iteration_s
        # It must not run beyond its end, however late somebody asks.
        ran_s = min(now_s - each.at_s, left_s)
        each.busy_s += ran_s
        if ran_s >= left_s:
            each.state, each.done = "finished", float(each.command.iterations)
        else:
            each.done += ran_s / iteration_s
        each.at_s = now_s

    def _swap(self, each: _Task, *, becomes: TaskState) -> None:
        each.state, each.becomes = "swapping", becomes
        each.due_s = self._clock.now_s() + each.command.memory_mib / SWAP_MIB_PER_S

    def _find(self, name: str) -> _Task:
        if name not in self._tasks:
            raise UnknownPart(f"no task {name} on this node")
        return self._tasks[name]


def _require_room(task: TaskCommand, gpu_index: int, free_mib: float) -> None:
    if task.memory_mib > free_mib:
        raise LaunchFailed(
            f"task {task.name} needs {task.memory_mib:g} MiB, GPU {gpu_index} has {free_mib:g}"
        )


def _read(each: _Task) -> TaskReading:
    iterations = each.done - each.done_read
    busy_s = each.busy_s
    each.done_read, each.busy_s = each.done, 0.0
    return task_reading(
        each.command,
        each.state,
        each.gpu_index,
        done_iterations=each.done,
        window_iterations=iterations,
        busy_s=busy_s,
    )
