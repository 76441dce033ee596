"""Language models' replicas that sleep: their weights are in the host's memory, the GPU's is another's meanwhile.

What has drained sleeps for as long as all that is wanted of its GPUs has room beside it, and nobody waits for that
room. A sleeping replica that is wanted as it is again is woken, in the place and by the rules of a start.
"""

from collections.abc import Collection, Iterable, Iterator

from agents.base.device import ASLEEP_SHARE, MEMORY_TOLERANCE, RunningReplica
from agents.enforce.actions import StartReplica, Wake
from agents.enforce.gpu_diff import GpuDiff, is_same


def may_sleep(replica: RunningReplica) -> bool:
    """Whether it has drained, or does, and its server can sleep."""
    # What has outlasted its drain is cut either way, and its server may be why.
    has_time = replica.drain_s is None or replica.draining_s < replica.drain_s
    return replica.state == "draining" and replica.can_sleep and has_time


def in_the_way_asleep(gpu: GpuDiff, woken: Collection[str]) -> Iterator[str]:
    """Those that sleep, or might, and may not: what is wanted comes first, then who was awake last."""
    wanted = () if gpu.wanted is None else gpu.wanted.replicas
    tasks = () if gpu.wanted is None else gpu.wanted.tasks
    free_mib = gpu.actual.memory_mib * (1.0 + MEMORY_TOLERANCE) - gpu.actual.foreign_mib
    free_mib -= sum(want.memory_mib for want in wanted)
    free_mib -= sum(task.memory_mib for task in tasks if task.is_resident)
    ids = {want.id for want in wanted}
    slots = gpu.actual.max_replicas - len(wanted)
    falling = [each for each in gpu.retired if may_sleep(each)]
    for each in (*falling, *gpu.asleep):
        if each.id in woken:
            continue
        is_awake = each.state != "asleep"
        held_mib = each.memory_mib * ASLEEP_SHARE if is_awake else each.memory_mib
        # One with the id of another that is wanted cannot be woken as that.
        if each.id in ids or held_mib > free_mib or slots < 1:
            yield each.id
        else:
            free_mib, slots = free_mib - held_mib, slots - 1


def returning(gpus: tuple[GpuDiff, ...]) -> set[str]:
    """Ids of those that sleep, are wanted as they are, and can be woken."""
    return {
        each.id
        for gpu in gpus
        for each in gpu.asleep
        for want in gpu.missing
        if want.id == each.id and each.can_return and is_same(each, want)
    }


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
