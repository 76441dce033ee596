"""`plimsoll trace scale` and `slice`: traces made of traces."""

import math
from collections.abc import Mapping
from typing import Annotated

import typer

from app.cli.common.durations import parse_timeout
from app.cli.common.errors import CliError
from app.cli.common.files import STDIO
from app.cli.common.scenario_flags import parse_factor, parse_pairs, parse_rate
from app.cli.simulation.trace_files import TraceFile, Written, list_of, write
from app.simulate.traces.changes import (
    chosen,
    compressed,
    cut,
    factors_to,
    scaled,
    smoothed,
)
from app.simulate.traces.files import read_any
from app.simulate.traces.jobs import JobList
from app.simulate.traces.trace import RateTrace


def scale(
    trace: TraceFile,
    factor: Annotated[
        str | None,
        typer.Option(
            metavar="X|A=X,B=Y", help="Multiply the rates, of all series or of some"
        ),
    ] = None,
    *,
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="RPS|A=RPS",
            help="Mean requests per second of each series",
        ),
    ] = None,
    smooth: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="First average over this long around each step, such as 15s",
        ),
    ] = None,
    time: Annotated[
        float | None,
        typer.Option(metavar="X", help="Speed-up of time: 24 turns a day into an hour"),
    ] = None,
    output: Written = STDIO,
) -> None:
    """Change the rates of a trace, or how fast time passes in it.

    Small counts are mostly noise, which a factor amplifies and a simulation draws again: smooth them first. Rates stay
    the same when time passes faster: an hour at 24 times the speed has the rates of a day and a 24th of its requests. A
    job list takes only --time: submissions and durations shrink.
    """
    if factor is None and mean is None and smooth is None and time is None:
        raise typer.BadParameter("give --factor, --mean, --smooth or --time")
    if factor is not None and mean is not None:
        raise typer.BadParameter("give either --factor or --mean")
    found = read_any(trace)
    if isinstance(found, JobList):
        # Submissions are moments: there is no rate to change.
        if time is None or factor or mean or smooth:
            raise CliError("a job list has no rates; it takes only --time")
        write(found.faster(time), output)
        return
    # First, as a factor would blow up the noise; last the time, since smoothing is in the trace's own seconds.
    if smooth is not None:
        found = smoothed(found, _seconds(smooth, "--smooth", 0.0))
    if factor is not None:
        found = scaled(found, _by_series(found, factor, "--factor"))
    if mean is not None:
        found = scaled(found, factors_to(found, _by_series(found, mean, "--mean")))
    write(found if time is None else compressed(found, time), output)


def slice_trace(
    trace: TraceFile,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Offset from the beginning, such as 90s [default: 0s]",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TIME",
            help="Offset from the beginning, such as 1h30m [default: the end]",
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Series to keep [default: all]")
    ] = None,
    output: Written = STDIO,
) -> None:
    """Cut a piece out of a trace, or some of its series.

    Keeps steps or jobs that begin at or after --from and before --to; the piece begins at second 0.
    """
    found = read_any(trace)
    start_s = _seconds(start, "--from", 0.0)
    if isinstance(found, JobList):
        if columns is not None:
            raise CliError("a job list has no series; --columns is for traces")
        write(found.part(start_s, _seconds(end, "--to", math.inf)), output)
        return
    if columns is not None:
        found = chosen(found, list_of(columns))
    if start is not None or end is not None:
        found = cut(found, start_s, _seconds(end, "--to", found.duration_s))
    write(found, output)


def _by_series(trace: RateTrace, listed: str, flag: str) -> Mapping[str, float]:
    """A value for each series that is named, or for all of them. Raises BadParameter."""
    read = parse_factor if flag == "--factor" else parse_rate
    if "=" in listed:
        return parse_pairs(listed, flag, read)
    try:
        return dict.fromkeys(trace.names, read(listed))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{flag}'") from error


def _seconds(duration: str | None, flag: str, default_s: float) -> float:
    if duration is None:
        return default_s
    try:
        # A trace begins at 0.
        return parse_timeout(duration)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint=f"'{flag}'") from error
