"""`plimsoll trace`: load for simulations, from public sets or made, and what it is like."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.common.durations import duration_text
from app.cli.common.files import STDIO
from app.cli.common.options import command_group
from app.cli.common.output import (
    Cells,
    Format,
    amount,
    faint,
    show_document,
    show_line,
    show_table,
)
from app.cli.objects.show.forecasts import rate_texts
from app.cli.simulation.trace_changes import scale, slice_trace
from app.cli.simulation.trace_files import (
    TraceFile,
    Written,
    describe_load,
    list_of,
    write,
)
from app.cli.simulation.trace_generate import app as generate
from app.measurements.times import TimeUnit, Values
from app.simulate.traces.describe import (
    LAG_S,
    WINDOWS_S,
    Daily,
    JobSummary,
    SeriesSummary,
    describe_jobs,
    describe_trace,
)
from app.simulate.traces.files import read_any
from app.simulate.traces.importing import (
    USUAL_FUNCTIONS,
    FileKind,
    ImportOptions,
    assumptions,
    import_file,
)
from app.simulate.traces.jobs import JobList
from app.simulate.traces.series import Missing
from app.simulate.traces.trace import RateTrace

BARS = "▁▂▃▄▅▆▇█"
_REQUESTS = (FileKind.REQUESTS, FileKind.AZURE_LLM)

app = command_group("Import, generate, change and describe load for simulations.")


Kind = Annotated[
    FileKind,
    typer.Argument(
        metavar="FORMAT",
        help="What its rows are, or whose it is; auto: as its columns say",
    ),
]
Imported = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="CSV, JSON or JSON lines; - = stdin, .gz = packed"
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="rates: columns to take [default: all]",
    ),
]
MissingOption = Annotated[
    Missing | None,
    typer.Option(
        help="rates: how to treat missing steps and empty cells [default: refuse]"
    ),
]
ValuesOption = Annotated[
    Values | None,
    typer.Option(
        help="rates: whether cells are requests per second or per step [default: as columns and units say]"
    ),
]
TimeColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column of times [default: by its name]",
    ),
]
TimeUnitOption = Annotated[
    TimeUnit | None,
    typer.Option(help="Unit of times that are numbers [default: by name and size]"),
]
By = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="rates, requests: a series for each value of this column"
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1000,
        help="requests, azure-functions: how many of the busiest [default: 10]",
    ),
]
Trigger = Annotated[
    str | None,
    typer.Option(
        metavar="WORD", help="azure-functions: only this trigger, such as http"
    ),
]
Source = Annotated[
    str,
    typer.Option(
        metavar="WORDS", help="Where it comes from [default: the published set]"
    ),
]
Licence = Annotated[
    str,
    typer.Option(
        metavar="WORDS", help="Under which licence [default: the published set's]"
    ),
]


@app.command(name="import")
def import_trace(
    kind: Kind,
    file: Imported,
    *,
    columns: Columns = None,
    missing: MissingOption = None,
    values: ValuesOption = None,
    time_column: TimeColumn = None,
    time_unit: TimeUnitOption = None,
    by: By = None,
    top: Top = None,
    trigger: Trigger = None,
    source: Source = "",
    licence: Licence = "",
    output: Written = STDIO,
) -> None:
    """Turn a public trace, an export or a job list into a file for simulations.

    rates: a time column and a column per series, such as Grafana's CSV and Prometheus' JSON; requests and azure-llm: a
    row per request; azure-functions: invocations; jobs, philly and alibaba: job lists. Published sets are known by
    their columns, whatever FORMAT says. docs/simulate.md describes the formats.
    """
    # Silently ignored options would make files that are not what was asked for.
    _refuse_others(
        kind, (FileKind.RATES,), columns=columns, missing=missing, values=values
    )
    _refuse_others(
        kind,
        (FileKind.RATES, *_REQUESTS),
        by=by,
    )
    _refuse_others(
        kind,
        (FileKind.AZURE_FUNCTIONS, *_REQUESTS),
        top=top,
    )
    _refuse_others(
        kind,
        (FileKind.AZURE_FUNCTIONS,),
        trigger=trigger,
    )
    options = ImportOptions(
        columns=list_of(columns) if columns else (),
        missing=missing or Missing.REFUSE,
        values=values,
        time=time_column,
        unit=time_unit,
        by=by,
        # None until here, so that one that is given for another format is noticed.
        top=top or USUAL_FUNCTIONS,
        trigger=trigger or "",
        source=source,
        licence=licence,
    )
    imported = import_file(
        kind,
        file,
        options,
    )
    write(imported, output)
    for assumption in assumptions(imported):
        # On stderr, as the trace may go to stdout.
        sys.stderr.write(f"Note: {assumption}\n")


@app.command()
def describe(
    trace: TraceFile,
    output: Annotated[
        Format,
        typer.Option(
            "-o",
            "--output",
            help="table, json or yaml",
        ),
    ] = Format.TABLE,
) -> None:
    """Describe how much load a trace holds, how bursty it is, and whether days are alike.

    D: variance of the requests in 1, 10 and 60 s over their mean; a Poisson stream has 1, bursts that last grow with
    the window. C: correlation of steps a minute apart. docs/simulate.md explains more.
    """
    found = read_any(trace)
    # `wide` is one of the formats of all commands, but a trace has no further columns.
    if output is Format.WIDE:
        raise typer.BadParameter(
            "a trace has no wider table; use table, json or yaml",
            param_hint="'-o'",
        )
    if output is not Format.TABLE:
        show_document(_document(found), output)
        return
    show_line(describe_load(found))
    for note in found.notes:
        show_line(faint(note))
    if isinstance(found, JobList):
        _show_jobs(describe_jobs(found))
    else:
        _show_series(describe_trace(found))


def _refuse_others(
    kind: FileKind, readers: Sequence[FileKind], **options: object
) -> None:
    for name, value in options.items():
        if value is not None and kind not in (*readers, FileKind.AUTO):
            *others, last = readers
            takers = (
                f"{', '.join(others)} and {last} take" if others else f"{last} takes"
            )
            raise typer.BadParameter(
                f"only {takers} it, not {kind}", param_hint=f"'--{name}'"
            )


def _document(found: RateTrace | JobList) -> object:
    if isinstance(found, JobList):
        return {"notes": found.notes, **asdict(describe_jobs(found))}
    return {
        "notes": found.notes,
        "duration_s": found.duration_s,
        "step_s": found.step_s,
        "windows_s": WINDOWS_S,
        "lag_s": LAG_S,
        "series": [asdict(summary) for summary in describe_trace(found)],
    }


def _show_series(summaries: Sequence[SeriesSummary]) -> None:
    show_table(
        [
            "series",
            ">mean rps",
            ">p99",
            ">peak",
            *(f">D {window_s:g} s" for window_s in WINDOWS_S),
            f">C {LAG_S:g} s",
            "",
        ],
        [_row(summary) for summary in summaries],
    )
    for summary in summaries:
        if summary.daily is not None:
            show_line(f"{summary.name}: {_daily_text(summary.daily)}")


def _row(summary: SeriesSummary) -> Cells:
    return (
        summary.name,
        *rate_texts([summary.mean_rps, summary.p99_rps, summary.peak_rps]),
        # One column for each window.
        *map(amount, summary.dispersion),
        amount(summary.autocorrelation, 2),
        _bars(summary.outline),
    )


def _daily_text(daily: Daily) -> str:
    busiest = (
        f"busiest in hour {daily.busiest_hour} ({daily.busiest_factor:.2f} × the mean)"
    )
    quietest = f"quietest in hour {daily.quietest_hour} ({daily.quietest_factor:.2f} ×)"
    repeats = (
        "" if daily.repeats is None else f", correlation of days {daily.repeats:.2f}"
    )
    return f"{busiest}, {quietest}{repeats}"


def _show_jobs(summary: JobSummary) -> None:
    show_line(
        f"{amount(summary.per_hour)} jobs an hour, dispersion by the hour {amount(summary.dispersion_per_hour)}  ",
        _bars(summary.outline),
    )
    show_line(
        f"duration: half at most {duration_text(summary.duration_s_p50)}, "
        f"95 % at most {duration_text(summary.duration_s_p95)}"
    )
    gpus = f"{amount(summary.gpus_mean, 2)} GPUs a job, at most {summary.gpus_most:g}"
    show_line(f"{gpus}; {amount(summary.gpu_hours, 0)} GPU-hours")


def _bars(outline: Sequence[float]) -> str:
    return "".join(
        # A share of 1 would be one bar too high.
        BARS[min(len(BARS) - 1, int(share * len(BARS)))]
        for share in outline
    )


app.command()(scale)
app.command(name="slice")(slice_trace)
app.add_typer(generate, name="generate")
