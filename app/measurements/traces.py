"""Traces: a service's arrivals over time, from a CSV file with a column of times and a column of rates or counts.

app.measurements.times says what is read as a time. A column whose name ends in `_rps` holds rates, any other one the
requests of each step. Rows rise in time by multiples of one step; a step that is missing, or whose cell is empty, was
not measured.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.base.errors import InvalidRequest
from app.measurements.rows import refusal
from app.measurements.tables import NOT_NEGATIVE, Reals, read_table
from app.measurements.times import (
    TimeReader,
    clock_hint,
    find_column,
    time_column,
    times_of,
)
from solvers.forecast.seasons import COARSE_S, DAY_S, coarsen
from solvers.forecast.types import RequestSeries

VALUES = ("rate_rps", "arrivals", "requests")
RATE_SUFFIX = "_rps"

MAX_STEPS = 16_000_000
"""Half a year of seconds (the four months of BurstGPT are 10.5 million); a slip in a time must not fill the memory."""

_WEEK_S = 7 * DAY_S
_TOLERANCE = 0.01
"""A step may be off by so much of itself."""

Refuse = Callable[[str, int], InvalidRequest]
"""Takes a problem and a row; the error that names the row's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalTrace:
    """Arrivals in even steps."""

    series: RequestSeries
    """From 0 on where the file has no dates."""
    is_dated: bool
    note: str = ""
    """What was assumed of the cells, where it makes a difference and no name says it."""


def read_trace(
    source: Path, column: str | None = None, *, time: str | None = None
) -> ArrivalTrace:
    """The trace of a file (`-` = stdin). column: the one to read, needed where it is not named in VALUES.

    time: the column of times, needed where its name does not say so. Raises InvalidRequest, which names file, line and
    column.
    """
    header: list[str] = []

    def check(place: str, names: Sequence[str]) -> None:
        times = time_column(place, names, time)
        header.extend((times, _value_column(place, names, times, column)))

    table = read_table(source, check)
    times, value_column = header
    reader = TimeReader(column=times)
    times_s = times_of(table, reader)
    places, step_s = find_steps(
        times_s,
        lambda problem, row: table.refusal(problem, row=row, column=times),
        reader,
    )
    values = table.numbers(value_column, NOT_NEGATIVE, or_empty=True)
    # NaN, not 0: a step that is missing was not measured, and is no quiet one.
    arrivals = np.full(places[-1] + 1, np.nan)
    arrivals[places] = values * step_s if value_column.endswith(RATE_SUFFIX) else values
    series = RequestSeries(
        start_s=float(times_s[0]), window_s=step_s, arrivals=arrivals
    )
    note = _note(value_column, step_s)
    return ArrivalTrace(series=series, is_dated=reader.is_dated, note=note)


def _note(column: str, step_s: float) -> str:
    # With steps of a second a rate and a count are the same.
    if step_s == 1.0 or column in VALUES or column.endswith(RATE_SUFFIX):
        return ""
    return f"{column}: cells are requests of the step of {step_s:g} s; if they are rates, call it {column}{RATE_SUFFIX}"


def make_history(
    trace: ArrivalTrace, *, now_s: float, start_s: float | None = None
) -> RequestSeries:
    """The trace as if it had ended lately, in steps of five minutes.

    start_s: when it began, seconds since 1970; else a dated trace is moved by whole weeks, so that hours and weekdays
    stay, and one without dates begins at midnight UTC. What would lie in the future is left out. Raises InvalidRequest.
    """
    series = _fine(trace.series)
    period_s = _WEEK_S if trace.is_dated else DAY_S
    begin_s = series.start_s if trace.is_dated else 0.0
    if start_s is None:
        start_s = (
            begin_s
            + math.floor((now_s - begin_s - (series.end_s - series.start_s)) / period_s)
            * period_s
        )
    if series.window_s == COARSE_S:
        # Steps of five minutes count in the nearest five minutes of the clock.
        start_s = round(start_s / COARSE_S) * COARSE_S
    coarse = coarsen(
        RequestSeries(
            start_s=start_s, window_s=series.window_s, arrivals=series.arrivals
        ),
        COARSE_S,
    )
    return coarse.part(0, max(0, int((now_s - coarse.start_s) // COARSE_S)))


def _fine(series: RequestSeries) -> RequestSeries:
    """Steps of more than five minutes cut into five minutes each."""
    parts = round(series.window_s / COARSE_S)
    if series.window_s <= COARSE_S:
        return series
    if abs(parts * COARSE_S - series.window_s) > _TOLERANCE:
        raise InvalidRequest(
            f"steps of {series.window_s:g} s are no multiple of five minutes"
        )
    return RequestSeries(
        start_s=series.start_s,
        window_s=COARSE_S,
        # Spread evenly: within a step nothing says when its requests came.
        arrivals=np.repeat(series.arrivals / parts, parts),
    )


def _value_column(
    place: str, names: Sequence[str], times: str, wanted: str | None
) -> str:
    if wanted is not None:
        found = find_column(names, wanted)
        if found is None or found == times:
            raise refusal(
                f"there is no column {wanted!r} to read; there are {', '.join(names)}",
                file=place,
            )
        return found
    found_names = [name for name in VALUES if name in names]
    if len(found_names) != 1:
        problem = f"the header has {', '.join(names)}; say by --column which one holds the rates or the requests"
        raise refusal(problem, file=place)
    return found_names[0]


def find_steps(
    times_s: Reals, refuse: Refuse, reader: TimeReader
) -> tuple[npt.NDArray[np.int64], float]:
    """(N,) number of each row's step from the first one, and the step's length: the least difference of two rows."""
    if len(times_s) < 2:
        raise refuse("one row has no step; a trace needs at least two", 0)
    # The shortest difference is the step: longer ones are gaps, of which a trace may have many.
    steps_s = np.diff(times_s)
    if (steps_s <= 0.0).any():
        row = int(np.argmax(steps_s <= 0.0)) + 1
        hint = clock_hint(reader, float(-steps_s[row - 1]))
        if not hint and steps_s[row - 1] == 0.0:
            hint = (
                "; a row for each request? `plimsoll trace import requests` counts them"
            )
        raise refuse(
            f"times must rise from row to row: sort the rows by time{hint}", row
        )
    step_s = float(steps_s.min())
    places = (times_s - times_s[0]) / step_s
    if places[-1] >= MAX_STEPS:
        raise refuse(
            f"{places[-1]:.0f} steps of {step_s:g} s are too many; at most {MAX_STEPS:,}",
            len(times_s) - 1,
        )
    return _integer_steps(np.diff(places), step_s, refuse), step_s


def _integer_steps(
    strides: Reals, step_s: float, refuse: Refuse
) -> npt.NDArray[np.int64]:
    """(N,) number of each row's step from the differences of the rows, in steps."""
    # Differences are rounded one by one: a small error in the step would add up over a long trace.
    rounded = np.round(strides)
    uneven = np.abs(strides - rounded) > _TOLERANCE
    if uneven.any():
        raise refuse(
            f"comes no multiple of {step_s:g} s, the shortest step, after the row before",
            int(np.argmax(uneven)) + 1,
        )
    return np.concatenate([[0], np.cumsum(rounded)]).astype(np.int64)
