"""Requests, a row for each, as rates by the second: of one series, or of the busiest of several."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from agents.base.plurals import counted
from app.base.errors import InvalidRequest
from app.measurements.rows import Rows
from app.measurements.tables import NOT_NEGATIVE, Reals, parse_number
from app.measurements.times import (
    CLOCK_FALL_S,
    SINCE_1970_S,
    TimeReader,
    TimeUnit,
    clock_hint,
    require_column,
    time_column,
)
from app.measurements.traces import MAX_STEPS
from app.simulate.traces.azure_functions import short_names
from app.simulate.traces.forms import ANSWERS, KnownForm, column_of
from app.simulate.traces.trace import MAX_VALUES, RateTrace

ALL = "requests"
MS_PER_S = 1000.0

Seconds = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


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


class _Collector:
    """Takes the rows of a file, and keeps a number of each."""

    def __init__(self, opened: Rows, form: KnownForm, options: RequestOptions) -> None:
        self._opened = opened
        self._form = form
        self.options = options
        self.reader = _time_reader(opened, form, options)
        self._time = opened.names.index(self.reader.column)
        self._by = _places_by(opened, form, options)
        self._answer = _place(opened, ANSWERS)
        # Where the row says when the request ended, this is how long it took.
        self._duration = _place(opened, [form.duration or ""])
        self.lines = array("L")
        self.times_s = array("d")
        self.series = array("L")
        self.keys: dict[tuple[str, ...], int] = {}
        self._unanswered = 0
        self._are_integers = True

    def take_all(self) -> None:
        """Take every row. Raises InvalidRequest, which names line and column."""
        for line, cells in self._opened.rows:
            self._take(line, cells)
            if len(self.lines) > MAX_VALUES:
                problem = f"more than {MAX_VALUES:,} requests; import a part of it"
                raise self._opened.refusal(problem, line=line)

    def _take(self, line: int, cells: Sequence[str]) -> None:
        moment_s = self._moment_s(line, cells)
        key = tuple(cells[each] for each in self._by)
        self.lines.append(line)
        self.times_s.append(moment_s)
        self.series.append(self.keys.setdefault(key, len(self.keys)))
        self._are_integers &= "." not in cells[self._time]
        if self._answer is not None and cells[self._answer] in ("0", "0.0"):
            self._unanswered += 1

    def _moment_s(self, line: int, cells: Sequence[str]) -> float:
        place = self._time
        try:
            moment_s = self.reader.seconds(cells[place])
            if self._duration is None:
                return moment_s
            place = self._duration
            return moment_s - parse_number(cells[place], NOT_NEGATIVE)
        except ValueError as error:
            column = self._opened.names[place]
            raise self._opened.refusal(str(error), line=line, column=column) from error

    def seconds(self) -> tuple[Reals, list[str]]:
        """(N,) seconds, and what was assumed of their unit."""
        times_s = np.array(self.times_s)
        column = self.reader.column
        form = self._form
        if self.options.unit is not None or self.reader.is_dated:
            return times_s, []
        if form.unit is None:
            is_unsaid = self.reader.is_relative
            return times_s, [_unit_note(column, "in seconds")] if is_unsaid else []
        # Integers that span more than twice what a set is long are milliseconds.
        if self._are_integers and np.ptp(times_s) > 2.0 * form.longest_s:
            why = "in milliseconds, since the published files are shorter"
            return times_s / MS_PER_S, [_unit_note(column, why)]
        if form.unit is TimeUnit.MS:
            return times_s, [_unit_note(column, "in milliseconds, as Mooncake writes")]
        return times_s, []

    def refusal(self, problem: str, row: int) -> InvalidRequest:
        """The error that names a row's time."""
        column = self.reader.column
        return self._opened.refusal(problem, line=self.lines[row], column=column)

    def notes(self) -> list[str]:
        """What else is to be known of the requests."""
        if not self._unanswered:
            return []
        some = counted(self._unanswered, "request")
        return [
            f"read: {some} without a token of an answer: failed, but came all the same"
        ]


def read_requests(
    opened: Rows, form: KnownForm, options: RequestOptions
) -> RequestTrace:
    """The rates from the first second on. Raises InvalidRequest, which names file, line and column."""
    found = _Collector(opened, form, options)
    found.take_all()
    moments_s, notes = found.seconds()
    _check_clock(moments_s, found)
    seconds = np.floor(moments_s).astype(np.int64)
    _check_span(seconds, found)
    try:
        trace = _busiest(seconds, found, [*opened.notes, *notes])
    except InvalidRequest as error:
        raise opened.refusal(str(error)) from error
    year = _year(float(moments_s.min())) if found.reader.is_dated else None
    return RequestTrace(trace=trace, year=year)


def _year(moment_s: float) -> int:
    return datetime.fromtimestamp(moment_s, UTC).year


def _place(opened: Rows, known: Sequence[str]) -> int | None:
    column = column_of(opened.names, known)
    return None if column is None else opened.names.index(column)


def _time_reader(opened: Rows, form: KnownForm, options: RequestOptions) -> TimeReader:
    wanted = options.time or form.time
    column = time_column(opened.header_place, opened.names, wanted)
    # A column that the user names need not be the one that the set describes.
    unit = options.unit or (form.unit if options.time is None else None)
    return TimeReader(column=column, unit_s=unit.seconds if unit else None)


def _places_by(opened: Rows, form: KnownForm, options: RequestOptions) -> list[int]:
    """Where the columns are that tell the series apart."""
    names = (options.by,) if options.by else form.by
    columns = [require_column(opened.file, opened.names, name) for name in names]
    return [opened.names.index(column) for column in columns]


def _unit_note(column: str, unit: str) -> str:
    return f"read: {column}: {unit}; --time-unit says otherwise"


def _check_clock(times_s: Reals, found: _Collector) -> None:
    """Refuses local times in which an hour comes twice: rows need no order, but such a fall is the clock's."""
    falls_s = -np.diff(times_s)
    back = (falls_s > CLOCK_FALL_S / 2.0) & (falls_s <= CLOCK_FALL_S)
    is_one_fall = np.sum(falls_s > 60.0) == np.sum(back) == 1
    if found.reader.is_local and is_one_fall:
        hint = clock_hint(found.reader, CLOCK_FALL_S)
        row = int(np.argmax(back)) + 1
        raise found.refusal(f"comes before the row above{hint}", row)


def _check_span(seconds: Seconds, found: _Collector) -> None:
    """One wrong date would otherwise make a trace of years, second by second."""
    if np.ptp(seconds) < MAX_STEPS:
        return
    far = np.abs(seconds - np.median(seconds))
    # Of two that are as far away, the later one is the slip.
    row = len(far) - 1 - int(np.argmax(far[::-1]))
    hint = "" if seconds[row] >= SINCE_1970_S else "; milliseconds? say --time-unit ms"
    problem = f"more than {MAX_STEPS:,} s from the earliest request to the latest{hint}"
    raise found.refusal(problem, row)


def _busiest(seconds: Seconds, found: _Collector, notes: Sequence[str]) -> RateTrace:
    """The series with the highest numbers of requests, the busiest first. Raises InvalidRequest."""
    series = np.array(found.series, dtype=np.int64)
    sizes = np.bincount(series, minlength=len(found.keys))
    # Stable, so that the first of equals is kept.
    order = np.argsort(-sizes, kind="stable")[: found.options.top]
    rest = len(seconds) - int(sizes[order].sum())
    others = len(found.keys) - len(order)
    left_out = (
        [f"left out: {rest:,} requests of {others:,} less busy series"]
        if others
        else []
    )
    return RateTrace(
        names=_series_names([list(found.keys)[each] for each in order]),
        rates_rps=_counts(seconds, [series == each for each in order]),
        step_s=1.0,
        notes=(*notes, *left_out, *found.notes()),
    )


def _counts(seconds: Seconds, members: Sequence[Flags]) -> Reals:
    """(T, S) requests by the second. Raises InvalidRequest."""
    steps = int(np.ptp(seconds)) + 1
    if steps * len(members) > MAX_VALUES:
        problem = f"{steps:,} seconds of {len(members)} series are too many; take fewer by --top"
        raise InvalidRequest(problem)
    # From the first second on, so that a trace since 1970 has no empty years.
    at = seconds - seconds.min()
    columns = [np.bincount(at[each], minlength=steps) for each in members]
    return np.column_stack(columns).astype(float)


def _series_names(keys: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    values = [key[-1] if key else ALL for key in keys]
    # The values of a user's column are words; those that a form is told apart by are hashes.
    return short_names(values) if len(keys[0]) > 1 else tuple(values)
