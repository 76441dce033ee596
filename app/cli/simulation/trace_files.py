"""What the verbs of `plimsoll trace` have in common: files in and out, and the line at the end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from agents.base.plurals import counted
from app.cli.common.durations import duration_text
from app.cli.common.files import STDIO, summary_stream, write_csv
from app.cli.objects.show.forecasts import rate_texts
from app.simulate.traces.files import trace_rows
from app.simulate.traces.jobs import JobList, job_rows
from app.simulate.traces.trace import RateTrace

TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="Trace or job list as `plimsoll trace` writes it; - = stdin, .gz = packed",
    ),
]
Written = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Where to write it; - = stdout, .gz = packed",
    ),
]


def write(found: RateTrace | JobList, output: Path) -> None:
    """Write a trace or a job list, then say what it is and what to do with it. Raises CliError."""
    rows = trace_rows(found) if isinstance(found, RateTrace) else job_rows(found)
    write_csv(output, rows, notes=found.notes)
    hint = (
        ""
        # Nothing is left to look at: the rows went to the next program.
        if output == STDIO
        else f"; look at it with `plimsoll trace describe {output}`"
    )
    summary_stream(output).write(f"{describe_load(found)}{hint}\n")


def describe_load(found: RateTrace | JobList) -> str:
    """`292 steps of 1 s (4m52s), 9 series, 201.5 rps together`."""
    if isinstance(found, JobList):
        jobs = f"{len(found):,} job{'s' if len(found) > 1 else ''}"
        return f"{jobs}, submitted within {duration_text(float(found.submit_s[-1]))}"
    # The texts of several rates share their decimals; here is one alone.
    (together,) = rate_texts([float(found.means_rps.sum())])
    steps = f"{len(found.rates_rps):,} steps of {found.step_s:g} s ({duration_text(found.duration_s)})"
    return f"{steps}, {counted(len(found.names), 'series', 'series')}, {together} rps together"


def list_of(listed: str) -> Sequence[str]:
    """`a,b` as its parts."""
    return [part.strip() for part in listed.split(",")]
