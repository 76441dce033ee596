"""What a later agent finds of tasks, whatever they did when the one before it died; none orphaned or doubled."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from agents.processes.procfs import marks
from tests.agents.factories import a_task
from tests.agents.fakes.replicas import BOTH_LAUNCHERS, in_loop, is_running, until
from tests.agents.kubernetes.cluster import Cluster
from tests.agents.task_nodes import TaskNode, come, kept, launch, pid, reading, state

pytestmark = pytest.mark.integration


@pytest.fixture
def node(tmp_path: Path, cluster: Cluster | None) -> TaskNode:
    return TaskNode(directory=tmp_path, cluster=cluster)


async def ended(process: int) -> None:
    """It has ended, and no one has its exit code any more."""
    await until(lambda: not is_running(process))
    reap(process)


def reap(process: int) -> None:
    """As when its parent has gone; a kubelet reaps by itself."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, os.WNOHANG)


def living(node: TaskNode) -> int:
    """Tasks whose processes live."""
    return len(marks((node.directory / "tasks" / "mark").read_text()))


@BOTH_LAUNCHERS
@pytest.mark.parametrize("then", ["starting", "running"])
@in_loop
async def test_a_task_goes_on_without_an_agent_and_is_adopted(
    node: TaskNode, then: str
) -> None:
    async with node.tasks(keep=True) as tasks:
        await tasks.start(launch())
        await until(lambda: pid(tasks) is not None)
        process = pid(tasks)
        if then == "running":
            await kept(tasks, 2.0)
    async with node.tasks() as tasks:
        assert state(tasks) == then
        assert [each.uid for each in tasks.running(0)] == [os.geteuid()]
        await come(tasks, "running")
        assert (pid(tasks), living(node)) == (process, 1)
        assert len(node.proofs) == 1, (
            "its share is proven once: a process keeps it for its life"
        )
        await kept(tasks, reading(tasks).done_iterations + 1.0)
    assert living(node) == 0


@pytest.mark.parametrize(("way", "there"), [("out", "swapped"), ("in", "running")])
@in_loop
async def test_a_swap_that_was_begun_is_carried_on(
    node: TaskNode, way: str, there: str
) -> None:
    node.step_ms = 300.0  # The agent is gone before the step's end.
    async with node.tasks(keep=True) as tasks:
        await tasks.start(launch())
        await come(tasks, "running")
        await tasks.swap_out("t1")
        if way == "in":
            await come(tasks, "swapped")
            await tasks.swap_in("t1")
        assert state(tasks) == "swapping"
        process = pid(tasks)
    async with node.tasks(keep=True) as tasks:
        await come(tasks, there)
        assert (pid(tasks), living(node)) == (process, 1)
    # And where it has come it stays.
    async with node.tasks() as tasks:
        await come(tasks, there)
        await tasks.swap_in("t1")
        await come(tasks, "running")
        assert (pid(tasks), living(node)) == (process, 1)


@in_loop
async def test_a_stop_that_was_begun_is_begun_again(node: TaskNode) -> None:
    async with node.tasks(keep=True) as tasks:
        await tasks.start(launch())
        await come(tasks, "running")
        await tasks.stop("t1")
    async with node.tasks() as tasks:
        if state(tasks) != "absent":
            await tasks.stop("t1")
        await until(lambda: state(tasks) == "absent")
        assert living(node) == 0


@in_loop
async def test_a_task_that_finished_meanwhile_has_finished(node: TaskNode) -> None:
    node.hold.touch()
    async with node.tasks(keep=True) as tasks:
        await tasks.start(launch(a_task(iterations=30)))
        await come(tasks, "running")
        process = pid(tasks)
    node.hold.unlink()
    await ended(process)
    async with node.tasks() as tasks:
        assert (state(tasks), reading(tasks).done_iterations) == ("finished", 30.0)


@in_loop
async def test_an_adopted_task_finishes(node: TaskNode) -> None:
    node.hold.touch()
    async with node.tasks(keep=True) as tasks:
        await tasks.start(launch(a_task(iterations=60)))
        await come(tasks, "running")
    # No agent sees its exit code.
    async with node.tasks() as tasks:
        node.hold.unlink()
        await come(tasks, "finished")
    # It is not run again.
    async with node.tasks() as tasks:
        assert (state(tasks), living(node)) == ("finished", 0)
        assert reading(tasks).done_iterations == 60.0


@in_loop
async def test_a_task_that_was_killed_meanwhile_goes_on(node: TaskNode) -> None:
    async with node.tasks(keep=True) as tasks:
        await tasks.start(launch())
        await kept(tasks, 4.0)
        process = pid(tasks)
    os.kill(process, signal.SIGKILL)
    await ended(process)
    async with node.tasks() as tasks:
        assert state(tasks) == "failed"
        assert "it ended while no agent watched it; its log ends" in tasks.problems[0]
        await tasks.stop("t1")
        await tasks.start(launch())
        assert reading(tasks).done_iterations >= 4.0
        await come(tasks, "running")
        assert living(node) == 1


@BOTH_LAUNCHERS
@in_loop
async def test_a_process_whose_record_is_lost_is_ended(node: TaskNode) -> None:
    async with node.tasks(keep=True) as tasks:
        await tasks.start(launch())
        await come(tasks, "running")
    for record in (node.directory / "tasks" / "records").glob("*.json"):
        record.unlink()
    async with node.tasks() as tasks:
        assert (tasks.read(), living(node)) == ((), 0)
