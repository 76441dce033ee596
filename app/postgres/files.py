"""The files of an embedded PostgreSQL: its data directory, locks, socket directory and stale leftovers.

A data directory is private to its maker and holds

    start.lock     flock of the one process that initialises, starts or stops
    alive.lock     flock of the server itself: the kernel gives it back when the last of its processes is gone
    cluster/       PGDATA; appears by a rename when it is complete
    cluster.init/  an unfinished cluster, thrown away by the next start
    server.log     what the server printed, newest last
    socket         link to a short directory, only where the path of cluster/ does not fit a socket
    postgres-18.6/ a copy of the programs, only where the server's account cannot reach the installed ones
"""

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.postgres.process import Account, DataDirRefused, PostgresError

# The port is only a part of the socket's name: nothing listens on the network.
PORT = 5432
POLL_S = 0.01
_SOCKET_NAME = f".s.PGSQL.{PORT}"
# sun_path holds 108 bytes on Linux and 104 on macOS, one of them the final NUL.
_MAX_SOCKET_PATH = 103
_LOG_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDirLayout:
    """Where things lie in a data directory; `root` is absolute."""

    root: Path

    @property
    def start_lock(self) -> Path:
        return self.root / "start.lock"

    @property
    def alive_lock(self) -> Path:
        return self.root / "alive.lock"

    @property
    def users_lock(self) -> Path:
        return self.root / "users.lock"

    @property
    def cluster(self) -> Path:
        return self.root / "cluster"

    @property
    def unfinished(self) -> Path:
        return self.root / "cluster.init"

    @property
    def log(self) -> Path:
        return self.root / "server.log"

    @property
    def socket_link(self) -> Path:
        return self.root / "socket"

    def socket_dir(self) -> Path | None:
        """Where the socket is or will be: in the cluster, else behind the link; None if the link is missing."""
        path = os.fsencode(self.cluster / _SOCKET_NAME)
        # libpq and the server both split lists of socket directories at commas.
        if len(path) <= _MAX_SOCKET_PATH and not re.search(rb'[,"\s]', path):
            return self.cluster
        try:
            outer = self.socket_link.readlink()
            # After a clean-up of /tmp somebody else may have taken the name.
            return (
                outer / "s" if outer.stat().st_uid == self.root.stat().st_uid else None
            )
        except FileNotFoundError:
            return None

    def postmaster_pid(self) -> int | None:
        """The process id in the server's pid file, whether that process lives or not."""
        return _pid_in(self.cluster / "postmaster.pid")

    def log_size_bytes(self) -> int:
        """The length of the server's log; 0 where there is none."""
        return self.log.stat().st_size if self.log.exists() else 0


def claim(data_dir: Path) -> DataDirLayout:
    """Makes a data directory, or checks that it is one of ours; raises DataDirRefused."""
    layout = DataDirLayout(root=data_dir.resolve())
    layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = sorted(path.name for path in layout.root.iterdir())
    if names and layout.start_lock.name not in names:
        raise DataDirRefused(
            f"{layout.root} is not empty (it holds {', '.join(names[:3])}) and was not made by Plimsoll; choose an "
            "empty or a new directory, or set PLIMSOLL_DATABASE_URL if a PostgreSQL of yours lives there"
        )
    layout.start_lock.touch(
        mode=0o600
    )  # first of all files: it says that the directory is ours
    return layout


@contextmanager
def start_lock(
    layout: DataDirLayout, *, timeout_s: float, refusal: type[PostgresError]
) -> Iterator[None]:
    """Holds the lock against a second starter or stopper; raises `refusal` if it is not free in time."""
    deadline_s = time.monotonic() + timeout_s
    while (descriptor := try_flock(layout.start_lock)) is None:
        if time.monotonic() > deadline_s:
            raise refusal(
                f"another process has been starting or stopping the server in {layout.root} for {timeout_s:g} s; "
                f"`fuser {layout.start_lock}` names it"
            )
        time.sleep(POLL_S)
    try:
        yield
    finally:
        os.close(descriptor)


def join(path: Path) -> int:
    """An open descriptor that shares the lock on a file with others; waits while somebody holds it alone."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def try_flock(path: Path) -> int | None:
    """An open descriptor that holds the exclusive lock on a file, or None if somebody else holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def own_directory(path: Path, account: Account) -> None:
    """Makes a directory that only the server's account can use."""
    path.mkdir(mode=0o700)
    os.chown(path, account.uid, account.gid)


def prepare_socket_dir(layout: DataDirLayout, account: Account) -> Path:
    """The socket directory, made if it has to be a short one outside the data directory and is not there yet."""
    socket_dir = layout.socket_dir()
    if socket_dir is None:
        socket_dir = _make_short_socket_dir(layout, account)
    if socket_dir != layout.cluster:
        socket_dir.parent.chmod(account.directory_mode)
    return socket_dir


def _make_short_socket_dir(layout: DataDirLayout, account: Account) -> Path:
    """A directory with an unguessable name behind the link; two levels, so that others cannot come near."""
    # Not $TMPDIR first: batch systems set it to a long path that goes away with the job.
    base = "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()
    outer = Path(tempfile.mkdtemp(prefix="plimsoll-", dir=base))
    owner = layout.root.stat()
    os.chown(outer, owner.st_uid, owner.st_gid)
    own_directory(outer / "s", account)
    layout.socket_link.unlink(missing_ok=True)
    layout.socket_link.symlink_to(outer)
    return outer / "s"


def remove_short_socket_dir(layout: DataDirLayout) -> None:
    """Removes what `prepare_socket_dir` made outside the data directory."""
    socket_dir = layout.socket_dir()
    if socket_dir is not None and socket_dir != layout.cluster:
        shutil.rmtree(socket_dir.parent)
        layout.socket_link.unlink()


def remove_stale_pid_files(layout: DataDirLayout, socket_dir: Path) -> None:
    """Removes pid files that would stop a new server although theirs is gone.

    PostgreSQL asks only whether the process id exists, and so respects zombies and strangers that were given the
    same number. Call it with both locks held. A server started by hand is a live postgres and is left in peace.
    """
    for file in (
        layout.cluster / "postmaster.pid",
        socket_dir / f"{_SOCKET_NAME}.lock",
    ):
        pid = _pid_in(file)
        if pid is None or not is_postgres(pid):
            file.unlink(missing_ok=True)


def _pid_in(file: Path) -> int | None:
    with suppress(FileNotFoundError, ValueError, IndexError):
        return abs(int(file.read_text(errors="replace").split()[0]))
    return None


def is_postgres(pid: int) -> bool:
    """Whether a process id belongs to a PostgreSQL that still lives."""
    try:
        process = psutil.Process(pid)
        return process.name() == "postgres" and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shorten_log(layout: DataDirLayout) -> None:
    """Puts an old log aside when it has grown long; call it while no server writes to it."""
    if layout.log_size_bytes() > _LOG_LIMIT_BYTES:
        layout.log.replace(layout.log.with_suffix(".log.old"))


def log_tail(layout: DataDirLayout, *, start_bytes: int) -> str:
    """The last lines that the server printed after position `start_bytes` of its log."""
    printed = layout.log.read_bytes()[start_bytes:].decode(errors="replace")
    return "\n".join(printed.splitlines()[-10:]) or "(it printed nothing)"
