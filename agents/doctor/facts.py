"""What the node's doctor reads of its machine: process, files, state directory, templates, ports, control plane.

Each function returns facts and changes nothing; what is absent is a fact, not an error. Those that ask somebody else
(an MPS daemon, the control plane) have a time limit of their own, and the caller keeps one over each.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import http.client
import os
import pwd
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

from agents.base.device import DeviceError
from agents.doctor.types import (
    Asked,
    ControlPlaneFacts,
    FileFacts,
    GpuFacts,
    Here,
    JournalledKnob,
    MpsFacts,
    PortFacts,
    ProcessFacts,
    SharedMemoryFacts,
    StateFacts,
    SystemdFacts,
    TemplateFacts,
)
from agents.gpu.knobs.journal import MAX_BYTES, NAME, KnobTurn
from agents.gpu.mps.daemon import Mps, MpsSettings
from agents.processes.process import HOST
from agents.processes.procfs import is_running
from agents.processes.records import Record
from agents.processes.template_file import load_templates
from agents.processes.user import (
    WorkerUser,
    find_project_users,
    find_worker_user,
    workers_folders,
)

UNIT = "plimsoll-agent.service"
_MAX_ANSWER = 64 * 1024
_MAX_RECORDS = 1024


class _Problem(msgspec.Struct):
    """The parts of the control plane's answers that the doctor quotes."""

    detail: str = ""
    checks: dict[str, str] = msgspec.field(default_factory=dict)


def read_process(here: Here) -> ProcessFacts:
    """Who runs this, with which rights."""
    lines = (here.proc / "self" / "status").read_text(encoding="utf-8").splitlines()
    words = dict(line.split(":", 1) for line in lines if ":" in line)
    # The second number is the effective one, by which files are opened.
    uid = int(words["Uid"].split()[1])
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = "no name"
    return ProcessFacts(
        uid=uid,
        user=user,
        effective=int(words["CapEff"], 16),
        ambient=int(words.get("CapAmb", "0"), 16),
    )


def read_files(here: Here, gpus: tuple[GpuFacts, ...]) -> FileFacts:
    """The files by which the driver is reached; CUDA needs the one for unified memory, NVML does not."""
    wanted = [here.dev / name for name in ("nvidiactl", "nvidia-uvm")]
    # The number in a file's name is the kernel's, which need not be NVML's index: they are counted only.
    found = sorted(here.dev.glob("nvidia[0-9]*"))
    missing = [str(path) for path in wanted if not path.exists()]
    if len(found) < len(gpus):
        missing.append(f"{len(gpus) - len(found)} of {len(gpus)} {here.dev}/nvidia<n>")
    there = [path for path in (*wanted, *found) if path.exists()]
    return FileFacts(
        missing=tuple(missing),
        closed=tuple(
            str(path) for path in there if not os.access(path, os.R_OK | os.W_OK)
        ),
        count=len(there),
    )


def read_worker_user(asked: Asked) -> WorkerUser | None:
    """Who replicas would run as; None: the agent's own user. Raises DeviceError where the agent would not start."""
    folders = workers_folders(asked.state_dir or Path())
    return find_worker_user(asked.worker_user, folders)


def read_project_users(asked: Asked) -> dict[str, WorkerUser]:
    """By project, who its replicas would run as. Raises DeviceError where the agent would not start."""
    # What is wrong with the workers' user is told once, as that of the replicas.
    if not asked.project_users:
        return {}
    return find_project_users(
        asked.project_users, read_worker_user(asked), uses_mps=asked.uses_mps
    )


def read_mps(gpu: GpuFacts, asked: Asked, here: Here) -> MpsFacts:
    """Whether the GPU can be shared by MPS, whose daemon would live in the directory's folder of the GPU."""
    user = read_worker_user(asked)
    uid = os.getuid() if user is None else user.uid
    settings = MpsSettings(answer_s=here.limit_s / 3.0, client_uid=uid)
    directory = asked.mps_dir or Path()
    mps = Mps(
        gpu.uuid,
        directory / str(gpu.index),
        environment=here.environment,
        settings=settings,
    )

    async def ask() -> MpsFacts:
        lack = await mps.lack()
        is_running = False if lack else await mps.is_alive()
        return MpsFacts(pipe=mps.directory.pipe, lack=lack, is_running=is_running)

    return asyncio.run(ask())


def read_state(directory: Path, here: Here) -> StateFacts:
    """The state directory, read without taking it from an agent that has it."""
    # The directory may not be there yet; then its nearest parent decides whether it can be made.
    standing = next(
        each
        for each in (directory.absolute(), *directory.absolute().parents)
        if each.exists()
    )
    problem = ""
    try:
        with tempfile.TemporaryFile(dir=standing) as file:
            file.write(b"x")
            file.flush()
            # Only a synced byte shows that the disk has room: a write alone may stay in memory.
            os.fsync(file.fileno())
    except OSError as error:
        problem = f"{standing} cannot be written: {error.strerror}"
    known = StateFacts(
        path=directory,
        problem=problem,
        exists=directory.exists(),
        is_closed=directory.exists() and not os.access(directory, os.R_OK | os.X_OK),
        owner_uid=standing.stat().st_uid,
        free_mib=here.free_mib(standing),
    )
    return known if known.is_closed else _read_state(known, here)


def _read_state(known: StateFacts, here: Here) -> StateFacts:
    """The same with what an agent left there."""
    directory = known.path
    boot_id = (
        (here.proc / "sys" / "kernel" / "random" / "boot_id")
        .read_text(encoding="ascii")
        .strip()
    )
    changes, torn = _read_journal(directory / NAME)
    records, unread = _read_records(directory / "workers" / "records")
    alive = {each.id for each in records if is_running(each)}
    ids = tuple(sorted(record.id for record in records))
    # The newest line of a knob counts, as in the agent's own journal.
    knobs = {(each.gpu_uuid, each.knob): each.boot_id == boot_id for each in changes}
    return replace(
        known,
        is_held=_is_locked(directory / "workers" / "lock"),
        turned=tuple(
            JournalledKnob(gpu_uuid=uuid, knob=knob, is_of_this_boot=now)
            for (uuid, knob), now in knobs.items()
        ),
        damaged=(*torn, *unread),
        running=tuple(each for each in ids if each in alive),
        ended=tuple(each for each in ids if each not in alive),
    )


def _read_journal(path: Path) -> tuple[tuple[KnobTurn, ...], tuple[str, ...]]:
    """What is turned, and which lines are damaged. `KnobJournal` would take the directory and mend the file."""
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_BYTES).split(b"\n")
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        return (), (f"{path} cannot be read: {error.strerror}",)
    changes, damaged = [], []
    for number, line in enumerate(lines, start=1):
        checksum, _, body = line.partition(b" ")
        try:
            if (
                line
                and checksum.decode("ascii", "replace")
                != hashlib.sha256(body).hexdigest()[:16]
            ):
                raise ValueError("checksum")
            changes += [msgspec.json.decode(body, type=KnobTurn)] if line else []
        except ValueError:  # msgspec's errors are such, too
            damaged.append(f"{path}, line {number}, is damaged")
    return tuple(changes), tuple(damaged)


def _read_records(directory: Path) -> tuple[tuple[Record, ...], tuple[str, ...]]:
    """The records that can be read, and the names of the others."""
    records, damaged = [], []
    try:
        paths = sorted(directory.glob("*.json"))[:_MAX_RECORDS]
        for path in paths:
            try:
                records.append(msgspec.json.decode(path.read_bytes(), type=Record))
            except FileNotFoundError:
                continue  # An agent that runs has removed it meanwhile.
            except msgspec.MsgspecError:
                damaged.append(f"{path} is damaged")
    except OSError as error:
        damaged.append(f"{directory} cannot be read: {error.strerror}")
    return tuple(records), tuple(damaged)


def _is_locked(path: Path) -> bool:
    """Whether an agent holds the lock. It is shared for a moment, for which an agent that starts just then waits."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock that does not wait: it fails exactly where an agent holds its exclusive one.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_templates(path: Path | None, here: Here) -> TemplateFacts:
    """The templates that an agent would read, and whether their programs are found in the PATH that workers get."""
    try:
        templates = load_templates(path)
    except DeviceError as error:
        return TemplateFacts(problem=str(error))
    search = here.environment.get("PATH")
    programs = []
    for name, each in sorted(templates.by_name.items()):
        found = shutil.which(each.command[0], path=each.environment.get("PATH", search))
        programs.append((name, each.command[0], found is not None))
    return TemplateFacts(programs=tuple(programs))


def read_ports(asked: Asked, here: Here) -> PortFacts:
    """How many of the workers' ports are free, and whether the router's is."""
    ports = range(here.first_port, here.first_port + here.port_count)
    return PortFacts(
        free=sum(_is_free(HOST, port) for port in ports),
        first=here.first_port,
        count=here.port_count,
        router_port=asked.router_port,
        is_router_port_free=asked.router_port == 0 or _is_free("", asked.router_port),
    )


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: without it a port counts as taken for a minute after its last connection.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def read_shared_memory(here: Here) -> SharedMemoryFacts:
    """/dev/shm, where MPS and its clients meet."""
    path = here.dev / "shm"
    if not path.is_dir():
        return SharedMemoryFacts(problem=f"{path} is not a directory")
    if not os.access(path, os.W_OK | os.X_OK):
        return SharedMemoryFacts(problem=f"{path} cannot be written")
    return SharedMemoryFacts(free_mib=here.free_mib(path))


def read_systemd(here: Here) -> SystemdFacts:
    """Whether systemd runs this machine, and the agent's unit."""
    unit = next((path / UNIT for path in here.units if (path / UNIT).is_file()), None)
    lines = (
        unit.read_text(encoding="utf-8", errors="replace").splitlines() if unit else []
    )
    return SystemdFacts(
        is_booted=(here.run / "systemd" / "system").is_dir(),
        unit=unit,
        restores=any(
            line.startswith("ExecStopPost=") and " restore " in line for line in lines
        ),
    )


def ask_control_plane(asked: Asked, here: Here) -> ControlPlaneFacts:
    """Is it ready, is its clock ours, does it take the token for this node.

    The last is asked by a report without content, which it refuses after it has looked at the token: nothing changes.
    """
    try:
        with _connection(asked.url, here.limit_s / 3.0) as (connection, prefix):
            before_s = time.time()
            connection.request(
                "GET",
                f"{prefix}/readyz?verbose",
                headers={"Accept": "application/json"},
            )
            answer = connection.getresponse()
            body = answer.read(_MAX_ANSWER)
            # The date has whole seconds: on average half a second has been cut off.
            middle_s = (before_s + time.time()) / 2.0 - 0.5
            skew_s = _skew_s(answer.getheader("Date"), middle_s)
            return ControlPlaneFacts(
                ready_status=answer.status,
                ready_words=_away(body),
                skew_s=skew_s,
                sync_status=_sync(asked, here) if asked.token else 0,
            )
    except (OSError, http.client.HTTPException, ValueError) as error:
        return ControlPlaneFacts(problem=str(error) or type(error).__name__)


def _sync(asked: Asked, here: Here) -> int:
    headers = {
        "Authorization": f"Bearer {asked.token}",
        "Content-Type": "application/json",
    }
    with _connection(asked.url, here.limit_s / 3.0) as (connection, prefix):
        connection.request(
            "POST",
            f"{prefix}/api/v1/nodes/{quote(asked.node, safe='')}/sync",
            "{}",
            headers,
        )
        answer = connection.getresponse()
        answer.read(_MAX_ANSWER)
        return answer.status


@contextlib.contextmanager
def _connection(
    url: str, limit_s: float
) -> Iterator[tuple[http.client.HTTPConnection, str]]:
    """A connection and the path before every request's; no proxy, as the agent uses none."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = (
        http.client.HTTPSConnection(
            host, parts.port, timeout=limit_s, context=ssl.create_default_context()
        )
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=limit_s)
    )
    try:
        yield connection, parts.path.rstrip("/")
    finally:
        connection.close()


def _skew_s(date: str | None, now_s: float) -> float | None:
    try:
        return now_s - parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None


def _away(body: bytes) -> str:
    """What the control plane says it cannot reach, or of a refusal."""
    try:
        told = msgspec.json.decode(body, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return (
        "; ".join(
            f"{name}: {words}" for name, words in told.checks.items() if words != "ok"
        )
        or told.detail
    )
