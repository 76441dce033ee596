"""Published sets and other people's files as traces and job lists, with a note of source and licence.

What a file is follows from its columns; the format that the user names decides where they leave it open.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from app.base.errors import InvalidRequest
from app.measurements.records import open_records
from app.measurements.rows import Rows
from app.measurements.series_json import (
    PROMETHEUS,
    counter_of,
    counter_problem,
    labels_of,
    series_names,
)
from app.measurements.times import (
    TimeReader,
    TimeUnit,
    Values,
    listed,
    time_column,
    values_of,
)
from app.simulate.traces.azure_functions import read_azure_functions
from app.simulate.traces.forms import (
    ANSWERS,
    AZURE_LLM_UNDATED,
    HEADERLESS,
    PROMPTS,
    KnownForm,
    Origin,
    RowMeaning,
    column_of,
    find_form,
    origin_in,
)
from app.simulate.traces.job_lists import read_job_list
from app.simulate.traces.jobs import JobList
from app.simulate.traces.requests import ALL, RequestOptions, read_requests
from app.simulate.traces.series import (
    Missing,
    SeriesCells,
    make_rates,
    pivoted,
    read_cells,
    wanted_columns,
)
from app.simulate.traces.trace import RATE_SUFFIX, RateTrace

USUAL_FUNCTIONS = 10
READ = "read: "
"""Begins the notes of what was assumed of a file."""
_SUBMISSIONS = listed("submit_s, submit_time, submitted_time, time_submit, submit")
_DASHBOARD_TIME = "Time"
"""How Grafana calls the column of times in its CSV."""


class FileKind(StrEnum):
    """Whose file it is, or what its rows are."""

    AUTO = "auto"
    """As the columns say."""
    RATES = "rates"
    """A time column and one column per series, such as the per-second traces of Twitter."""
    REQUESTS = "requests"
    """A row per request."""
    JOBS = "jobs"
    AZURE_LLM = "azure-llm"
    AZURE_FUNCTIONS = "azure-functions"
    PHILLY = "philly"
    ALIBABA = "alibaba"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """What a kind of file leaves open; each option is read by the kinds that its line names."""

    columns: Sequence[str] = ()
    """rates: which to take; none = all."""
    missing: Missing = Missing.REFUSE
    """rates: what to do about gaps."""
    values: Values | None = None
    """rates: what the cells are; None = as columns and units say."""
    time: str | None = None
    """rates, requests: the column of times; None = as its name says."""
    unit: TimeUnit | None = None
    """rates, requests: of the times; None = as the column says."""
    by: str | None = None
    """rates, requests: the column whose values become a series each."""
    top: int = USUAL_FUNCTIONS
    """requests, azure-functions: how many of the busiest."""
    trigger: str = ""
    """azure-functions: of this trigger only."""
    source: str = ""
    """Words; else those of the published set."""
    licence: str = ""


_ROWS = {
    FileKind.AUTO: None,
    FileKind.RATES: RowMeaning.SERIES,
    FileKind.REQUESTS: RowMeaning.REQUESTS,
    FileKind.AZURE_LLM: RowMeaning.REQUESTS,
    FileKind.AZURE_FUNCTIONS: RowMeaning.MINUTES,
    FileKind.JOBS: RowMeaning.JOBS,
    FileKind.PHILLY: RowMeaning.JOBS,
    FileKind.ALIBABA: RowMeaning.JOBS,
}

_ANY_REQUESTS = KnownForm(rows=RowMeaning.REQUESTS, needs=())
"""What is known of a file of requests whose columns tell no set."""


def import_file(
    kind: FileKind, source: Path, options: ImportOptions
) -> RateTrace | JobList:
    """What a file holds (`-` = stdin, .gz = packed). Raises InvalidRequest, which names file, line and column."""
    opened = open_records(source, headerless=HEADERLESS)
    form = find_form(opened.names, opened.written_by)
    rows = _meaning(opened, form, kind, options)
    origin = form.origin if form else None
    if origin is None and kind is FileKind.AZURE_LLM:
        origin = AZURE_LLM_UNDATED
    if rows is RowMeaning.REQUESTS:
        requests = read_requests(
            opened, form or _ANY_REQUESTS, _request_options(options)
        )
        if form is not None and requests.year is not None:
            origin = origin_in(form, requests.year)
        return _noted(requests.trace, origin, options)
    return _noted(_read_others(rows, opened, options), origin, options)


def _read_others(
    rows: RowMeaning, opened: Rows, options: ImportOptions
) -> RateTrace | JobList:
    if rows is RowMeaning.JOBS:
        return read_job_list(opened)
    if rows is RowMeaning.MINUTES:
        return read_azure_functions(opened, top=options.top, trigger=options.trigger)
    return _read_series(opened, options)


def assumptions(imported: RateTrace | JobList) -> list[str]:
    """What was assumed of the file, for the user to look at."""
    return [note.removeprefix(READ) for note in imported.notes if note.startswith(READ)]


def _meaning(
    opened: Rows, form: KnownForm | None, kind: FileKind, options: ImportOptions
) -> RowMeaning:
    """What the rows are: as the columns say, else as the user says."""
    # Requests that somebody has counted by the second are a series, whatever else stands in the row.
    if options.by is None and _is_counted(opened.names):
        return RowMeaning.SERIES
    if form is not None:
        return form.rows
    wanted = _ROWS[kind]
    # A dashboard has no rows of requests, whatever the user takes it for.
    if _DASHBOARD_TIME in opened.names and kind is FileKind.AZURE_LLM:
        return RowMeaning.SERIES
    # With both lengths a row is one request, though its time column could be that of a series.
    are_requests = all(column_of(opened.names, known) for known in (PROMPTS, ANSWERS))
    if are_requests and wanted in (None, RowMeaning.SERIES):
        return RowMeaning.REQUESTS
    if wanted is not None:
        return wanted
    return RowMeaning.JOBS if _are_jobs(opened) else RowMeaning.SERIES


def _is_counted(names: Sequence[str]) -> bool:
    return ALL in names and "second" in names


def _are_jobs(opened: Rows) -> bool:
    lowered = {name.casefold() for name in opened.names}
    return bool(lowered & {*_SUBMISSIONS})


def _request_options(options: ImportOptions) -> RequestOptions:
    # Options that change nothing would make the user believe that they did.
    if options.columns or options.missing is not Missing.REFUSE:
        raise InvalidRequest(
            "the file has a row for each request, which has neither columns of series nor missing steps: leave "
            "--columns and --missing away; --by makes a series of each value of a column"
        )
    return RequestOptions(
        time=options.time, unit=options.unit, by=options.by, top=options.top
    )


def _read_series(opened: Rows, options: ImportOptions) -> RateTrace:
    column = time_column(opened.header_place, opened.names, options.time)
    unit_s = options.unit.seconds if options.unit else None
    time = TimeReader(column=column, unit_s=unit_s)
    if options.by is not None:
        # The pivot names the series by their values, so that all of them are wanted.
        opened = pivoted(opened, column, options.by, options.columns)
        options = replace(options, columns=())
    wanted = _wanted(opened, column, options)
    names = _series_names(opened, wanted)
    cells = read_cells(opened, time, wanted, options.missing)
    from_dashboard = column == _DASHBOARD_TIME or opened.written_by == PROMETHEUS
    are_rates = [
        _is_rate(name, options.values, from_dashboard=from_dashboard) for name in wanted
    ]
    trace = make_rates(
        opened, cells, time, options.missing, are_rates=are_rates, names=names
    )
    notes = _unit_notes(cells)
    # With steps of a second a rate and a count are the same.
    if trace.step_s != 1.0 and options.values is None:
        notes += _value_notes(cells, are_rates, trace.step_s)
    return replace(trace, notes=(*trace.notes, *notes))


def _wanted(opened: Rows, time: str, options: ImportOptions) -> Sequence[str]:
    columns = options.columns or ([ALL] if _is_counted(opened.names) else [])
    wanted = wanted_columns(opened, time, columns)
    if not wanted:
        problem = f"next to {time} there must be a column for each series"
        raise opened.refusal(problem, line=opened.header_line)
    return wanted


def _series_names(opened: Rows, wanted: Sequence[str]) -> Sequence[str] | None:
    """Short names of series that are written with their labels. Raises InvalidRequest for counters."""
    labels = [labels_of(name) for name in wanted]
    known = [each for each in labels if each is not None]
    for each in known:
        if counter := counter_of(each):
            raise opened.refusal(counter_problem(counter), line=opened.header_line)
    return series_names(known) if len(known) == len(wanted) else None


def _is_rate(name: str, values: Values | None, *, from_dashboard: bool) -> bool:
    if name.endswith(RATE_SUFFIX):
        return True
    # What a dashboard shows of requests over time is a rate, where its name does not say otherwise.
    usual = Values.RATES if from_dashboard else Values.COUNTS
    return (values or values_of(name) or usual) is Values.RATES


def _unit_notes(cells: SeriesCells) -> list[str]:
    return [
        f"{READ}{name}: cells are in {unit}"
        for name, unit in zip(cells.names, cells.units, strict=True)
        if unit
    ]


def _value_notes(
    cells: SeriesCells, are_rates: Sequence[bool], step_s: float
) -> list[str]:
    """What mere numbers were taken for, where no name says it, and how to say otherwise."""
    of_step = f"requests of the step of {step_s:g} s"
    others = {
        True: f"requests per second; --values {Values.COUNTS} takes them as {of_step}",
        False: f"{of_step}; --values {Values.RATES} takes them as requests per second",
    }
    said: dict[bool, list[str]] = {True: [], False: []}
    for name, is_rate, unit in zip(cells.names, are_rates, cells.units, strict=True):
        if not unit and not name.endswith(RATE_SUFFIX):
            said[is_rate].append(name)
    return [
        f"{READ}{_listed(names)}: cells are {others[is_rate]}"
        for is_rate, names in said.items()
        if names
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" and others" if names[3:] else "")


def _noted(
    imported: RateTrace | JobList, origin: Origin | None, options: ImportOptions
) -> RateTrace | JobList:
    lines = (
        ("source", options.source or (origin.source if origin else "")),
        ("licence", options.licence or (origin.licence if origin else "")),
    )
    notes = [f"{title}: {value}" for title, value in lines if value]
    # The origin first: a licence that asks to be named must not be lost below other notes.
    return replace(imported, notes=(*notes, *imported.notes))
