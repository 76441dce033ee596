"""Whether a replica or a task may begin on a GPU, and with which environment."""

from collections.abc import Iterable, Mapping, Sequence

from agents.base.device import DeviceError, LaunchFailed
from agents.base.protocol import ReplicaCommand, TaskCommand
from agents.gpu.mps.gpu_sharing import Sharing
from agents.gpu.node.foreign_memory import ForeignMemory, Holder
from agents.gpu.nvml.types import GpuIdentity


def require_room(
    memory: ForeignMemory,
    gpu: GpuIdentity,
    holders: Iterable[Holder],
    part: str,
    mib: float,
) -> None:
    """Raises LaunchFailed where `part`, in words, has no room beside those who hold memory."""
    if reason := memory.objection(gpu, holders, mib):
        raise LaunchFailed(f"{part} needs {mib:g} MiB; {reason}")


def whole_gpus(gpus: Sequence[GpuIdentity]) -> Mapping[str, str]:
    """What a process needs that has these GPUs to itself: MPS is one daemon per GPU, and of no use to it."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}


async def environment_of(
    sharing: Sharing, gpu: GpuIdentity, part: ReplicaCommand | TaskCommand
) -> Mapping[str, str]:
    """What its process needs for its share of the GPU. Raises LaunchFailed."""
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
        raise LaunchFailed(f"{name} cannot share GPU {gpu.index}: {error}") from error
