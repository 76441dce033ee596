"""Which replicas an agent has started, on disk: what a later start of the agent knows its workers by.

    Records(directory, Record)   makes the directory; raises DeviceError where another agent holds it
        .mark                    random text of this directory, the beginning of every replica's mark
        .load()                  -> every record that can be read, by its id
        .problems                what was wrong with the others, in words
        .save(Record)            durable when it returns
        .remove(replica_id)      at once; what that leaves to do on disk is for
        await .tidy()
        .folder(replica_id)      the replica's own directory; `.log(replica_id)`: its log
        .close()                 gives the directory back

One file per replica, written next to its place, synced and renamed. A worker is recognised by its process id together
with the time at which the kernel started it and the boot that this happened in; never by its name. Tasks have records
of their own kind, in a directory of their own (`agents.tasks.tasks`); what is said of replicas here holds for them.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from agents.base.device import DeviceError
from agents.base.durable_files import lock, replace_file, sync_directory
from agents.processes.templates import Template
from agents.processes.trees import ASIDE, remove_aside, set_aside, size_bytes
from agents.processes.user import WorkerUsers, make_folder

REPLICAS_FOLDER, TASKS_FOLDER = "workers", "tasks"
"""In the agent's state directory: the records of replicas, and those of tasks."""
VERSION = 1
MAX_OLD = 32
"""Logs of replicas that are gone which are kept, and folders of tasks that may come back; the oldest go first."""
MAX_OLD_BYTES = 64 * 2**30
"""Limit of the size of those folders, which hold checkpoints, and of those logs; the newest is always kept."""
LOCK_WAIT_S = 5.0
"""The kernel frees a dead agent's lock at once, but for the moment in which a child of it is being made."""
log = logging.getLogger(__name__)

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process for ever: no other one, before or after, has the same three."""

    pid: int
    start_ticks: int
    """Clock ticks from the boot to its start, as in /proc/PID/stat."""
    boot: str
    """The kernel's random id of this boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One replica's process, and what it takes to go on with it."""

    id: str
    service: str
    network: str
    gpu_index: int
    sm_percent: float
    batch: int
    memory_mib: float
    ports: tuple[int, ...]
    served_as: str
    readiness_path: str
    template: Template
    """As it was when the replica was started."""
    digest: str
    """The digest of the template's command then."""
    identity: Identity | None
    """None: no process of this machine; its mark alone finds it."""
    mark: str
    """Random text in the environment of the worker and of all that it starts."""
    uid: int = -1
    """Who it was started as; -1 = not known, in a record of an earlier release."""
    gpus: tuple[int, ...] = ()
    """Indices of the GPUs that a language model has to itself; empty: it shares that of `gpu_index`."""
    drain_s: float | None = None
    """It may drain so long; None = as the node's replicas do."""
    version: int = VERSION


class Recorded(Protocol):
    """What every kind of record has."""

    @property
    def id(self) -> str:
        """Name of the replica or task."""
        ...

    @property
    def identity(self) -> Identity | None:
        """The identity of its process; None: its mark alone finds it."""
        ...

    @property
    def mark(self) -> str:
        """The mark of all its processes."""
        ...

    @property
    def version(self) -> int:
        """The version of the record's form."""
        ...


R = TypeVar("R", bound=Recorded)


class Records(Generic[R]):
    """The records of one node, held by one agent at a time."""

    def __init__(
        self,
        directory: Path,
        kind: type[R],
        *,
        users: WorkerUsers | None = None,
        lock_wait_s: float = LOCK_WAIT_S,
        max_old_bytes: int = MAX_OLD_BYTES,
    ) -> None:
        """Take the directory. Raises DeviceError when another agent has it or it cannot be written.

        `users`: the users that replicas run as; the folders of users other than the agent's lie outside of its state
        directory, which is closed to them.
        """
        self.users = users or WorkerUsers()
        user = self.users.default
        self._max_old_bytes = max_old_bytes
        self._folders = (
            directory / "work" if user is None else user.folders / directory.name
        )
        self.problems: tuple[str, ...] = ()
        self._is_untidy = True
        """Something was removed since `tidy`; an agent that died may have left something, too."""
        self._directory, self._kind = directory, kind
        self._lock = -1
        self.mark = ""
        try:
            for each in (
                directory,
                self._folder("records"),
                self._folder("logs"),
            ):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_folder(self._folders, user)
            self._lock = _locked(directory / "lock", lock_wait_s)
            self.mark = _mark(directory / "mark")
        except OSError as error:
            raise DeviceError(
                f"{directory} cannot hold records of processes: {error}"
            ) from error

    def load(self) -> tuple[R, ...]:
        """What earlier starts left, by id; damaged files are put aside and told in `problems`."""
        found = []
        for path in sorted(self._folder("records").iterdir()):
            if path.suffix == ".new":  # of a write that was not finished
                path.unlink(missing_ok=True)
            if path.suffix != ".json":
                continue
            try:
                found.append(_parse(path, self._kind, self.mark))
            except (OSError, ValueError) as error:
                self.problems += (f"{path} is damaged and was put aside: {error}",)
                with contextlib.suppress(OSError):
                    # Put aside and not removed: it may be all that tells of a process that still runs.
                    path.rename(path.with_suffix(".damaged"))
        return tuple(sorted(found, key=lambda record: record.id))

    def save(self, record: R) -> None:
        """Make the record durable. Raises DeviceError."""
        path = self._path(record.id)
        try:
            replace_file(path, msgspec.json.encode(record))
        except OSError as error:
            raise DeviceError(
                f"the record of {record.id} cannot be written to {path}: {error}"
            ) from error

    def remove(self, replica_id: str, *, keeps_folder: bool = False) -> None:
        """Forget a replica whose processes are gone; its log stays, and its folder where that is kept, among the last
        MAX_OLD that have room in MAX_OLD_BYTES."""
        self._path(replica_id).unlink(missing_ok=True)
        # Otherwise the record might be back after a crash of the machine.
        sync_directory(self._folder("records"))
        self._is_untidy = True
        if not keeps_folder:
            self._set_aside(self.folder(replica_id))

    async def tidy(self) -> None:
        """Remove what removed replicas left, and old logs and folders for which there is no room.

        Apart from `remove`, because a worker can make folders that take minutes.
        """
        if self._is_untidy:
            self._is_untidy = False
            try:
                await self._tidy()
            except OSError as error:
                log.warning("what was removed is still on disk: %s", error)
            except asyncio.CancelledError:
                # Closing the records tidies once more, and would find nothing to do.
                self._is_untidy = True
                raise

    def folder(self, replica_id: str) -> Path:
        """The replica's own directory, which need not exist."""
        return self._folders / _file_name(replica_id)

    def log(self, replica_id: str) -> Path:
        """The replica's log."""
        return log_path(self._directory, replica_id)

    def close(self) -> None:
        """Give the directory back."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def _tidy(self) -> None:
        for each in self._too_old(_sizes(self._old_logs())):
            each.unlink(missing_ok=True)
            each.with_suffix(".log.1").unlink(missing_ok=True)
        sizes_bytes = await asyncio.to_thread(_sizes, self._old_folders())
        # Listed again, because a task may have been started in its old folder meanwhile.
        left = {each: sizes_bytes.get(each, 0) for each in self._old_folders()}
        for each in self._too_old(left):
            self._set_aside(each)
        await asyncio.to_thread(remove_aside, self._folders)

    def _old_logs(self) -> list[Path]:
        living = self._living()
        logs = self._folder("logs").glob("*.log")
        return [each for each in logs if each.stem not in living]

    def _old_folders(self) -> list[Path]:
        living = self._living()
        return [
            each
            for each in self._folders.iterdir()
            if each.name not in living and not each.name.startswith(ASIDE)
        ]

    def _living(self) -> set[str]:
        return {path.stem for path in self._folder("records").iterdir()}

    def _too_old(self, sizes_bytes: Mapping[Path, int]) -> Iterator[Path]:
        """Those for which there is no room behind newer ones."""
        left_bytes = self._max_old_bytes
        newest_first = sorted(
            sizes_bytes,
            key=lambda path: (path.stat().st_mtime, path.name),
            reverse=True,
        )
        for place, path in enumerate(newest_first):
            if place < MAX_OLD and left_bytes >= 0:
                left_bytes -= sizes_bytes[path]
            if place >= MAX_OLD or (place > 0 and left_bytes < 0):
                yield path

    def _set_aside(self, folder: Path) -> None:
        try:
            set_aside(folder)
        except OSError as error:
            # It costs room on the disk, and must keep nothing from being forgotten.
            log.warning("%s cannot be removed: %s", folder, error)

    def _path(self, replica_id: str) -> Path:
        return self._folder("records") / f"{_file_name(replica_id)}.json"

    def _folder(self, name: str) -> Path:
        return self._directory / name


def log_path(directory: Path, replica_id: str) -> Path:
    """The log of a replica or task whose records are in that directory."""
    return directory / "logs" / f"{_file_name(replica_id)}.log"


def _sizes(paths: Iterable[Path]) -> dict[Path, int]:
    return {each: size_bytes(each) for each in paths}


def _file_name(replica_id: str) -> str:
    """A name that any id may have as a file: no two ids share one, and people still recognise it."""
    return f"{_UNSAFE.sub('_', replica_id)[:64]}-{hashlib.sha256(replica_id.encode()).hexdigest()[:16]}"


def _parse(path: Path, kind: type[R], mark: str) -> R:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if record.version != VERSION or path.stem != _file_name(record.id):
        raise ValueError(f"it is of version {record.version} and of {record.id}")
    # What stands here may be killed: a record that was not written by us must not lead to anybody else's process.
    pid = None if record.identity is None else record.identity.pid
    if (pid is not None and pid <= 1) or not record.mark.startswith(f"{mark}."):
        raise ValueError(
            f"process {pid} with mark {record.mark!r} was not recorded here"
        )
    return record


def _locked(path: Path, wait_s: float) -> int:
    """The lock's descriptor. Raises DeviceError when another agent has it."""
    try:
        return lock(path, wait_s)
    except BlockingIOError as error:
        raise DeviceError(
            f"{path.parent} is in use by another agent; stop it, or use another directory"
        ) from error


def _mark(path: Path) -> str:
    """The directory's mark, made at its first use."""
    if not path.exists():
        replace_file(path, secrets.token_hex(16).encode("ascii"))
    return path.read_text(encoding="ascii")
