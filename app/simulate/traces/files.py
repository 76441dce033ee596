"""Traces as CSV: `second`, then the requests of each step in one column per series.

Lines above the header that begin with "# " are notes. With steps of a second a cell is the rate in that second; with
longer ones it is the sum over the step. Other people's files may have `t_s`, `t_min` or `timestamp` for the time, and
columns that end in `_rps`, which hold rates (app.measurements.traces reads the same columns one by one). Times count
from the first row on.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

import numpy as np

from app.base.errors import InvalidRequest, no_such
from app.measurements.rows import Rows, open_rows, refusal
from app.measurements.tables import NOT_NEGATIVE, Reals, parse_number
from app.measurements.traces import (
    ANY_TIME,
    DATED,
    SECONDS_PER,
    find_steps,
    moment_s,
    time_column,
)
from app.simulate.traces.jobs import JobList, check_job_columns, make_jobs
from app.simulate.traces.trace import MAX_VALUES, RATE_SUFFIX, RateTrace, check_size
from solvers.types.documents.strict_json import MAX_NUMBER

TIME = "second"


class Missing(StrEnum):
    """What to do about steps without a row, and empty cells."""

    REFUSE = "refuse"
    ZERO = "zero"
    """Nothing arrived."""
    HOLD = "hold"
    """The rate stayed what it was."""


def read_any(source: Path) -> RateTrace | JobList:
    """The trace or the job list of a file (`-` = stdin, .gz = packed), as its header says.

    Raises InvalidRequest, which names file, line and column.
    """
    opened = open_rows(source, _check_any_header)
    return make_jobs(opened) if _are_jobs(opened.names) else make_trace(opened)


def read_trace(
    source: Path,
    *,
    columns: Sequence[str] = (),
    missing: Missing = Missing.REFUSE,
) -> RateTrace:
    """The trace of a file. columns: those to take; none = all. Raises InvalidRequest."""
    return make_trace(
        open_rows(source, check_trace_columns),
        columns=columns,
        missing=missing,
    )


def make_trace(
    opened: Rows,
    *,
    columns: Sequence[str] = (),
    missing: Missing = Missing.REFUSE,
) -> RateTrace:
    """The trace of a file that is open. Raises InvalidRequest."""
    time = time_column(opened.file, opened.names)
    wanted = _wanted(opened, time, columns)
    lines, times_s, values = _read(
        opened, time, wanted, or_missing=missing is not Missing.REFUSE
    )

    def refuse(problem: str, row: int) -> InvalidRequest:
        return refusal(
            problem,
            file=opened.file,
            line=lines[row],
            column=time,
        )

    places, _ = find_steps(times_s, refuse)
    gaps = np.diff(places) > 1
    if missing is Missing.REFUSE and gaps.any():
        row = int(np.argmax(gaps)) + 1
        steps = f"{places[row] - places[row - 1] - 1} steps before this row are missing"
        raise refuse(
            f"{steps}; `plimsoll trace import rates` takes them as 0 with --missing {Missing.ZERO}",
            row,
        )
    # Over the entire trace: the difference of two rows has the rounding of what was written.
    step_s = float((times_s[-1] - times_s[0]) / places[-1])
    try:
        # Before the grid is made: two rows that are years apart would fill the memory.
        check_size(int(places[-1]) + 1, len(wanted))
        grid = np.full((places[-1] + 1, len(wanted)), np.nan)
        grid[places] = values / _units(wanted, step_s)
        return RateTrace(
            names=tuple(name.removesuffix(RATE_SUFFIX) for name in wanted),
            rates_rps=_filled(grid, missing),
            step_s=step_s,
            notes=opened.notes,
        )
    except InvalidRequest as error:
        raise refusal(str(error), file=opened.file) from error


def _units(names: Sequence[str], step_s: float) -> Reals:
    """(S,) what a cell of each column is divided by to be a rate: columns of rates are one, others count a step."""
    is_rate = np.array([name.endswith(RATE_SUFFIX) for name in names])
    return np.where(is_rate, 1.0, step_s)


def trace_rows(trace: RateTrace) -> Iterator[Sequence[str]]:
    """A header and rows; the notes go above them."""
    yield (TIME, *trace.names)
    for number, requests in enumerate(trace.rates_rps * trace.step_s):
        yield (
            f"{number * trace.step_s:.12g}",
            *(f"{value:.12g}" for value in requests.tolist()),
        )


def check_trace_columns(place: str, names: Sequence[str]) -> None:
    """Raises InvalidRequest for a header that is no trace's."""
    time = time_column(place, names)
    if len(names) < 2:
        raise refusal(
            f"beside {time} there must be a column for each series", file=place
        )


def _check_any_header(place: str, names: Sequence[str]) -> None:
    (check_job_columns if _are_jobs(names) else check_trace_columns)(place, names)


def _are_jobs(names: Sequence[str]) -> bool:
    return "submit_s" in names


def _wanted(opened: Rows, time: str, columns: Sequence[str]) -> list[str]:
    series = [name for name in opened.names if name != time]
    for name in columns:
        if name not in series:
            raise refusal(no_such("column", name, series), file=opened.file)
    return list(columns) or series


def _read(
    rows: Rows,
    time: str,
    wanted: Sequence[str],
    *,
    or_missing: bool,
) -> tuple[Sequence[int], Reals, Reals]:
    """(N,) lines, (N,) times and (N, S) cells of the wanted columns, NaN for those that are missing."""
    places = [rows.names.index(name) for name in wanted]
    time_place = rows.names.index(time)
    parse_time = _time_parser(time)
    # Arrays of machine numbers: lists of Python's would take four times the memory for twenty million values.
    lines = array("L")
    times_s = array("d")
    values = array("d")
    for line, cells in rows.rows:
        lines.append(line)
        try:
            times_s.append(parse_time(cells[time_place]))
        except ValueError as error:
            raise refusal(
                str(error),
                file=rows.file,
                line=line,
                column=time,
            ) from error
        row = [cells[place] for place in places]
        try:
            values.extend(_numbers(row, or_missing=or_missing))
        except ValueError:
            raise _bad_cell(
                rows.file, line, wanted, row, or_missing=or_missing
            ) from None
        if len(values) > MAX_VALUES:
            raise refusal(
                f"more than {MAX_VALUES:,} values; take fewer columns",
                file=rows.file,
                line=line,
            )
    return lines, np.array(times_s), np.array(values).reshape(-1, len(wanted))


def _time_parser(column: str) -> Callable[[str], float]:
    if column == DATED:
        return moment_s
    return lambda cell: parse_number(cell, ANY_TIME) * SECONDS_PER[column]


def _numbers(cells: Sequence[str], *, or_missing: bool) -> list[float]:
    """Quickly; ValueError says no more than that something is wrong."""
    values = [math.nan if or_missing and not cell else float(cell) for cell in cells]
    # Python takes 1_000 for a number; no other program does.
    if "_" in "".join(cells):
        raise ValueError
    # NaN, the missing cell, is the only value that differs from itself.
    if not all(
        0.0 <= value <= MAX_NUMBER or (or_missing and value != value)
        for value in values
    ):
        raise ValueError
    return values


def _bad_cell(
    file: str,
    line: int,
    names: Sequence[str],
    cells: Sequence[str],
    *,
    or_missing: bool,
) -> InvalidRequest:
    for name, cell in zip(names, cells, strict=True):
        try:
            if cell or not or_missing:
                parse_number(cell, NOT_NEGATIVE)
        except ValueError as error:
            return refusal(
                str(error),
                file=file,
                line=line,
                column=name,
            )
    raise AssertionError(f"nothing is wrong with {cells}")


def _filled(grid: Reals, missing: Missing) -> Reals:
    """(T, S) without NaN."""
    if missing is Missing.HOLD:
        # The number of the last step that has a value, for every step; 0 before the first one, which stays NaN.
        steps = np.arange(len(grid))[:, None]
        last = np.maximum.accumulate(np.where(np.isnan(grid), 0, steps), axis=0)
        grid = np.take_along_axis(grid, last, axis=0)
    return grid if missing is Missing.REFUSE else np.nan_to_num(grid)
