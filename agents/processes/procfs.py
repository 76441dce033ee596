"""Processes as /proc tells of them: whether a recorded one still runs, and which belong to one worker.

is_alive(identity)                      whether that very process runs
members(mark, leader)                   ids of all living processes of a worker
is_marked(pid), marks(beginning)        whether, and by whom, a process was started as a worker
host_memory_used()                      share of the machine's memory in use
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from agents.processes.records import Identity, Recorded

MARK = "PLIMSOLL_MARK"
"""Variable in the environment of every worker that holds its record's random mark."""
_LISTEN = "0A"
"""net/tcp_states.h"""


def boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def host_memory_used() -> float:
    """Share of the machine's memory that a new process cannot have, 0 to 1."""
    kib = _memory_kib()
    return 1.0 - kib["MemAvailable"] / kib["MemTotal"]


def host_memory_free_mib() -> float:
    """What of the machine's memory a new process can have."""
    return _memory_kib()["MemAvailable"] / 1024.0


def is_alive(identity: Identity) -> bool:
    """Whether that very process runs; one that has ended and was not reaped does not."""
    stat = _stat(identity.pid)
    return (
        stat is not None
        and stat.state not in "ZX"
        # Process numbers are reused; with its start time and the boot a number stands for one process only.
        and (stat.start_ticks, boot_id()) == (identity.start_ticks, identity.boot)
    )


def is_running(record: Recorded) -> bool:
    """Whether what was recorded runs, its process or any with its mark."""
    if record.identity is not None:
        return is_alive(record.identity)
    return bool(members(record.mark))


def members(mark: str, leader: Identity | None = None) -> tuple[int, ...]:
    """Living processes that carry the mark in their environment, or belong to the session of that leader; by number.

    The mark finds those that made a session of their own, the session those that wrote over their environment. An agent
    that runs as root could kill anything: none of its own session is ever among them, and neither is the kernel's.
    """
    return WorkerSearch(mark=mark, leader=leader).all()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSearch:
    """Who belongs to one worker."""

    mark: str
    leader: Identity | None = None

    def all(self) -> tuple[int, ...]:
        session = self._session()
        return tuple(sorted(pid for pid in _pids() if self._has(pid, session)))

    def has(self, pid: int) -> bool:
        return self._has(pid, self._session())

    def _has(self, pid: int, session: int | None) -> bool:
        stat = _stat(pid)
        # Kernel threads, and those that came from outside the PID namespace, show session 0.
        if stat is None or stat.state in "ZX" or stat.session in (0, os.getsid(0)):
            return False
        return (
            stat.session == session
            or f"{MARK}={self.mark}".encode() in _environment(pid)
        )

    def _session(self) -> int | None:
        """The leader's; None where another process has its number by now, whose session is not ours."""
        # Number 1 is the machine's init, whose session must never be ended.
        if self.leader is None or self.leader.pid <= 1:
            return None
        now = _stat(self.leader.pid)
        return (
            self.leader.pid
            if now is None or now.start_ticks == self.leader.start_ticks
            else None
        )


def find_leader(mark: str) -> Identity | None:
    """The process with that mark which leads its session; None: there is none yet, or no more."""
    for pid in members(mark):
        stat = _stat(pid)
        if stat is not None and stat.session == pid:
            return Identity(pid=pid, start_ticks=stat.start_ticks, boot=boot_id())
    return None


def variable_of(pid: int, name: str) -> str:
    """A variable that a process was started with; empty: it was not."""
    start = f"{name}=".encode()
    found = (each for each in _environment(pid) if each.startswith(start))
    return next(found, b"").partition(b"=")[2].decode("utf-8", errors="replace")


def listening_ports(pid: int) -> frozenset[int]:
    """Ports on which a process listens, in its own network namespace, which may be a Pod's."""
    mine, found = _sockets(pid), set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii")
            # Number, local address, remote address, state, …; the inode is the tenth.
            rows = (line.split() for line in text.splitlines()[1:])
            found |= {
                int(row[1].rpartition(":")[2], 16)
                for row in rows
                if row[3] == _LISTEN and f"socket:[{row[9]}]" in mine
            }
    return frozenset(found)


def _memory_kib() -> dict[str, int]:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    parts = (line.split(":") for line in lines)
    return {name: int(rest.split()[0]) for name, rest in parts}


def _sockets(pid: int) -> set[str]:
    """The open files of a process, as /proc names them; none of a process that is gone."""
    found = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            # It may close one meanwhile.
            with contextlib.suppress(OSError):
                found.add(str(path.readlink()))
    return found


def is_marked(pid: int) -> bool:
    """Whether a process was started as a replica, or by one."""
    return any(entry.startswith(f"{MARK}=".encode()) for entry in _environment(pid))


def marks(beginning: str) -> frozenset[str]:
    """Marks with that beginning of all living processes."""
    start = f"{MARK}={beginning}".encode()
    found = (
        entry
        for pid in _pids()
        for entry in _environment(pid)
        if entry.startswith(start)
    )
    return frozenset(
        entry.decode("ascii", errors="replace").partition("=")[2] for entry in found
    )


def _pids() -> tuple[int, ...]:
    return tuple(
        int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    state: str
    session: int
    start_ticks: int


def _stat(pid: int) -> _Stat | None:
    """The parts of /proc/PID/stat that matter here; None = no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold blanks and parentheses. Behind it: state, parent, group, session, …, and the
    # start time as field 22 of all, which is field 20 behind the name.
    parts = text[text.rindex(")") + 2 :].split()
    return _Stat(state=parts[0], session=int(parts[3]), start_ticks=int(parts[19]))


def _environment(pid: int) -> tuple[bytes, ...]:
    try:
        return tuple(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:  # another user's, or gone
        return ()


def identity_of(pid: int) -> Identity:
    """The identity of a child that was not reaped."""
    stat = _stat(pid)
    assert stat is not None, "a child that was not reaped has its place in /proc"
    return Identity(pid=pid, start_ticks=stat.start_ticks, boot=boot_id())
