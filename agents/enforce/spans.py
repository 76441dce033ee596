"""Replicas that span GPUs: where each of their GPUs is looked at by itself, they stand on every one of them.

    spanned(command)            -> the command, with such replicas on all of their GPUs
    on_all_gpus(starts)         -> the starts that all GPUs of the replica have room for, each once

Devices show what runs in the same way (`agents.base.device.GpuState.replicas`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from agents.base.device import gpus_of
from agents.base.protocol import GpuCommand, NodeCommand, ReplicaCommand
from agents.enforce.actions import StartReplica


def spanned(command: NodeCommand) -> NodeCommand:
    """The command with replicas on all the GPUs that they span."""
    others: dict[int, list[ReplicaCommand]] = {}
    for index, replica in _beside_own(command):
        others.setdefault(index, []).append(replica)
    if not others:
        return command
    gpus = (
        msgspec.structs.replace(
            gpu, replicas=(*gpu.replicas, *others.get(gpu.index, ()))
        )
        for gpu in command.gpus
    )
    return msgspec.structs.replace(command, gpus=tuple(gpus))


def _beside_own(command: NodeCommand) -> Iterator[tuple[int, ReplicaCommand]]:
    """(GPU, replica) of the GPUs that replicas span besides that of their entry."""
    spanning = (
        (gpu.index, replica) for gpu in command.gpus for replica in gpu.replicas
    )
    for own, replica in spanning:
        others = (index for index in gpus_of(replica, own) if index != own)
        yield from ((index, replica) for index in others)


def on_all_gpus(starts: Iterable[StartReplica]) -> Iterator[StartReplica]:
    """Those whose replica has room on each of its GPUs, on the first of them."""
    starts = tuple(starts)
    found = Counter(start.replica.id for start in starts)
    for start in starts:
        gpus = gpus_of(start.replica, start.gpu_index)
        if start.gpu_index == gpus[0] and found[start.replica.id] == len(gpus):
            yield start


def broken_spans(gpus: Iterable[GpuCommand]) -> Iterator[tuple[int, ReplicaCommand]]:
    """(GPU, replica) of those with a GPU that the command does not name, or that do not stand on their first."""
    gpus = tuple(gpus)
    present = {gpu.index for gpu in gpus}
    for gpu in gpus:
        for replica in gpu.replicas:
            spans = gpus_of(replica, gpu.index)
            if spans[0] != gpu.index or not present.issuperset(spans):
                yield gpu.index, replica
