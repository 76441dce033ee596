"""What an agent was told and what it did, in a file that outlives its process.

Each entry is one `write` of one line to a file opened for appending: the system has all of it or nothing of it when
the process is killed. Times are of the machine's monotonic clock, which is the same in every process.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

EntryKind: TypeAlias = Literal["started", "acknowledged", "obeyed", "doubled"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to an agent."""

    kind: EntryKind
    at_s: float
    boot: str = ""
    sequence: int = 0
    """Up to which the observations of this boot are durable, as the agent was told."""
    sent_s: float = 0.0
    """When the request was sent to which this was the answer."""
    generation: int = 0
    """Of the command that was put in force, or that was there at the start."""
    sha256: str = ""
    """Of that command as JSON."""
    detail: str = ""


_DECODER = msgspec.json.Decoder(Entry)


class Journal:
    """Writes entries; one process has it open at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: EntryKind, **figures: str | float) -> None:
        """Note what happens now."""
        entry = msgspec.convert(
            {"kind": kind, "at_s": time.monotonic(), **figures}, Entry
        )
        os.write(self._file, msgspec.json.encode(entry) + b"\n")


@dataclass(slots=True, kw_only=True)
class JournalReader:
    """Follows a journal while others write it."""

    path: Path
    entries: list[Entry] = field(default_factory=list)
    _read_bytes: int = 0

    def read(self) -> list[Entry]:
        """All entries so far."""
        if not self.path.exists():
            return self.entries
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            fresh = file.read()
        # A line that is being written counts when it is whole.
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self.entries += _DECODER.decode_lines(whole)
        return self.entries

    def first_answer_s(self, *, asked_after_s: float) -> float | None:
        """When the first answer came to what was sent after that time; None: not yet."""
        # From the end, since it is asked for again and again while the journal grows.
        found = None
        for entry in reversed(self.read()):
            if entry.at_s < asked_after_s:
                break
            if entry.kind == "acknowledged" and entry.sent_s > asked_after_s:
                found = entry.at_s
        return found
