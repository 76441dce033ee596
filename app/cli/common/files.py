"""Files of commands that need no server: results go to a path, or to stdout for `-`."""

import csv
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from gzip import GzipFile
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from app.cli.common.errors import CliError

STDIO = Path("-")


def summary_stream(*outputs: Path | None) -> TextIO:
    """Where words for people go: not into the way of results that go to stdout."""
    return sys.stderr if STDIO in outputs else sys.stdout


def check_place(path: Path | None) -> None:
    """Before long work: that a file could be there. Raises CliError."""
    if path is None or path == STDIO:
        return
    if path.is_dir():
        # Tried here and not by writing: an existing file must survive a command that fails later.
        raise CliError(f"cannot write {path}: it is a directory")
    if not path.parent.is_dir():
        raise CliError(f"cannot write {path}: there is no directory {path.parent}")


def write_text(path: Path, text: str, *, stream: TextIO) -> None:
    """Write a whole file, and say so on a stream unless the file is stdout. Raises CliError."""
    if path == STDIO:
        with standard_output() as stdout:
            stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error
    stream.write(f"Wrote {path}\n")


def write_csv(
    path: Path, rows: Iterable[Sequence[str]], *, notes: Sequence[str] = ()
) -> None:
    """Write rows as CSV below their notes, and say so unless it is stdout; a name in .gz is packed. Raises CliError."""
    if path == STDIO:
        with standard_output() as stdout:
            _write_rows(stdout, rows, notes)
        return
    try:
        with _open_text(path) as stream:
            _write_rows(stream, rows, notes)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error
    sys.stdout.write(f"Wrote {path}\n")


@contextmanager
def standard_output() -> Iterator[TextIO]:
    """Stdout for a whole result, which is then out. Raises CliError where there is no room for it.

    A reader that went away is not an error: BrokenPipeError goes on as it is.
    """
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        give_up_stdout()
        raise CliError(f"cannot write to standard output: {error.strerror}") from error


def give_up_stdout() -> None:
    """What it still holds goes nowhere: the interpreter would try, and complain, once more at its end."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _write_rows(
    stream: TextIO, rows: Iterable[Sequence[str]], notes: Sequence[str]
) -> None:
    stream.writelines(f"# {note}\n" for note in notes)
    csv.writer(stream, lineterminator="\n").writerows(rows)


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    if path.suffix != ".gz":
        with path.open("w", encoding="utf-8", newline="") as stream:
            yield stream
        return
    # Neither name nor time go into the file, so that the same rows always give the same bytes.
    with (
        path.open("wb") as packed,
        GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as unpacked,
        TextIOWrapper(unpacked, encoding="utf-8", newline="") as stream,
    ):
        yield stream
