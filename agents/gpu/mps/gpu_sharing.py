"""How the replicas of one GPU share it: under MPS with limits that are proven, or by turns without any.

    environment(part)      what the process of a replica or task needs, with everything made ready for it
    objection(proof)       why it must not take requests; empty = it may
    terminate_clients(pids)   whether its processes may be killed without harm to their neighbours
    watch()                looks for faults; True = all replicas of the GPU must be started again
    close()                ends what was started for it, once no replica is left
    problem                what an operator should know of it; empty = nothing

MPS is taken where it works. Elsewhere processes take turns on the whole GPU: SM percents are then not in force, and
the node says so as long as it is so.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from agents.base.device import DeviceError, LaunchFailed, UnknownPart
from agents.base.protocol import ReplicaCommand, TaskCommand
from agents.gpu.mps.daemon import Mps
from agents.gpu.mps.foreign import NO_DAEMON_PIPE
from agents.gpu.mps.sm_percent import objection
from agents.gpu.nvml.types import GpuIdentity
from agents.replicas.replica import Proof

DRAIN_S = 5.0
"""For clients that are just leaving."""


class Sharing(Protocol):
    """How one GPU is shared. See the module's docstring."""

    @property
    def problem(self) -> str:
        """What an operator should know."""
        ...

    async def environment(
        self, part: ReplicaCommand | TaskCommand
    ) -> Mapping[str, str]:
        """On top of what the process of a replica or task needs otherwise. Raises DeviceError."""
        ...

    async def objection(self, proof: Proof) -> str:
        """Why the replica must not take requests."""
        ...

    async def terminate_clients(self, pids: tuple[int, ...]) -> bool:
        """Whether the processes may be killed."""
        ...

    async def watch(self) -> bool:
        """Whether all replicas of the GPU must be ended, so that it comes out of a fault."""
        ...

    async def close(self) -> None:
        """End what was started for sharing. Raises DeviceError."""
        ...


class ByTurns:
    """Whole processes take turns on the whole GPU: nothing limits a replica."""

    def __init__(self, gpu: GpuIdentity, why: str) -> None:
        """`why`: there is no MPS."""
        self._gpu, self._why = gpu, why

    @property
    def problem(self) -> str:
        return f"GPU {self._gpu.index} is shared by turns, SM percents are not in force: {self._why}"

    async def environment(
        self,
        part: ReplicaCommand | TaskCommand,  # noqa: ARG002  no limits
    ) -> Mapping[str, str]:
        return {
            "CUDA_VISIBLE_DEVICES": self._gpu.uuid,
            # Without it the process would join a daemon in the default directory, with shares that were not granted.
            "CUDA_MPS_PIPE_DIRECTORY": NO_DAEMON_PIPE,
        }

    async def objection(self, proof: Proof) -> str:  # noqa: ARG002  nothing was promised
        return ""

    async def terminate_clients(self, pids: tuple[int, ...]) -> bool:  # noqa: ARG002  no other is in their context
        return True

    async def watch(self) -> bool:
        return False

    async def close(self) -> None:
        pass


class UnderMps:
    """One MPS daemon for the GPU; see `agents.gpu.mps.daemon`."""

    def __init__(self, gpu: GpuIdentity, mps: Mps, *, total_sms: int | None) -> None:
        """`total_sms`: of the GPU; None = not known, then a replica proves its share by being a client of MPS."""
        self._gpu, self._mps, self._total_sms = gpu, mps, total_sms

    @property
    def problem(self) -> str:
        return ""

    async def environment(
        self, part: ReplicaCommand | TaskCommand
    ) -> Mapping[str, str]:
        state = await self._mps.start()
        # A GPU in a fault takes no clients until the last of the old ones has ended.
        if state == "fault":
            if clients := await self._mps.client_pids():
                raise LaunchFailed(
                    f"the MPS server of GPU {self._gpu.index} is in a fault, and processes {clients} have not ended yet"
                )
            await self._mps.recover()
        if state != "active":
            await self._mps.start_server()
        is_task = isinstance(part, TaskCommand)
        return self._mps.client_environment(
            part.sm_percent, part.memory_mib, is_best_effort=is_task
        )

    async def objection(self, proof: Proof) -> str:
        # The count comes first: being a client says nothing about the share.
        if proof.sm_count is not None and self._total_sms is not None:
            return objection(proof.sm_count, self._total_sms, proof.sm_percent)
        if set(proof.pids).isdisjoint(await self._mps.client_pids()):
            return (
                f"none of its processes {proof.pids} is a client of MPS on GPU {self._gpu.index}, so that nothing "
                "limits it; does it use CUDA, and is CUDA_MPS_PIPE_DIRECTORY the one that it was given?"
            )
        return ""

    async def terminate_clients(self, pids: tuple[int, ...]) -> bool:
        try:
            clients = set(pids).intersection(await self._mps.client_pids())
            return all([await self._is_terminated(pid) for pid in sorted(clients)])
        except DeviceError:
            # Without a daemon there are no other clients that could be harmed.
            return not await self._mps.is_alive()

    async def _is_terminated(self, pid: int) -> bool:
        try:
            return await self._mps.terminate(pid)
        except UnknownPart:
            # It has left meanwhile.
            return True

    async def watch(self) -> bool:
        return await self._mps.is_in_fault()

    async def close(self) -> None:
        await self._mps.stop(DRAIN_S)


async def prove(sharings: Mapping[int, Sharing], proof: Proof) -> str:
    """Why a replica must not take requests, as its GPU's sharing sees it: `Hooks.prove`."""
    return (
        await sharings[proof.gpu_index].objection(proof)
        if proof.gpu_index in sharings
        else ""
    )


async def terminate_clients(
    sharings: Mapping[int, Sharing], gpu_index: int, pids: tuple[int, ...]
) -> bool:
    """Whether processes may be killed: `Hooks.terminate`; a GPU that is not known (-1) has all of them asked."""
    asked = [sharings[gpu_index]] if gpu_index in sharings else list(sharings.values())
    return all([await each.terminate_clients(pids) for each in asked])


def why_no_checkpoint(sharings: Mapping[int, Sharing], gpu_index: int) -> str:
    """Why `cuda-checkpoint` must not be tried on processes of a GPU; empty = it may."""
    if isinstance(sharings.get(gpu_index), UnderMps):
        return f"GPU {gpu_index} is shared by MPS, for whose clients cuda-checkpoint is not documented"
    return ""


async def make_sharing(
    gpu: GpuIdentity,
    directory: Path,
    *,
    total_sms: int | None,
    make_mps: Callable[[str, Path], Mps] = Mps,
) -> Sharing:
    """MPS where it works on this GPU, with its daemon in `directory`/<index>; else turns."""
    mps = make_mps(gpu.uuid, directory / str(gpu.index))
    why = await mps.why_not()
    return ByTurns(gpu, why) if why else UnderMps(gpu, mps, total_sms=total_sms)


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
        # Tried with a real server, because not every driver runs MPS inside a slice, and only a start shows it.
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
