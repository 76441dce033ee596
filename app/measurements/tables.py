"""Tables from CSV files, with all cells in memory as text, equal ones once: a million rows need some 100 MB."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.base.errors import InvalidRequest
from app.measurements.rows import CheckHeader, Rows, open_rows, refusal
from solvers.types.documents.strict_json import MAX_NUMBER

Reals = npt.NDArray[np.float64]
NO_VALUE = frozenset(("", "nan", "null", "none", "undefined", "n/a", "na", "-"))
"""How programs write that there is no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """The numbers that a column may hold."""

    above: float | None = None
    at_least: float | None = None
    at_most: float = MAX_NUMBER

    def holds(self, values: Reals) -> npt.NDArray[np.bool_]:
        """(N,) whether each value is allowed; NaN is not."""
        low = (
            values > self.above
            if self.above is not None
            else values >= (self.at_least or 0.0)
        )
        return low & (values <= self.at_most)

    def holds_one(self, value: float) -> bool:
        """Whether one value is allowed."""
        return bool(self.holds(np.array([value]))[0])

    def __str__(self) -> str:
        low = (
            f"above {self.above:g}"
            if self.above is not None
            else f"at least {self.at_least or 0.0:g}"
        )
        return (
            low if self.at_most == MAX_NUMBER else f"{low} and at most {self.at_most:g}"
        )


POSITIVE = NumberRange(above=0.0)
NOT_NEGATIVE = NumberRange(at_least=0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CsvTable:
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
                problem = (
                    f"{cell!r} holds characters that cannot be printed"
                    if cell
                    else "the cell is empty"
                )
                raise self.refusal(problem, row=row, column=column)
        return tuple(cells)

    def numbers(
        self, column: str, allowed: NumberRange, *, or_empty: bool = False
    ) -> Reals:
        """(N,) numbers of a column; NaN for empty cells where they are allowed. Raises InvalidRequest."""
        cells = self.cells[column]
        try:
            # The quick way for files that are right; only where a cell is no number each one is tried.
            values = np.array([float(cell) if cell else math.nan for cell in cells])
        except ValueError:
            values = np.array([_float_or_nan(cell) for cell in cells])
        is_good = allowed.holds(values)
        if or_empty:
            is_good |= np.array([not cell for cell in cells], dtype=np.bool_)
        # Python takes 1_000 for a number; no other program does.
        is_good &= np.array(["_" not in cell for cell in cells], dtype=np.bool_)
        if not is_good.all():
            row = int(np.argmin(is_good))
            raise self.refusal(
                _number_problem(cells[row], allowed, or_empty=or_empty),
                row=row,
                column=column,
            )
        return values


def parse_number(cell: str, allowed: NumberRange) -> float:
    """One number from a text. Raises ValueError, which says what it must be."""
    value = _float_or_nan(cell)
    if "_" in cell or not allowed.holds_one(value):
        raise ValueError(_number_problem(cell, allowed))
    return value


def read_table(source: Path, check_header: CheckHeader) -> CsvTable:
    """A CSV file, or stdin for `-`; blank lines are passed over. Raises InvalidRequest."""
    return make_table(open_rows(source, check_header))


def make_table(opened: Rows) -> CsvTable:
    """All rows of a file that is open. Raises InvalidRequest."""
    columns: list[list[str]] = [[] for _ in opened.names]
    lines = array("L")
    pool: dict[str, str] = {}
    for line, row in opened.rows:
        lines.append(line)
        for column, cell in zip(columns, row, strict=True):
            # Equal texts are kept once: columns of conditions have few different ones.
            column.append(pool.setdefault(cell, cell))
    return CsvTable(
        file=opened.file,
        cells=dict(zip(opened.names, columns, strict=True)),
        lines=lines,
    )


def _float_or_nan(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _number_problem(cell: str, allowed: NumberRange, *, or_empty: bool = False) -> str:
    if not cell:
        return f"the cell is empty; it must be a number {allowed}"
    # It is a number, so that only the range can be wrong.
    if math.isfinite(_float_or_nan(cell)) and "_" not in cell:
        return f"must be {allowed}, not {cell}"
    remedy = "; leave the cell empty for what is not known" if or_empty else ""
    return f"must be a number {allowed}, not {cell!r}{remedy}"
