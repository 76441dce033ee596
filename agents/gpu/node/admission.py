"""Whether a replica or a task may begin on a GPU, and with which environment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agents.base.device import DeviceError, LaunchFailed
from agents.base.protocol import ReplicaCommand, TaskCommand
from agents.gpu.mps.gpu_sharing import Sharing
from agents.gpu.node.foreign_memory import ForeignMemory, Holder
from agents.gpu.nvml.types import GpuIdentity
from agents.replicas.replica import ReplicaView


def require_room(
    memory: ForeignMemory,
    gpu: GpuIdentity,
    holders: Iterable[Holder],
    part: str,
    mib: float,
) -> None:
    """Raises LaunchFailed where `part`, in words, has no room next to those that hold memory."""
    if reason := memory.objection(gpu, holders, mib):
        raise LaunchFailed(f"{part} needs {mib:g} MiB; {reason}")


def on_each_gpu(views: Iterable[ReplicaView]) -> tuple[ReplicaView, ...]:
    """The replicas; one that spans GPUs once for each of them."""
    return tuple(
        replace(view, gpu_index=index)
        for view in views
        for index in view.gpus or (view.gpu_index,)
    )


async def environment_of(
    sharing: Sharing,
    gpus: Sequence[GpuIdentity],
    part: ReplicaCommand | TaskCommand,
) -> Mapping[str, str]:
    """What its process needs for its share of the first of these GPUs, or for all of them. Raises LaunchFailed."""
    # MPS has one daemon per GPU, and is of no use to what has GPUs to itself.
    if isinstance(part, ReplicaCommand) and part.engine is not None:
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}
    try:
        return await sharing.environment(part)
    # This is what the caller expects; only other errors are wrapped.
    except LaunchFailed:
        raise
    except DeviceError as error:
        name = (
            f"task {part.name}"
            if isinstance(part, TaskCommand)
            else f"replica {part.id}"
        )
        raise LaunchFailed(
            f"{name} cannot share GPU {gpus[0].index}: {error}"
        ) from error
