"""As which user replicas and tasks run, and how the agent touches files that this user may change.

    find_worker_user(name, …)    -> WorkerUser, or None: the agent's own. Raises DeviceError
    find_project_users(names, …) -> by project, who its replicas and tasks run as instead. Raises DeviceError
    make_folder(path, user)      a folder of the agent's that the user can pass through and not change
    require_reach(path, user)    raises DeviceError where the user cannot get to a folder
    read_file(path)              of a folder that a worker may change; write_file(path, content)

A worker runs code that is not ours. As the agent's own user it could read the agent's token, ledger and memory. As
another user it cannot, but the agent, which is root then, works in folders that this user owns: a link or a pipe that a
worker puts there must not lead the agent to a file of its choice. The folders themselves lie in folders of the agent's.
"""

import contextlib
import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agents.base.device import DeviceError
from agents.processes.trees import set_aside

DEFAULT_USER = "plimsoll-worker"
"""Who replicas run as where the agent is root and nothing else was said."""
FILE_LIMIT = 1024 * 1024
RIGHTS = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SYS_PTRACE": 19,
}
"""linux/capability.h: to become the user, to give it its folders, to clean them, to end and to find its processes."""

OWN_USER_WARNING = (
    "replicas run as the agent's own user and can read all that it can, its token file included; "
    "docs/install-agent.md, Users"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUser:
    """A user other than the agent's."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    """All of them, since the driver's device files may belong to one."""
    home: str
    folders: Path
    """In which the folders of its replicas and tasks are."""

    def environment(self) -> dict[str, str]:
        """What takes the place of the agent's own variables."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUsers:
    """Who replicas and tasks of one node run as."""

    default: WorkerUser | None = None
    """None: the agent's own user."""
    by_project: Mapping[str, WorkerUser] = field(default_factory=dict)
    """Who those of these projects run as instead; not under MPS."""

    @property
    def all(self) -> tuple[WorkerUser, ...]:
        """Those other than the agent's."""
        default = () if self.default is None else (self.default,)
        return (*default, *self.by_project.values())

    def of(self, project: str) -> WorkerUser | None:
        """The user that the project's replicas and tasks run as; None: the agent's own user."""
        return self.by_project.get(project, self.default)

    def uids(self) -> dict[str, int]:
        """By project, "" of all others: what runs as another is replaced."""
        projects = {name: each.uid for name, each in self.by_project.items()}
        return {"": uid_of(self.default), **projects}


def uid_of(user: WorkerUser | None) -> int:
    """The UID of a worker's user; of None that of the agent itself."""
    return os.geteuid() if user is None else user.uid


def find_worker_user(
    name: str, folders: Path, *, option: str = "--worker-user"
) -> WorkerUser | None:
    """The user of that name, None where it is the agent's own; empty: the default. Raises DeviceError.

    `option`: by which it was named.
    """
    own = os.geteuid()
    if not name and own != 0:
        return None
    try:
        account = pwd.getpwnam(name or DEFAULT_USER)
    except KeyError as error:
        raise DeviceError(_without_account(name, option)) from error
    if account.pw_uid == own:
        return None
    if lacking := _lacking():
        raise DeviceError(
            f"{option} {account.pw_name}: the agent, UID {own}, lacks {', '.join(lacking)}; start it as root"
        )
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return WorkerUser(
        name=account.pw_name,
        uid=account.pw_uid,
        gid=account.pw_gid,
        groups=tuple(sorted(groups)),
        home=account.pw_dir,
        folders=folders,
    )


def find_project_users(
    names: Iterable[tuple[str, str]], default: WorkerUser | None, *, uses_mps: bool
) -> dict[str, WorkerUser]:
    """The users of projects that have one of their own; `names`: (project, user), `default`: of all others.

    Raises DeviceError where they would not be apart from each other.
    """
    found: dict[str, WorkerUser] = {}
    for project, name in names:
        asked = f"--worker-user-for {project}={name}"
        if uses_mps:
            raise DeviceError(
                f"{asked}: MPS serves one user per GPU; add `--sharing turns`, or let all run as --worker-user"
            )
        if default is None:
            raise DeviceError(
                f"{asked}: other projects' replicas run as the agent's own user, which reads all; name another one by "
                "--worker-user"
            )
        user = find_worker_user(
            name, default.folders, option=f"--worker-user-for {project}"
        )
        taken = {default.uid, *(each.uid for each in found.values())}
        if user is None or user.uid in taken or project in found:
            raise DeviceError(
                f"{asked}: each project is named once, with a user that is neither the agent's, nor --worker-user, nor "
                "another project's"
            )
        found[project] = user
    return found


def _without_account(name: str, option: str) -> str:
    if name:
        return f"{option}: there is no user {name!r} on this machine"
    # Replicas as root are possible, but only where an operator asks for them by name.
    return (
        f"replicas would run as root: make a user for them (`useradd --system {DEFAULT_USER}`), or name one with "
        "--worker-user; `--worker-user root` allows that"
    )


def _lacking() -> list[str]:
    """Rights that it takes to run processes as another user, and that this process does not have."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(each for each in status.splitlines() if each.startswith("CapEff:"))
    effective = int(line.split()[1], 16)
    return [name for name, bit in RIGHTS.items() if not effective >> bit & 1]


def workers_folders(state_dir: Path) -> Path:
    """Where another user's folders lie: next to the state directory, which is closed to all others."""
    state_dir = state_dir.absolute()
    return state_dir.with_name(f"{state_dir.name}-workers")


def make_folder(path: Path, user: WorkerUser | None) -> None:
    """Make a folder of the agent's, through which the user may pass to what it was given. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if user is not None:
        # Search without read: a worker gets to the folder that it was told of and sees no others.
        path.chmod(0o711)


def require_reach(path: Path, user: WorkerUser) -> None:
    """Raises DeviceError where a folder on the way is closed to the user."""
    for folder in reversed((path, *path.parents)):
        found = folder.stat()
        if found.st_uid == user.uid:
            may_pass = found.st_mode & stat.S_IXUSR
        elif found.st_gid in user.groups:
            may_pass = found.st_mode & stat.S_IXGRP
        else:
            may_pass = found.st_mode & stat.S_IXOTH
        if not may_pass:
            raise DeviceError(
                f"user {user.name} cannot reach {path}: {folder} is closed to it; open it (`chmod o+x`), or choose "
                "another directory"
            )


def read_file(path: Path) -> bytes:
    """The content of a regular file, links not followed; what is beyond FILE_LIMIT is left out. Raises OSError."""
    # Without O_NONBLOCK the agent would wait for ever at a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read(FILE_LIMIT)


def write_file(path: Path, content: bytes) -> None:
    """Put a file there, in place of whatever is there, that the folder's owner owns. Raises OSError."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    # O_EXCL refuses a link that a worker made since the line above.
    descriptor = os.open(
        fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        owner = path.parent.stat()
        if owner.st_uid != os.geteuid():
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    fresh.replace(path)


def give_folder(path: Path, user: WorkerUser | None, *, keeps: bool) -> None:
    """Make a worker's own folder; `keeps`: what a process of the same user left there stays. Raises OSError."""
    uid = uid_of(user)
    with contextlib.suppress(FileNotFoundError):
        # What another user left could not be read by this one.
        if not keeps or path.stat().st_uid != uid:
            set_aside(path)
    path.mkdir(mode=0o700, parents=True, exist_ok=keeps)
    if user is not None:
        os.chown(path, user.uid, user.gid)
