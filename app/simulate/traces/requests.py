"""Requests, a row for each, as rates by the second: of one series, or of the busiest of several."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from agents.base.plurals import counted
from app.base.errors import InvalidRequest, no_such
from app.measurements.rows import Rows, refusal
from app.measurements.tables import NOT_NEGATIVE, Reals, parse_number
from app.measurements.times import (
    CLOCK_FALL_S,
    SINCE_1970_S,
    TimeReader,
    TimeUnit,
    clock_hint,
    find_column,
    time_column,
)
from app.measurements.traces import MAX_STEPS
from app.simulate.traces.azure_functions import short_names
from app.simulate.traces.forms import ANSWERS, KnownForm, column_of
from app.simulate.traces.trace import MAX_VALUES, RateTrace

ALL = "requests"
MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What the user says of a file of requests."""

    time: str | None = None
    """The column of times; None = as its name or the form says."""
    unit: TimeUnit | None = None
    by: str | None = None
    """The column whose values become a series each."""
    top: int = 10
    """How many of the busiest series."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTrace:
    """The rates, and when the first request came."""

    trace: RateTrace
    year: int | None
    """Where the times are dates."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Collected:
    """The rows of a file, a number each."""

    lines: "array[int]"
    times_s: "array[float]"
    series: "array[int]"
    """(N,) which of `keys`."""
    keys: dict[tuple[str, ...], int]
    unanswered: int = 0
    are_whole: bool = True


def read_requests(
    opened: Rows, form: KnownForm | None, options: RequestOptions
) -> RequestTrace:
    """The rates from the first whole second on. Raises InvalidRequest, which names file, line and column."""
    reader = _time_reader(opened, form, options)
    found = _collect(opened, reader, form, options)
    times_s = np.array(found.times_s)
    scaled, notes = _scaled(times_s, found, reader, form, options)
    seconds = np.floor(scaled).astype(np.int64)
    _check_clock(opened, scaled, found.lines, reader)
    _check_span(opened, seconds, found.lines, reader.column)
    counts, names, more = _busiest(seconds, found, options)
    notes += more
    if found.unanswered:
        notes.append(
            f"read: {counted(found.unanswered, 'request')} without a token of an answer: failed, but came all the same"
        )
    try:
        trace = RateTrace(
            names=names,
            rates_rps=counts,
            step_s=1.0,
            notes=(*opened.notes, *notes),
        )
    except InvalidRequest as error:
        raise refusal(str(error), file=opened.file) from error
    first_s = float(scaled.min())
    return RequestTrace(trace=trace, year=_year(first_s) if reader.is_dated else None)


def _year(moment_s: float) -> int:
    return datetime.fromtimestamp(moment_s, UTC).year


def _time_reader(
    opened: Rows, form: KnownForm | None, options: RequestOptions
) -> TimeReader:
    wanted = options.time or (form.time if form else None)
    column = time_column(opened.header_place, opened.names, wanted)
    unit = options.unit or (form.unit if form and options.time is None else None)
    return TimeReader(column=column, unit_s=unit.seconds if unit else None)


def _columns_by(
    opened: Rows, form: KnownForm | None, options: RequestOptions
) -> list[int]:
    """Where the columns are that tell the series apart."""
    names = (options.by,) if options.by else (form.by if form else ())
    places = []
    for name in names:
        column = find_column(opened.names, name)
        if column is None:
            raise refusal(no_such("column", name, opened.names), file=opened.file)
        places.append(opened.names.index(column))
    return places


def _collect(
    opened: Rows, reader: TimeReader, form: KnownForm | None, options: RequestOptions
) -> _Collected:
    place = opened.names.index(reader.column)
    by = _columns_by(opened, form, options)
    answers = column_of(opened.names, ANSWERS)
    answer_place = None if answers is None else opened.names.index(answers)
    before = (
        column_of(opened.names, [form.duration]) if form and form.duration else None
    )
    before_place = None if before is None else opened.names.index(before)
    found = _Collected(lines=array("L"), times_s=array("d"), series=array("L"), keys={})
    for line, cells in opened.rows:
        column = reader.column
        try:
            moment_s = reader.seconds(cells[place])
            if before_place is not None:
                column = opened.names[before_place]
                # The row says when the request ended.
                moment_s -= parse_number(cells[before_place], NOT_NEGATIVE)
        except ValueError as error:
            raise refusal(
                str(error), file=opened.file, line=line, column=column
            ) from error
        key = tuple(cells[each] for each in by)
        found.lines.append(line)
        found.times_s.append(moment_s)
        found.series.append(found.keys.setdefault(key, len(found.keys)))
        found.are_whole &= moment_s.is_integer() and "." not in cells[place]
        if answer_place is not None and cells[answer_place] in ("0", "0.0"):
            found.unanswered += 1
        if len(found.lines) > MAX_VALUES:
            problem = f"more than {MAX_VALUES:,} requests; import a part of the file"
            raise refusal(problem, file=opened.file, line=line)
    return found


def _scaled(
    times_s: Reals,
    found: _Collected,
    reader: TimeReader,
    form: KnownForm | None,
    options: RequestOptions,
) -> tuple[Reals, list[str]]:
    """(N,) seconds, where the file alone does not tell the unit, and what was assumed."""
    column = reader.column
    if options.unit is not None or reader.is_dated:
        return times_s, []
    if form is not None and form.unit is not None:
        # Two hours are published; whole numbers that span more than twice as much are milliseconds.
        if found.are_whole and np.ptp(times_s) > 2.0 * form.longest_s:
            words = "in milliseconds, since the published files are shorter"
            return times_s / MS_PER_S, [_unit_note(column, words)]
        if form.unit is TimeUnit.MS:
            return times_s, [
                _unit_note(column, "in milliseconds, as Mooncake writes them")
            ]
        return times_s, []
    if reader.is_relative:
        return times_s, [_unit_note(column, "in seconds")]
    return times_s, []


def _unit_note(column: str, words: str) -> str:
    return f"read: {column}: {words}; --time-unit says otherwise"


def _check_clock(
    opened: Rows, times_s: Reals, lines: Sequence[int], reader: TimeReader
) -> None:
    """Refuses local times in which an hour comes twice: rows need no order, but such a fall is the clock's."""
    falls_s = -np.diff(times_s)
    back = (falls_s > CLOCK_FALL_S / 2.0) & (falls_s <= CLOCK_FALL_S)
    if reader.is_local and np.sum(falls_s > 60.0) == np.sum(back) == 1:
        row = int(np.argmax(back)) + 1
        problem = f"comes before the row above{clock_hint(reader, CLOCK_FALL_S)}"
        raise refusal(problem, file=opened.file, line=lines[row], column=reader.column)


def _check_span(
    opened: Rows, seconds: npt.NDArray[np.int64], lines: Sequence[int], column: str
) -> None:
    """One wrong date would otherwise make a trace of years, second by second."""
    if np.ptp(seconds) < MAX_STEPS:
        return
    far = np.abs(seconds - np.median(seconds))
    # Of two that are as far away, the later one is the slip.
    row = len(far) - 1 - int(np.argmax(far[::-1]))
    hint = "" if seconds[row] >= SINCE_1970_S else "; milliseconds? say --time-unit ms"
    problem = f"more than {MAX_STEPS:,} s from the earliest request to the latest{hint}"
    raise refusal(problem, file=opened.file, line=lines[row], column=column)


def _busiest(
    seconds: npt.NDArray[np.int64], found: _Collected, options: RequestOptions
) -> tuple[Reals, tuple[str, ...], list[str]]:
    """(T, S) requests by the second, the names of the series, the busiest first, and what was left out."""
    series = np.array(found.series, dtype=np.int64)
    sizes = np.bincount(series, minlength=len(found.keys))
    # Stable, so that the first of equals is kept.
    order = np.argsort(-sizes, kind="stable")[: options.top]
    steps = int(np.ptp(seconds)) + 1
    if steps * len(order) > MAX_VALUES:
        raise InvalidRequest(
            f"{steps:,} seconds of {len(order)} series are too many; take fewer by --top"
        )
    counts = np.zeros((steps, len(order)))
    for place, each in enumerate(order):
        at = seconds[series == each] - seconds.min()
        counts[:, place] = np.bincount(at, minlength=steps)
    keys = list(found.keys)
    values = [keys[each][-1] if keys[each] else ALL for each in order]
    # What the user names is words; what a form is told apart by is hashes.
    names = short_names(values) if len(keys[0]) > 1 else tuple(values)
    if len(order) == len(keys):
        return counts, names, []
    rest = len(seconds) - int(sizes[order].sum())
    others = len(keys) - len(order)
    return (
        counts,
        names,
        [f"left out: {rest:,} requests of {others:,} less busy series"],
    )
