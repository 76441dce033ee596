"""`plimsoll forecast`: a service's forecast, back-tests on a trace, and a history for a service that has none."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agents.base.plurals import counted
from app.cli.common.client import Api, Document, documents, number, text
from app.cli.common.context import cli_context
from app.cli.common.durations import parse_duration, parse_moment
from app.cli.common.errors import CliError
from app.cli.common.local import on_database
from app.cli.common.options import Output, command_group
from app.cli.common.output import (
    GOOD,
    Cells,
    ColouredCell,
    Format,
    amount,
    bold,
    faint,
    good,
    show_document,
    show_json,
    show_line,
    show_table,
    time_text,
)
from app.cli.objects.show.forecasts import rate_texts, telemetry_cell
from app.measurements.traces import ArrivalTrace, make_history, read_trace
from solvers.forecast.back_test import BackTestOrigin, ForecastScore, back_test
from solvers.forecast.choose_technique import MARGIN, MIN_FORECASTS, choose
from solvers.forecast.seasonal import PERIODS_S
from solvers.forecast.seasons import COARSE_S, coarsen, make_seasons
from solvers.forecast.techniques import DEFAULT
from solvers.forecast.types import PLANNING_LEVEL, RequestSeries

if TYPE_CHECKING:
    from app.db.base.transaction import Engine

MIN_HORIZON_S = 5.0
MAX_ORIGINS = 2000

app = command_group(
    "Show a service's forecast, back-test a trace, or load one as history."
)

TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="CSV with times, and rate_rps, arrivals or requests; - = stdin",
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column to read; names that end in _rps are rates, others requests",
    ),
]

TimeColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Column of times [default: by its name]"),
]


@app.command()
def show(
    context: typer.Context,
    service: Annotated[
        str, typer.Argument(metavar="SERVICE", help="Name of the service")
    ],
    output: Output = Format.TABLE,
) -> None:
    """Show what the control loop expects of a service, and why.

    The quantiles of its arrival rate one plan ahead, whether its nodes report, and how each technique did on what
    came. docs/predict.md explains the columns.
    """
    with Api(cli_context(context)) as api:
        forecast = api.get(f"/api/v1/services/{service}/forecast")
    if not show_document(forecast, output):
        _show_forecast(forecast)


@app.command()
def test(
    trace: TraceFile,
    column: Column = None,
    *,
    time_column: TimeColumn = None,
    horizon: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How far ahead: 5s, 5m [default: 5s or one step]"
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Sum the trace into windows this long first [default: one step]",
        ),
    ] = None,
    output: Annotated[
        Format, typer.Option("-o", "--output", help="table or json")
    ] = Format.TABLE,
) -> None:
    """Compare the techniques on a trace, without any server.

    Every technique forecasts the trace from what came before, and is judged by the pinball loss at the level that plans
    are made for. docs/predict.md explains the columns.
    """
    series = _read(trace, column, time_column).series
    if window is not None:
        series = coarsen(series, _seconds(window))
    # A forecast cannot look less far ahead than the step that it is made of.
    usual_s = max(MIN_HORIZON_S, series.window_s)
    horizon_s = usual_s if horizon is None else _seconds(horizon)
    scores = _scores(series, horizon_s)
    if not scores:
        raise CliError(
            f"the trace has {counted(len(series.arrivals), 'window')}: too few to test a forecast"
        )
    chosen = choose(scores)
    if output is Format.JSON:
        judged = {name: asdict(score) for name, score in scores.items()}
        show_json(
            {
                "horizon_s": horizon_s,
                "window_s": series.window_s,
                "chosen": chosen,
                "scores": judged,
            }
        )
        return
    default = scores[DEFAULT]
    show_line(
        f"{_forecasts(default)} {horizon_s:g} s ahead, windows of {series.window_s:g} s, mean {_mean(default)}"
    )
    _show_scores(scores, chosen)


def _read(trace: Path, column: str | None, time_column: str | None) -> ArrivalTrace:
    """The trace of a file; what was assumed of it is said on stderr."""
    found = read_trace(trace, column, time=time_column)
    if found.note:
        sys.stderr.write(f"Note: {found.note}\n")
    return found


def _seconds(duration: str) -> float:
    return parse_duration(duration).total_seconds()


@app.command(name="warm-up")
def warm_up(
    service: Annotated[
        str,
        typer.Argument(metavar="SERVICE", help="Name of the service; it must exist"),
    ],
    trace: TraceFile,
    column: Column = None,
    *,
    time_column: TimeColumn = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="When the trace began, such as 7d or 2026-01-31 (UTC) [default: lately]",
        ),
    ] = None,
) -> None:
    """Load a trace as the history of a service, on the control plane's machine.

    Forecasts by the time of day then work from the first day. A trace with timestamps is moved by whole weeks
    to the last one; one without begins at midnight UTC. What was measured is never replaced.
    """
    now = datetime.now(UTC)
    start_s = None if start is None else parse_moment(start, now).timestamp()
    history = make_history(
        _read(trace, column, time_column), now_s=now.timestamp(), start_s=start_s
    )

    # Here: the other verbs ask an API or none, and the database's libraries take half a second.
    from app.db.predictions import rates
    from app.db.workloads import services

    async def add(engine: "Engine") -> int:
        async with engine.begin() as connection:
            # Raises for a service that does not exist, whose rates would never be read.
            await services.get(connection, service)
            return await rates.add_trace(connection, service, history)

    added = on_database(add)
    begin, end = _minute(history.start_s), _minute(history.end_s)
    show_line(
        f"{service}: {counted(added, 'rate')} of five minutes added, "
        f"of {len(history.heard):,} from {begin} to {end} UTC"
    )


def _minute(moment_s: float) -> str:
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M}"


def _scores(series: RequestSeries, horizon_s: float) -> dict[str, ForecastScore]:
    coarse = coarsen(series, COARSE_S)
    question = BackTestOrigin(horizon_s=horizon_s, max_origins=MAX_ORIGINS)
    found = back_test(
        series,
        question,
        # Only what came before the origin: a season that knew the future would win every back-test.
        lambda until_s: make_seasons(
            coarse.part(0, int((until_s - coarse.start_s) // coarse.window_s))
        ),
    )
    return dict(found)


def _show_forecast(forecast: Document) -> None:
    margin = number(forecast, "margin") or 1.0
    wider = "" if margin == 1.0 else f", its spread × {margin:.2f} by its back-test"
    show_line(bold(f"Service {text(forecast, 'service')}"))
    show_line("technique: ", good(text(forecast, "technique")), wider)
    show_line("telemetry: ", telemetry_cell(forecast))
    _show_quantiles(
        documents(forecast, "quantiles"), number(forecast, "horizon_s") or 0.0
    )
    floor_rps = number(forecast, "floor_rps") or 0.0
    floor = f", and at least {floor_rps:.1f} rps, for bursts" if floor_rps else ""
    show_line(
        f"plans carry {number(forecast, 'room_factor') or 1.0:.2f} × the highest median of the downscale delay{floor}"
    )
    scores = {
        text(entry, "technique"): _score(entry)
        for entry in documents(forecast, "scores")
    }
    # Every back-test judges the default: without it there was none yet.
    if DEFAULT not in scores:
        show_line(
            "back-test: none yet; the first one comes minutes after the first report"
        )
        return
    judged_at = time_text(forecast.get("judged_at"))
    default = scores[DEFAULT]
    show_line(
        f"back-test: {_forecasts(default)} until {judged_at}, mean {_mean(default)}"
    )
    _show_verdict(scores, text(forecast, "technique"))


def _show_verdict(scores: Mapping[str, ForecastScore], chosen: str) -> None:
    """The scores, and why the one with the least loss may not be in use."""
    _show_scores(scores, chosen)
    lowest_rps = min(score.pinball_rps for score in scores.values())
    if chosen in scores and lowest_rps < scores[chosen].pinball_rps:
        show_line(
            f"another technique takes over once its loss is {100 * MARGIN:g} % lower over at least "
            f"{MIN_FORECASTS:g} forecasts"
        )


def _show_quantiles(quantiles: Sequence[Document], horizon_s: float) -> None:
    if not quantiles:
        return
    levels = [number(entry, "level") or 0.0 for entry in quantiles]
    rates = rate_texts([number(entry, "rate_rps") or 0.0 for entry in quantiles])
    show_line(f"forecast {horizon_s:g} s ahead:")
    show_table([">", *(f">p{100 * level:g}" for level in levels)], [("  rps", *rates)])


def _forecasts(score: ForecastScore) -> str:
    return counted(round(score.forecasts), "forecast")


def _mean(score: ForecastScore) -> str:
    return f"{rate_texts([score.observed_rps])[0]} rps"


def _score(entry: Document) -> ForecastScore:
    return ForecastScore(
        **{
            field.name: number(entry, field.name) or 0.0
            for field in fields(ForecastScore)
        }
    )


def _show_scores(scores: Mapping[str, ForecastScore], chosen: str) -> None:
    """A row of each technique; the default's loss is what the others are compared with."""
    default = scores[DEFAULT]
    show_table(
        [
            "technique",
            ">loss rps",
            ">of default",
            f">below p{100 * PLANNING_LEVEL:g}",
            ">in 90 %",
            ">error",
            "",
        ],
        [
            _row(name, score, default, is_chosen=name == chosen)
            for name, score in scores.items()
        ],
    )


def _row(
    name: str, score: ForecastScore, default: ForecastScore, *, is_chosen: bool
) -> Cells:
    return (
        ColouredCell(text=name, style=GOOD if is_chosen else ""),
        amount(score.pinball_rps, 3),
        _share(score.pinball_rps, default.pinball_rps),
        f"{100 * score.coverage:.1f} %",
        f"{100 * score.interval_coverage:.1f} %",
        # Relative to the mean rate, as services of all sizes are compared.
        _share(score.error_rps, score.observed_rps),
        good("chosen") if is_chosen else faint(_remark(name, score, default)),
    )


def _remark(name: str, score: ForecastScore, default: ForecastScore) -> str:
    if name == DEFAULT:
        return "default"
    # A seasonal technique without a season in the trace forecasts just as the default does.
    return "no season" if name in PERIODS_S and score == default else ""


def _share(part: float, total: float) -> str:
    return "-" if total == 0.0 else f"{100 * part / total:.1f} %"
