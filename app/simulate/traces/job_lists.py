"""Job lists of clusters by what their columns mean: submission, start and end or duration, GPUs.

Known are the names of our own files and of the published sets in app.simulate.traces.forms. A job counts from its
submission, and lasts from its start to its end. It holds num_gpu × gpu_milli thousandths of a GPU where a set has
shares, and plan_gpu percent of one in each of its instances where it has those. What needs no GPU or never ran is left
out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from app.measurements.rows import Rows
from app.measurements.tables import NO_VALUE, NOT_NEGATIVE, CsvTable, Reals, make_table
from app.measurements.times import TimeReader, listed, times_of
from app.simulate.traces.forms import column_of
from app.simulate.traces.jobs import JobList

_SUBMIT = listed(
    "submit_s, submit_time, submitted_time, submission_time, submitted_at, submitted, submit, time_submit, creation_s, "
    "creation_time, created_at, arrival_time, arrival_s"
)
_START = listed(
    "start_s, start_time, started_at, scheduled_s, scheduled_time, start, time_start"
)
_END = listed(
    "end_s, end_time, ended_at, finish_time, completion_time, deletion_s, deletion_time, stop_time, end, time_end"
)
_DURATION = listed(
    "duration_s, duration, run_time, runtime, runtime_s, duration_min, duration_hours, elapsed_s"
)
_GPUS = listed(
    "gpus, num_gpus, num_gpu, gpu_num, gpu_request, gpu_count, n_gpus, ngpus, gpu, gpus_req, plan_gpu"
)
_PERCENT = "plan_gpu"
_SHARES = ("gpu_milli",)
_INSTANCES = ("inst_num", "num_inst", "instances")
_NAMES = listed(
    "name, job_name, jobid, job_id, id_job, pod, pod_name, instance_sn, instance, id"
)
_CLUSTERS = ("virtual_cluster", "vc")

_NO_VALUE = NO_VALUE | {"unknown"}
"""Slurm's word for what has not happened yet, too."""

Flags = npt.NDArray[np.bool_]


def read_job_list(rows: Rows) -> JobList:
    """The jobs of a file in the order of their submission. Raises InvalidRequest."""
    columns = _columns(rows)
    table = make_table(rows)

    def times_s(what: str) -> Reals:
        return times_of(table, TimeReader(column=columns[what]), no_value=_NO_VALUE)

    ran_s = np.full(len(table), math.nan)
    if "start" in columns and "end" in columns:
        ran_s = times_s("end") - times_s("start")
    if "duration" in columns:
        duration_s = _duration_s(table, columns["duration"])
        ran_s = np.where(np.isnan(duration_s), ran_s, duration_s)
    # Alibaba's tasks of 2020 have no time of submission: they count from their start.
    submit_s = times_s("submit" if "submit" in columns else "start")
    jobs = _Jobs(submit_s=submit_s, duration_s=ran_s, gpus=_gpus(table, columns))
    return _job_list(rows, _job_names(table, columns), jobs)


def _columns(rows: Rows) -> Mapping[str, str]:
    """What each column is, by its meaning. Raises InvalidRequest for a header that lacks one."""
    known = {
        "submit": _SUBMIT,
        "start": _START,
        "end": _END,
        "duration": _DURATION,
        "gpus": _GPUS,
        "shares": _SHARES,
        "instances": _INSTANCES,
        "name": _NAMES,
        "cluster": _CLUSTERS,
    }
    found = {what: column_of(rows.names, names) for what, names in known.items()}
    if lacking := _lacking(found):
        problem = f"a job list needs columns for {', '.join(lacking)}; it has {', '.join(rows.names)}{_hint(rows)}"
        raise rows.refusal(problem, line=rows.header_line)
    return {what: name for what, name in found.items() if name is not None}


def _lacking(found: Mapping[str, str | None]) -> list[str]:
    """What a job list cannot do without, of what was not found."""
    spans = found["start"] and found["end"]
    needed = {
        "submission (such as submit_time)": found["submit"] or found["start"],
        "duration (such as duration_s, or start_time and end_time)": found["duration"]
        or spans,
        "GPUs (such as num_gpus)": found["gpus"],
    }
    return [title for title, column in needed.items() if not column]


def _hint(rows: Rows) -> str:
    # The three tables of one set look alike, and only one of them can be used.
    if "inst_id" in rows.names and "job_name" in rows.names:
        return ". Of Alibaba's tables of 2020 take pai_task_table.csv"
    return ""


def _duration_s(table: CsvTable, column: str) -> Reals:
    return _numbers(table, column) * (TimeReader(column=column).unit_s or 1.0)


def _numbers(table: CsvTable, column: str) -> Reals:
    """(N,) numbers of at least 0; NaN for empty cells."""
    cells = [
        "" if cell.casefold() in _NO_VALUE else cell for cell in table.cells[column]
    ]
    cleaned = replace(table, cells={column: cells})
    return cleaned.numbers(column, NOT_NEGATIVE, or_empty=True)


def _gpus(table: CsvTable, columns: Mapping[str, str]) -> Reals:
    """(N,) GPUs of each job, with shares of one."""
    gpus = np.nan_to_num(_numbers(table, columns["gpus"]))
    if columns["gpus"].casefold() == _PERCENT:
        gpus = gpus / 100.0
    if "shares" in columns:
        milli = _numbers(table, columns["shares"])
        # A pod that names no share takes complete GPUs.
        gpus = gpus * np.where(np.isnan(milli), 1000.0, milli) / 1000.0
    if "instances" in columns:
        gpus = gpus * np.nan_to_num(_numbers(table, columns["instances"]), nan=1.0)
    return gpus


def _job_names(table: CsvTable, columns: Mapping[str, str]) -> Sequence[str]:
    if "name" in columns:
        return table.names(columns["name"])
    # Some sets have no names of their own.
    prefixes: Sequence[str] = ["job"] * len(table)
    if "cluster" in columns:
        prefixes = table.names(columns["cluster"])
    return [f"{prefix}-{number}" for number, prefix in enumerate(prefixes, start=1)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Jobs:
    """What the columns say of each job; NaN where a cell says nothing."""

    submit_s: Reals
    duration_s: Reals
    gpus: Reals

    @property
    def have_gpus(self) -> Flags:
        """(N,) whether each held a GPU."""
        return self.gpus > 0.0

    @property
    def have_run(self) -> Flags:
        """(N,) whether each ended: without start or end no duration is known."""
        return np.nan_to_num(self.duration_s) > 0.0

    @property
    def are_taken(self) -> Flags:
        """(N,) whether each is part of the list."""
        return self.have_gpus & self.have_run & ~np.isnan(self.submit_s)

    def left_out(self) -> str:
        """How many jobs were left out, and why."""
        never = np.sum(self.have_gpus & ~self.have_run)
        undated = np.sum(self.have_gpus & self.have_run & np.isnan(self.submit_s))
        why = (
            f"left out: {np.sum(~self.have_gpus)} without a GPU, {never} that never ran"
        )
        return f"{why}, {undated} without a time" if undated else why


def _job_list(rows: Rows, names: Sequence[str], jobs: _Jobs) -> JobList:
    """What ran on GPUs, by submission, from the first of them on."""
    taken = jobs.are_taken
    if not taken.any():
        raise rows.refusal("no job needs a GPU and has a duration")
    # Stable, so that jobs of the same moment keep the file's order.
    order = np.flatnonzero(taken)[np.argsort(jobs.submit_s[taken], kind="stable")]
    left_out = [jobs.left_out()] if len(order) < len(names) else []
    return JobList(
        submit_s=jobs.submit_s[order] - jobs.submit_s[order[0]],
        duration_s=jobs.duration_s[order],
        gpus=jobs.gpus[order],
        names=tuple(names[place] for place in order.tolist()),
        notes=(*rows.notes, *left_out),
    )
