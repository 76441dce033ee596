"""The last command on disk, so that a restarted agent enforces it before anybody answers.

Two files in the state directory, `command.json` and the one before it, `command.previous.json`, each an HMAC-SHA-256
of the rest in hexadecimal, a newline, and the command as JSON. The key is `ledger.key` there, made at the first start
and readable by the agent's user alone, so that no one else can put a command in force. A file is written next to its
place, synced, renamed, and the directory synced; a torn or altered file fails its check, and the other one counts. A
file of an earlier version, which had no key, fails it as well: the agent then waits for the control plane's answer.
"""

import hmac
import logging
import os
import secrets
from pathlib import Path

import msgspec

from agents.base.device import DeviceError
from agents.base.digests import digest_of
from agents.base.durable_files import sync_directory, write_synced
from agents.base.protocol import NodeCommand

CURRENT = "command.json"
PREVIOUS = "command.previous.json"
KEY = "ledger.key"
KEY_BYTES = 32

log = logging.getLogger(__name__)


class Ledger:
    """The newest command that was accepted; refuses older generations."""

    def __init__(self, directory: Path | None) -> None:
        """Load what an earlier start left. `directory` None keeps it in memory only.

        Raises OSError when the directory cannot be made or read, DeviceError where its key is damaged.
        """
        self.directory = directory
        self.problems: tuple[str, ...] = ()
        """What was wrong with the files, in words."""
        self._command: NodeCommand | None = None
        self._key = b""
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            # Not where it is somebody else's, as a volume's may be: its owner decides on its mode.
            if directory.stat().st_uid == os.geteuid():
                directory.chmod(0o700)
            self._key = _key(directory / KEY)
            self._load(directory)
        self._digest = digest_of(self._command)

    @property
    def command(self) -> NodeCommand | None:
        """The command in force; None = none was ever accepted."""
        return self._command

    @property
    def generation(self) -> int:
        """Generation of the command in force; 0 = none."""
        return self._command.generation if self._command else 0

    @property
    def digest(self) -> str:
        """`digest_of` the command in force; empty = none."""
        return self._digest

    def objection(self, command: NodeCommand) -> str:
        """Why the command must not replace the one in force; empty = it may, or it is the one in force."""
        if command.generation < self.generation:
            return (
                f"generation {command.generation} is older than {self.generation}, which is in force "
                "(if the control plane was rebuilt, clear the agent's state directory)"
            )
        if command.generation == self.generation and command != self._command:
            return f"generation {command.generation} is already in force with different content"
        return ""

    def accept(self, command: NodeCommand) -> None:
        """Make the command durable, then the one in force.

        Raises ValueError where `objection` is not empty and OSError when it cannot be written: nothing has changed.
        """
        if reason := self.objection(command):
            raise ValueError(reason)
        if command == self._command:
            return
        if self.directory is not None:
            # On disk before it counts: an agent that dies next must come back with it.
            self._write(self.directory, command)
        self._command, self._digest = command, digest_of(command)

    def _load(self, directory: Path) -> None:
        for name in (CURRENT, PREVIOUS):
            path = directory / name
            try:
                read = _parse(path.read_bytes(), self._key)
            except FileNotFoundError:
                continue
            except ValueError as error:
                self.problems += (f"{path} is damaged and was ignored: {error}",)
                log.warning("%s", self.problems[-1])
                continue
            # The newest that can be read: a death between the two renames leaves the newest under the older name.
            if read.generation > self.generation:
                self._command = read

    def _write(self, directory: Path, command: NodeCommand) -> None:
        body = msgspec.json.encode(command)
        content = _code(body, self._key) + b"\n" + body
        fresh = directory / f"{CURRENT}.new"
        write_synced(fresh, content)
        current = directory / CURRENT
        if current.exists():
            # Two renames: at each moment one of the two names holds a complete command.
            current.replace(directory / PREVIOUS)
        fresh.replace(current)
        sync_directory(directory)


def _key(path: Path) -> bytes:
    """The directory's key, made at its first use. Raises OSError, or DeviceError where it is none."""
    if not path.exists():
        fresh = path.with_name(f"{KEY}.new")
        # Its mode first: no one may open it in between, also where the directory cannot be closed.
        fresh.touch(mode=0o600)
        write_synced(fresh, secrets.token_bytes(KEY_BYTES))
        fresh.replace(path)
        sync_directory(path.parent)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise DeviceError(f"{path} is damaged; remove it, and a new one will be made")
    return key


def _code(body: bytes, key: bytes) -> bytes:
    return hmac.new(key, body, "sha256").hexdigest().encode("ascii")


def _parse(content: bytes, key: bytes) -> NodeCommand:
    code, _, body = content.partition(b"\n")
    if not hmac.compare_digest(code, _code(body, key)):
        raise ValueError(f"it was not written with the key in {KEY}")
    try:
        return msgspec.json.decode(body, type=NodeCommand)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a command of this version: {error}") from error
