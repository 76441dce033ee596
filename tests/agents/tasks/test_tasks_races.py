"""Tasks where two things come together: a full disk, an end in a swap, a stop at the agent's end."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from agents.base.device import DeviceError
from agents.processes.procfs import marks
from agents.replicas.replica import Proof
from agents.tasks.tasks import Tasks
from tests.agents.factories import a_task
from tests.agents.fakes.replicas import in_loop, until
from tests.agents.kubernetes.cluster import Cluster
from tests.agents.task_nodes import TaskNode, come, launch, pid, state

pytestmark = pytest.mark.integration


@pytest.fixture
def node(tmp_path: Path, cluster: Cluster | None) -> TaskNode:
    return TaskNode(directory=tmp_path, cluster=cluster)


@pytest.fixture
def plain(tmp_path: Path) -> TaskNode:
    return TaskNode(directory=tmp_path, has_hook=False)


def living(node: TaskNode) -> int:
    """Tasks whose processes live."""
    return len(marks((node.directory / "tasks" / "mark").read_text()))


class Disk:
    """Where records are written, which can be taken away; root may write wherever there is a place."""

    def __init__(self, node: TaskNode) -> None:
        self._place, self._aside = (
            node.directory / "tasks" / "records",
            node.directory / "aside",
        )

    def fail(self) -> None:
        self._place.rename(self._aside)

    def mend(self) -> None:
        self._aside.rename(self._place)


@in_loop
async def test_a_swap_without_a_record_is_refused(node: TaskNode) -> None:
    disk = Disk(node)
    async with node.tasks() as tasks:
        await tasks.start(launch())
        await come(tasks, "running")
        disk.fail()
        with pytest.raises(DeviceError, match="the record of t1 cannot be written"):
            await tasks.swap_out("t1")
        assert state(tasks) == "running", (
            "a later agent would take it for one that runs"
        )
        disk.mend()
        await tasks.swap_out("t1")
        await come(tasks, "swapped")
        disk.fail()
        with pytest.raises(DeviceError, match="the record of t1 cannot be written"):
            await tasks.swap_in("t1")
        assert state(tasks) == "swapped"
        disk.mend()


@in_loop
async def test_what_happened_is_told_without_a_record(node: TaskNode) -> None:
    disk = Disk(node)
    node.hold.touch()
    async with node.tasks() as tasks:
        await tasks.start(launch(a_task(iterations=60)))
        disk.fail()
        await come(tasks, "running")
        node.hold.unlink()
        await come(tasks, "finished")
        disk.mend()
    async with node.tasks() as tasks:
        assert state(tasks) == "finished", "its checkpoint says so to a later agent"


@in_loop
async def test_one_that_ends_in_a_swap_has_finished(plain: TaskNode) -> None:
    plain.hold.touch()
    async with plain.tasks() as tasks:
        await tasks.start(launch(a_task(iterations=20)))
        await come(tasks, "running")
        process = psutil.Process(pid(tasks))
        plain.hold.unlink()
        # Collected already, by the watch of it.
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110  another process does not tell its end
                await asyncio.sleep(0.001)
        for _ in range(25):
            # Its end has been noted, and what it has left behind is looked for.
            await asyncio.sleep(0)
        await tasks.swap_out("t1")
        await come(tasks, "finished")
        # A stop that was not asked for would be done before what is asked for now.
        await tasks.start(launch(a_task("t2", iterations=1)))
        await until(lambda: state(tasks, "t2") == "finished")
        assert (state(tasks), tasks.problems) == ("finished", ())


@in_loop
async def test_a_stop_at_the_agents_end_leaves_no_watch(plain: TaskNode) -> None:
    async with plain.tasks(keep=True) as tasks:
        await tasks.start(launch())
        await come(tasks, "running")
        await tasks.stop("t1")
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    async with plain.tasks() as tasks:
        assert state(tasks) in ("running", "absent")
    assert living(plain) == 0


@dataclass(slots=True, kw_only=True)
class Slow(TaskNode):
    """The proof of t1 ends, when it is given up, only after something else has come about."""

    is_asked: asyncio.Event = field(default_factory=asyncio.Event)
    until: Callable[[], bool] = lambda: True

    async def _prove(self, proof: Proof) -> str:
        if proof.id != "t1":
            return ""
        self.is_asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await until(self.until)
            raise
        return ""


@in_loop
async def test_a_task_may_go_while_others_are_left(tmp_path: Path) -> None:
    node = Slow(directory=tmp_path)
    async with node.tasks(keep=True) as tasks:
        await tasks.start(launch())
        await node.is_asked.wait()
        await tasks.start(launch(a_task("t2", iterations=1_000_000)))
        await until(lambda: state(tasks, "t2") == "running")
        node.until = lambda: _is_gone(tasks, "t2")
        await tasks.stop("t2")
    node = Slow(directory=tmp_path)
    async with node.tasks() as tasks:  # The directory was given back.
        assert [each.name for each in tasks.running(0)] == ["t1"]
    assert living(node) == 0


def _is_gone(tasks: Tasks, name: str) -> bool:
    return state(tasks, name) == "absent"
