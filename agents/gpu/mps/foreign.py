"""MPS daemons and servers on a GPU that are not the agent's: found and named, never ended.

    why_foreign(gpu_uuid, pipe, mps_processes())    why MPS must not be used on the GPU; empty = no other's is there

A program without CUDA_MPS_PIPE_DIRECTORY becomes a client of a daemon in the default directory without asking, and two
servers on a GPU know nothing of each other's shares: no SM percent of ours would hold. So such a GPU goes by turns,
whose replicas are given a directory without a daemon.

A daemon is another's when its pipe directory is not the one that is asked about, and it may use the GPU: it names it in
CUDA_VISIBLE_DEVICES, or names none, or by numbers, or this user may not read it.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from agents.gpu.mps.directory import MpsDirectory

PROGRAM_PREFIX = "nvidia-cuda-mps"
"""The names of daemon and server begin with it; the kernel cuts names to 15 characters, which is just this."""
ASKS = "nvidia-cuda-mps-control"
"""Without an option it sends a daemon the commands on its standard input."""
DEFAULT_PIPE = "/tmp/nvidia-mps"
NO_DAEMON_PIPE = "/dev/null"
"""A client that is given it finds no daemon and works without MPS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsProcess:
    """A daemon or a server of MPS on this machine."""

    pid: int
    name: str
    uid: int
    pipe: str | None
    """None: this user may not read it."""
    visible: str | None
    """Its CUDA_VISIBLE_DEVICES; None: it has none, or this user may not read it."""


def why_foreign(gpu_uuid: str, pipe: Path, processes: Iterable[MpsProcess]) -> str:
    """Why MPS must not be used on this GPU; empty = no other's is there."""
    found = [
        each
        for each in processes
        # By directory and not by user: the daemon of another agent of the same user is foreign, too.
        if each.pipe != str(pipe) and _may_use(each, gpu_uuid)
    ]
    if not found:
        return ""
    named = ", ".join(_named(each) for each in found[:8])
    return (
        f"MPS of somebody else may use it: {named}. Shares of two of them do not add up; let it end (`echo quit | "
        "CUDA_MPS_PIPE_DIRECTORY=... nvidia-cuda-mps-control`) and start the agent again"
    )


def why_foreign_owner(
    servers: Iterable[int], directory: MpsDirectory, clients: int
) -> str:
    """Why the daemon that runs in the directory cannot be ours; empty = it can. `clients`: the UID of all replicas."""
    owner = directory.daemon_uid()
    own = os.getuid()
    # Root may change every daemon, but one of another user starts no server for our clients.
    if owner not in (None, own) and (own != 0 or owner != clients):
        return (
            f"the daemon in {directory.path} is UID {owner}'s; this agent is "
            f"{own}, its replicas are {clients}"
        )
    for server in servers:
        try:
            uid = psutil.Process(server).uids().effective
        except psutil.Error:
            continue  # It ended, or sits where this process may not look.
        if uid != clients:
            return (
                f"an MPS server of UID {uid} (process {server}) holds the GPU, and clients of UID "
                f"{clients} would wait until all of its clients have left"
            )
    return ""


def mps_processes() -> tuple[MpsProcess, ...]:
    """Every daemon and server of MPS that is to be seen here, by PID."""
    return tuple(sorted(_processes(), key=lambda each: each.pid))


def _processes() -> Iterator[MpsProcess]:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess, OSError):
            if _is_named_mps(path) and (found := _read(path)) is not None:
                yield found


def _is_named_mps(path: Path) -> bool:
    # Of most only the name is read: requests wait meanwhile, and psutil takes ten times as long for all of it.
    return (path / "comm").read_bytes().startswith(PROGRAM_PREFIX.encode())


def _read(path: Path) -> MpsProcess | None:
    """None: it gives a daemon commands and is none, or is just becoming another program."""
    process = psutil.Process(int(path.name))
    command = process.cmdline()
    # A daemon has an option, a server is another program. In the middle of exec a process has no command line, and then
    # perhaps another name.
    if not command or command[-1].endswith(ASKS) or not _is_named_mps(path):
        return None
    settings: dict[str, str] | None = None
    with contextlib.suppress(psutil.AccessDenied, OSError):
        settings = process.environ()
        if not settings and not _has_no_settings(path):
            return None
    return MpsProcess(
        pid=process.pid,
        name=process.name(),
        uid=process.uids().effective,
        pipe=None
        if settings is None
        else settings.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE),
        visible=None if settings is None else settings.get("CUDA_VISIBLE_DEVICES"),
    )


def _has_no_settings(path: Path) -> bool:
    """Whether its environment is empty: in the middle of exec it seems so, too, and has no address of its code yet."""
    # Fields 26 (startcode), 50 and 51 (env_start, env_end) of proc(5); the kernel sets the first one last.
    fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
    return fields[23] != b"0" and fields[47] == fields[48] != b"0"


def _may_use(process: MpsProcess, gpu_uuid: str) -> bool:
    """UUIDs may be cut short; numbers mean what the driver of that process counted."""
    if process.visible is None:
        return True
    names = [each.strip() for each in process.visible.split(",") if each.strip()]
    return any(each.isdigit() or gpu_uuid.startswith(each) for each in names)


def _named(process: MpsProcess) -> str:
    return f"process {process.pid} ({process.name}, UID {process.uid}, {process.pipe or 'pipe directory not readable'})"
