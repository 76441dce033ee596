"""How the replicas of a slice share it: by MPS inside MIG where the driver takes it, else by turns.

One daemon per slice, with CUDA_VISIBLE_DEVICES=MIG-…, in a directory of its own whose name follows from the slice's
UUID: a slice that is made anew at the same place is another one, and has another directory. Shares are of the slice's
SMs, and so is their proof.

Whether a driver lets MPS work inside MIG shows only when a server starts. So that is tried once, when the agent starts;
a daemon that was not there before is ended again.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from agents.device import DeviceError
from agents.mps.daemon import Mps
from agents.mps.sharing import ByTurns, Sharing, UnderMps
from agents.nvml.nouns import GpuIdentity


def mps_folder(gpu: GpuIdentity) -> str:
    """The name of a device's folder in the directory of MPS; short, since a socket's path may have 87 characters."""
    if gpu.part is None:
        return str(gpu.index)
    return f"{gpu.index}-{hashlib.sha256(gpu.uuid.encode()).hexdigest()[:8]}"


async def make_slice_sharing(
    gpu: GpuIdentity, directory: Path, *, make_mps: Callable[[str, Path], Mps] = Mps
) -> Sharing:
    """MPS where it works inside this slice, else turns with the reason."""
    mps = make_mps(gpu.uuid, directory / mps_folder(gpu))
    try:
        was_alive = not await mps.why_not() and await mps.is_alive()
        await mps.start()
        try:
            await mps.start_server()
        finally:
            if not was_alive:
                await mps.stop(0.0)
    except DeviceError as error:
        return ByTurns(gpu, f"MPS does not work inside this slice: {error}")
    return UnderMps(gpu, mps, total_sms=gpu.sm_count)
