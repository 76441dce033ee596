"""A node of tasks that are real processes: our trainer as a fake, a program without hooks, and waiting for both."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agents.base.protocol import TaskCommand, TaskReading
from agents.processes.launcher import PROCESSES, Launcher
from agents.processes.templates import Template, Templates
from agents.replicas.replica import Hooks, Proof
from agents.tasks.task import TaskHooks, TaskLaunch
from agents.tasks.tasks import Tasks, TasksSettings
from tests.agents.factories import a_task
from tests.agents.fakes.replicas import until
from tests.agents.kubernetes.cluster import Cluster
from tests.ports import PORTS, own_ports
from tests.waiting import PATIENCE_S

FAKES = Path(__file__).parents[0] / "fakes"
ROOT = Path(__file__).parents[2]
FIRST_PORT = own_ports()
WORDS = "--task {task} --kind {kind} --network {network} --batch {batch} --iterations {iterations} --port {port}"


@dataclass(slots=True, kw_only=True)
class TaskNode:
    """Where the tasks of one test live, and what was asked of the GPU's sharing."""

    directory: Path
    step_ms: float = 10.0
    words: tuple[str, ...] = ()
    """More arguments of the trainer, or of the plain program."""
    has_hook: bool = True
    why_no_checkpoint: str = ""
    start_limit_s: float = PATIENCE_S
    objections: list[str] = field(default_factory=list)
    """Taken from the front, one by each proof."""
    cluster: Cluster | None = None
    """Where they are Pods; None: they are processes."""
    proofs: list[Proof] = field(default_factory=list)
    terminated: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def template(self) -> Template:
        kept = "{directory}/kept"
        options = (
            *WORDS.split(),
            "--times-ms",
            f"1:{self.step_ms:g}",
            "--checkpoint",
            kept,
            "--checkpoint-s",
            "0.1",
        )
        trainer = (sys.executable, str(FAKES / "held_trainer.py"), *options)
        plain = (
            sys.executable,
            str(FAKES / "plain_task.py"),
            kept,
            "{iterations}",
            str(self.step_ms / 1000.0),
        )
        return Template(
            name="trainer" if self.has_hook else "plain",
            server="task",
            command=(*(trainer if self.has_hook else plain), *self.words),
            progress_file=kept,
            environment={
                "PYTHONPATH": str(ROOT),
                "CUDA_FAKE_DIR": str(self.cuda),
                "TASK_HOLD": str(self.hold),
            },
            start_limit_s=self.start_limit_s,
            drain_limit_s=10.0,
        )

    @property
    def hold(self) -> Path:
        """While it is there no task ends its last iteration, so that none has finished before it was seen to run."""
        return self.directory / "hold"

    @property
    def cuda(self) -> Path:
        """Which processes use CUDA, as the fake cuda-checkpoint sees it."""
        return self.directory / "cuda"

    @asynccontextmanager
    async def tasks(self, *, keep: bool = False) -> AsyncIterator[Tasks]:
        """Open; all ended afterwards, unless they are kept."""
        self.cuda.mkdir(parents=True, exist_ok=True)
        template = self.template()
        async with AsyncExitStack() as stack:
            launcher: Launcher = PROCESSES
            if self.cluster is not None:
                launcher = await stack.enter_async_context(self.cluster.launcher())
            tasks = self._make(template, launcher)
            await tasks.open()
            try:
                yield tasks
            finally:
                await tasks.close(keep=keep)

    def _make(self, template: Template, launcher: Launcher) -> Tasks:
        return Tasks(
            TasksSettings(
                directory=self.directory / "tasks",
                first_port=FIRST_PORT,
                port_count=PORTS,
                ask_s=0.02,
            ),
            templates=Templates(
                by_name={template.name: template}, tasks={"offline": template.name}
            ),
            hooks=TaskHooks(
                sharing=Hooks(terminate=self._terminate, prove=self._prove),
                why_no_checkpoint=lambda _: self.why_no_checkpoint,
            ),
            environment={
                **os.environ,
                "PATH": f"{FAKES}:{os.environ['PATH']}",
                "CUDA_FAKE_DIR": str(self.cuda),
            },
            launcher=launcher,
        )

    async def _terminate(self, gpu_index: int, pids: tuple[int, ...]) -> bool:
        self.terminated.append((gpu_index, pids))
        return True

    async def _prove(self, proof: Proof) -> str:
        self.proofs.append(proof)
        return self.objections.pop(0) if self.objections else ""


def launch(command: TaskCommand | None = None) -> TaskLaunch:
    """Task t1 on GPU 0."""
    return TaskLaunch(
        command=command or a_task(iterations=1_000_000),
        gpu_index=0,
        gpu_memory_mib=16384.0,
    )


def state(tasks: Tasks, name: str = "t1") -> str:
    """Of a task; absent where there is none."""
    return next(
        (each.state for each in tasks.running(0) if each.name == name), "absent"
    )


def reading(tasks: Tasks) -> TaskReading:
    """What the only task did since the last reading."""
    (found,) = tasks.read()
    return found


async def come(tasks: Tasks, wanted: str) -> None:
    """Wait for the state of t1; a failure says why."""
    await until(lambda: state(tasks) in (wanted, "failed"))
    assert state(tasks) == wanted, tasks.problems


async def kept(tasks: Tasks, iterations: float) -> None:
    """Wait until the only task runs and has kept `iterations`: its first ones come before its share is proven."""
    await come(tasks, "running")
    await until(lambda: reading(tasks).done_iterations >= iterations)


def pid(tasks: Tasks) -> int | None:
    """Of the only task; None: its Pod has not been started yet."""
    return tasks.holders()[0].pid
