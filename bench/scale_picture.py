"""Part of `bench.scale`: its figures over the fleet, next to the line along which they would be in proportion to it."""

from collections.abc import Sequence
from itertools import cycle

from app.cli.prediction.svg import COLOURS, Panel, PlotSeries, Point, sheet
from bench.report import Figures

_GREY = "#767676"
_PANELS = {
    "kept_tick_ms": ("tick that keeps the plan", "ms"),
    "changed_tick_ms": ("tick that changes it", "ms"),
    "push_ms": ("push of a target", "ms"),
    "ingest_ms_per_window": ("storing 5 s of reports", "ms"),
    "overview_ms": ("dashboard's overview", "ms"),
    "explain_ms": ("explanation of a plan", "ms"),
    "telemetry_kb_per_window": ("5 s of reports", "kB"),
    "batch_kb": ("a batch of jobs", "kB"),
    "loop_mib": ("the loop's memory", "MiB"),
}


def picture(rows: Sequence[Figures]) -> str:
    """SVG with logarithmic axes; nothing may be steeper than grey by more than a tenth."""
    panels = []
    for (name, (title, unit)), colour in zip(_PANELS.items(), cycle(COLOURS)):
        line = [(_number(row, "gpus"), _number(row, name)) for row in rows]
        panels.append(
            Panel(
                title=title,
                note="",
                legend="grey: in proportion to the fleet",
                x_label="GPUs",
                y_label=unit,
                series=[
                    PlotSeries(label="", colour=_GREY, curve=_proportion(line)),
                    PlotSeries(label="", colour=colour, curve=line, dots=line),
                ],
            )
        )
    return sheet(panels)


def _proportion(line: Sequence[Point]) -> list[Point]:
    """From the largest fleet's figure down, since that is what must not have grown too much."""
    largest, figure = line[-1]
    return [(gpus, figure * gpus / largest) for gpus, _ in line]


def _number(row: Figures, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return float(value)
