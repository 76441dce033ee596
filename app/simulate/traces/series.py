"""Series in even steps from the rows of a file: a column of times, and a column of rates or counts for each series."""

import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from app.base.errors import InvalidRequest
from app.measurements.rows import Rows
from app.measurements.tables import NO_VALUE, NOT_NEGATIVE, Reals, parse_number
from app.measurements.times import (
    CLOCK_FALL_S,
    TimeReader,
    by_name,
    clock_hint,
    require_column,
)
from app.measurements.traces import find_steps
from app.simulate.traces.trace import MAX_VALUES, RATE_SUFFIX, RateTrace, check_size
from solvers.types.documents.strict_json import MAX_NUMBER

_THOUSANDS = by_name({"K, k": 1e3, "M, Mil": 1e6, "B, Bil": 1e9})
_CELL = re.compile(
    r"([+-]?[\d.,]+(?:[eE][+-]?\d+)?)\s*(Mil|Bil|[kKMB])?(?:\s+|(?=/)|$)(.*)"
)
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_PER_SECOND = by_name(
    {
        "req/s, reqs/s, requests/s, requests/sec, req/sec": 1.0,
        "reqps, rps, qps, r/s, q/s, /s, hz, cps": 1.0,
        "ops/s, ops, c/s, rd/s, wr/s, io/s, iops": 1.0,
        "req/m, reqs/min, req/min, requests/min": 1.0 / 60.0,
        "rpm, reqpm, opm, ops/m, c/m, /m, /min": 1.0 / 60.0,
        "req/h, requests/h, c/h, /h": 1.0 / 3600.0,
    }
)
"""Units of rates as dashboards write them behind a value; those of Grafana's formats `throughput` are among them."""


class Missing(StrEnum):
    """What to do about steps without a row, and empty cells."""

    REFUSE = "refuse"
    ZERO = "zero"
    """Nothing arrived."""
    HOLD = "hold"
    """The rate stayed what it was."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeriesCells:
    """The cells of several series as the file has them."""

    names: tuple[str, ...]
    """(S,) columns."""
    lines: Sequence[int]
    """(N,) lines of the file."""
    times_s: Reals
    """(N,)"""
    values: Reals
    """(N, S) NaN for a value that is missing."""
    units: tuple[str, ...]
    """(S,) what the cells themselves say, such as req/s; empty where they are mere numbers."""

    @property
    def per_second(self) -> Reals:
        """(S,) requests per second of 1 in a cell of a column with a unit; NaN for mere numbers."""
        return np.array([_PER_SECOND.get(unit, math.nan) for unit in self.units])


def wanted_columns(opened: Rows, time: str, columns: Sequence[str]) -> list[str]:
    """The columns that are asked for; all but the time where none is named. Raises InvalidRequest."""
    series = [name for name in opened.names if name != time]
    return [require_column(opened.file, series, name) for name in columns] or series


def pivoted(opened: Rows, time: str, by: str, columns: Sequence[str]) -> Rows:
    """A file with a row for each step and series as one with a column for each series.

    columns: the one that holds the values; none = the only other one. Raises InvalidRequest.
    """
    # By the rules of any other column: without regard to case, and never the time.
    (by_column,) = wanted_columns(opened, time, [by])
    values = [
        name for name in wanted_columns(opened, time, columns) if name != by_column
    ]
    if len(values) != 1:
        problem = f"say by --columns which one of {', '.join(values)} holds the values"
        raise opened.refusal(problem, line=opened.header_line)
    places = [opened.names.index(name) for name in (time, by_column, values[0])]
    table: dict[str, dict[str, str]] = {}
    lines: dict[str, int] = {}
    series: dict[str, None] = {}
    for line, cells in opened.rows:
        moment, name, value = (cells[place] for place in places)
        lines.setdefault(moment, line)
        # Two values cannot both be the series', and their sum may mean nothing.
        if name in table.setdefault(moment, {}):
            problem = f"{name} has two values at {moment}"
            raise opened.refusal(problem, line=line, column=by_column)
        table[moment][name] = value
        series[name] = None
    rows = (
        (line, [moment, *(table[moment].get(name, "") for name in series)])
        for moment, line in lines.items()
    )
    return replace(opened, names=(time, *series), rows=rows)


def read_cells(
    rows: Rows, time: TimeReader, wanted: Sequence[str], missing: Missing
) -> SeriesCells:
    """The cells of the wanted columns. Raises InvalidRequest, which names file, line and column."""
    places = [rows.names.index(name) for name in wanted]
    time_place = rows.names.index(time.column)
    reader = _CellReader(rows, wanted, or_missing=missing is not Missing.REFUSE)
    # Arrays of machine numbers: lists of Python's would take four times the memory for twenty million values.
    lines = array("L")
    times_s = array("d")
    values = array("d")
    for line, cells in rows.rows:
        lines.append(line)
        times_s.append(_moment_s(rows, time, line, cells[time_place]))
        values.extend(reader.numbers(line, [cells[place] for place in places]))
        if len(values) > MAX_VALUES:
            problem = f"more than {MAX_VALUES:,} values; take fewer columns"
            raise rows.refusal(problem, line=line)
    return SeriesCells(
        names=tuple(wanted),
        lines=lines,
        times_s=np.array(times_s),
        values=np.array(values).reshape(-1, len(wanted)),
        units=tuple(reader.units[name] for name in wanted),
    )


def _moment_s(rows: Rows, time: TimeReader, line: int, cell: str) -> float:
    try:
        return time.seconds(cell)
    except ValueError as error:
        raise rows.refusal(str(error), line=line, column=time.column) from error


def make_rates(
    opened: Rows,
    cells: SeriesCells,
    time: TimeReader,
    missing: Missing,
    *,
    are_rates: Sequence[bool],
    names: Sequence[str] | None = None,
) -> RateTrace:
    """The series as rates. are_rates: (S,) whether mere numbers are rates, else the requests of a step.

    names: of the series; None = the columns without `_rps`. Raises InvalidRequest.
    """
    places = _places(opened, cells, time, missing)
    # Over the entire trace: the difference of two rows has the rounding of what was written.
    step_s = float((cells.times_s[-1] - cells.times_s[0]) / places[-1])
    plain = np.where(np.asarray(are_rates), 1.0, 1.0 / step_s)
    per_cell = np.where(np.isnan(cells.per_second), plain, cells.per_second)
    try:
        # Before the grid is made: two rows that are years apart would fill the memory.
        check_size(int(places[-1]) + 1, len(cells.names))
        grid = np.full((places[-1] + 1, len(cells.names)), np.nan)
        grid[places] = cells.values * per_cell
        own_names = [name.removesuffix(RATE_SUFFIX) for name in cells.names]
        return RateTrace(
            names=tuple(names or own_names),
            rates_rps=_filled(grid, missing),
            step_s=step_s,
            notes=opened.notes,
        )
    except InvalidRequest as error:
        raise opened.refusal(str(error)) from error


def _places(
    opened: Rows, cells: SeriesCells, time: TimeReader, missing: Missing
) -> npt.NDArray[np.int64]:
    """(N,) number of each row's step. Raises InvalidRequest for steps that are missing."""

    def refuse(problem: str, row: int) -> InvalidRequest:
        line = cells.lines[row]
        return opened.refusal(problem, line=line, column=time.column)

    places, _ = find_steps(cells.times_s, refuse, time)
    gaps = np.diff(places)
    if missing is not Missing.REFUSE or not (gaps > 1).any():
        return places
    row = int(np.argmax(gaps > 1)) + 1
    gap_s = float(cells.times_s[row] - cells.times_s[row - 1])
    # A gap of an hour may be the clock's, any other one is the file's.
    hint = clock_hint(time, gap_s) if gap_s >= CLOCK_FALL_S else ""
    raise refuse(_gap_problem(int(gaps[row - 1]) - 1, hint), row)


def _gap_problem(steps: int, hint: str) -> str:
    remedy = (
        f"`plimsoll trace import rates` takes them as 0 with --missing {Missing.ZERO}"
    )
    return f"{steps} steps before this row are missing; {remedy}{hint}"


class _CellReader:
    """Reads the cells of series, and remembers the units that stand behind numbers."""

    def __init__(self, rows: Rows, names: Sequence[str], *, or_missing: bool) -> None:
        self._rows = rows
        self._names = names
        self._or_missing = or_missing
        self.units = dict.fromkeys(names, "")

    def numbers(self, line: int, cells: Sequence[str]) -> list[float]:
        """The values of one row, NaN for those that are missing. Raises InvalidRequest."""
        try:
            values = [float(cell) for cell in cells]
        except ValueError:
            return self._slowly(line, cells)
        # Python takes 1_000 for a number; no other program does. NaN compares as false.
        if "_" in "".join(cells) or not all(
            0.0 <= each <= MAX_NUMBER for each in values
        ):
            return self._slowly(line, cells)
        return values

    def _slowly(self, line: int, cells: Sequence[str]) -> list[float]:
        values = []
        for name, cell in zip(self._names, cells, strict=True):
            try:
                values.append(self._number(name, cell))
            except ValueError as error:
                raise self._rows.refusal(str(error), line=line, column=name) from error
        return values

    def _number(self, name: str, cell: str) -> float:
        if cell.casefold() in NO_VALUE:
            if self._or_missing:
                return math.nan
            nothing = "the cell is empty" if not cell else f"{cell} is no value"
            raise ValueError(
                f"{nothing}; it must be a number {NOT_NEGATIVE}, or --missing zero takes it as nothing"
            )
        match = _CELL.fullmatch(cell)
        if match is None or not (match[2] or match[3]):
            if cell[0].isalpha() and "inf" not in cell.casefold():
                problem = f"must be a number {NOT_NEGATIVE}, not {cell!r}; --columns takes other columns"
                raise ValueError(
                    f"{problem}, --by {name} makes a series of each of its values"
                )
            return parse_number(_ungrouped(cell), NOT_NEGATIVE)
        # Dashboards write the same unit in capitals and small letters.
        unit = match[3].strip().casefold()
        self._keep_unit(name, cell, unit)
        return parse_number(_ungrouped(match[1]), NOT_NEGATIVE) * _THOUSANDS.get(
            match[2], 1.0
        )

    def _keep_unit(self, name: str, cell: str, unit: str) -> None:
        if unit and unit not in _PER_SECOND:
            if not re.search(r"[a-z%°µ]", unit):
                raise ValueError(f"must be a number {NOT_NEGATIVE}, not {cell!r}")
            raise ValueError(
                f"{cell!r} is in {unit}, which is no rate of requests; export requests per second, as mere numbers"
            )
        if unit and self.units[name] not in ("", unit):
            raise ValueError(
                f"{cell!r} is in {unit}, the cells above in {self.units[name]}"
            )
        self.units[name] = unit or self.units[name]


def _ungrouped(cell: str) -> str:
    """1234.5 of 1,234.5; a decimal comma stays, and is refused."""
    return cell.replace(",", "") if _GROUPED.fullmatch(cell) else cell


def _filled(grid: Reals, missing: Missing) -> Reals:
    """(T, S) without NaN."""
    if missing is Missing.HOLD:
        # The number of the last step that has a value, for every step; 0 before the first one, which stays NaN.
        steps = np.arange(len(grid))[:, None]
        last = np.maximum.accumulate(np.where(np.isnan(grid), 0, steps), axis=0)
        grid = np.take_along_axis(grid, last, axis=0)
    return grid if missing is Missing.REFUSE else np.nan_to_num(grid)
