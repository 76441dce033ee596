"""Columns of times by name, unit and size, and what columns of values are called."""

import math
from datetime import UTC, datetime

import pytest

from app.base.errors import InvalidRequest
from app.measurements.times import (
    TimeReader,
    TimeUnit,
    Values,
    find_column,
    time_column,
    values_of,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("names", "wanted", "column"),
    [
        (("a", "Time"), None, "Time"),
        (("a", "TIMESTAMP"), None, "TIMESTAMP"),
        (("a", "timestamp_ms"), None, "timestamp_ms"),
        (("a", "Time (ms)"), None, "Time (ms)"),
        (("a", "arrived_at"), None, "arrived_at"),
        (("a", "startTime", "endTime"), None, "startTime"),
        (("a", "Request Time"), None, "Request Time"),
        (("a", "timestampMs"), None, "timestampMs"),
        (("a", "Seconds"), None, "Seconds"),
        # Our own names go before all others.
        (("second", "time"), None, "second"),
        (("a", "Date", "Time"), "date", "Date"),
        (("when", "a"), "WHEN", "when"),
    ],
)
def test_the_column_of_times_is_known_by_its_name_without_regard_to_case(
    names: tuple[str, ...], wanted: str | None, column: str
) -> None:
    assert time_column("f:1", names, wanted) == column


@pytest.mark.parametrize(
    ("names", "wanted", "problem"),
    [
        (("when", "a"), None, "it has when, a. Say by --time-column"),
        (("Date", "Time"), None, "Date, Time could all be it"),
        # Single letters and times of other things are no columns of times.
        (("h", "m", "latency_ms"), None, "must have one of the columns"),
        (("when", "a"), "then", "'then'"),
    ],
)
def test_a_header_without_one_column_of_times_is_refused_with_the_remedy(
    names: tuple[str, ...], wanted: str | None, problem: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        time_column("f:1", names, wanted)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("column", "unit", "cell", "seconds"),
    [
        ("time", None, "12.5", 12.5),
        ("t_min", None, "2", 120.0),
        ("timestamp_ms", None, "1500", 1.5),
        ("Time (us)", None, "1500000", 1.5),
        ("Time (µs)", None, "1500000", 1.5),
        ("time", TimeUnit.MS, "1500", 1.5),
        # Since 1970, in four units.
        ("time", None, f"{NOON:.0f}", NOON),
        ("time", None, f"{NOON:.0f}000", NOON),
        ("time", None, f"{NOON:.0f}000000", NOON),
        ("time", None, f"{NOON:.0f}000000000", NOON),
        ("epoch_ns", None, f"{NOON:.0f}000000000", NOON),
        ("time", None, "2026-03-01T12:00:00Z", NOON),
        ("time", None, "2026-03-01 12:00:00", NOON),
        ("time", None, "2026-03-01 12:00:00 UTC", NOON),
        ("time", None, "2026-03-01 13:00:00.0000000+01:00", NOON),
    ],
)
def test_a_time_is_read_in_its_unit(
    column: str, unit: TimeUnit | None, cell: str, seconds: float
) -> None:
    reader = TimeReader(column=column, unit_s=unit.seconds if unit else None)
    assert reader.seconds(cell) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("column", "cell", "problem"),
    [
        ("t_s", "1772359200000", "milliseconds? divide by 1000"),
        ("time", "1e30", "at most 1e+11"),
        ("time", "nan", "at most 1e+11"),
        ("time", "1_000", "not 1_000"),
        ("t_s", "noon", "must be a number, not 'noon'"),
        ("time", "5/10/2024 12:00:00 AM", "write year, month and day in this order"),
        ("time", "2017-10-03 00:08:00 PDT", "distance from UTC, such as -07:00"),
    ],
)
def test_what_is_no_time_is_refused_with_the_remedy(
    column: str, cell: str, problem: str
) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        TimeReader(column=column).seconds(cell)
    assert problem in str(caught.value)


def test_a_reader_remembers_of_what_kind_the_times_were() -> None:
    relative, dated, local = (TimeReader(column="time") for _ in range(3))
    relative.seconds("5")
    dated.seconds("1772359200000")
    local.seconds("2026-03-01 12:00")
    assert (relative.is_relative, relative.is_dated) == (True, False)
    assert (dated.is_dated, dated.is_local, local.is_local) == (True, False, True)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rate", Values.RATES),
        ("chat_rps", Values.RATES),
        ("QPS", Values.RATES),
        ("requests/s", Values.RATES),
        ("requests per second", Values.RATES),
        ("sum(rate(http_requests_total[5m]))", Values.RATES),
        ("increase(http_requests_total[1m])", Values.COUNTS),
        ("requests", Values.COUNTS),
        ("classify", None),
        # Words in which a rate is only spelled.
        ("generate", None),
        ("corporate", None),
    ],
)
def test_a_name_says_whether_cells_are_rates_or_counts(
    name: str, values: Values | None
) -> None:
    assert values_of(name) is values


def test_a_column_is_found_exactly_before_it_is_found_otherwise() -> None:
    assert find_column(("time", "Time"), "Time") == "Time"
    assert find_column(("A", "b"), "a") == "A"
    assert find_column(("A", "b"), "c") is None
    assert math.isclose(TimeUnit.H.seconds, 3600.0)
