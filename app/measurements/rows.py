"""Rows of CSV files, one at a time, read strictly: UTF-8, one header, commas, as many cells in every row.

Lines above the header that begin with "# " are notes, such as source and licence. A file whose name ends in .gz is
unpacked on the way. Memory stays small, however long the file is.
"""

import csv
import gzip
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from app.base.errors import InvalidRequest

if TYPE_CHECKING:
    from _csv import Reader

STDIN = Path("-")
MAX_LINE = 1 << 20
"""Bytes; a small file that unpacks to one endless line must not fill the memory."""
MAX_NOTES = 100

_BOM = b"\xef\xbb\xbf"
_PACKED = ".gz"

_ARCHIVES = (
    ".tar",
    ".tgz",
    ".tar.gz",
    ".tar.xz",
    ".xz",
    ".zip",
    ".rar",
    ".7z",
    ".zst",
    ".bz2",
)
_LFS = "version https://git-lfs"
_SEPARATOR_NOTE = "sep="
"""How Excel is told the separator: a line of its own above the header, such as `sep=,`."""

CheckHeader = Callable[[str, Sequence[str]], None]
"""Given the header's place and its names; raises InvalidRequest for one that the kind of file cannot have."""

Row = tuple[int, list[str]]
"""The line of the file on which a row ends, and its cells, stripped."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """A CSV file that is open: its header, and the rows below, to be taken once."""

    file: str
    names: Sequence[str]
    """Columns, in the order of the file."""
    notes: tuple[str, ...]
    """Lines above the header, without their mark."""
    rows: Iterator[Row]
    """At least one. Raises InvalidRequest on the way."""
    header_line: int = 1
    written_by: str = ""
    """The program that wrote the file, where the form of a JSON document tells it."""

    @property
    def header_place(self) -> str:
        """Where errors about columns are."""
        return f"{self.file}:{self.header_line}"

    def refusal(
        self, problem: str, *, line: int | None = None, column: str = ""
    ) -> InvalidRequest:
        """The error that names the file, or a place in it."""
        return refusal(problem, file=self.file, line=line, column=column)


def open_rows(source: Path, check_header: CheckHeader) -> Rows:
    """The rows of a CSV file, or of stdin for `-`; blank lines are passed over. Raises InvalidRequest."""
    file = file_name(source)
    return rows_of(file, text_lines(file, byte_lines(source)), check_header)


def rows_of(
    file: str,
    lines: Iterator[str],
    check_header: CheckHeader,
    *,
    header: Sequence[str] | None = None,
) -> Rows:
    """The rows of CSV lines. header: names of the columns where the file has none. Raises InvalidRequest."""
    notes, lines = _split_notes(file, lines)
    reader = csv.reader(lines, strict=True)
    rows = _filled_rows(file, reader, len(notes))
    place, names = (1, header) if header is not None else next(rows, (0, None))
    if names is None:
        raise refusal(
            "the file is empty; its first line must name the columns", file=file
        )
    _check_separator_and_repeats(f"{file}:{place}", names)
    check_header(f"{file}:{place}", names)
    return Rows(
        file=file,
        names=names,
        notes=notes,
        rows=_even_rows(file, rows, len(names)),
        header_line=place,
    )


def refusal(
    problem: str, *, file: str, line: int | None = None, column: str = ""
) -> InvalidRequest:
    """The error that names a place: `file:line: column NAME: problem`."""
    place = file if line is None else f"{file}:{line}"
    return InvalidRequest(problem, f"{place}: column {column}" if column else place)


def file_name(source: Path) -> str:
    """What errors call a file."""
    return "stdin" if source == STDIN else str(source)


def read_bytes(source: Path) -> bytes:
    """All of a file, or of stdin for `-`. Raises InvalidRequest."""
    return b"".join(byte_lines(source, longest=-1))


def require_columns(
    place: str, names: Sequence[str], needed: Iterable[str], what: str
) -> None:
    """Raises InvalidRequest when a header lacks columns of a kind of file."""
    if missing := [name for name in needed if name not in names]:
        s = "s" if len(missing) > 1 else ""
        problem = f"the header lacks the column{s} {', '.join(missing)}, which {what} needs; it has {', '.join(names)}"
        raise refusal(problem, file=place)


def _split_notes(
    file: str, lines: Iterator[str]
) -> tuple[tuple[str, ...], Iterator[str]]:
    """The notes at the top, and the lines below them."""
    notes: list[str] = []
    for line in lines:
        if not (line.startswith("# ") or line.strip() == "#"):
            return tuple(notes), chain([line], lines)
        notes.append(line[1:].strip())
        if len(notes) > MAX_NOTES:
            raise refusal(
                f"more than {MAX_NOTES} lines of notes", file=file, line=len(notes)
            )
    return tuple(notes), lines


def _check_separator_and_repeats(place: str, names: Sequence[str]) -> None:
    if names[0].startswith(("{", "[")):
        problem = "is JSON, and must be CSV; `plimsoll trace import` makes CSV of traces in JSON"
        raise refusal(problem, file=place)
    if len(names) == 1 and (
        separator := next((mark for mark in ";\t|" if mark in names[0]), None)
    ):
        problem = f"the columns seem to be separated by {separator!r}; only commas separate them: export it with commas"
        raise refusal(problem, file=place)
    for index, name in enumerate(names):
        if name in names[:index]:
            raise refusal("the header names this column twice", file=place, column=name)


def _filled_rows(file: str, reader: "Reader", lines_above: int) -> Iterator[Row]:
    while True:
        try:
            row = next(reader)
        # Inside a generator it would end as a RuntimeError.
        except StopIteration:
            return
        except csv.Error as error:
            raise refusal(
                f"not CSV: {error}", file=file, line=lines_above + reader.line_num
            ) from error
        # A single blank cell is a blank line, as editors leave it at the end of a file.
        if row and (len(row) > 1 or row[0].strip()):
            yield lines_above + reader.line_num, [cell.strip() for cell in row]


def _even_rows(file: str, rows: Iterator[Row], width: int) -> Iterator[Row]:
    is_empty = True
    for line, cells in rows:
        if len(cells) != width:
            problem = (
                f"the row has {len(cells)} cells, the header names {width} columns"
            )
            raise refusal(problem, file=file, line=line)
        is_empty = False
        yield line, cells
    if is_empty:
        raise refusal("there are no rows below the header", file=file)


def text_lines(file: str, lines: Iterator[bytes]) -> Iterator[str]:
    """Lines one by one, so that an error has its line. Raises InvalidRequest."""
    for number, line in enumerate(lines, start=1):
        # A longer line came in a piece of MAX_LINE + 1 bytes, which is how it is known without being read whole.
        if len(line) > MAX_LINE:
            raise refusal(
                f"the line is longer than {MAX_LINE:,} bytes", file=file, line=number
            )
        try:
            # Spreadsheets put a byte order mark in front, which would become part of the first column's name.
            text = line.removeprefix(_BOM).decode() if number == 1 else line.decode()
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 text: {error.reason} at byte {error.start + 1} of the line; save it as UTF-8"
            raise refusal(problem, file=file, line=number) from error
        yield _first_line(file, text) if number == 1 else text


def _first_line(file: str, text: str) -> str:
    """The first line, blank where it only names the separator. Raises InvalidRequest for what stands in for a file."""
    if text.startswith(_LFS):
        raise refusal(
            "is a pointer of Git LFS and not the file itself; fetch it by `git lfs pull`",
            file=file,
        )
    # A blank line is passed over, and the lines below keep their numbers.
    return "\n" if text.lower().startswith(_SEPARATOR_NOTE) else text


def byte_lines(source: Path, longest: int = MAX_LINE + 1) -> Iterator[bytes]:
    """Lines, the longer ones in pieces. longest: bytes of a piece; -1 = complete lines. Raises InvalidRequest."""
    if source == STDIN:
        # Bytes, not text: the encoding is checked line by line, by ourselves.
        yield from iter(lambda: sys.stdin.buffer.readline(longest), b"")
        return
    try:
        with _open(source) as stream:
            yield from iter(lambda: stream.readline(longest), b"")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidRequest(f"cannot unpack {source}: {error}") from error
    except OSError as error:
        raise InvalidRequest(f"cannot read {source}: {error.strerror}") from error


def _open(source: Path) -> "BinaryIO | gzip.GzipFile":
    if source.name.lower().endswith(_ARCHIVES):
        raise InvalidRequest(f"{source} is an archive; unpack it first")
    return gzip.open(source) if source.suffix == _PACKED else source.open("rb")
