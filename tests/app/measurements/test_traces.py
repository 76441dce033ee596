"""Traces from CSV: what is read, and errors that name file, line and column."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import InvalidRequest
from app.measurements.traces import MAX_STEPS, ArrivalTrace, make_history, read_trace
from solvers.forecast.seasons import COARSE_S, DAY_S
from solvers.forecast.types import RequestSeries

NOW = datetime(2026, 3, 11, 15, 7, tzinfo=UTC)  # A Wednesday.


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def read(tmp_path: Path, text: str, column: str | None = None) -> ArrivalTrace:
    return read_trace(write(tmp_path, text), column)


@pytest.mark.parametrize(
    ("text", "step_s", "arrivals"),
    [
        ("second,rate_rps\n0,2\n1,4.5\n", 1.0, [2.0, 4.5]),
        ("second,rate_rps\n0,2\n10,4\n", 10.0, [20.0, 40.0]),
        ("t_s,requests\n0.5,2\n1.0,4\n", 0.5, [2.0, 4.0]),
        ("t_min,arrivals\n0,300\n10,600\n", 600.0, [300.0, 600.0]),
        ("second,note,arrivals\n0,x,1\n2,,3\n3,y,4\n", 1.0, [1.0, np.nan, 3.0, 4.0]),
        ("second,arrivals\n0,1\n1,\n2,0\n", 1.0, [1.0, np.nan, 0.0]),
    ],
)
def test_rates_and_counts_in_even_steps_with_gaps(
    tmp_path: Path, text: str, step_s: float, arrivals: list[float]
) -> None:
    trace = read(tmp_path, text)
    assert (trace.series.window_s, trace.is_dated) == (step_s, False)
    np.testing.assert_allclose(trace.series.arrivals, arrivals)


@pytest.mark.parametrize(
    "first",
    (
        "2026-01-31T18:00:00Z",
        "2026-01-31T19:00:00+01:00",
        "2026-01-31 18:00",
        "1769882400",
    ),
)
def test_timestamps_are_dates_or_seconds_since_1970(tmp_path: Path, first: str) -> None:
    trace = read(tmp_path, f"timestamp,rate_rps\n{first},1\n2026-01-31T18:05Z,2\n")
    assert trace.is_dated
    assert datetime.fromtimestamp(trace.series.start_s, UTC) == datetime(
        2026, 1, 31, 18, tzinfo=UTC
    )
    assert trace.series.window_s == 300.0


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("when,rate_rps\n0,1\n", ":1:", "one of the columns second"),
        ("second,t_s,rate_rps\n0,0,1\n", ":1:", "one of the columns second"),
        ("second,a,b\n0,1,1\n", ":1:", "--column"),
        ("second,rate_rps\n0,1\n1,-2\n", ":3: column rate_rps:", "at least 0"),
        ("second,rate_rps\n0,1\n1,much\n", ":3: column rate_rps:", "'much'"),
        ("second,rate_rps\n0,1\n\n0,2\n", ":4: column second:", "rise"),
        ("second,rate_rps\n0,1\n1,1\n2.5,2\n", ":4: column second:", "multiple of 1 s"),
        ("second,rate_rps\n0,1\n", ":2: column second:", "two"),
        (
            f"second,rate_rps\n0,1\n1,1\n{MAX_STEPS + 5},2\n",
            ":4: column second:",
            "too many",
        ),
        (
            "timestamp,rate_rps\nnoon,1\n2026-01-31,1\n",
            ":2: column timestamp:",
            "'noon'",
        ),
        ("timestamp,rate_rps\n1e300,1\n2e300,1\n", ":2: column timestamp:", "at most"),
        ("second,rate_rps\n0,1,1\n", ":2:", "3 cells"),
    ],
)
def test_errors_name_file_line_and_column(
    tmp_path: Path, text: str, place: str, problem: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidRequest) as caught:
        read_trace(path)
    assert f"{path}{place}" in str(caught.value)
    assert problem in str(caught.value)


def dated(first: datetime, days: float) -> ArrivalTrace:
    arrivals = np.arange(round(days * 288), dtype=float)
    return ArrivalTrace(
        series=RequestSeries(
            start_s=first.timestamp(), window_s=COARSE_S, arrivals=arrivals
        ),
        is_dated=True,
    )


def test_a_dated_trace_is_moved_by_whole_weeks() -> None:
    # From a Monday in 2023 on; three days.
    history = make_history(
        dated(datetime(2023, 11, 13, tzinfo=UTC), 3.0), now_s=NOW.timestamp()
    )
    assert datetime.fromtimestamp(history.start_s, UTC) == datetime(
        2026, 3, 2, tzinfo=UTC
    )
    assert history.arrivals.tolist() == list(range(864))
    fresh = make_history(
        dated(datetime(2026, 3, 7, tzinfo=UTC), 3.0), now_s=NOW.timestamp()
    )
    assert datetime.fromtimestamp(fresh.start_s, UTC) == datetime(
        2026, 3, 7, tzinfo=UTC
    )


def test_a_trace_without_dates_begins_at_midnight_and_ends_by_now() -> None:
    trace = ArrivalTrace(
        series=RequestSeries(
            start_s=0.0, window_s=60.0, arrivals=np.ones(2 * 1440 + 600)
        ),
        is_dated=False,
    )
    history = make_history(trace, now_s=NOW.timestamp())
    assert datetime.fromtimestamp(history.start_s, UTC) == datetime(
        2026, 3, 9, tzinfo=UTC
    )
    assert history.end_s <= NOW.timestamp()
    assert set(history.arrivals) == {5.0}


def test_a_start_that_is_given_counts_and_the_future_is_left_out() -> None:
    history = make_history(
        dated(datetime(2023, 11, 13, tzinfo=UTC), 3.0),
        now_s=NOW.timestamp(),
        start_s=NOW.timestamp() - DAY_S,
    )
    assert NOW.timestamp() - COARSE_S <= history.end_s <= NOW.timestamp()
    assert history.start_s == pytest.approx(NOW.timestamp() - DAY_S, abs=COARSE_S)


def test_long_steps_are_cut_into_five_minutes() -> None:
    def trace(step_s: float) -> ArrivalTrace:
        return ArrivalTrace(
            series=RequestSeries(
                start_s=0.0, window_s=step_s, arrivals=np.array([6.0, np.nan, 12.0])
            ),
            is_dated=False,
        )

    np.testing.assert_allclose(
        make_history(trace(600.0), now_s=NOW.timestamp()).arrivals,
        [3.0, 3.0, np.nan, np.nan, 6.0, 6.0],
    )
    with pytest.raises(InvalidRequest, match="multiple of five minutes"):
        make_history(trace(700.0), now_s=NOW.timestamp())


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"'bart'.*there are second, bert"):
        read(tmp_path, "second,bert\n0,1\n1,1\n", "bart")


def test_one_column_of_several_is_chosen_by_name(tmp_path: Path) -> None:
    text = "second,bert,big_rps\n0,1,10\n2,3,20\n"
    assert read(tmp_path, text, "bert").series.arrivals.tolist() == [1.0, 3.0]
    assert read(tmp_path, text, "big_rps").series.arrivals.tolist() == [20.0, 40.0]


@pytest.mark.parametrize(
    ("column", "step", "note"),
    [
        ("rate", 30, "call it rate_rps"),
        ("rate", 1, ""),
        ("rate_rps", 30, ""),
        ("arrivals", 30, ""),
    ],
)
def test_cells_that_may_be_rates_are_noted(
    tmp_path: Path, column: str, step: int, note: str
) -> None:
    path = write(tmp_path, f"When,{column}\n0,5\n{step},5\n")
    found = read_trace(path, column, time="when").note
    assert note in found
    assert bool(found) is bool(note)
