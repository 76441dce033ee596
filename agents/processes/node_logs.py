"""What replicas and tasks wrote, for those who ask the node for it: the end of a log, or what came after a position.

    NodeLogs(state_dir)      the agent's
        .note_sizes()        how long each log is by now, so that a later request can say "since"
        .read(request)       -> LogAnswer; the log of what has ended is there as long as `Records` keeps it

Workers write into their logs by themselves (`agents.processes.logs`), and few write times: "since" goes by the sizes
that were noted.
"""

import codecs
import io
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from agents.base.protocol import LOG_BYTES, LogAnswer, LogRequest
from agents.processes.records import REPLICAS_FOLDER, TASKS_FOLDER, log_path

MAX_NOTES = 3600
"""For one log: an hour, where it grows every second."""


class SizeNote(NamedTuple):
    """How long a log was when it had last been written to."""

    written_s: float
    """Unix seconds."""
    size: int


class NodeLogs:
    """The logs of one node."""

    def __init__(self, state_dir: Path) -> None:
        """`state_dir`: the agent's."""
        self._folders = {
            "replica": state_dir / REPLICAS_FOLDER,
            "task": state_dir / TASKS_FOLDER,
        }
        self._notes: dict[Path, deque[SizeNote]] = {}

    def note_sizes(self) -> None:
        """Note the size of every log that has grown; to be called every second or so."""
        found = {path for each in self._folders.values() for path in _logs(each)}
        # Those that were removed.
        for path in self._notes.keys() - found:
            del self._notes[path]
        for path in found:
            self._note(path)

    def read(self, request: LogRequest) -> LogAnswer:
        """The part of the log that is asked for, at most LOG_BYTES, or why there is none."""
        directory = self._folders[request.kind]
        candidates = list(_logs_of(directory, request.name))
        if not candidates:
            missing = f"the node has no log of {request.kind} {request.name}"
            return LogAnswer(
                problem=f"{missing}: it was not started there, or its log gave way to newer ones"
            )
        try:
            # A replica that got another batch by a successor has two: the one that is written to is meant.
            path = max(candidates, key=lambda each: each.stat().st_mtime)
            self._note(path)
            with path.open("rb") as file:
                return self._read(path, file, request)
        except OSError as error:
            return LogAnswer(problem=f"the log cannot be read: {error}")

    def _read(self, path: Path, file: BinaryIO, request: LogRequest) -> LogAnswer:
        size = file.seek(0, os.SEEK_END)
        since_s = 0.0 if request.age_s is None else time.time() - request.age_s
        begin = self._size_at(path, since_s)
        # A position beyond the end is one of the log before it was rotated.
        if request.after is not None and request.after <= size:
            begin = max(begin, request.after)
        start = max(begin, size - LOG_BYTES)
        file.seek(start)
        content = file.read(LOG_BYTES)
        if request.after is None:
            older = _end_of_older(path, LOG_BYTES - len(content), since_s)
            # A reader of the end wants whole lines; one who follows already has the beginning of the first.
            is_cut = start > begin or len(older) > 0
            content = _last_lines(older + content, request.lines, is_cut=is_cut)
        text, left = _decoded(content)
        read_to = file.tell()
        return LogAnswer(
            text=text, start=max(0, read_to - len(content)), end=read_to - left
        )

    def _note(self, path: Path) -> None:
        found = path.stat()
        notes = self._notes.setdefault(path, deque(maxlen=MAX_NOTES))
        # A log that was rotated begins again, and what was noted before says nothing of it.
        if notes and notes[-1].size > found.st_size:
            notes.clear()
        if not notes or notes[-1].size < found.st_size:
            notes.append(SizeNote(written_s=found.st_mtime, size=found.st_size))

    def _size_at(self, path: Path, moment_s: float) -> int:
        """How long the log was at that moment; 0 where it is not noted, which shows too much rather than too little."""
        notes = self._notes.get(path, ())
        return max(
            (each.size for each in notes if each.written_s < moment_s), default=0
        )


def _logs(directory: Path) -> Iterable[Path]:
    return (directory / "logs").glob("*.log")


def _logs_of(directory: Path, name: str) -> Iterator[Path]:
    """Logs of a replica and of its successors, or of a task."""
    # `agents.base.successors` names them `r1~8`, of which a file's name makes `r1_8`.
    successor = re.compile(rf"{re.escape(name)}_([0-9]+)-")
    for path in _logs(directory):
        found = successor.match(path.name)
        if path in (
            log_path(directory, name),
            found and log_path(directory, f"{name}~{found[1]}"),
        ):
            yield path


def _end_of_older(log: Path, length: int, since_s: float) -> bytes:
    """The end of what was rotated away: right after that the log itself is empty."""
    try:
        with log.with_suffix(".log.1").open("rb") as file:
            if length <= 0 or os.fstat(file.fileno()).st_mtime < since_s:
                return b""
            file.seek(max(0, file.seek(0, os.SEEK_END) - length))
            return file.read(length)
    except FileNotFoundError:
        return b""


def _last_lines(content: bytes, lines: int | None, *, is_cut: bool) -> bytes:
    """The last lines; `is_cut`: the first one may lack its beginning."""
    found = io.BytesIO(content).readlines()
    # A single endless line, as of a progress bar, is shown as far as there is room.
    if is_cut and len(found) > 1:
        del found[0]
    return b"".join(found if lines is None else found[-lines:])


def _decoded(content: bytes) -> tuple[str, int]:
    """The text, and how many bytes at its end begin a character whose rest is not written yet."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(content)
    return text, len(decoder.getstate()[0])
