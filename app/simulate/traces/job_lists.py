"""Job lists from published sets of clusters.

Philly: submit_s, duration_s, num_gpus, virtual_cluster. Alibaba's pods, 2023: pod (or name), num_gpu, gpu_milli,
creation_s (creation_time), deletion_s, scheduled_s. A pod counts from its creation and lasts from when it was scheduled
until it was deleted; it holds num_gpu × gpu_milli thousandths of a GPU. What needs no GPU or never ran is left out.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.measurements.rows import Rows, open_rows, refusal, require_columns
from app.measurements.tables import NOT_NEGATIVE, CsvTable, Reals, make_table
from app.simulate.traces.jobs import JobList

_PHILLY = ("submit_s", "duration_s", "num_gpus", "virtual_cluster")
_PODS = {
    "pod": ("pod", "name"),
    "creation": ("creation_s", "creation_time"),
    "deletion": ("deletion_s", "deletion_time"),
    "scheduled": ("scheduled_s", "scheduled_time"),
}
"""A pod's columns here, and as published."""


def read_philly(source: Path) -> JobList:
    """Training jobs, called by their virtual cluster and their number. Raises InvalidRequest."""
    rows = open_rows(
        source,
        lambda place, names: require_columns(
            place, names, _PHILLY, "a Philly job list"
        ),
    )
    table = make_table(rows)
    # The set has no names of its own.
    names = [
        f"{cluster}-{number}"
        for number, cluster in enumerate(table.names(_PHILLY[3]), start=1)
    ]
    submit_s, duration_s, gpus = (
        table.numbers(column, NOT_NEGATIVE) for column in _PHILLY[:3]
    )
    return _job_list(rows, names, submit_s, duration_s, gpus)


def read_alibaba(source: Path) -> JobList:
    """Pods with GPUs. Raises InvalidRequest."""
    rows = open_rows(source, _check_pods)
    table = make_table(rows)
    of = {
        what: next(name for name in names if name in rows.names)
        for what, names in _PODS.items()
    }
    scheduled_s = table.numbers(of["scheduled"], NOT_NEGATIVE, or_empty=True)
    deletion_s = table.numbers(of["deletion"], NOT_NEGATIVE, or_empty=True)
    gpus = table.numbers("num_gpu", NOT_NEGATIVE) * _milli(table) / 1000.0
    creation_s = table.numbers(of["creation"], NOT_NEGATIVE)
    names = table.names(of["pod"])
    # Never scheduled, or still running when the set was taken: no duration is known, and the pod is left out.
    durations_s = np.nan_to_num(deletion_s - scheduled_s)
    return _job_list(rows, names, creation_s, durations_s, gpus)


def _milli(table: CsvTable) -> Reals:
    """(N,) thousandths of each GPU; a pod that names none takes whole ones."""
    milli = table.numbers("gpu_milli", NOT_NEGATIVE, or_empty=True)
    return np.where(np.isnan(milli), 1000.0, milli)


def _job_list(
    rows: Rows,
    names: Sequence[str],
    submit_s: Reals,
    duration_s: Reals,
    gpus: Reals,
) -> JobList:
    """What ran on GPUs, by submission, from the first of them on."""
    taken: npt.NDArray[np.bool_] = (gpus > 0.0) & (duration_s > 0.0)
    if not taken.any():
        raise refusal("no job needs a GPU and has a duration", file=rows.file)
    # Stable, so that jobs of the same moment keep the file's order.
    order = np.flatnonzero(taken)[np.argsort(submit_s[taken], kind="stable")]
    notes = rows.notes
    if len(order) < len(names):
        without_gpu = np.sum(gpus <= 0.0)
        never_ran = np.sum((gpus > 0.0) & ~taken)
        notes += (f"left out: {without_gpu} without a GPU, {never_ran} that never ran",)
    return JobList(
        submit_s=submit_s[order] - submit_s[order[0]],
        duration_s=duration_s[order],
        gpus=gpus[order],
        names=tuple(names[place] for place in order.tolist()),
        notes=notes,
    )


def _check_pods(place: str, names: Sequence[str]) -> None:
    # Where both names of a column are missing, the complaint names ours.
    found = [
        next((name for name in choice if name in names), choice[0])
        for choice in _PODS.values()
    ]
    require_columns(place, names, [*found, "num_gpu", "gpu_milli"], "a list of pods")
