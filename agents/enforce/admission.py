"""What speaks against a command, before anything of it is carried out."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeVar

from agents.base.device import MEMORY_TOLERANCE, GpuState
from agents.base.protocol import (
    GovernorCommand,
    GpuCommand,
    NodeCommand,
    ReplicaCommand,
    TaskCommand,
)
from agents.enforce.spans import broken_spans, spanned
from solvers.governors.registry import GOVERNORS

SM_TOLERANCE_PERCENT = 1e-6
"""Rounding that a sum of SM percents may carry."""

_Name = TypeVar("_Name", str, int)


def objections(
    command: NodeCommand, node: str, gpus: tuple[GpuState, ...]
) -> tuple[str, ...]:
    """Why this node must not carry the command out, in words; empty = nothing speaks against it.

    The checker of the control plane has already seen the plan; this catches a command for another machine: one that
    was renamed, rebuilt with other GPUs, or is out of step with the catalogue. A GPU that is missing among others is
    no objection, but what `missing_gpus` says: the command is carried out for those that are there.
    """
    # Nothing else is looked at then: a command for another node fits its GPUs, not these.
    if command.node != node:
        return (f"the command is for node {command.node}, this is {node}",)
    return (*_duplicates(command), *_unrouted(command), *_gpu_objections(command, gpus))


def _duplicates(command: NodeCommand) -> Iterator[str]:
    """A name that stands twice would make "the replica of that name" ambiguous in all that follows."""
    gpus = command.gpus
    replicas = (each.id for gpu in gpus for each in gpu.replicas)
    yield from _repeated("replica {} is named", replicas)
    tasks = (task.name for gpu in gpus for task in gpu.tasks)
    yield from _repeated("task {} is named", tasks)
    yield from _repeated("GPU {} is named", (gpu.index for gpu in gpus))
    services = (route.service for route in command.routes)
    yield from _repeated("route of {} is given", services)


def _repeated(message: str, names: Iterable[_Name]) -> Iterator[str]:
    for name, count in sorted(Counter(names).items()):
        if count > 1:
            yield f"{message.format(name)} {count} times"


def _unrouted(command: NodeCommand) -> Iterator[str]:
    routed = {route.service for route in command.routes}
    for service in sorted(
        {replica.service for gpu in command.gpus for replica in gpu.replicas} - routed
    ):
        yield f"service {service} has a replica but no route"


def _gpu_objections(command: NodeCommand, gpus: tuple[GpuState, ...]) -> Iterator[str]:
    present = {gpu.index: gpu for gpu in gpus}
    if present.keys().isdisjoint(gpu.index for gpu in command.gpus):
        yield from missing_gpus(command, gpus)
    for index, replica in broken_spans(command.gpus):
        yield f"replica {replica.id} on GPU {index} spans GPUs that the command does not give it"
    for gpu in spanned(command).gpus:
        if gpu.index in present:
            yield from _misfits(gpu, present[gpu.index])


def missing_gpus(command: NodeCommand, gpus: tuple[GpuState, ...]) -> tuple[str, ...]:
    """The GPUs of the command that are not there, in words."""
    present = sorted(gpu.index for gpu in gpus)
    return tuple(
        f"there is no GPU {gpu.index}; this node has {present or 'none'}"
        for gpu in command.gpus
        if gpu.index not in present
    )


def _misfits(command: GpuCommand, gpu: GpuState) -> Iterator[str]:
    if command.gpu_type != gpu.gpu_type:
        yield f"GPU {gpu.index} is a {gpu.gpu_type}, not a {command.gpu_type}"
    resident: tuple[ReplicaCommand | TaskCommand, ...] = (
        *command.replicas,
        *(task for task in command.tasks if task.is_resident),
    )
    # Only residents count: a task that waits in the host's memory takes none of the GPU's.
    memory_mib = sum(each.memory_mib for each in resident)
    if memory_mib > gpu.memory_mib * (1.0 + MEMORY_TOLERANCE):
        yield f"GPU {gpu.index} has {gpu.memory_mib:g} MiB, the replicas and tasks need {memory_mib:g}"
    sm_percent = sum(each.sm_percent for each in resident)
    if command.is_capped and sm_percent > 100.0 + SM_TOLERANCE_PERCENT:
        yield f"GPU {gpu.index}: the SM percents add up to {sm_percent:g}"
    if len(command.replicas) > gpu.max_replicas:
        yield f"GPU {gpu.index} takes {gpu.max_replicas} replicas, the command has {len(command.replicas)}"
    if command.governor is not None:
        yield from _ungovernable(command, command.governor)


def _ungovernable(command: GpuCommand, governor: GovernorCommand) -> Iterator[str]:
    if governor.name not in GOVERNORS:
        yield f"GPU {command.index}: no governor is called {governor.name}; there are {', '.join(sorted(GOVERNORS))}"
    if any(later <= earlier for earlier, later in pairwise(governor.clocks_mhz)):
        yield f"GPU {command.index}: the governor's clocks do not ascend"
    # A governor searches from the planned clock, which must be one that it may set.
    if not governor.clocks_mhz[0] <= command.clock_mhz <= governor.clocks_mhz[-1]:
        yield (
            f"GPU {command.index}: the clock of {command.clock_mhz:g} MHz is outside its governor's, "
            f"{governor.clocks_mhz[0]:g} to {governor.clocks_mhz[-1]:g}"
        )
    if governor.power_limit_w < command.power_cap_w:
        yield (
            f"GPU {command.index}: under a board limit of {governor.power_limit_w:g} W no governor can "
            f"tell whether the cap of {command.power_cap_w:g} W is kept"
        )
