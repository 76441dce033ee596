"""One task as a node keeps it: its record on disk, its process, its state and how far it has come."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from agents.base.device import (
    DeviceError,
    LaunchFailed,
    RunningTask,
    running_task,
    task_reading,
)
from agents.base.protocol import Iterations, TaskCommand, TaskReading, TaskState
from agents.processes.launch import LaunchPlace, make_ready
from agents.processes.launcher import Launcher, Running
from agents.processes.process import HOST
from agents.processes.records import VERSION, Identity, Records
from agents.processes.templates import Parameters, Template
from agents.processes.user import read_file, uid_of
from agents.replicas.replica import Hooks, Proof
from agents.trainer.swap import SwapStatus

Phase: TypeAlias = Literal["starting", "running", "out", "in", "finished"]
"""How far a task's process is, for the agent that may have to go on with it: `out` from the moment at which its memory
was asked to leave, `in` from the one at which it was asked to come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLaunch:
    """One task to start."""

    command: TaskCommand
    gpu_index: int
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the GPU's sharing asks for."""
    gpu_memory_mib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHooks:
    """What the GPU's sharing has a say in."""

    sharing: Hooks = field(default_factory=Hooks)
    why_no_checkpoint: Callable[[int], str] = lambda _: ""
    """Why `cuda-checkpoint` must not be tried on processes of a GPU; empty = it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProcessRecord:
    """One task's process, and what it takes to go on with it."""

    id: str
    command: TaskCommand
    gpu_index: int
    ports: tuple[int, ...]
    progress_file: str
    template: Template
    """As it was when the task was started."""
    identity: Identity | None
    mark: str
    uid: int = -1
    """Who it was started as; -1 = not known, in a record of an earlier release."""
    phase: Phase = "starting"
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHolder:
    """What a task has of a GPU now; see `agents.gpu.node.foreign_memory`."""

    gpu_index: int
    memory_mib: float
    """0 while it is swapped out."""
    state: TaskState
    pid: int | None
    name: str
    sm_percent: float


@dataclass(slots=True, kw_only=True, eq=False)
class TaskProcess:
    """One task as `Tasks` keeps it."""

    record: TaskProcessRecord
    process: Running | None
    state: TaskState = "starting"
    message: str = ""
    kept: float
    """Iterations that another process would go on from."""
    status: SwapStatus | None = None
    """The newest that its hook said."""
    doom: str = ""
    doomed: asyncio.Event = field(default_factory=asyncio.Event)
    """Why it must be ended, set where that is found out."""
    is_stopping: bool = False
    job: "asyncio.Task[None] | None" = None
    """Its life, or its end."""
    swap: "asyncio.Task[None] | None" = None
    steps: float = 0.0
    busy_s: float = 0.0
    """What this process did, as far as seen."""
    read_steps: float = 0.0
    read_busy_s: float = 0.0
    """At the last reading."""
    changed_s: float = field(default_factory=time.monotonic)
    """When its file last said something new, or it did not run."""

    @property
    def url(self) -> str:
        """The address of its hook; empty: it has none."""
        host = HOST if self.process is None else self.process.host
        return f"http://{host}:{self.record.ports[0]}" if self.record.ports else ""

    @property
    def problem(self) -> str:
        """Why it failed, or what keeps it from being started; empty: neither."""
        if self.state == "failed":
            return self.message
        if self.state == "starting" and self.process is not None:
            return self.process.pending
        return ""

    def running_task(self) -> RunningTask:
        """As enforcement sees it."""
        # From the record, not the process: an adopted task must show who it was started as, not who the agent is now.
        running = running_task(self.record.command, self.state)
        return replace(running, uid=self.record.uid)

    def holder(self) -> TaskHolder:
        """The task next to replicas, as those who give memory out see it."""
        running = self.running_task()
        return TaskHolder(
            gpu_index=self.record.gpu_index,
            memory_mib=running.memory_mib if running.holds_memory else 0.0,
            state=self.state,
            pid=None if self.process is None else self.process.pid,
            name=self.record.command.name,
            sm_percent=running.sm_percent,
        )

    def read(self) -> TaskReading:
        """What it did since the last reading; a new window begins."""
        steps = self.steps - self.read_steps
        busy_s = self.busy_s - self.read_busy_s
        self.read_steps, self.read_busy_s = self.steps, self.busy_s
        return task_reading(
            self.record.command,
            self.state,
            self.record.gpu_index,
            done_iterations=self.kept,
            window_iterations=steps,
            busy_s=busy_s,
        )

    def note_status(self, status: SwapStatus) -> None:
        """Its hook said so. The first answer of an adopted process begins the window: what was before is not ours."""
        if self.status is None and self.record.phase != "starting":
            self.read_steps, self.read_busy_s = status.steps, status.busy_s
        self.status, self.kept = status, float(status.kept_iterations)
        self.steps, self.busy_s = float(status.steps), status.busy_s

    def note_kept(self, kept: float | None, now_s: float) -> None:
        """Its file says so now; it has none, or says nothing yet: None."""
        # A number that fell is an older file, which adds nothing.
        if kept is not None and kept > self.kept:
            # The file holds no times: the seconds since it last said something new stand for them.
            self.steps, self.busy_s = (
                self.steps + kept - self.kept,
                self.busy_s + now_s - self.changed_s,
            )
        if self.state != "running" or kept not in (None, self.kept):
            self.changed_s = now_s
        self.kept = self.kept if kept is None else kept

    def unfinished(self, kept: float | None) -> str:
        """Why its process, which has ended, has not done the task; empty = it has. `kept`: as its file says."""
        # Only a task whose process was gone when it was adopted has none; its file alone says how that ended.
        assert self.process is not None
        wanted = self.record.command.iterations
        code = self.process.exit_code
        self.kept = self.kept if kept is None else kept
        if code not in (0, None):
            return self.process.how
        if kept is not None:
            return (
                ""
                if kept >= wanted
                else f"it ended after {kept:g} of {wanted} iterations"
            )
        is_done = code == 0 or (
            self.status is not None and self.status.done_iterations >= wanted
        )
        return "" if is_done else self.process.how

    def doom_by(self, reason: str) -> None:
        """Let its watcher end it."""
        # The reason first: the watcher reads it at once.
        self.doom = reason
        self.doomed.set()

    async def is_doomed(self) -> str:
        """Return when it must be ended: why."""
        await self.doomed.wait()
        return self.doom

    def proof(self, pids: tuple[int, ...]) -> Proof:
        """What is known of its share."""
        return Proof(
            id=self.record.id,
            gpu_index=self.record.gpu_index,
            sm_percent=self.record.command.sm_percent,
            sm_count=self.status.sm_count if self.status else None,
            pids=pids,
        )


def start_task(
    launcher: Launcher,
    launch: TaskLaunch,
    template: Template,
    *,
    place: LaunchPlace,
    records: Records[TaskProcessRecord],
) -> TaskProcess:
    """A task whose process runs and whose record is on disk. Raises LaunchFailed; then there is neither."""
    command, kept = launch.command, []
    parameters = Parameters(
        task=command.name,
        kind=command.kind,
        network=command.network,
        batch=command.batch,
        iterations=command.iterations,
        done_iterations=command.done_iterations,
        sm_percent=command.sm_percent,
        memory_mib=command.memory_mib,
        gpu_memory_mib=launch.gpu_memory_mib,
        ports=place.ports,
        host=place.host,
        directory=str(place.directory),
    )
    prepared = make_ready(
        template, parameters, place, launch.environment, keeps_directory=True
    )

    def record(identity: Identity | None) -> None:
        kept.append(
            TaskProcessRecord(
                id=command.name,
                command=command,
                gpu_index=launch.gpu_index,
                ports=place.ports,
                progress_file=prepared.filled.progress_file,
                template=template,
                identity=identity,
                mark=place.mark,
                uid=uid_of(place.user),
            )
        )
        records.save(kept[0])

    try:
        process = launcher.start(prepared, record)
    except DeviceError as error:
        records.remove(command.name, keeps_folder=True)
        raise LaunchFailed(f"task {command.name} cannot be started: {error}") from error
    found = read_progress(prepared.filled.progress_file)
    return TaskProcess(
        record=kept[0],
        process=process,
        kept=command.done_iterations if found is None else found,
    )


def with_phase(record: TaskProcessRecord, phase: Phase) -> TaskProcessRecord:
    """The record of a task that has come so far."""
    return replace(record, phase=phase)


class _Progress(msgspec.Struct):
    done_iterations: Iterations


def read_progress(file: str) -> float | None:
    """Iterations that a task's program says it has kept; None = it says nothing that can be read."""
    if not file:
        return None
    # A RecursionError comes of brackets in brackets.
    with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
        return msgspec.json.decode(
            read_file(Path(file)), type=_Progress
        ).done_iterations
    return None
