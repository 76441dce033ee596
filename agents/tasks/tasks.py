"""Training and offline tasks as processes: started, followed, swapped, ended; after a restart of the agent adopted.

    starting ──▶ running ──exit code 0, all iterations──▶ finished ──stop()──▶ gone
       │           │  ▲ swap_in()
       │ swap_out()▼  │
       │         swapping ──▶ swapped              any of these ──▶ failed ──stop()──▶ gone
       └── any of these ──stop()──▶ gone           what is left of its processes is ended first

    Tasks(settings, templates=…, hooks=…, …)
        await open()                             take the state directory, adopt what runs, tell what does not
        running(gpu_index), holders()            what is there now
        read()                                   -> what each did since the last reading
        await start(TaskLaunch)                  raises LaunchFailed; a task in a crash loop must wait
        await stop(name), swap_out(name), swap_in(name)      return at once; what becomes of it shows in `running`
        await close(keep=…)                      leave the processes alone for the next agent, or end them all

Processes, records, marks, logs and the order in which a client of MPS is ended are those of replicas. A task differs in
three things. Its directory stays when it is stopped, so that it goes on from its checkpoint. It ends by itself. And it
gives its memory back: by its swap hook; without one by `cuda-checkpoint` where that works; else it is stopped to make
room, comes back from its checkpoint when there is room again, and the node says so in `problems`.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agents.base.device import (
    DeviceError,
    LaunchFailed,
    NotSupported,
    RunningTask,
    UnknownPart,
)
from agents.base.protocol import TaskReading
from agents.base.waits import cancel, first
from agents.processes.care import keep_tidy
from agents.processes.launch import Crashes, Ports, place_in
from agents.processes.launcher import PROCESSES, Launcher
from agents.processes.records import Records
from agents.processes.templates import Templates
from agents.processes.user import WorkerUsers
from agents.replicas.replica import with_log
from agents.tasks.hook import HookFailed
from agents.tasks.task import (
    TaskHolder,
    TaskHooks,
    TaskLaunch,
    TaskProcess,
    TaskProcessRecord,
    read_progress,
    start_task,
)
from agents.tasks.tools import TaskTools

SWAP_LIMIT_S = 600.0
"""For a step to end and the memory to be moved; afterwards the task is ended, which frees it as well."""
LAST_OUTPUT_S = 2.0
"""For a program that refuses a swap because it is just ending."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksSettings:
    """How a node runs its tasks."""

    directory: Path
    """Where records, logs and, of the agent's own user, the tasks' own directories lie."""
    users: WorkerUsers = field(default_factory=WorkerUsers)
    """Who they run as."""
    first_port: int = 20000
    """Before those of the replicas."""
    port_count: int = 1000
    ask_s: float = 0.5
    """Between two questions for progress."""


class Tasks:
    """All tasks of one node."""

    def __init__(
        self,
        settings: TasksSettings,
        *,
        templates: Templates,
        hooks: TaskHooks | None = None,
        launcher: Launcher = PROCESSES,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`environment`: the agent's own, of which some is passed on to tasks."""
        self.crashes = Crashes(time.monotonic)
        self.on_change: Callable[[], None] = lambda: None
        """Called whenever a task has come up, been moved, finished, failed or gone."""
        self._settings = settings
        self._templates = templates
        self._launcher = launcher
        self._environment = environment
        self._hooks = hooks or TaskHooks()
        self._ports = Ports(first=settings.first_port, count=settings.port_count)
        self._tasks: dict[str, TaskProcess] = {}
        self._unswappable: dict[str, str] = {}
        """What is said of a template whose tasks had to be stopped to make room."""
        self._tools: TaskTools | None = None
        self._logs: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Take the state directory and adopt what it tells of. Raises DeviceError when another agent has it."""
        records = Records(
            self._settings.directory, TaskProcessRecord, users=self._settings.users
        )
        self._tools = TaskTools(
            records,
            self._hooks,
            environment=self._environment,
            ask_s=self._settings.ask_s,
        )
        found = records.load()
        marks = {record.mark for record in found}
        terminate = self._hooks.sharing.terminate
        await self._launcher.end_unrecorded(records.mark, marks, terminate)
        await asyncio.gather(*map(self._adopt, found))
        self._logs = asyncio.create_task(keep_tidy(records, lambda: tuple(self._tasks)))

    @property
    def problems(self) -> tuple[str, ...]:
        """What an operator should know of them."""
        tasks = [(name, each.problem) for name, each in self._sorted()]
        troubled = (f"task {name}: {problem}" for name, problem in tasks if problem)
        return (
            *(self._tools.records.problems if self._tools else ()),
            *self._unswappable.values(),
            *troubled,
        )

    def running(self, gpu_index: int) -> tuple[RunningTask, ...]:
        """The tasks of a GPU, by name."""
        return tuple(
            each.running_task()
            for _, each in self._sorted()
            if each.record.gpu_index == gpu_index
        )

    def holders(self) -> tuple[TaskHolder, ...]:
        """What each has of its GPU now; nothing of what has ended, whose process id may be another's by now."""
        ended = ("failed", "finished")
        living = (each for _, each in self._sorted() if each.state not in ended)
        return tuple(each.holder() for each in living)

    def record(self, name: str) -> TaskProcessRecord:
        """What a task was started with. Raises UnknownPart."""
        return self._find(name).record

    def read(self) -> tuple[TaskReading, ...]:
        """What each did since the last reading, by name."""
        return tuple(each.read() for _, each in self._sorted())

    async def start(self, launch: TaskLaunch) -> None:
        """Start a task. Raises LaunchFailed; then there is none."""
        command, records = launch.command, self._opened().records
        name, project = command.name, command.project
        if name in self._tasks:
            raise LaunchFailed(f"task {name} is there already; stop it first")
        if (hold_s := self.crashes.hold_s(name)) > 0.0:
            raise LaunchFailed(
                f"task {name} is in a crash loop and waits another {hold_s:.0f} s"
            )
        template = self._templates.find_task(command.network, command.kind)
        taken = {port for each in self._tasks.values() for port in each.record.ports}
        ports = self._ports.take(len(template.ports), taken)
        host, environment = self._launcher.listens_on, self._environment
        place = place_in(
            records, name, project, ports=ports, host=host, environment=environment
        )
        self._tasks[name] = started = start_task(
            self._launcher, launch, template, place=place, records=records
        )
        started.job = asyncio.create_task(self._live(started))

    async def stop(self, name: str) -> None:
        """Begin to end a task, or forget one that has ended."""
        each = self._find(name)
        if each.state in ("failed", "finished"):
            self._forget(each)
        elif not each.is_stopping:
            self._begin_stop(each)

    def fail(self, name: str, reason: str) -> None:
        """Begin to end a task that cannot go on, and tell why; one that ends anyway is left to that."""
        self._find(name).doom_by(reason)

    async def swap_out(self, name: str) -> None:
        """Begin to move a task's memory to the host. Raises DeviceError where it does not run."""
        each = self._find(name)
        if each.is_stopping or each.state in ("swapping", "swapped"):
            return
        if each.state != "running":
            raise DeviceError(
                f"task {name} is {each.state}; only one that runs can be swapped out"
            )
        self._begin_swap(each, "out")

    async def swap_in(self, name: str) -> None:
        """Begin to move it back; the caller has seen that there is room. Raises DeviceError where it is not out."""
        each = self._find(name)
        if each.is_stopping or each.state in ("swapping", "running"):
            return
        if each.state != "swapped":
            raise DeviceError(
                f"task {name} is {each.state}; only one that is swapped out can come back"
            )
        self._begin_swap(each, "in")

    async def close(self, *, keep: bool) -> None:
        """Give the state directory back; `keep`: the processes go on for the next agent, else all are ended first."""
        if not keep:
            for each in self._tasks.values():
                if each.state not in ("failed", "finished") and not each.is_stopping:
                    self._begin_stop(each)
            jobs = [each.job for each in self._tasks.values() if each.job is not None]
            await asyncio.gather(*jobs, return_exceptions=True)
        # A copy, since others may still be forgotten while these are waited for.
        for each in tuple(self._tasks.values()):
            await cancel(each.swap)  # First: it may begin a stop.
            await cancel(each.job)
            if each.process is not None:
                each.process.abandon()
        await cancel(self._logs)
        self._tasks.clear()
        if self._tools is not None:
            await self._tools.hook.close()
            if not keep:
                await self._tools.records.tidy()
            self._tools.records.close()

    async def _adopt(self, record: TaskProcessRecord) -> None:
        """Go on with the recorded process where it was, or tell that it is gone."""
        log_file = self._opened().records.log(record.id)
        process = await self._launcher.adopt(record, log_file)
        each = TaskProcess(
            record=record, process=process, kept=record.command.done_iterations
        )
        self._tasks[record.id] = each
        found = await asyncio.to_thread(read_progress, record.progress_file)
        each.kept = each.kept if found is None else found
        if record.phase == "finished":
            each.state, each.kept = "finished", float(record.command.iterations)
        elif process is None:
            await self._launcher.end_left_over(record.mark, self._opened().ending(each))
            # Its own file is the only witness of how a process ended that no agent watched.
            if found is not None and found >= record.command.iterations:
                self._finish(each)
            else:
                each.message = with_log("it ended while no agent watched it", log_file)
                each.state = "failed"
        else:
            if each.url:
                with contextlib.suppress(HookFailed):
                    await self._opened().watch.look(each)
            if record.phase == "out" or record.phase == "in":
                self._begin_swap(each, record.phase)
            elif record.phase == "running":
                each.state = "running"
            each.job = asyncio.create_task(self._live(each))

    async def _live(self, each: TaskProcess) -> None:
        """From the start of its process, or its adoption, to its end."""
        assert each.process is not None
        reason, limit_s = "", each.record.template.start_limit_s
        # An adopted one has been proven before, by the agent that started it.
        if each.record.phase == "starting":
            up = await first(
                self._opened().watch.bring_up(each),
                each.process.wait(),
                each.is_doomed(),
                limit_s=limit_s,
            )
            if up is None:
                reason = f"it was not ready within {limit_s:g} s: {each.message}"
            elif up:
                reason = up
            else:
                self._opened().note(each, "running")
                each.state, each.message = "running", ""
                self.on_change()
        if not reason:
            following = self._opened().watch.follow(each)
            ended = await first(each.process.wait(), following, each.is_doomed())
            reason = ended or ""
        await self._conclude(each, reason)

    async def _conclude(self, each: TaskProcess, reason: str) -> None:
        """Its process has ended, or must: what became of it."""
        assert each.process is not None
        has_ended = each.process.has_ended
        each.is_stopping = True  # From here on it is neither swapped nor stopped.
        await cancel(each.swap)
        await self._opened().end(each)
        if has_ended:
            reason = each.unfinished(
                await asyncio.to_thread(read_progress, each.record.progress_file)
            )
        if reason:
            self._fail(each, reason)
        else:
            self._finish(each)

    def _finish(self, each: TaskProcess) -> None:
        each.kept = float(each.record.command.iterations)
        self._opened().note(each, "finished")
        each.state, each.message = "finished", ""
        self.on_change()

    def _fail(self, each: TaskProcess, reason: str) -> None:
        each.message = with_log(reason, self._opened().records.log(each.record.id))
        if loop := self.crashes.note(each.record.id):
            each.message = f"{loop}; {each.message}"
        log.error("task %s failed: %s", each.record.id, each.message)
        each.state = "failed"
        self.on_change()

    def _begin_swap(self, each: TaskProcess, way: Literal["out", "in"]) -> None:
        self._opened().keep(each, way)
        each.state = "swapping"
        each.swap = asyncio.create_task(self._swap(each, way))

    async def _swap(self, each: TaskProcess, way: Literal["out", "in"]) -> None:
        """Move its memory; a task that cannot give it back is stopped, one that fails at it is ended."""
        assert each.process is not None
        try:
            async with asyncio.timeout(SWAP_LIMIT_S):
                await self._opened().mover.move(each, way)
        except NotSupported as error:
            if not each.is_stopping and not each.process.has_ended:
                self._make_room(each, str(error))
        except (DeviceError, TimeoutError) as error:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_OUTPUT_S):
                    await each.process.wait()
                return  # It ended meanwhile, which its life sees to.
            each.doom_by(
                f"its memory could not be moved {way}: {error or f'not within {SWAP_LIMIT_S:g} s'}"
            )
        else:
            # Noted only now, because an agent that dies meanwhile must ask for the memory once more.
            if way == "in":
                self._opened().note(each, "running")
            each.state = "swapped" if way == "out" else "running"
            self.on_change()

    def _make_room(self, each: TaskProcess, why: str) -> None:
        template = each.record.template.name
        note = f"tasks of template {template} are stopped where others are swapped: they have no swap hook, and {why}"
        if self._unswappable.get(template) != note:
            log.warning("%s", note)
        self._unswappable[template] = note
        each.swap = None
        self._begin_stop(each)

    def _begin_stop(self, each: TaskProcess) -> None:
        each.is_stopping = True
        before = each.job
        if before is not None:
            before.cancel()  # Now: the stop itself may be cancelled before it has begun.
        each.job = asyncio.create_task(self._stop(each, before))

    async def _stop(
        self, each: TaskProcess, before: "asyncio.Task[None] | None"
    ) -> None:
        # Its watcher is cancelled first: it would take the end for a failure.
        await cancel(before)
        await cancel(each.swap)
        await self._opened().end(each)
        self._forget(each)

    def _forget(self, each: TaskProcess) -> None:
        """What it kept stays for its next start here, but for one that is done."""
        self._opened().records.remove(
            each.record.id, keeps_folder=each.state != "finished"
        )
        del self._tasks[each.record.id]
        self.on_change()

    def _sorted(self) -> list[tuple[str, TaskProcess]]:
        return sorted(self._tasks.items())

    def _opened(self) -> TaskTools:
        if self._tools is None:
            raise DeviceError("the tasks' state directory is not open")
        return self._tools

    def _find(self, name: str) -> TaskProcess:
        if name not in self._tasks:
            raise UnknownPart(f"no task {name} on this node")
        return self._tasks[name]
