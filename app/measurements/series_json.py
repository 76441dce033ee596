"""JSON documents whose records lie deeper than a list of objects: Prometheus' answers and Philly's job log.

Sources: Prometheus' HTTP API, "Range vectors"; VictoriaMetrics, "/api/v1/export";
README.md of msr-fiddle/philly-traces.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from app.measurements.rows import Row, Rows, refusal
from solvers.types.documents.strict_json import MAX_NUMBER, describe

PROMETHEUS = "prometheus"
PHILLY = "philly"
MAX_SERIES = 1000
_TIME = "timestamp"
_LABELS = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_METRIC = "__name__"
_EXPORTED_UNIT_S = 1e-3
_COUNTERS = ("_total", "_count", "_bucket", "_sum")
_JOB = ("jobid", "vc", "submitted_time", "duration", "gpus")


def rows_of_document(file: str, document: object) -> Rows | None:
    """The rows of a document of these programs; None for any other one. Raises InvalidRequest."""
    result = _range_of(file, document)
    if result is not None:
        return _prometheus_rows(file, result)
    if isinstance(document, list) and document and _is_philly(document[0]):
        rows = (_job_row(file, at, job) for at, job in enumerate(document, start=1))
        place = f"{file}: entry"
        return Rows(file=place, names=_JOB, notes=(), rows=rows, written_by=PHILLY)
    return None


def is_exported(document: object) -> bool:
    """Whether it is a line of VictoriaMetrics' export: a series with all its times and values."""
    parts = ("metric", "values", "timestamps")
    return isinstance(document, dict) and all(each in document for each in parts)


def series_names(labels: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """A name for each series: the values of the labels in which they differ, else the metric's."""
    keys = sorted({key for each in labels for key in each})
    different = [key for key in keys if len({each.get(key, "") for each in labels}) > 1]
    if not different:
        return tuple(each.get(_METRIC, "requests") for each in labels)
    # Spaces within a value stay; an absent label must not leave the name empty.
    return tuple(
        "/".join(each[key] for key in different if each.get(key)) or "none"
        for each in labels
    )


def labels_of(name: str) -> Mapping[str, str] | None:
    """The labels of a series that is written as Prometheus does, `name{label="value"}`; None for other names."""
    metric, brace, rest = name.partition("{")
    if not brace or not rest.rstrip().endswith("}"):
        return None
    labels = dict(_LABELS.findall(rest))
    return {_METRIC: metric.strip()} | labels if metric.strip() else labels


def counter_of(labels: Mapping[str, str]) -> str:
    """The metric's name where it is a counter itself, and no rate of one; else nothing."""
    metric = labels.get(_METRIC, "")
    # Functions such as rate() take the metric's name away; what has kept it was not computed from.
    return metric if metric.endswith(_COUNTERS) else ""


def counter_problem(metric: str) -> str:
    """Why a counter cannot be read as arrivals, and what to query."""
    return f"{metric} is a counter, which only grows; query sum(rate({metric}[1m])) and export that"


def _range_of(file: str, document: object) -> Sequence[object] | None:
    """The series of an answer, bare or with its envelope; None for another document."""
    if isinstance(document, list):
        is_series = bool(document) and isinstance(document[0], dict)
        return document if is_series and "metric" in document[0] else None
    if not isinstance(document, dict):
        return None
    if document.get("status") == "error":
        problem = f"is Prometheus' refusal of a query: {document.get('error')}"
        raise refusal(problem, file=file)
    data = document.get("data") if "status" in document else document
    if not isinstance(data, dict) or "resultType" not in data:
        return None
    return _list_of(data.get("result"))


def _list_of(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _prometheus_rows(file: str, result: Sequence[object]) -> Rows:
    if not 1 <= len(result) <= MAX_SERIES:
        problem = f"the query has {len(result)} series; it must have 1 to {MAX_SERIES}: sum by (service), for instance"
        raise refusal(problem, file=file)
    labels = [_labels(file, series) for series in result]
    points = [_points(file, series) for series in result]
    cells: dict[float, list[str]] = {}
    for at, series in enumerate(points):
        for moment, value in series:
            # Series begin and end at different moments: where one has no value its cell stays empty.
            cells.setdefault(moment, [""] * len(result))[at] = value
    rows: Iterator[Row] = (
        (number, [repr(moment), *cells[moment]])
        for number, moment in enumerate(sorted(cells), start=1)
    )
    return Rows(
        file=f"{file}: step",
        names=(_TIME, *_distinct(series_names(labels))),
        notes=(),
        rows=rows,
        written_by=PROMETHEUS,
    )


def _labels(file: str, series: object) -> Mapping[str, str]:
    metric = series.get("metric") if isinstance(series, dict) else None
    if not isinstance(metric, dict):
        raise refusal("a series has no `metric`", file=file)
    labels = {str(key): str(value) for key, value in metric.items()}
    if counter := counter_of(labels):
        raise refusal(counter_problem(counter), file=file)
    return labels


def _points(file: str, series: object) -> Iterator[tuple[float, str]]:
    series = series if isinstance(series, dict) else {}
    values = series.get("values")
    if not isinstance(values, list):
        problem = "has single values or histograms, and no series over time; ask query_range, of a rate"
        raise refusal(problem, file=file)
    # An export has milliseconds in a list of their own.
    times, unit_s = series.get("timestamps"), 1.0
    if isinstance(times, list):
        values = [list(pair) for pair in zip(times, values, strict=False)]
        unit_s = _EXPORTED_UNIT_S
    for point in values:
        if not isinstance(point, list) or len(point) != 2:
            problem = f"a value must be [time, number], not {describe(point)}"
            raise refusal(problem, file=file)
        moment, value = point
        # NaN fails the comparison, and an integer of 400 digits is too large for a float.
        if (
            not isinstance(moment, int | float)
            or not abs(moment) <= MAX_NUMBER / unit_s
        ):
            problem = f"a time must be a number of seconds, not {describe(moment)}"
            raise refusal(problem, file=file)
        yield float(moment) * unit_s, str(value)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """The names, numbered where two are alike."""
    found: list[str] = []
    for name in names:
        same = sum(each.partition("#")[0] == name for each in found)
        found.append(f"{name}#{same + 1}" if same else name)
    return tuple(found)


def _is_philly(entry: object) -> bool:
    return isinstance(entry, dict) and "attempts" in entry and "submitted_time" in entry


def _job_row(file: str, at: int, job: object) -> Row:
    """One job: how long its attempts held GPUs together, and how many the largest one had."""
    if not _is_philly(job) or not isinstance(job, dict):
        raise refusal("is no job with attempts", file=f"{file}: entry", line=at)
    runs = [each for each in _list_of(job["attempts"]) if isinstance(each, dict)]
    # An attempt without its end was still running, or was logged wrongly: its length is not known.
    duration_s = sum(_seconds(each) for each in runs)
    gpus = max((_gpus(each) for each in runs), default=0)
    cells = [str(job.get(name) or "") for name in _JOB[:3]]
    return at, [*cells, f"{duration_s:g}", str(gpus)]


def _seconds(attempt: Mapping[str, object]) -> float:
    try:
        start, end = (
            datetime.fromisoformat(str(attempt.get(name)))
            for name in ("start_time", "end_time")
        )
    except ValueError:
        return 0.0
    return max(0.0, (end - start).total_seconds())


def _gpus(attempt: Mapping[str, object]) -> int:
    hosts = _list_of(attempt.get("detail"))
    return sum(len(host.get("gpus") or ()) for host in hosts if isinstance(host, dict))
