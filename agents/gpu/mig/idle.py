"""Whether anybody uses a GPU whose slices are to change: processes, replicas and tasks on record, MPS.

    with held(state_dir):                          no agent starts in the meantime
        users(driver, gpu, devices, …)             -> who uses it and what to do, in words; empty = none

An agent that runs must be stopped first, since it lists its devices when it starts; with --keep-replicas those on other
GPUs go on. A task whose memory is in the host's is on no driver's list, and would be lost with its slice all the same:
what counts is its record. Processes of other users can be hidden from callers without a right: the driver then
refuses to destroy their slices.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agents.base.device import DeviceError
from agents.gpu.mps.daemon import Mps
from agents.gpu.mps.directory import MARK
from agents.gpu.nvml.mig_types import parent_index
from agents.gpu.nvml.types import GpuIdentity, GpuProcess
from agents.processes.records import R, Record, Records
from agents.tasks.task import TaskProcessRecord

MAX_NAMED = 8


class ProcessDriver(Protocol):
    """The part of `agents.gpu.nvml.session.Nvml` that is needed."""

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        """Who computes on a GPU or slice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRecord:
    """The records of a node; None where no agent has ever made such."""

    replicas: Records[Record] | None = None
    tasks: Records[TaskProcessRecord] | None = None


@contextlib.contextmanager
def held(state_dir: Path) -> Iterator[OnRecord]:
    """The records of the node's replicas and tasks, with which no agent can start.

    Raises DeviceError while one runs. Nothing is made here: slices are changed by root, and the agent often is not.
    """
    if not state_dir.is_dir():
        raise DeviceError(
            f"{state_dir} is not a directory; give the agent's state directory"
        )
    with contextlib.ExitStack() as opened:
        # Both locks are held until the change is over, since an agent that started in between would list
        # slices that are about to go.
        yield OnRecord(
            replicas=_open(opened, state_dir / "workers", Record),
            tasks=_open(opened, state_dir / "tasks", TaskProcessRecord),
        )


def _open(
    opened: contextlib.ExitStack, directory: Path, kind: type[R]
) -> Records[R] | None:
    if not directory.is_dir():
        return None
    try:
        # No waiting: an agent that runs keeps its lock for as long as it lives.
        records = Records(directory, kind, lock_wait_s=0.0)
    except DeviceError as error:
        raise DeviceError(
            f"{error}. Stop the agent; it takes up the new slices when it starts again"
        ) from error
    opened.callback(records.close)
    return records


def users(
    driver: ProcessDriver,
    gpu: GpuIdentity,
    devices: tuple[GpuIdentity, ...],
    *,
    records: OnRecord,
    mps_dir: Path,
) -> str:
    """Who uses the GPU or one of its slices; `devices`: of the node. Raises DeviceError where that cannot be seen."""
    mine = [
        gpu,
        *(
            each
            for each in devices
            if each.part is not None and each.part.parent.uuid == gpu.uuid
        ),
    ]
    # The driver sees every process, also those of others, so it is asked first.
    pids = sorted({process.pid for each in mine for process in driver.processes(each)})
    if pids:
        return f"GPU {gpu.index} is in use by processes {_some(pids)}: drain it, or end them"
    for kind, names in (
        ("replicas", _names(records.replicas, gpu)),
        ("tasks", _names(records.tasks, gpu)),
    ):
        # A task that was swapped out is on no driver's list, and would be lost with its slice all the same.
        if names:
            return f"{kind} {_some(names)} are on record for GPU {gpu.index}: cordon and drain the node first"
    if daemons := asyncio.run(_daemons(mine, sorted(mps_dir.glob(f"*/{MARK}")))):
        quits = "; ".join(
            f"echo quit | CUDA_MPS_PIPE_DIRECTORY={each}/pipe nvidia-cuda-mps-control"
            for each in daemons
        )
        return f"MPS daemons of ours hold GPU {gpu.index}: end them by `{quits}`"
    return ""


def _names(
    records: Records[Record] | Records[TaskProcessRecord] | None, gpu: GpuIdentity
) -> list[str]:
    """Names of those that have or had processes on the GPU or its slices; one that has finished needs it no more."""
    found = records.load() if records else ()
    mine = [each for each in found if parent_index(each.gpu_index) == gpu.index]
    return [
        each.id
        for each in mine
        if not (isinstance(each, TaskProcessRecord) and each.phase == "finished")
    ]


async def _daemons(gpus: list[GpuIdentity], marks: list[Path]) -> list[Path]:
    """Folders of the daemons of these devices that answer."""
    uuids = {gpu.uuid for gpu in gpus}
    found = []
    for mark in marks:
        uuid = await asyncio.to_thread(mark.read_text, encoding="utf-8")
        # A daemon holds its GPU even without clients, so that slices cannot be destroyed.
        if uuid in uuids and await Mps(uuid, mark.parent).is_alive():
            found.append(mark.parent)
    return found


def _some(found: list[int] | list[str]) -> str:
    return ", ".join(map(str, found[:MAX_NAMED])) + (
        " ..." if len(found) > MAX_NAMED else ""
    )
