"""Where one GPU's MPS daemon lives: its directories, the mark that says whose they are, and its logs.

<directory>/gpu_uuid    the GPU, written before its daemon first starts
<directory>/pipe        sockets by which clients and commands reach the daemon
<directory>/log         control.log and server.log, cut when they grow too long
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from agents.base.device import LaunchFailed
from agents.base.durable_files import replace_file
from agents.gpu.mps.lacks import MpsLack, MpsLackKind

MAX_PIPE_PATH = 87
"""Characters. The daemon opens `<pipe>/control_privileged` as a Unix socket; with 88 it fails without a word."""
MARK = "gpu_uuid"
_TAIL_BYTES = 64 * 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsDirectory:
    """The place of one GPU's daemon."""

    gpu_uuid: str
    path: Path
    """Absolute, of this GPU alone, on local disk."""

    @property
    def pipe(self) -> Path:
        """What daemon and clients must agree on."""
        return self.path / "pipe"

    @property
    def log(self) -> Path:
        """Where the daemon writes its logs."""
        return self.path / "log"

    def objection(self) -> MpsLack | None:
        """Why no daemon can live here; None: one can."""
        if (length := len(os.fsencode(self.pipe))) > MAX_PIPE_PATH:
            message = f"{self.pipe} has {length} characters, MPS takes {MAX_PIPE_PATH}; choose a shorter directory"
            return MpsLack(MpsLackKind.PATH_TOO_LONG, message)
        if (owner := self._marked_gpu()) not in ("", self.gpu_uuid):
            message = f"{self.path} belongs to GPU {owner}; every GPU needs a directory of its own"
            return MpsLack(MpsLackKind.OTHER, message)
        # The directories are made later; the nearest one that exists decides whether that will work.
        standing = next(
            each for each in (self.path, *self.path.parents) if os.access(each, os.F_OK)
        )
        if not standing.is_dir() or not os.access(standing, os.W_OK | os.X_OK):
            message = f"UID {os.getuid()} cannot write to {standing}, which must hold the daemon's directories"
            return MpsLack(MpsLackKind.OTHER_USER, message)
        return None

    def prepare(self, client_uid: int) -> None:
        """Make the directories and mark them. Raises LaunchFailed.

        They are closed to other users, since release 535 lets everybody who reaches the daemon change its settings; a
        server of another UID than ours must reach them, though.
        """
        mode = 0o700 if client_uid == os.getuid() else 0o755
        try:
            for each in (self.path, self.pipe, self.log):
                each.mkdir(parents=True, exist_ok=True)
                each.chmod(mode)
            # Written last: a marked directory is a complete one.
            replace_file(self.path / MARK, self.gpu_uuid.encode())
        except OSError as error:
            raise LaunchFailed(
                f"{self.path} cannot be made ready for MPS: {error}"
            ) from error

    def daemon_uid(self) -> int | None:
        """Whose daemon made the socket; None without one."""
        try:
            return (self.pipe / "control").stat().st_uid
        except OSError:
            return None

    def log_tail(self) -> str:
        """The end of the control daemon's log."""
        return _tail(self.log / "control.log").decode(errors="replace")

    def cut_logs(self, limit_mib: float) -> None:
        """Keep only the end of a log that grew too long, next to it; the daemon appends, so it goes on from there."""
        for path in (self.log / "control.log", self.log / "server.log"):
            try:
                if path.stat().st_size > limit_mib * 1024 * 1024:
                    path.with_suffix(".log.old").write_bytes(_tail(path))
                    os.truncate(path, 0)
            except OSError as error:
                log.debug("%s cannot be cut: %s", path, error)

    def _marked_gpu(self) -> str:
        try:
            return (self.path / MARK).read_text(encoding="utf-8").strip()
        except OSError:
            return ""


def _tail(path: Path) -> bytes:
    """The last of a file, whole when it is short, nothing when it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES)
    except OSError:
        return b""
