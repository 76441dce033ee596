"""An embedded PostgreSQL in one data directory: initialise, start, attach, stop.

The server listens on one Unix socket, in a directory that only its owner and root can enter, and on no network
address; all who can reach that socket are trusted. Whether it runs is judged by a connection; whether an old
one is really gone, by a lock that its processes hold, never by the pid file, which a kill -9 leaves behind.
What lies where in the data directory is said in `postgres_files`, who runs the server in `postgres_process`.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from app.postgres.files import (
    POLL_S,
    PORT,
    DataDirLayout,
    claim,
    is_postgres,
    join,
    log_tail,
    own_directory,
    prepare_socket_dir,
    remove_short_socket_dir,
    remove_stale_pid_files,
    shorten_log,
    start_lock,
    try_flock,
)
from app.postgres.keeper import looked_after
from app.postgres.process import (
    Account,
    Binaries,
    BinariesMissing,
    DataDirRefused,
    PostgresError,
    StartFailed,
    StopFailed,
    VersionMismatch,
    check_can_enter,
    check_has_name,
    choose_account,
    find_binaries,
    reachable_binaries,
    run,
    spawn,
)
from app.postgres.roles import OWNER, SUPERUSER, make_database

__all__ = [
    "Binaries",
    "BinariesMissing",
    "DataDirRefused",
    "PostgresError",
    "Server",
    "StartFailed",
    "StopFailed",
    "VersionMismatch",
    "attach",
    "find_binaries",
    "in_use",
    "start",
    "stop",
]

_DATABASE = "plimsoll"
# initdb takes half a second; a slow network disk may need much longer.
_INIT_LIMIT_S = 120.0

# Durable first: an observation is acknowledged only after its commit. 100 connections leave room for several
# pools of 20, the listeners and people with psql; daily partitions need more locks than the default of 64.
_SETTINGS = """
# Written by Plimsoll when it made this cluster.
fsync = on
synchronous_commit = on
full_page_writes = on
max_connections = 100
max_locks_per_transaction = 256
shared_buffers = 128MB
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running PostgreSQL that has the database `plimsoll`."""

    data_dir: Path
    socket_dir: Path
    # As the server states it, such as "18.6".
    version: str
    # False when it was already running.
    started_here: bool

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database `plimsoll`."""
        return self.database_url(_DATABASE)

    @property
    def conninfo(self) -> str:
        """The database `plimsoll` for libpq: psycopg.connect, psql, pg_dump."""
        return _conninfo(self.socket_dir, _DATABASE)

    def database_url(self, database: str) -> str:
        """The SQLAlchemy URL of any database of this server."""
        return _conninfo(self.socket_dir, database).replace(
            "postgresql:", "postgresql+psycopg:", 1
        )


def start(
    data_dir: Path, *, bin_dir: Path | None = None, timeout_s: float = 15.0
) -> Server:
    """The server of `data_dir`: attaches to it if it runs, else starts it, and makes its cluster first if needed.

    Any number of processes may call this at once: one of them starts, all get the same server. It outlives the
    caller; see `stop`. `timeout_s` bounds the wait for an answer, recovery after a crash included; a server that
    is late goes on starting, and a later call attaches to it. Raises PostgresError.
    """
    with _disk_errors_explained(data_dir):
        layout = claim(data_dir)
        with start_lock(
            layout, timeout_s=_INIT_LIMIT_S + timeout_s, refusal=StartFailed
        ):
            return _attach(layout, create_database=True) or _start(
                layout, bin_dir, timeout_s
            )


@contextmanager
def in_use(data_dir: Path) -> Iterator[Server]:
    """The server of `data_dir`, started where it does not run and again where it is killed; its last user stops it.

    A user that was killed counts no longer, so that the next one to end also ends the server it left behind.
    """
    with _disk_errors_explained(data_dir):
        layout = claim(data_dir)
        mine = join(layout.users_lock)
    try:
        server = start(data_dir)
        with looked_after(layout, lambda: start(data_dir)):
            yield server
    finally:
        os.close(mine)
        # Of several users that end at once one gets the lock; the others find it taken, and leave the server to it.
        # Held while the server stops: a user that comes now waits in `join` and then starts it again.
        if (last := try_flock(layout.users_lock)) is not None:
            try:
                stop(data_dir)
            finally:
                os.close(last)


def attach(data_dir: Path) -> Server | None:
    """The server of `data_dir` if it answers; nothing is made or started."""
    with _disk_errors_explained(data_dir):
        return _attach(DataDirLayout(root=data_dir.resolve()), create_database=False)


def stop(data_dir: Path, *, timeout_s: float = 60.0) -> bool:
    """Stops the server by a fast shutdown: clients are disconnected, committed data is kept.

    Returns whether a server was running. Raises StopFailed when it is still there after `timeout_s`.
    """
    layout = DataDirLayout(root=data_dir.resolve())
    with _disk_errors_explained(data_dir):
        # Without this file no server was ever launched here, and nothing must be made by stopping.
        if not layout.alive_lock.exists():
            return False
        with start_lock(layout, timeout_s=timeout_s, refusal=StopFailed):
            was_running = _shut_down(layout, timeout_s)
            remove_short_socket_dir(layout)
    return was_running


@contextmanager
def _disk_errors_explained(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataDirRefused(
            f"cannot use the data directory {data_dir} as uid {os.geteuid()}: {error}; choose a directory on a local "
            "disk that this user owns, or run as the user who owns this one"
        ) from error


def _attach(layout: DataDirLayout, *, create_database: bool) -> Server | None:
    socket_dir = layout.socket_dir()
    if socket_dir is None:
        return None
    try:
        version = _ask_version(socket_dir, create_database=create_database)
    except psycopg.OperationalError:
        return None
    return Server(
        data_dir=layout.root, socket_dir=socket_dir, version=version, started_here=False
    )


def _start(layout: DataDirLayout, bin_dir: Path | None, timeout_s: float) -> Server:
    """Makes the cluster if there is none, then launches the server. The start lock is held."""
    binaries = find_binaries(bin_dir)
    _check_version(layout, binaries)
    is_new = not layout.cluster.exists()
    found = layout.root if is_new else layout.cluster
    account = choose_account(files=found.stat())
    layout.root.chmod(account.directory_mode)
    check_can_enter(account, layout.root)
    binaries = reachable_binaries(account, binaries, cache_dir=layout.root)
    if is_new:
        _initialise(layout, account, binaries)
    return _launch_and_wait(layout, account, binaries, timeout_s)


def _check_version(layout: DataDirLayout, binaries: Binaries) -> None:
    stated = layout.cluster / "PG_VERSION"
    if not stated.exists() or (made_by := stated.read_text().strip()) == binaries.major:
        return
    raise VersionMismatch(
        f"the cluster in {layout.cluster} was made by PostgreSQL {made_by}, but the programs in {binaries.bin_dir} "
        f"are version {binaries.version}; to go on, name the programs of version {made_by} as bin_dir; to change over, "
        f"dump it with those, move {layout.root} away, start again and restore the dump"
    )


def _initialise(layout: DataDirLayout, account: Account, binaries: Binaries) -> None:
    """Makes the cluster next to its final place and moves it there when it is complete and on disk."""
    check_has_name(account)
    if layout.unfinished.exists():
        shutil.rmtree(layout.unfinished)
    own_directory(layout.unfinished, account)
    command = [
        binaries.path("initdb"),
        "-D",
        str(layout.unfinished),
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        # Bytes decide the order of text, as in Python, and no upgrade of the system's locales corrupts an index.
        "--locale=C",
        "--data-checksums",
        "--no-instructions",
        # All who reach the socket are trusted; its directory keeps everybody else out.
        "--auth-local=trust",
        "--auth-host=reject",
    ]
    try:
        answer = run(account, command, timeout_s=_INIT_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise StartFailed(
            f"initdb did not finish {layout.unfinished} in {_INIT_LIMIT_S:g} s"
        ) from error
    if answer.returncode != 0:
        raise StartFailed(
            f"initdb failed with exit status {answer.returncode} as uid {account.uid}; it printed:\n"
            f"{(answer.stdout + answer.stderr).strip()}"
        )
    with (layout.unfinished / "postgresql.conf").open("a") as settings:
        settings.write(_SETTINGS)
        settings.flush()
        os.fsync(settings.fileno())
    # The rename is the moment at which the cluster exists: a crash before it leaves only what the next start removes.
    layout.unfinished.rename(layout.cluster)
    _sync_directory(layout.root)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _launch_and_wait(
    layout: DataDirLayout, account: Account, binaries: Binaries, timeout_s: float
) -> Server:
    """Waits for an answer; launches the server as soon as no process of an earlier one lives."""
    socket_dir = prepare_socket_dir(layout, account)
    deadline_s = time.monotonic() + timeout_s
    log_start_bytes: int | None = None
    while True:
        try:
            version = _ask_version(socket_dir, create_database=True)
            here = log_start_bytes is not None
            return Server(
                data_dir=layout.root,
                socket_dir=socket_dir,
                version=version,
                started_here=here,
            )
        except psycopg.OperationalError as error:
            refusal = error
        if (alive_lock := try_flock(layout.alive_lock)) is not None:
            # Free after the launch: the server held it, and is gone.
            if log_start_bytes is not None:
                os.close(alive_lock)
                tail = log_tail(layout, start_bytes=log_start_bytes)
                raise StartFailed(
                    f"the server in {layout.root} ended while it was starting:\n{tail}"
                )
            log_start_bytes = _launch(
                layout, account, binaries, socket_dir, alive_lock=alive_lock
            )
        if time.monotonic() > deadline_s:
            raise StartFailed(
                f"the server in {layout.root} (process {layout.postmaster_pid()}) lives but did not answer on "
                f"{socket_dir} in {timeout_s:g} s: {refusal}; see {layout.log}, and try again if it is recovering"
            ) from refusal
        time.sleep(POLL_S)


def _launch(
    layout: DataDirLayout,
    account: Account,
    binaries: Binaries,
    socket_dir: Path,
    *,
    alive_lock: int,
) -> int:
    """Starts the server, which inherits the alive lock; returns the position where its part of the log begins."""
    try:
        remove_stale_pid_files(layout, socket_dir)
        shorten_log(layout)
        log_start_bytes = layout.log_size_bytes()
        # On the command line, where they go before the files of a cluster that somebody edited or moved.
        settings = {
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(socket_dir),
            "unix_socket_permissions": "0700",
        }
        command = [binaries.path("postgres"), "-D", str(layout.cluster)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        spawn(account, command, log=layout.log, keep_fd=alive_lock)
        return log_start_bytes
    # The server has a descriptor of its own now; ours would keep the lock taken after it is gone.
    finally:
        os.close(alive_lock)


def _shut_down(layout: DataDirLayout, timeout_s: float) -> bool:
    """Ends the server and waits for its last process. The start lock is held."""
    deadline_s = time.monotonic() + timeout_s
    was_running = False
    while (alive_lock := try_flock(layout.alive_lock)) is None:
        pid = layout.postmaster_pid()
        if not was_running and pid is not None and is_postgres(pid):
            # SIGINT is PostgreSQL's fast shutdown: it disconnects clients and writes a checkpoint.
            os.kill(pid, signal.SIGINT)
            was_running = True
        if time.monotonic() > deadline_s:
            raise StopFailed(
                f"the server in {layout.root} (process {pid}) still runs {timeout_s:g} s after a fast shutdown was "
                f"asked for; see {layout.log}"
            )
        time.sleep(POLL_S)
    os.close(alive_lock)
    return was_running


def _ask_version(socket_dir: Path, *, create_database: bool) -> str:
    """The version of the server that answers, after making sure of our database and its owner.

    Raises psycopg.OperationalError when nothing answers, or not yet.
    """
    superuser = _conninfo(socket_dir, "postgres", SUPERUSER)
    try:
        connection = psycopg.connect(superuser, autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        # It answers, and would answer so for ever.
        if f'role "{SUPERUSER}" does not exist' in str(error):
            raise StartFailed(
                f"the cluster behind {socket_dir} has no superuser {SUPERUSER!r}: an earlier Plimsoll made it. "
                "Start in an empty data directory; to keep the data, dump it with that Plimsoll and restore it"
            ) from error
        raise
    with connection:
        if create_database:
            make_database(connection, _DATABASE)
        # Debian appends its package's version.
        stated = connection.info.parameter_status("server_version") or "unknown"
    return stated.split()[0]


def _conninfo(socket_dir: Path, database: str, role: str = OWNER) -> str:
    # The port is stated because libpq would otherwise take it from PGPORT.
    return f"postgresql://{role}@/{database}?host={quote(str(socket_dir), safe='')}&port={PORT}"
