"""Tables from CSV files, read strictly: UTF-8, one header, commas, as many cells in every row.

Cells are kept as text, stripped, equal ones once, so that a million rows need some 100 MB.
"""

import csv
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from app.errors import InvalidRequest
from solvers.document import LARGEST_NUMBER

if TYPE_CHECKING:
    from _csv import Reader

Reals = npt.NDArray[np.float64]

STDIN = Path("-")
_BOM = b"\xef\xbb\xbf"

CheckHeader = Callable[[str, Sequence[str]], None]
"""Given the header's place and its names; raises InvalidRequest for one that the kind of file cannot have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The numbers that a column may hold."""

    above: float | None = None
    at_least: float | None = None
    at_most: float = LARGEST_NUMBER

    def holds(self, values: Reals) -> npt.NDArray[np.bool_]:
        """(N,) whether each value is allowed; NaN is not."""
        low = values > self.above if self.above is not None else values >= (self.at_least or 0.0)
        return low & (values <= self.at_most)

    def holds_one(self, value: float) -> bool:
        """Whether one value is allowed."""
        return bool(self.holds(np.array([value]))[0])

    def __str__(self) -> str:
        low = f"above {self.above:g}" if self.above is not None else f"at least {self.at_least or 0.0:g}"
        return low if self.at_most == LARGEST_NUMBER else f"{low} and at most {self.at_most:g}"


POSITIVE = Range(above=0.0)
NOT_NEGATIVE = Range(at_least=0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """A CSV file's rows, by column."""

    file: str
    cells: Mapping[str, Sequence[str]]
    """Column name → (N,) texts, in the order of the file."""
    lines: Sequence[int]
    """(N,) line of the file on which each row ends."""

    def __len__(self) -> int:
        return len(self.lines)

    def refusal(self, problem: str, *, row: int, column: str) -> InvalidRequest:
        """The error that names a cell."""
        return refusal(problem, file=self.file, line=self.lines[row], column=column)

    def names(self, column: str) -> tuple[str, ...]:
        """(N,) texts of a column in which no cell may be empty or hold control characters."""
        cells = self.cells[column]
        bad = {cell for cell in set(cells) if not cell or not cell.isprintable()}
        for row, cell in enumerate(cells if bad else ()):
            if cell in bad:
                problem = f"{cell!r} holds characters that cannot be printed" if cell else "the cell is empty"
                raise self.refusal(problem, row=row, column=column)
        return tuple(cells)

    def numbers(self, column: str, allowed: Range, *, or_empty: bool = False) -> Reals:
        """(N,) numbers of a column; NaN for empty cells where they are allowed. Raises InvalidRequest."""
        cells = self.cells[column]
        try:
            values = np.array([float(cell) if cell else math.nan for cell in cells])
        except ValueError:
            values = np.array([_float_or_nan(cell) for cell in cells])
        is_good = allowed.holds(values) | (np.array([not cell for cell in cells]) if or_empty else False)
        # Python takes 1_000 for a number; no other program does.
        is_good &= np.array(["_" not in cell for cell in cells], dtype=np.bool_)
        if not is_good.all():
            row = int(np.argmin(is_good))
            raise self.refusal(_number_problem(cells[row], allowed, or_empty=or_empty), row=row, column=column)
        return values


def parse_number(cell: str, allowed: Range) -> float:
    """One number from a text. Raises ValueError, which says what it must be."""
    value = _float_or_nan(cell)
    if "_" in cell or not allowed.holds_one(value):
        raise ValueError(_number_problem(cell, allowed))
    return value


def refusal(problem: str, *, file: str, line: int | None = None, column: str = "") -> InvalidRequest:
    """The error that names a place: `file:line: column NAME: problem`."""
    place = file if line is None else f"{file}:{line}"
    return InvalidRequest(problem, f"{place}: column {column}" if column else place)


def file_name(source: Path) -> str:
    """What errors call a file."""
    return "stdin" if source == STDIN else str(source)


def read_bytes(source: Path) -> bytes:
    """All of a file, or of stdin for `-`. Raises InvalidRequest."""
    return b"".join(_lines(source))


def read_table(source: Path, check_header: CheckHeader) -> Table:
    """A CSV file, or stdin for `-`; blank lines are passed over. Raises InvalidRequest."""
    file = file_name(source)
    reader = csv.reader(_text_lines(file, _lines(source)), strict=True)
    rows = _rows(file, reader)
    header = next(rows, None)
    if header is None:
        raise refusal("the file is empty; its first line must name the columns", file=file)
    names = [name.strip() for name in header]
    place = f"{file}:{reader.line_num}"
    _check_separator_and_repeats(place, names)
    check_header(place, names)
    columns: list[list[str]] = [[] for _ in names]
    lines = array("L")
    pool: dict[str, str] = {}
    for row in rows:
        if len(row) != len(names):
            problem = f"the row has {len(row)} cells, the header names {len(names)} columns"
            raise refusal(problem, file=file, line=reader.line_num)
        lines.append(reader.line_num)
        for column, cell in zip(columns, row, strict=True):
            column.append(pool.setdefault(cell, cell.strip()))
    if not lines:
        raise refusal("there are no rows below the header", file=file)
    return Table(file=file, cells=dict(zip(names, columns, strict=True)), lines=lines)


def require_columns(place: str, names: Sequence[str], needed: Iterable[str], what: str) -> None:
    """Raises InvalidRequest when a header lacks columns of a kind of file."""
    if missing := [name for name in needed if name not in names]:
        s = "s" if len(missing) > 1 else ""
        problem = f"the header lacks the column{s} {', '.join(missing)}, which {what} needs; it has {', '.join(names)}"
        raise refusal(problem, file=place)


def _check_separator_and_repeats(place: str, names: Sequence[str]) -> None:
    if len(names) == 1 and (separator := next((mark for mark in ";\t|" if mark in names[0]), None)):
        problem = f"the columns seem to be separated by {separator!r}; only commas separate them"
        raise refusal(problem, file=place)
    for index, name in enumerate(names):
        if name in names[:index]:
            raise refusal("the header names this column twice", file=place, column=name)


def _rows(file: str, reader: "Reader") -> Iterator[list[str]]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise refusal(f"not CSV: {error}", file=file, line=reader.line_num) from error
        if row and (len(row) > 1 or row[0].strip()):
            yield row


def _text_lines(file: str, lines: Iterator[bytes]) -> Iterator[str]:
    """Line by line, so that an error has its line."""
    for number, line in enumerate(lines, start=1):
        try:
            yield line.removeprefix(_BOM).decode() if number == 1 else line.decode()
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 text: {error.reason} at byte {error.start + 1} of the line"
            raise refusal(problem, file=file, line=number) from error


def _lines(source: Path) -> Iterator[bytes]:
    if source == STDIN:
        yield from sys.stdin.buffer
        return
    try:
        with source.open("rb") as stream:
            yield from stream
    except OSError as error:
        raise InvalidRequest(f"cannot read {source}: {error.strerror}") from error


def _float_or_nan(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _number_problem(cell: str, allowed: Range, *, or_empty: bool = False) -> str:
    if not cell:
        return f"the cell is empty; it must be a number {allowed}"
    if math.isfinite(_float_or_nan(cell)) and "_" not in cell:
        return f"must be {allowed}, not {cell}"
    remedy = "; leave the cell empty for what is not known" if or_empty else ""
    return f"must be a number {allowed}, not {cell!r}{remedy}"
