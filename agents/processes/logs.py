"""What a worker writes: one log per replica of bounded size; and what messages quote of it and of a worker's answers.

The worker writes into the file itself, so that it can go on while no agent runs. When the file has grown too long its
end is copied to `NAME.log.1` and the file is emptied; what is written between the two steps is lost.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

LIMIT_BYTES = 4 * 1024 * 1024
"""A log's limit; with the copy of the one before it a replica has twice as much, and what comes between two looks."""
TAIL_LINES = 12
TAIL_CHARACTERS = 900
"""What a message of the wire, of 2000, can hold besides the rest."""
EXCERPT_CHARACTERS = 300
"""As much of an answer as fits a message that may quote several."""


def rotate(log: Path, *, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Keep the log's end aside and empty it where it is longer than the limit; whether that was so."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > limit_bytes:
            log.with_suffix(".log.1").write_bytes(_end(log, limit_bytes))
            # Emptied and not replaced: the worker keeps its descriptor, and would write on into a removed file.
            os.truncate(log, 0)
            return True
    return False


def rotate_all(logs: Iterable[Path]) -> None:
    """Rotate each of them."""
    for log in logs:
        rotate(log)


def tail(log: Path) -> str:
    """The last lines, printable, in one line; empty when there are none."""
    text = b""
    with contextlib.suppress(OSError):
        text = _end(log, 4 * TAIL_CHARACTERS)
    lines = [
        line.strip()
        for line in text.decode("utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    return plain(" | ".join(lines[-TAIL_LINES:]))[-TAIL_CHARACTERS:]


def plain(text: str) -> str:
    """The text with a blank in place of all that is not printable."""
    # What a worker said may hold line ends, with which it would write log lines of the agent's, or commands for a
    # terminal, or halves of a character, which cannot be encoded for the wire.
    return "".join(each if each.isprintable() else " " for each in text)


def excerpt(said: bytes) -> str:
    """The beginning of an answer, printable."""
    return plain(said[:EXCERPT_CHARACTERS].decode("utf-8", errors="replace"))


def error_text(error: Exception) -> str:
    """The beginning of what an error says, printable; its type where it says nothing."""
    # Errors quote what they could not read: an answer that is no HTTP comes whole.
    return plain(str(error)[:EXCERPT_CHARACTERS]) or type(error).__name__


def _end(log: Path, length: int) -> bytes:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - length))
        return file.read(length)
