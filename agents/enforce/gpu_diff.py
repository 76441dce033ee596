"""One GPU, wanted against actual: what is kept, missing, retired or asleep, and the room that is left."""

from collections.abc import Collection
from dataclasses import dataclass

from agents.base.device import (
    MEMORY_TOLERANCE,
    GpuState,
    NodeState,
    RunningReplica,
    RunningTask,
)
from agents.base.protocol import GpuCommand, NodeCommand, ReplicaCommand
from agents.enforce.diff_tasks import staying_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDiff:
    """One GPU, wanted against actual."""

    wanted: GpuCommand | None
    actual: GpuState
    kept: tuple[tuple[ReplicaCommand, RunningReplica], ...]
    """Replicas that run, or come up, as wanted, or drain and can return; perhaps with another batch."""
    missing: tuple[ReplicaCommand, ...]
    """Those that sleep are among them: they need their memory."""
    retired: tuple[RunningReplica, ...]
    """Replicas that are not wanted, or not as they are, or failed, or drain and cannot return; by id."""
    asleep: tuple[RunningReplica, ...]
    """Wanted or not; who was awake last comes first."""
    tasks: tuple[RunningTask, ...]
    """Tasks that are not to be stopped at once."""


def compare_gpus(
    wanted: NodeCommand, actual: NodeState, held: Collection[str]
) -> tuple[GpuDiff, ...]:
    """Every GPU of the node, wanted against actual; `held`: tasks that must not be started again yet."""
    commands = {gpu.index: gpu for gpu in wanted.gpus}
    tasks = staying_tasks(wanted, actual, held)
    return tuple(
        _compare_gpu(commands.get(gpu.index), gpu, tasks[gpu.index], actual)
        for gpu in actual.gpus
    )


def _compare_gpu(
    command: GpuCommand | None,
    actual: GpuState,
    tasks: tuple[RunningTask, ...],
    node: NodeState,
) -> GpuDiff:
    wanted = command.replicas if command else ()
    running = {replica.id: replica for replica in actual.replicas}
    kept = tuple(
        (want, running[want.id])
        for want in wanted
        if want.id in running
        and _serves(running[want.id], want)
        # Another user's may be from before the project had one, or before the command named the project.
        and node.is_user_of(want.project, running[want.id].uid)
    )
    # What is neither kept nor missing is retired, so that every running replica is in one of them.
    kept_ids = {want.id for want, _ in kept}
    asleep = [each for each in actual.replicas if each.state == "asleep"]
    return GpuDiff(
        wanted=command,
        actual=actual,
        kept=kept,
        missing=tuple(want for want in wanted if want.id not in kept_ids),
        retired=tuple(
            running[each]
            for each in sorted(running)
            if each not in kept_ids and running[each].state != "asleep"
        ),
        asleep=tuple(sorted(asleep, key=lambda each: (each.draining_s, each.id))),
        tasks=tasks,
    )


def _serves(running: RunningReplica, want: ReplicaCommand) -> bool:
    """Whether the running replica is, or will be, the wanted one; a live batch may differ, all else is fixed."""
    # A replica with a live batch is changed in place; another one is replaced for its batch.
    has_batch = running.has_live_batch or running.batch == want.batch
    is_there = running.state in ("starting", "ready")
    can_return = running.state == "draining" and running.can_return
    return (
        is_same(running, want)
        and running.memory_mib == want.memory_mib
        and has_batch
        and (is_there or can_return)
    )


def is_same(running: RunningReplica, want: ReplicaCommand) -> bool:
    """Whether it serves the same with the same share."""
    return (running.service, running.network, running.sm_percent) == (
        want.service,
        want.network,
        want.sm_percent,
    )


def free_room(gpu: GpuDiff, taken: set[str]) -> tuple[float, int]:
    """Memory in MiB and replica slots that are left next to the replicas in `taken`, of which a failed one holds no
    memory, next to all tasks, stopped ones until they are gone, and what foreign processes hold."""
    alive = [replica for replica in gpu.actual.replicas if replica.id in taken]
    used_mib = sum(replica.memory_mib for replica in alive if replica.state != "failed")
    used_mib += sum(task.memory_mib for task in gpu.actual.tasks if task.holds_memory)
    # What foreign processes hold cannot be given away, and enforcement cannot make them leave.
    used_mib += gpu.actual.foreign_mib
    return gpu.actual.memory_mib * (
        1.0 + MEMORY_TOLERANCE
    ) - used_mib, gpu.actual.max_replicas - len(alive)
