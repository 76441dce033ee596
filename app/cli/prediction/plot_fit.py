"""The plot of `plimsoll fit --plot`: per network and GPU type, latency over SM percent, a curve per batch."""

from bisect import bisect_right
from collections import defaultdict

from app.cli.prediction.svg import COLOURS, Panel, PlotSeries, Point, sheet
from app.measurements.curves import GroupCurves, curves_of
from solvers.predict.data.fit import Fits
from solvers.predict.data.samples import Group, Samples

MAX_CURVES = len(COLOURS)
"""The maximum number in a panel; further batches are drawn as dots alone."""


def plot_text(samples: Samples, fits: Fits) -> str:
    """An SVG document with every sample: dots where a curve applies, rings with neighbours or other settings."""
    return sheet(
        [
            _panel(group, samples.take(rows), fits)
            for group, rows in samples.at.groups().items()
        ]
    )


def _panel(group: Group, samples: Samples, fits: Fits) -> Panel:
    """The chart of one group's samples."""
    found = curves_of(group, samples, fits, max_curves=MAX_CURVES)
    fit = fits.find("latency_ms", group)
    curves = {curve.batch: curve.points for curve in found.curves}
    dots = _points(found, is_on_curve=True)
    rings = _points(found, is_on_curve=False)
    return Panel(
        title=f"{group.network} on {group.gpu_type}",
        note="no fit" if fit is None else fit.technique.replace("_", " "),
        legend="batch",
        x_label="SM percent",
        y_label="latency, ms",
        series=[
            PlotSeries(
                # Batches beyond the colours are drawn in the colour of the nearest smaller one, without a label of
                # their own.
                label=f"{batch:.3g}" if batch in found.drawn else "",
                colour=COLOURS[bisect_right(found.drawn, batch) - 1],
                curve=curves.get(batch, ()),
                dots=dots.get(batch, ()),
                rings=rings.get(batch, ()),
            )
            for batch in sorted({each.batch for each in found.measured})
        ],
    )


def _points(found: GroupCurves, *, is_on_curve: bool) -> dict[float, list[Point]]:
    """The samples that the curves are about, or the others, by batch."""
    points: dict[float, list[Point]] = defaultdict(list)
    for each in found.measured:
        # Samples next to neighbours or at another clock lie off the curve for a reason, not by error.
        if each.is_on_curve is is_on_curve:
            points[each.batch].append((each.sm_percent, each.latency_ms))
    return points
