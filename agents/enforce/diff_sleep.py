"""Language models' replicas that sleep: their weights are in the host's memory, the GPU's is another's meanwhile.

What has drained sleeps for as long as all that is wanted of its GPUs has room next to it, and none waits for that
room. A sleeping replica that is wanted as it is again is woken, in the place and by the rules of a start.
"""

from collections.abc import Collection, Iterable, Iterator
from math import isclose

from agents.base.device import (
    ASLEEP_SHARE,
    MEMORY_TOLERANCE,
    NodeState,
    RunningReplica,
)
from agents.enforce.actions import StartReplica, Wake
from agents.enforce.gpu_diff import GpuDiff, free_room, is_same


def may_sleep(replica: RunningReplica) -> bool:
    """Whether it has drained, or does, and its server can sleep."""
    # What has outlasted its drain is cut either way, and its server may be why.
    has_time = replica.drain_s is None or replica.draining_s < replica.drain_s
    return replica.state == "draining" and replica.can_sleep and has_time


def in_the_way_asleep(gpu: GpuDiff, returning: Collection[str]) -> Iterator[str]:
    """Those that sleep, or might, and may not: what is wanted comes first, then who was awake last."""
    falling = [each for each in gpu.retired if may_sleep(each)]
    free_mib, slots = _room_for_sleep(gpu, falling)
    wanted = () if gpu.wanted is None else gpu.wanted.replicas
    ids = {want.id for want in wanted}
    for each in (*falling, *gpu.asleep):
        if each.id in returning:
            continue
        is_awake = each.state != "asleep"
        held_mib = each.memory_mib * ASLEEP_SHARE if is_awake else each.memory_mib
        # One with the id of another that is wanted cannot be woken as that, and one that cannot return sleeps in vain.
        is_vain = each.id in ids or not (is_awake or each.can_return)
        if is_vain or held_mib > free_mib or slots < 1:
            yield each.id
        else:
            free_mib, slots = free_mib - held_mib, slots - 1


def _room_for_sleep(
    gpu: GpuDiff, falling: Collection[RunningReplica]
) -> tuple[float, int]:
    """Memory in MiB and slots that neither what is wanted needs, nor what serves until its successors are ready."""
    wanted = () if gpu.wanted is None else gpu.wanted.replicas
    tasks = () if gpu.wanted is None else gpu.wanted.tasks
    olds = [each for each in gpu.retired if each not in falling] if gpu.missing else []
    alive = [each for each in olds if each.state in ("ready", "draining")]
    free_mib = gpu.actual.memory_mib * (1.0 + MEMORY_TOLERANCE) - gpu.actual.foreign_mib
    free_mib -= sum(want.memory_mib for want in wanted)
    free_mib -= sum(each.memory_mib for each in alive)
    free_mib -= sum(task.memory_mib for task in tasks if task.is_resident)
    return free_mib, gpu.actual.max_replicas - len(wanted) - len(alive)


def returning_ids(gpus: tuple[GpuDiff, ...], node: NodeState) -> set[str]:
    """Those that sleep, are wanted as they are, and can be woken."""
    return {
        each.id
        for gpu in gpus
        for each in gpu.asleep
        for want in gpu.missing
        if want.id == each.id and each.can_return and is_same(each, want)
        if isclose(each.memory_mib, want.memory_mib * ASLEEP_SHARE)
        if node.is_user_of(want.project, each.uid)
    }


def woken_now(gpus: tuple[GpuDiff, ...], returning: Collection[str]) -> set[str]:
    """Those with room next to all that is there: what is being stopped holds memory until it is gone."""
    short = set()
    for gpu in gpus:
        ids = {each.id for each in gpu.actual.replicas}
        for each in gpu.asleep:
            free_mib, _ = free_room(gpu, ids - {each.id})
            if each.memory_mib / ASLEEP_SHARE > free_mib:
                short.add(each.id)
    return set(returning) - short


def started_or_woken(
    starts: Iterable[StartReplica], woken: Collection[str]
) -> Iterator[StartReplica | Wake]:
    """The starts; who sleeps is woken instead."""
    for start in starts:
        replica_id = start.replica.id
        yield Wake(replica_id=replica_id) if replica_id in woken else start


def taken_back(gpus: tuple[GpuDiff, ...]) -> Iterator[Wake]:
    """Those that drain and are wanted again."""
    for gpu in gpus:
        for _, running in gpu.kept:
            if running.state == "draining":
                yield Wake(replica_id=running.id)
