"""Draining: which nodes are to be emptied, and what may stay there until their deadlines.

Services leave as soon as others serve in their place. Tasks run on where they are, since a start elsewhere costs them
what they did since their last checkpoint. At the deadline everything leaves.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from app.store.store import Snapshot
from solvers.backfill.residents import again, is_same
from solvers.types.plan import BoundGpu, BoundPlan, BoundTask
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, GpuId, Task


def draining_nodes(snapshot: Snapshot, *, overdue: bool = False) -> tuple[str, ...]:
    """Nodes that are to be emptied, by name; `overdue`: those whose deadline has passed."""
    return tuple(
        sorted(
            node.id
            for node in snapshot.state.nodes
            if node.drain_in_s is not None and (node.drain_in_s <= 0.0 or not overdue)
        )
    )


def drained_nodes(snapshot: Snapshot) -> tuple[str, ...]:
    """Draining nodes for which the target wants nothing, and whose agents follow it."""
    target = snapshot.target
    if target is None:
        return draining_nodes(snapshot)
    used = {gpu.id for gpu in target.gpus if not gpu.is_empty}
    busy = {gpu.node for gpu in snapshot.state.gpus if gpu.id in used}
    # An agent that has not taken up the newest target may still run what it should have stopped.
    following = {
        status.node
        for status in snapshot.statuses
        if status.generation >= target.generation
    }
    return tuple(
        node
        for node in draining_nodes(snapshot)
        if node not in busy and node in following
    )


def staying_gpus(
    bound: BoundPlan,
    problem: Problem,
    state: ClusterState,
    *,
    target: BoundPlan | None,
    draining: Collection[GpuId],
) -> tuple[BoundGpu, ...]:
    """The draining GPUs on which `bound` has no replica, with the tasks that run there by the target, by id.

    None of them where watts are limited: the plan has given all watts to the GPUs of its replicas.
    """
    if target is None or problem.power_budget_w is not None:
        return ()
    hosting = [gpu for gpu in bound.gpus if gpu.replicas]
    used = {gpu.id for gpu in hosting}
    # The plan has given all watts of these nodes to its replicas.
    capped = {node.id for node in state.nodes if node.power_cap_w is not None}
    full = capped & {gpu.node for gpu in hosting}
    staying = []
    for gpu in target.gpus:
        if gpu.id in draining and gpu.id not in used and gpu.node not in full:
            tasks = tuple(_running(gpu, state.tasks))
            staying.append(replace(gpu, replicas=(), tasks=tasks))
    return tuple(gpu for gpu in staying if gpu.tasks)


def _running(gpu: BoundGpu, tasks: Sequence[Task]) -> Iterator[BoundTask]:
    """The open tasks that hold a part of the GPU; one that is swapped out has no more reason to wait for its place."""
    by_name = {task.name: task for task in tasks}
    for bound in gpu.tasks:
        task = by_name.get(bound.name)
        if task is not None and bound.is_resident and is_same(task, bound):
            yield again(bound, task, is_resident=True)
