"""Trace files: what is written reads back, and errors name file, line and column."""

from pathlib import Path

import numpy as np
import pytest

from app.base.errors import InvalidRequest
from app.cli.common.files import write_csv
from app.measurements.traces import MAX_STEPS
from app.simulate.traces.files import read_any, read_trace, trace_rows
from app.simulate.traces.jobs import JobList, job_rows
from app.simulate.traces.series import Missing
from app.simulate.traces.trace import RateTrace


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def read(
    tmp_path: Path,
    text: str,
    missing: Missing = Missing.REFUSE,
    columns: tuple[str, ...] = (),
) -> RateTrace:
    return read_trace(write(tmp_path, text), columns=columns, missing=missing)


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
@pytest.mark.parametrize("step_s", [1.0, 60.0, 0.1, 60.0 / 7.0])
def test_what_is_written_reads_back(tmp_path: Path, name: str, step_s: float) -> None:
    rates_rps = np.random.default_rng(1).gamma(1.0, 100.0, size=(300, 2))
    notes = ("source: mine, all of it", "licence: none")
    trace = RateTrace(
        names=("chat, loud", "s2"), rates_rps=rates_rps, step_s=step_s, notes=notes
    )
    write_csv(tmp_path / name, trace_rows(trace), notes=trace.notes)
    back = read_any(tmp_path / name)
    assert isinstance(back, RateTrace)
    assert (back.names, back.notes) == (trace.names, trace.notes)
    assert back.step_s == pytest.approx(step_s, rel=1e-9)
    np.testing.assert_allclose(back.rates_rps, trace.rates_rps, rtol=1e-10)


@pytest.mark.parametrize(
    ("text", "step_s", "rates_rps"),
    [
        ("second,a,b\n0,1,2\n1,3,4\n", 1.0, [[1, 2], [3, 4]]),
        ("second,a,b_rps\n0,60,2\n60,120,4\n", 60.0, [[1, 2], [2, 4]]),
        ("a,t_min,b\n600,10,0\n300,20,6\n", 600.0, [[1, 0], [0.5, 0.01]]),
        ("t_s,a,b\n100.5,1,2\n101.0,3,4\n", 0.5, [[2, 4], [6, 8]]),
        (
            "timestamp,a,b\n2026-01-31T18:00:00Z,5,5\n2026-01-31T18:00:05Z,10,5\n",
            5.0,
            [[1, 1], [2, 1]],
        ),
    ],
)
def test_cells_are_requests_of_the_step_and_rates_where_the_name_says_so(
    tmp_path: Path, text: str, step_s: float, rates_rps: list[list[float]]
) -> None:
    trace = read(tmp_path, text)
    assert (trace.names, trace.step_s) == (("a", "b"), step_s)
    np.testing.assert_allclose(trace.rates_rps, rates_rps)


def test_columns_are_chosen_and_others_may_hold_words(tmp_path: Path) -> None:
    trace = read(tmp_path, "second,note,a,b\n0,x,1,2\n1,y,3,4\n", columns=("b",))
    assert (trace.names, trace.rates_rps[:, 0].tolist()) == (("b",), [2.0, 4.0])


GAPS = "second,a,b\n0,,5\n1,1,\n4,2,6\n"


@pytest.mark.parametrize(
    ("missing", "a", "b"),
    [
        (Missing.ZERO, [0, 1, 0, 0, 2], [5, 0, 0, 0, 6]),
        (Missing.HOLD, [0, 1, 1, 1, 2], [5, 5, 5, 5, 6]),
    ],
)
def test_gaps_are_nothing_or_what_was_before(
    tmp_path: Path, missing: Missing, a: list[int], b: list[int]
) -> None:
    trace = read(tmp_path, GAPS, missing)
    assert (trace.rates_rps[:, 0].tolist(), trace.rates_rps[:, 1].tolist()) == (a, b)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("when,a\n0,1\n", ":1:", "one of the columns second"),
        ("second\n0\n1\n", ":1:", "a column for each series"),
        ("# note\nsecond,a\n0,1\n1,-2\n", ":4: column a:", "at least 0, not -2"),
        ("second,a\n0,1\n1,much\n", ":3: column a:", "'much'"),
        ("second,a\n0,1\n1,1_0\n", ":3: column a:", "1_0"),
        ("second,a\n0,1\n1,nan\n", ":3: column a:", "nan"),
        ("second,a\n0,1\n1,\n", ":3: column a:", "empty"),
        ("second,a\n0,1\nx,1\n", ":3: column second:", "'x'"),
        ("timestamp,a\nnoon,1\n", ":2: column timestamp:", "'noon'"),
        ("second,a\n0,1\n1,1\n1,1\n", ":4: column second:", "rise"),
        ("second,a\n0,1\n1,1\n5,1\n", ":4: column second:", "3 steps before this row"),
        ("second,a\n0,1\n", ":2: column second:", "two"),
        (f"second,a\n0,1\n1,1\n{MAX_STEPS + 5},2\n", ":4: column second:", "too many"),
        ("second,a,a_rps\n0,1,1\n1,1,1\n", ":", "two series are called a"),
        ("second,a\n0,1,1\n", ":2:", "3 cells"),
    ],
)
def test_errors_name_file_line_and_column(
    tmp_path: Path, text: str, place: str, problem: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidRequest) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}{place}")
    assert problem in str(caught.value)


def test_a_gap_filler_does_not_hide_bad_cells(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r":3: column b: .*'x'"):
        read(tmp_path, "second,a,b\n0,1,1\n1,,x\n", Missing.ZERO)


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"'bart'.*bert"):
        read(tmp_path, "second,bert\n0,1\n1,1\n", columns=("bart",))


def make_jobs() -> JobList:
    return JobList(
        submit_s=np.array([0.0, 30.0, 30.0, 7200.0]),
        duration_s=np.array([10.0, 20.5, 30.0, 40.0]),
        gpus=np.array([1.0, 0.25, 8.0, 1.0]),
        names=("a", "b", "a", "c"),
        notes=("source: mine",),
    )


def test_a_job_list_reads_back_and_is_told_from_a_trace(tmp_path: Path) -> None:
    jobs = make_jobs()
    write_csv(tmp_path / "jobs.csv", job_rows(jobs), notes=jobs.notes)
    back = read_any(tmp_path / "jobs.csv")
    assert isinstance(back, JobList)
    assert list(job_rows(back)) == list(job_rows(jobs))
    assert back.notes == jobs.notes


def test_part_of_a_job_list_begins_at_second_0() -> None:
    part = make_jobs().part(20.0, 7200.0)
    assert (part.names, part.submit_s.tolist()) == (("b", "a"), [10.0, 10.0])
    with pytest.raises(InvalidRequest, match="no job is submitted"):
        make_jobs().part(40.0, 50.0)


def test_in_faster_time_jobs_come_sooner_and_are_shorter() -> None:
    faster = make_jobs().faster(10.0)
    assert (faster.submit_s.tolist(), faster.duration_s.tolist()) == (
        [0.0, 3.0, 3.0, 720.0],
        [1.0, 2.05, 3.0, 4.0],
    )
    with pytest.raises(InvalidRequest, match="above 0"):
        make_jobs().faster(0.0)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("submit_s,gpus\n0,1\n", ":1:", "lacks the columns duration_s, name"),
        (
            "submit_s,duration_s,gpus,name\n5,1,1,a\n4,1,1,b\n",
            ":3: column submit_s:",
            "sort the jobs",
        ),
        (
            "submit_s,duration_s,gpus,name\n5,0,1,a\n",
            ":2: column duration_s:",
            "above 0",
        ),
        ("submit_s,duration_s,gpus,name\n5,1,0,a\n", ":2: column gpus:", "above 0"),
        ("submit_s,duration_s,gpus,name\n5,1,1,\n", ":2: column name:", "empty"),
    ],
)
def test_errors_of_job_lists_have_their_place(
    tmp_path: Path, text: str, place: str, problem: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidRequest) as caught:
        read_any(path)
    assert str(caught.value).startswith(f"{path}{place}")
    assert problem in str(caught.value)
