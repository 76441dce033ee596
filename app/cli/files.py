"""Files of commands that need no server: results go to a path, or to stdout for `-`."""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from app.cli.errors import CliError

STDIO = Path("-")


def summary_stream(*outputs: Path | None) -> TextIO:
    """Where words for people go: not into the way of results that go to stdout."""
    return sys.stderr if STDIO in outputs else sys.stdout


def write_text(path: Path, text: str, *, stream: TextIO) -> None:
    """Write a whole file, and say so on a stream unless the file is stdout. Raises CliError."""
    if path == STDIO:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error
    stream.write(f"Wrote {path}\n")


def write_csv(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write rows as CSV, and say so unless it is stdout. Raises CliError."""
    if path == STDIO:
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
        return
    try:
        with path.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error
    sys.stdout.write(f"Wrote {path}\n")
