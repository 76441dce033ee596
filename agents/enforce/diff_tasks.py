"""The tasks of one node, wanted against actual, as ordered actions: they have what the replicas leave over.

A replica always comes before a task:

* a task starts, or returns from the host's memory, only on a GPU where every wanted replica is there and no retired one
  is alive, and only where there is room next to everything that holds memory;
* tasks leave, last in the command first and only as many as needed, where a wanted replica lacks memory, before any
  old replica is drained early for it. One that runs is swapped out, one that is still starting is stopped: it has
  done nothing yet. They come back by the first rule.

A task whose network, batch, memory, SM percent, user or GPU changes is stopped at once and started again from the
command's `done_iterations`: no request waits for it, and the share of a running process cannot be changed. One that has
finished stays listed until it is no more wanted, whatever is wanted of it, so that its end is reported.

A failed task stays visible, and is not started again, while it is held back. One that is being swapped is left alone
until it is there; where that was the wrong way it is turned round then.
"""

from collections.abc import Collection, Iterator

from agents.base.device import GpuState, NodeState, RunningTask
from agents.base.protocol import NodeCommand, TaskCommand
from agents.enforce.actions import StartTask, StopTask, SwapIn, SwapOut

_THERE = ("running", "finished")
_AWAY = ("absent", "swapped", "finished")
"""States of a task that is where its command wants it: on its GPU, or off it."""


def staying_tasks(
    wanted: NodeCommand, actual: NodeState, held: Collection[str]
) -> dict[int, tuple[RunningTask, ...]]:
    """The tasks of every GPU, by its index, that are not to be stopped at once."""
    places = {task.name: (gpu.index, task) for gpu in wanted.gpus for task in gpu.tasks}
    return {
        gpu.index: tuple(
            each
            for each in gpu.tasks
            if _stays(each, gpu.index, places.get(each.name), held, actual)
        )
        for gpu in actual.gpus
    }


def _stays(
    running: RunningTask,
    gpu_index: int,
    place: tuple[int, TaskCommand] | None,
    held: Collection[str],
    node: NodeState,
) -> bool:
    if place is None:
        return False
    wanted_index, want = place
    # A finished task stays to be told of, on any GPU, unless a new one of other shape has its name.
    if running.state == "finished":
        return (running.network, running.batch) == (want.network, want.batch)
    # One that must not start again yet stays to be seen; else it makes room for its next start.
    if running.state == "failed":
        return running.name in held
    # It has nothing to save yet, so that stopping it is cheaper than swapping it.
    if running.state == "starting" and not want.is_resident:
        return False
    return (
        gpu_index == wanted_index
        and _shape(running) == _shape(want)
        and node.is_user_of(want.project, running.uid)
    )


def _shape(task: RunningTask | TaskCommand) -> tuple[str, int, float, float]:
    """What is fixed for a task's life."""
    return task.network, task.batch, task.sm_percent, task.memory_mib


def displaced_tasks(
    wanted: tuple[TaskCommand, ...], running: tuple[RunningTask, ...], short_mib: float
) -> Iterator[SwapOut | StopTask]:
    """Tasks of one GPU that must go: those wanted in the host's memory, then as many as make `short_mib` free.

    `running` are those that stay otherwise. What is being swapped counts as free soon.
    """
    tasks = {task.name: task for task in running}
    short_mib -= sum(task.memory_mib for task in running if task.state == "swapping")
    for name in (want.name for want in wanted if not want.is_resident):
        if name in tasks and tasks[name].state == "running":
            short_mib -= tasks[name].memory_mib
            yield SwapOut(task=name)
    # The command lists the most important task first, so the last one leaves first.
    for name in (want.name for want in reversed(wanted) if want.is_resident):
        if (
            short_mib > 0.0
            and name in tasks
            and tasks[name].state in ("starting", "running")
        ):
            short_mib -= tasks[name].memory_mib
            yield (
                StopTask(task=name)
                if tasks[name].state == "starting"
                else SwapOut(task=name)
            )


def freed_soon_mib(
    running: tuple[RunningTask, ...], displaced: Collection[str]
) -> float:
    """Memory of tasks that are being swapped, or now leave."""
    return sum(
        task.memory_mib
        for task in running
        if task.state == "swapping" or task.name in displaced
    )


def returning_tasks(
    wanted: tuple[TaskCommand, ...],
    gpu: GpuState,
    *,
    free_mib: float,
    taken: Collection[str],
) -> Iterator[StartTask | SwapIn]:
    """Tasks that fit into the free memory of a GPU on which nothing else is to be done, in the command's order.

    `taken` are names that cannot be started: in use anywhere on the node, or held back.
    """
    swapped = {task.name for task in gpu.tasks if task.state == "swapped"}
    for want in wanted:
        is_new = want.name not in taken
        if (
            want.is_resident
            and (is_new or want.name in swapped)
            and want.memory_mib <= free_mib
        ):
            free_mib -= want.memory_mib
            yield (
                StartTask(gpu_index=gpu.index, task=want)
                if is_new
                else SwapIn(task=want.name)
            )


def are_tasks_settled(wanted: NodeCommand, actual: NodeState) -> bool:
    """Whether every task that is wanted on its GPU runs there or has finished, and every other wanted one is off it.

    A task that waits for memory is never settled: the command's sums fit the GPU, so that its room will come.
    """
    states = {task.name: task.state for gpu in actual.gpus for task in gpu.tasks}
    return all(
        states.get(task.name, "absent") in (_THERE if task.is_resident else _AWAY)
        for gpu in wanted.gpus
        for task in gpu.tasks
    )
