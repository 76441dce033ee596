"""What this agent turned on each GPU, on disk before it is turned, so that it can be put back after any death.

A locked clock cannot be read back and outlives the process that locked it: the journal is the only memory of it.

    directory/knobs.journal   one `KnobTurn` per line: 16 digits of its SHA-256, a blank, JSON
    directory/knobs.lock      held (flock) by the one process that may turn knobs or put them back

    journal.write(change)     synced before it returns; only then may the knob be turned
    journal.settle(...)       the knob was turned: earlier values of it need not be known
    journal.withdraw(...)     the driver refused: nothing changed
    journal.forget(...)       the knob is back, or is no longer ours
    journal.held()            what is to be put back

A line is appended; where lines become void the file is written next to its place, synced and renamed. A torn or altered
line is ignored and said in `problems`; the others count. What a `Held` says may be in force is never less than what is.
"""

import dataclasses
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from agents.base.durable_files import (
    checked_body,
    checked_line,
    lock,
    replace_file,
    sync_directory,
)

NAME = "knobs.journal"
MAX_LINES = 256
MAX_BYTES = 1 << 20
"""No more of the file is read; ours stay far below (256 lines of 300 bytes, and a line for each knob)."""
LOCK_WAIT_S = 1.0
"""The kernel frees a dead agent's lock at once, but for the moment in which a child of it is being made."""

Knob: TypeAlias = Literal["clock_mhz", "power_limit_w"]
Setting: TypeAlias = tuple[float, ...]
"""(lowest, highest) clock or (limit,); empty = not locked as far as anybody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobTurn:
    """One turn of one knob, as it is about to happen."""

    gpu_uuid: str
    boot_id: str
    """The id of the machine's start, which undoes every setting."""
    driver_version: str
    energy_j: float | None = None
    """The GPU's counter; a smaller one later tells that the driver was reloaded, which also drops every setting."""
    knob: Knob
    old: Setting
    new: Setting
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One knob that is, or may be, as this agent turned it."""

    old: Setting
    """What to put back: it was there before our first change."""
    settings: tuple[Setting, ...]
    """What may be in force because of us, oldest first."""
    last: KnobTurn
    """It tells which start of machine and driver the settings belong to."""


class KnobJournal:
    """The journal of one state directory; one process at a time."""

    def __init__(self, directory: Path, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        """Read what an earlier process left.

        Raises BlockingIOError while another process has it, other OSErrors when the directory cannot be used.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / NAME
        self.problems: tuple[str, ...] = ()
        """What was wrong with the file, in words."""
        self._changes: dict[tuple[str, Knob], list[KnobTurn]] = {}
        self._lines = 0
        # Two agents would put each other's settings back.
        self._lock = _lock(directory / "knobs.lock", lock_wait_s)
        try:
            self._load()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)

    def held(self) -> tuple[Held, ...]:
        """Every knob to be put back, by GPU and name."""
        return tuple(_held(changes) for _, changes in sorted(self._changes.items()))

    def of(self, gpu_uuid: str, knob: Knob) -> Held | None:
        """What is held of one knob; None = it is not ours."""
        changes = self._changes.get((gpu_uuid, knob))
        return _held(changes) if changes else None

    def write(self, change: KnobTurn) -> None:
        """Make the change durable; raises OSError when that fails: do not turn the knob then."""
        with self.path.open("ab") as file:
            file.write(_line(change))
            file.flush()
            os.fsync(file.fileno())
        # A new file's name must be durable, too.
        if self._lines == 0:
            sync_directory(self.path.parent)
        self._lines += 1
        self._changes.setdefault((change.gpu_uuid, change.knob), []).append(change)

    def settle(self, gpu_uuid: str, knob: Knob) -> None:
        """The last change of this knob took place."""
        changes = self._changes[gpu_uuid, knob]
        # The first value of all is what must come back, whatever came between.
        changes[:] = [dataclasses.replace(changes[-1], old=changes[0].old)]
        if self._lines >= MAX_LINES:
            self._rewrite()

    def withdraw(self, gpu_uuid: str, knob: Knob) -> None:
        """The last change of this knob did not take place."""
        changes = self._changes[gpu_uuid, knob]
        changes.pop()
        if not changes:
            del self._changes[gpu_uuid, knob]
        self._rewrite()

    def forget(self, gpu_uuid: str, knob: Knob) -> None:
        """Nothing of this knob is ours any more."""
        if self._changes.pop((gpu_uuid, knob), None):
            self._rewrite()

    def drop_other_boots(self, boot_id: str) -> tuple[Held, ...]:
        """Forget what was set before this start of the machine, which cleared it; returns what that was."""
        dropped = tuple(held for held in self.held() if held.last.boot_id != boot_id)
        for held in dropped:
            self.forget(held.last.gpu_uuid, held.last.knob)
        return dropped

    def _load(self) -> None:
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_BYTES)
        except FileNotFoundError:
            return
        lines = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                change = _parse(line) if line else None
            except ValueError as error:
                self.problems += (
                    f"{self.path}, line {number}, is damaged and was ignored: {error}",
                )
                continue
            if change is not None:
                self._changes.setdefault((change.gpu_uuid, change.knob), []).append(
                    change
                )
        self._lines = len(lines) - 1
        if self.problems or lines[-1]:
            self._rewrite()  # else the next line would be glued to a torn one

    def _rewrite(self) -> None:
        changes = [
            change for _, each in sorted(self._changes.items()) for change in each
        ]
        replace_file(self.path, b"".join(map(_line, changes)))
        self._lines = len(changes)


def _held(changes: list[KnobTurn]) -> Held:
    return Held(
        old=changes[0].old,
        settings=tuple(change.new for change in changes),
        last=changes[-1],
    )


def _line(change: KnobTurn) -> bytes:
    return checked_line(msgspec.json.encode(change))


def _parse(line: bytes) -> KnobTurn:
    try:
        return msgspec.json.decode(checked_body(line), type=KnobTurn)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a change of this version: {error}") from error


def _lock(path: Path, wait_s: float) -> int:
    try:
        return lock(path, wait_s)
    except BlockingIOError as error:
        message = "another agent has this state directory: stop it first, or give each its own"
        raise BlockingIOError(error.errno, message, str(path)) from error
