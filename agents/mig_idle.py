"""Whether anybody uses a GPU whose slices are to change: processes, replicas on record, MPS daemons of ours.

    with held(state_dir):                          no agent starts in the meantime
        users(driver, gpu, state_dir, mps_dir)     -> who uses it and what to do, in words; empty = nobody

An agent that runs must be stopped first, since it lists its devices when it starts; with --keep-replicas those on other
GPUs go on. Processes of other users can be hidden from whoever has no right to see them: the driver then refuses to
destroy their slices.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from agents.device import DeviceError
from agents.mig_devices import whole_of
from agents.mig_nouns import whole_index
from agents.mps import Mps
from agents.mps_directory import MARK
from agents.nvml_nouns import GpuIdentity, GpuProcess
from agents.worker_records import Record, Records

MOST_NAMED = 8


class ProcessDriver(Protocol):
    """The part of `agents.nvml.Nvml` that is needed."""

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        """Who computes on a GPU or slice."""
        ...


@contextlib.contextmanager
def held(state_dir: Path) -> Iterator[Records[Record] | None]:
    """The records of the node's replicas, with which no agent can start; None where no agent has ever run.

    Raises DeviceError while one runs. Nothing is made here: whoever changes slices is root, and the agent often is not.
    """
    if not state_dir.is_dir():
        raise DeviceError(f"{state_dir} is no directory; give the agent's state directory")
    if not (state_dir / "workers").is_dir():
        yield None
        return
    try:
        records = Records(state_dir / "workers", Record, lock_wait_s=0.0)
    except DeviceError as error:
        raise DeviceError(f"{error}. Stop the agent; it takes up the new slices when it starts again") from error
    try:
        yield records
    finally:
        records.close()


def users(
    driver: ProcessDriver,
    gpu: GpuIdentity,
    devices: tuple[GpuIdentity, ...],
    *,
    records: Records[Record] | None,
    mps_dir: Path,
) -> str:
    """Who uses the GPU or one of its slices; `devices`: of the node. Raises DeviceError where that cannot be seen."""
    mine = [gpu, *(each for each in devices if each.part is not None and whole_of(each).uuid == gpu.uuid)]
    pids = sorted({process.pid for each in mine for process in driver.processes(each)})
    if pids:
        return f"GPU {gpu.index} is in use by processes {_some(pids)}: drain it, or end them"
    found = records.load() if records else ()
    if replicas := [each.id for each in found if whole_index(each.gpu_index) == gpu.index]:
        return f"replicas {_some(replicas)} are on record for GPU {gpu.index}: cordon and drain the node first"
    if daemons := asyncio.run(_daemons(mine, sorted(mps_dir.glob(f"*/{MARK}")))):
        quits = "; ".join(
            f"echo quit | CUDA_MPS_PIPE_DIRECTORY={each}/pipe nvidia-cuda-mps-control" for each in daemons
        )
        return f"MPS daemons of ours hold GPU {gpu.index}: end them by `{quits}`"
    return ""


async def _daemons(gpus: list[GpuIdentity], marks: list[Path]) -> list[Path]:
    """Folders of the daemons of these devices that answer."""
    uuids, found = {gpu.uuid for gpu in gpus}, []
    for mark in marks:
        uuid = await asyncio.to_thread(mark.read_text, encoding="utf-8")
        if uuid in uuids and await Mps(uuid, mark.parent).is_alive():
            found.append(mark.parent)
    return found


def _some(found: list[int] | list[str]) -> str:
    return ", ".join(map(str, found[:MOST_NAMED])) + (" ..." if len(found) > MOST_NAMED else "")
