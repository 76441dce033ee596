"""What speaks against a command, before anything of it is carried out."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from agents.base.device import MEMORY_TOLERANCE, GpuState
from agents.base.protocol import (
    GovernorCommand,
    GpuCommand,
    NodeCommand,
    ReplicaCommand,
    TaskCommand,
)
from solvers.governors.registry import GOVERNORS

SM_TOLERANCE_PERCENT = 1e-6
"""Rounding that a sum of SM percents may carry."""


def objections(
    command: NodeCommand, node: str, gpus: tuple[GpuState, ...]
) -> tuple[str, ...]:
    """Why this node must not carry the command out, in words; empty = nothing speaks against it.

    The checker of the control plane has already seen the plan; this catches a command for another machine: one that
    was renamed, rebuilt with other GPUs, or is out of step with the catalogue.
    """
    if command.node != node:
        return (f"the command is for node {command.node}, this is {node}",)
    return (*_duplicates(command), *_unrouted(command), *_gpu_objections(command, gpus))


def _duplicates(command: NodeCommand) -> Iterator[str]:
    replicas = Counter(replica.id for gpu in command.gpus for replica in gpu.replicas)
    yield from (
        f"replica {each} is named {count} times"
        for each, count in sorted(replicas.items())
        if count > 1
    )
    tasks = Counter(task.name for gpu in command.gpus for task in gpu.tasks)
    yield from (
        f"task {each} is named {count} times"
        for each, count in sorted(tasks.items())
        if count > 1
    )
    indices = Counter(gpu.index for gpu in command.gpus)
    yield from (
        f"GPU {each} is named {count} times"
        for each, count in sorted(indices.items())
        if count > 1
    )
    services = Counter(route.service for route in command.routes)
    yield from (
        f"route of {each} is given {count} times"
        for each, count in sorted(services.items())
        if count > 1
    )


def _unrouted(command: NodeCommand) -> Iterator[str]:
    routed = {route.service for route in command.routes}
    for service in sorted(
        {replica.service for gpu in command.gpus for replica in gpu.replicas} - routed
    ):
        yield f"service {service} has a replica but no route"


def _gpu_objections(command: NodeCommand, gpus: tuple[GpuState, ...]) -> Iterator[str]:
    present = {gpu.index: gpu for gpu in gpus}
    for gpu in command.gpus:
        if gpu.index not in present:
            yield f"there is no GPU {gpu.index}; this node has {sorted(present) or 'none'}"
        else:
            yield from _misfits(gpu, present[gpu.index])


def _misfits(command: GpuCommand, gpu: GpuState) -> Iterator[str]:
    if command.gpu_type != gpu.gpu_type:
        yield f"GPU {gpu.index} is a {gpu.gpu_type}, not a {command.gpu_type}"
    resident: tuple[ReplicaCommand | TaskCommand, ...] = (
        *command.replicas,
        *(task for task in command.tasks if task.is_resident),
    )
    memory_mib = sum(each.memory_mib for each in resident)
    if memory_mib > gpu.memory_mib * (1.0 + MEMORY_TOLERANCE):
        yield f"GPU {gpu.index} has {gpu.memory_mib:g} MiB, the replicas and tasks need {memory_mib:g}"
    sm_percent = sum(each.sm_percent for each in resident)
    if sm_percent > 100.0 + SM_TOLERANCE_PERCENT:
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
    if not governor.clocks_mhz[0] <= command.clock_mhz <= governor.clocks_mhz[-1]:
        yield (
            f"GPU {command.index}: the clock of {command.clock_mhz:g} MHz is outside its governor's, "
            f"{governor.clocks_mhz[0]:g} to {governor.clocks_mhz[-1]:g}"
        )
    if governor.power_limit_w < command.power_cap_w:
        yield (
            f"GPU {command.index}: under a board limit of {governor.power_limit_w:g} W no governor can see "
            f"whether the cap of {command.power_cap_w:g} W is kept"
        )
