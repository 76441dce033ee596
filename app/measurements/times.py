"""Columns of times, whatever they are called and counted in, as seconds; and what the other values are.

A time is a date (ISO 8601, UTC where it has no zone), a number in the unit that the column's name ends in (`t_ms`,
`Time (min)`), else seconds: from the beginning of the trace, or since 1970, where a number too large for seconds is in
milli-, micro- or nanoseconds.
"""

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import numpy as np

from app.base.errors import no_such
from app.measurements.rows import refusal
from app.measurements.tables import CsvTable, NumberRange, Reals


def listed(names: str) -> tuple[str, ...]:
    """The names of a list with commas."""
    return tuple(name.strip() for name in names.split(","))


def by_name(values: Mapping[str, float]) -> Mapping[str, float]:
    """The value of each name, from values by lists of names with commas."""
    return {name: value for names, value in values.items() for name in listed(names)}


NATIVE = ("second", "t_s", "t_min", "timestamp")
"""Time columns of our own files, which go before all others; no series is called so."""
SINCE_1970_S = 1e8
"""Seconds from here on (1973) are since 1970: no trace is three years long."""
ANY_TIME = NumberRange(at_least=-1e11, at_most=1e11)
CLOCK_FALL_S = 3600.0
"""How far local clocks go back when summer time ends."""
_EPOCH_UNITS = ((1e11, 1.0), (1e14, 1e-3), (1e17, 1e-6), (1e20, 1e-9))
"""Up to which number a moment is in seconds, and one since 1970 in milli-, micro- and nanoseconds."""
_SECONDS_PER = by_name(
    {
        "ns, nanosecond, nanoseconds": 1e-9,
        "us, µs, \N{GREEK SMALL LETTER MU}s, microsecond, microseconds": 1e-6,
        "ms, millisecond, milliseconds, millis": 1e-3,
        "s, sec, secs, second, seconds": 1.0,
        "m, min, mins, minute, minutes": 60.0,
        "h, hour, hours": 3600.0,
    }
)
_NAMES = frozenset(
    listed(
        "time, timestamp, ts, t, datetime, date, epoch, moment, arrival, arrived_at, arrival_time, arrival_timestamp, "
        "arrivaltime, request_time, request_timestamp, invocation_time, start_time, start_timestamp, sent_at"
    )
)
_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\s\-]+")
_UNIT = re.compile(r"^(?:(.*?)[\s_.\-]*[\s_(\[\-.])?(\w+)[)\]]?$")
_LOCAL = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?)?")
_RATE_NAMES = re.compile(
    r"(^|[^a-z])(rate|rates|irate|rps|qps|tps|throughput|load)([^a-z]|$)|/\s*s(ec|econd)?\b|per[ _]s(ec|econd)?s?\b",
)
_COUNT_NAMES = re.compile(
    r"(^|[^a-z])(increase|delta|count|counts|arrivals|requests|invocations|total|number|num)([^a-z]|$)"
)


class TimeUnit(StrEnum):
    """What a column of numbers counts its times in."""

    NS = "ns"
    US = "us"
    MS = "ms"
    S = "s"
    MIN = "min"
    H = "h"

    @property
    def seconds(self) -> float:
        """Seconds of one."""
        return _SECONDS_PER[self.value]


class Values(StrEnum):
    """What the cells of a series are."""

    RATES = "rates"
    """Requests per second."""
    COUNTS = "counts"
    """Requests of the step."""


def values_of(name: str) -> Values | None:
    """What a column's name says its cells are; None where it says nothing."""
    lowered = name.casefold()
    # `rate(requests_total[1m])` and `request_rate` name both: a rate of requests is a rate.
    if _RATE_NAMES.search(lowered):
        return Values.RATES
    return Values.COUNTS if _COUNT_NAMES.search(lowered) else None


def find_column(names: Sequence[str], wanted: str) -> str | None:
    """The column of that name, without regard to case where none has it exactly."""
    if wanted in names:
        return wanted
    folded = wanted.casefold().strip()
    return next((name for name in names if name.casefold() == folded), None)


def require_column(place: str, names: Sequence[str], wanted: str) -> str:
    """The column of that name. Raises InvalidRequest where there is none."""
    found = find_column(names, wanted)
    if found is None:
        raise refusal(no_such("column", wanted, names), file=place)
    return found


def time_column(place: str, names: Sequence[str], wanted: str | None = None) -> str:
    """The one column of a header that holds times. Raises InvalidRequest."""
    if wanted is not None:
        return require_column(place, names, wanted)
    native = [name for name in NATIVE if name in names]
    candidates = native or [name for name in names if _is_time(name)]
    if len(candidates) != 1:
        several = f"; {', '.join(candidates)} could all be it" if candidates else ""
        problem = (
            f"the header must have one of the columns {', '.join(NATIVE)}, or another name of a time{several}; "
            f"it has {', '.join(names)}. Say by --time-column which one holds the times"
        )
        raise refusal(problem, file=place)
    return candidates[0]


def _is_time(name: str) -> bool:
    base, unit = _split_unit(name)
    return _plain(name) in _NAMES or (unit is not None and base in {*_NAMES, ""})


def _plain(name: str) -> str:
    """`start_time` of `startTime` and of `Start Time`."""
    return _WORD_ENDS.sub("_", name.strip()).casefold()


def _split_unit(name: str) -> tuple[str, float | None]:
    """The name without the unit that it ends in, and the unit's seconds."""
    name = _plain(name)
    match = _UNIT.match(name)
    if match is None or match[2] not in _SECONDS_PER:
        return name, None
    base = match[1] or ""
    # A column called `t`, `h` or `m` has no unit: single letters count only behind another word.
    if not base and len(match[2]) < 3:
        return name, None
    return base, _SECONDS_PER[match[2]]


@dataclass(slots=True, kw_only=True)
class TimeReader:
    """Reads the cells of one column of times, and remembers of what kind they were."""

    column: str
    unit_s: float | None = None
    """Seconds of one; None = as the column's name says, else seconds or a date."""
    is_dated: bool = field(default=False, init=False)
    """Whether a moment was a date, or counted since 1970."""
    is_local: bool = field(default=False, init=False)
    """Whether a date had no zone."""
    is_relative: bool = field(default=False, init=False)
    """Whether a number counted from the beginning, in a unit that nothing names."""

    def __post_init__(self) -> None:
        if self.unit_s is None:
            self.unit_s = _split_unit(self.column)[1]

    def seconds(self, cell: str) -> float:
        """The moment of a cell. Raises ValueError, which says what it must be."""
        try:
            # Python takes 1_000 for a number; no other program does.
            number = float(cell) if "_" not in cell else math.nan
        except ValueError:
            return self._date(cell)
        return self._moment(cell, number)

    def _moment(self, cell: str, number: float) -> float:
        unit_s = self.unit_s if self.unit_s is not None else _unit_of(abs(number))
        seconds = number * unit_s
        # NaN fails the comparison, too.
        if not abs(seconds) <= ANY_TIME.at_most:
            hint = (
                "; milliseconds? divide by 1000, or say --time-unit ms"
                if unit_s >= 1.0
                else ""
            )
            raise ValueError(f"must be {ANY_TIME} seconds, not {cell}{hint}")
        if self.unit_s is None:
            self.is_dated |= seconds >= SINCE_1970_S
            self.is_relative |= seconds < SINCE_1970_S
        return seconds

    def _date(self, cell: str) -> float:
        text = re.sub(r"\s+(UTC|GMT)$", "+00:00", cell)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(_date_problem(cell, self.unit_s)) from None
        self.is_dated = True
        if moment.tzinfo is None:
            self.is_local = True
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()


def _unit_of(size: float) -> float:
    """Seconds of the unit of a moment of this size; of those too large for any unit, a second."""
    return next((unit_s for limit, unit_s in _EPOCH_UNITS if size <= limit), 1.0)


def _date_problem(cell: str, unit_s: float | None) -> str:
    if unit_s is not None and not _LOCAL.match(cell):
        return f"must be a number, not {cell!r}"
    form = "must be a time such as 2026-01-31T18:00:00Z, or seconds since 1970"
    if re.fullmatch(r"\d{4}-.*\d\s*[A-Z]{2,5}", cell):
        return f"{form}, not {cell!r}; write the zone as its distance from UTC, such as -07:00"
    return f"{form}, not {cell!r}; write year, month and day in this order"


def clock_hint(reader: TimeReader, fall_s: float) -> str:
    """Why times without zones go back, or an hour is missing: the end and the beginning of summer time."""
    if not reader.is_local or fall_s > 2.0 * CLOCK_FALL_S:
        return ""
    return (
        "; the times have no zone, and local times repeat or leave out an hour when summer time ends or begins: write "
        "their zone, such as 2026-10-25T02:30:00+02:00, or export them in UTC"
    )


def times_of(
    table: CsvTable, reader: TimeReader, *, no_value: Set[str] = frozenset()
) -> Reals:
    """(N,) seconds, since 1970 for dates; NaN for cells of `no_value`, in lower case. Raises InvalidRequest."""
    times_s = np.full(len(table), math.nan)
    for row, cell in enumerate(table.cells[reader.column]):
        if cell.casefold() in no_value:
            continue
        try:
            times_s[row] = reader.seconds(cell)
        except ValueError as error:
            raise table.refusal(str(error), row=row, column=reader.column) from error
    return times_s
