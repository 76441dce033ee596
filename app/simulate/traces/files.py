"""Traces as CSV: `second`, then the requests of each step in one column per series.

Lines above the header that begin with "# " are notes. With steps of a second a cell is the rate in that second; with
longer ones it is the sum over the step. Other people's files may have other columns of times (app.measurements.times),
and columns that end in `_rps`, which hold rates. Times count from the first row on.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from app.measurements.rows import Rows, open_rows, refusal
from app.measurements.times import TimeReader, time_column
from app.simulate.traces.jobs import JobList, check_job_columns, make_jobs
from app.simulate.traces.series import Missing, make_rates, read_cells, wanted_columns
from app.simulate.traces.trace import RATE_SUFFIX, RateTrace

TIME = "second"


def read_any(source: Path) -> RateTrace | JobList:
    """The trace or the job list of a file (`-` = stdin, .gz = packed), as its header says.

    Raises InvalidRequest, which names file, line and column.
    """
    opened = open_rows(source, _check_any_header)
    return make_jobs(opened) if _are_jobs(opened.names) else make_trace(opened)


def read_trace(
    source: Path, *, columns: Sequence[str] = (), missing: Missing = Missing.REFUSE
) -> RateTrace:
    """The trace of a file. columns: those to take; none = all. Raises InvalidRequest."""
    return make_trace(
        open_rows(source, check_trace_columns), columns=columns, missing=missing
    )


def make_trace(
    opened: Rows, *, columns: Sequence[str] = (), missing: Missing = Missing.REFUSE
) -> RateTrace:
    """The trace of a file that is open. Raises InvalidRequest."""
    time = TimeReader(column=time_column(opened.header_place, opened.names))
    wanted = wanted_columns(opened, time.column, columns)
    cells = read_cells(opened, time, wanted, missing)
    # Only the suffix counts here: a series of our own may have any name, and its cells are counts.
    are_rates = [name.endswith(RATE_SUFFIX) for name in wanted]
    return make_rates(opened, cells, time, missing, are_rates=are_rates)


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
            f"next to {time} there must be a column for each series", file=place
        )


def _check_any_header(place: str, names: Sequence[str]) -> None:
    (check_job_columns if _are_jobs(names) else check_trace_columns)(place, names)


def _are_jobs(names: Sequence[str]) -> bool:
    return "submit_s" in names
