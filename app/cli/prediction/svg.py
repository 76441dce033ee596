"""A sheet of log-log charts as SVG, standard library only.

The ground is transparent and every colour has a contrast of at least 3:1 on white and on black, so that a chart can be
read on light and dark pages. Coordinates: panel (column, row) starts at (column · WIDTH, row · HEIGHT).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

Point = tuple[float, float]
"""x and y in the data's units, both above 0."""

COLUMNS = 3
WIDTH, HEIGHT = 340.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 46.0, 40.0
"""Margins of a panel around its axes."""
EDGE = 12.0
"""From the left of a panel to its words."""

COLOURS = (
    "#4477cc",
    "#0d8fa8",
    "#1a9663",
    "#7a8b1c",
    "#b97a0e",
    "#d0603a",
    "#c94a7c",
    "#9560c4",
)
_GREY = "#767676"
_LEGEND_STEP = 33.0
_STYLE = (
    f"text{{font:11px sans-serif;fill:{_GREY}}}.title{{font-weight:bold;font-size:12px}}"
    f".axis{{stroke:{_GREY};fill:none}}.grid{{stroke:{_GREY};stroke-opacity:.25}}"
    ".curve{fill:none;stroke-width:1.5}.other{fill:none}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSeries:
    """What has one colour: a curve, dots on it, and rings for dots that the curve is not about."""

    label: str
    """In the legend; empty = not there."""
    colour: str
    curve: Sequence[Point] = ()
    dots: Sequence[Point] = ()
    rings: Sequence[Point] = ()

    def points(self) -> Iterator[Point]:
        """All that the axes must hold."""
        yield from self.curve
        yield from self.dots
        yield from self.rings


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart."""

    title: str
    note: str
    """At the upper right, where falling curves leave room."""
    legend: str
    """What the series' labels are values of."""
    x_label: str
    y_label: str
    series: Sequence[PlotSeries]


# From coarse to fine: the first that gives enough ticks is taken.
_TICK_STEPS = (
    (1, 10),
    (1, 2, 5),
    tuple(range(1, 10)),
    tuple(step / 10 for step in range(10, 100)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A logarithmic axis from a data value at one coordinate to another at the other end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The coordinate of a data value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten; finer steps where these are fewer than four."""
        decades = range(
            math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1
        )
        for steps in _TICK_STEPS:
            values = sorted(
                {step * 10.0**decade for decade in decades for step in steps}
            )
            inside = [value for value in values if self._holds(value)]
            if len(inside) >= 4:
                # At most eight: labels are about 30 wide, and a panel's axis is 274.
                return inside[:: math.ceil(len(inside) / 8)]
        return [self.low, self.high]

    def _holds(self, value: float) -> bool:
        # 0.1 * 3 is not 0.3: a tick at the very end of the axis must not be lost.
        return self.low <= value * (1 + 1e-9) and value <= self.high * (1 + 1e-9)


def sheet(panels: Sequence[Panel]) -> str:
    """An SVG document with all panels, COLUMNS in a row."""
    columns = max(1, min(COLUMNS, len(panels)))
    width = columns * WIDTH
    height = math.ceil(len(panels) / columns) * HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}">',
        f"<style>{_STYLE}</style>",
    ]
    for index, panel in enumerate(panels):
        lines += _panel(panel, WIDTH * (index % columns), HEIGHT * (index // columns))
    return "\n".join([*lines, "</svg>\n"])


def axes_of(panel: Panel, left: float = 0.0, top: float = 0.0) -> tuple[Axis, Axis]:
    """The x and the y axis of a panel whose corner is there."""
    xs, ys = zip(
        *(point for series in panel.series for point in series.points()), strict=True
    )
    x_low, x_high = _padded(min(xs), max(xs))
    y_low, y_high = _padded(min(ys), max(ys))
    return (
        Axis(low=x_low, high=x_high, start=left + LEFT, end=left + WIDTH - RIGHT),
        Axis(low=y_low, high=y_high, start=top + HEIGHT - BOTTOM, end=top + TOP),
    )


def _padded(low: float, high: float) -> tuple[float, float]:
    """A range with 4 % of its length around it; one value gets a range, too."""
    # At least 5 %: one value alone would make an axis of no length, and a division by log 1.
    factor = max((high / low) ** 0.04, 1.05)
    return low / factor, high * factor


def _panel(panel: Panel, left: float, top: float) -> Iterator[str]:
    x, y = axes_of(panel, left, top)
    yield f'<g class="panel"><title>{escape(panel.title)}</title>'
    yield _text(left + EDGE, top + 16, panel.title, 'class="title"')
    yield from _legend(panel, left + EDGE, top + 34)
    yield _text(x.end - 4, y.end + 12, panel.note, 'text-anchor="end"')
    yield from _grid(x, y)
    # One path for both axes, so that they meet in a clean corner.
    yield f'<path class="axis" d="M{x.start:g} {y.end:g}V{y.start:g}H{x.end:g}"/>'
    yield _text(
        (x.start + x.end) / 2, y.start + 30, panel.x_label, 'text-anchor="middle"'
    )
    middle = (y.start + y.end) / 2
    across = f'text-anchor="middle" transform="rotate(-90 {left + EDGE:g} {middle:g})"'
    yield _text(left + EDGE, middle, panel.y_label, across)
    for series in panel.series:
        yield from _series(series, x, y)
    yield "</g>"


def _grid(x: Axis, y: Axis) -> Iterator[str]:
    for value in x.ticks():
        at = f'x1="{x.at(value):.1f}" x2="{x.at(value):.1f}"'
        yield f'<line class="grid" {at} y1="{y.start:g}" y2="{y.end:g}"/>'
        yield _text(x.at(value), y.start + 14, f"{value:g}", 'text-anchor="middle"')
    for value in y.ticks():
        at = f'y1="{y.at(value):.1f}" y2="{y.at(value):.1f}"'
        yield f'<line class="grid" {at} x1="{x.start:g}" x2="{x.end:g}"/>'
        yield _text(x.start - 5, y.at(value) + 4, f"{value:g}", 'text-anchor="end"')


def _legend(panel: Panel, left: float, base: float) -> Iterator[str]:
    yield _text(left, base, panel.legend)
    # SVG cannot measure text without a font: 7 is wide enough for a letter of 11 px.
    left += 7.0 * len(panel.legend)
    for series in panel.series:
        if series.label:
            yield f'<rect x="{left:g}" y="{base - 8:g}" width="8" height="8" fill="{series.colour}"/>'
            yield _text(left + 10, base, series.label)
            left += _LEGEND_STEP


def _series(series: PlotSeries, x: Axis, y: Axis) -> Iterator[str]:
    for dots, look in (
        (series.rings, f'class="other" stroke="{series.colour}"'),
        (series.dots, f'fill="{series.colour}"'),
    ):
        for across, up in dots:
            yield f'<circle cx="{x.at(across):.1f}" cy="{y.at(up):.1f}" r="2" {look}/>'
    # A path of one point draws nothing.
    if len(series.curve) > 1:
        path = "L".join(
            f"{x.at(across):.1f} {y.at(up):.1f}" for across, up in series.curve
        )
        yield f'<path class="curve" stroke="{series.colour}" d="M{path}"/>'


def _text(left: float, base: float, text: str, more: str = "") -> str:
    return f'<text x="{left:.1f}" y="{base:.1f}"{" " + more if more else ""}>{escape(text)}</text>'
