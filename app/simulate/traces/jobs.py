"""The job list: training tasks and offline jobs as they were submitted, with their GPUs and durations.

As CSV: submit_s, duration_s, gpus, name; a row per job in the order of submission, notes above the header.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from app.base.errors import InvalidRequest
from app.measurements.rows import Rows, open_rows, require_columns
from app.measurements.tables import NOT_NEGATIVE, POSITIVE, Reals, make_table

COLUMNS = ("submit_s", "duration_s", "gpus", "name")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobList:
    """Jobs in the order of their submission; raises InvalidRequest for what cannot be one."""

    submit_s: Reals
    """(N,) when each is submitted, from the beginning on."""
    duration_s: Reals
    """(N,) how long each ran where it was measured, above 0."""
    gpus: Reals
    """(N,) GPUs that each held, above 0; below 1 for a share of one."""
    names: tuple[str, ...]
    """(N,) any words, not always different."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.names or any(
            len(each) != len(self.names)
            for each in (self.submit_s, self.duration_s, self.gpus)
        ):
            raise InvalidRequest(
                "a job list needs at least one job, and all columns of the same length"
            )
        if (
            not NOT_NEGATIVE.holds(self.submit_s).all()
            or (np.diff(self.submit_s) < 0.0).any()
        ):
            raise InvalidRequest(
                "jobs must be in the order of their submission, from second 0 on"
            )
        if not (POSITIVE.holds(self.duration_s) & POSITIVE.holds(self.gpus)).all():
            raise InvalidRequest("every job must have a duration and GPUs above 0")

    def __len__(self) -> int:
        return len(self.names)

    def part(self, start_s: float, end_s: float) -> "JobList":
        """The jobs submitted in [start, end), from second 0 on. Raises InvalidRequest where there is none."""
        # Submissions are sorted, which the constructor has checked.
        first, last = np.searchsorted(self.submit_s, [start_s, end_s])
        if first == last:
            raise InvalidRequest(
                f"no job is submitted from {start_s:g} s until {end_s:g} s"
            )
        return replace(
            self,
            submit_s=self.submit_s[first:last] - start_s,
            duration_s=self.duration_s[first:last],
            gpus=self.gpus[first:last],
            names=self.names[first:last],
            notes=(
                *self.notes,
                f"change: submitted from second {start_s:.12g} to {end_s:.12g}",
            ),
        )

    def faster(self, factor: float) -> "JobList":
        """Submissions and durations in a time that goes `factor` times as fast. Raises InvalidRequest."""
        if not 0.0 < factor < np.inf:
            raise InvalidRequest(
                f"time cannot go {factor:g} times as fast; the factor must be above 0"
            )
        return replace(
            self,
            submit_s=self.submit_s / factor,
            duration_s=self.duration_s / factor,
            notes=(*self.notes, f"change: time × {factor:g}"),
        )


def check_job_columns(place: str, names: Sequence[str]) -> None:
    """Raises InvalidRequest for a header that is no job list's."""
    require_columns(place, names, COLUMNS, "a job list")


def make_jobs(rows: Rows) -> JobList:
    """The job list of a file that is open. Raises InvalidRequest, which names file, line and column."""
    table = make_table(rows)
    submit_s = table.numbers("submit_s", NOT_NEGATIVE)
    # The constructor refuses it, too, but cannot name the line.
    if (np.diff(submit_s) < 0.0).any():
        row = int(np.argmax(np.diff(submit_s) < 0.0)) + 1
        raise table.refusal(
            "comes before the job above; sort the jobs by submission",
            row=row,
            column="submit_s",
        )
    return JobList(
        submit_s=submit_s,
        duration_s=table.numbers("duration_s", POSITIVE),
        gpus=table.numbers("gpus", POSITIVE),
        names=table.names("name"),
        notes=rows.notes,
    )


def read_jobs(source: Path) -> JobList:
    """The job list of a file. Raises InvalidRequest, which names file, line and column."""
    return make_jobs(open_rows(source, check_job_columns))


def job_rows(jobs: JobList) -> Iterator[Sequence[str]]:
    """A header and rows; the notes go above them."""
    yield COLUMNS
    columns = (jobs.submit_s, jobs.duration_s, jobs.gpus)
    texts = ([f"{value:.12g}" for value in column.tolist()] for column in columns)
    yield from zip(*texts, jobs.names, strict=True)
