"""Charts of a simulation's report as SVG that stands in an HTML page: lines over time, and bars. Text in, text out.

Axes are linear and begin at 0, except where a chart says otherwise. Greys come from the page's style sheet (classes
`grid`, `axis`, `limit`, `fault`), so that they follow light and dark; every colour has a contrast of at least 3:1 on
both grounds. A chart is as wide as the page lets it. `app.cli.prediction.svg` draws log-log charts that stand alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = (
    "#4477cc",
    "#d0603a",
    "#1a9663",
    "#9560c4",
    "#b97a0e",
    "#0d8fa8",
    "#c94a7c",
    "#7a8b1c",
)
"""Neighbours in this order are easy to tell apart."""
DASHES = ("", "6 3", "2 2", "8 2 2 2")
"""For the colours' second, third and fourth round."""

# Units of the viewBox; three charts stand side by side on a wide screen, one on a phone.
WIDTH, HEIGHT = 380.0, 200.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 16.0, 34.0
BAR, BAR_GAP = 20.0, 8.0
MAX_LETTERS = 32
"""A bar's name is cut here: its figure stands in the same line."""
_TICKS = 5
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))

Range = tuple[float, float]
"""From, to; in the data's units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line over time."""

    label: str
    look: str
    """Attributes of its path, as `look_of` writes them."""
    values: Sequence[float | None]
    """One at each of the chart's times; None = a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSpan:
    """A stretch of time that is marked."""

    label: str
    start_s: float
    end_s: float
    title: str
    """What it says when pointed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """The axis that all charts of a report share."""

    at_s: Sequence[float]
    """(T,) where the lines' values are."""
    span_s: Range
    marked: Sequence[ChartSpan] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """What a chart shows."""

    title: str
    times: TimeAxis
    lines: Sequence[Line]
    limit: float | None = None
    """A level to hold against, drawn across."""
    limit_label: str = ""
    from_zero: bool = True
    highest: float = math.inf
    """The axis never goes beyond."""
    min_step: float = 0.0
    """Between ticks: 1 for what comes in whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartBar:
    """One bar, and how far chance may move its end."""

    label: str
    value: float
    half_width: float | None
    colour: str
    text: str
    """Its figure in words."""


def look_of(place: int) -> str:
    """Attributes of the line that is number `place`, from 0: a colour, and dashes where colours come again."""
    dash = DASHES[place // len(COLOURS) % len(DASHES)]
    return f'stroke="{colour_of(place)}"' + (
        f' stroke-dasharray="{dash}"' if dash else ""
    )


def colour_of(place: int) -> str:
    """The colour of number `place`, from 0."""
    return COLOURS[place % len(COLOURS)]


def line_chart(chart: LineChart) -> str:
    """One chart as an `svg` element."""
    low, high, ticks = axis(
        _values(chart),
        from_zero=chart.from_zero,
        highest=chart.highest,
        min_step=chart.min_step,
    )
    return "".join(
        [
            f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escape(chart.title)}">',
            *_spans(chart.times),
            *_frame(chart.times, (low, high), ticks),
            *_limit(chart, (low, high)),
            *(_path(line, chart.times, (low, high)) for line in chart.lines),
            "</svg>",
        ]
    )


def bar_chart(title: str, bars: Sequence[ChartBar]) -> str:
    """Bars one below the other, with the interval of each as a whisker, as an `svg` element."""
    longest = (
        max((bar.value + (bar.half_width or 0.0) for bar in bars), default=0.0) or 1.0
    )
    height = len(bars) * (2 * BAR + BAR_GAP)
    rows = (
        _bar(bar, number * (2 * BAR + BAR_GAP), longest)
        for number, bar in enumerate(bars)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}">'
        + "".join(part for row in rows for part in row)
        + "</svg>"
    )


def axis(
    values: Sequence[float],
    *,
    from_zero: bool,
    highest: float = math.inf,
    min_step: float = 0.0,
) -> tuple[float, float, list[float]]:
    """Lowest and highest value of an axis that holds these, and its ticks at round steps (1, 2, 5 times 10^n)."""
    low = 0.0 if from_zero else min(values, default=0.0)
    high = max(values, default=1.0)
    # An axis of no length has no scale: a constant line gets room around it.
    if high - low <= 1e-9 * max(1.0, abs(high)):
        low, high = (
            (low, low + (abs(low) or 1.0)) if from_zero else (low - 1.0, high + 1.0)
        )
    step = round_step(max((high - low) / _TICKS, min_step))
    # 1e-9 of a step: 0.30000000000000004 must not add a tick beyond 0.3.
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    ticks = [
        round(number * step, 10)
        for number in range(first, last + 1)
        if number * step <= highest * (1 + 1e-9)
    ]
    return ticks[0], min(last * step, highest), ticks


def round_step(lower: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(lower))
    return next(
        factor * power
        for factor in (1.0, 2.0, 5.0, 10.0)
        if factor * power >= lower * (1 - 1e-9)
    )


def time_unit(length_s: float) -> tuple[float, str]:
    """The largest unit of which the length has at least three, in seconds, and its name."""
    return next(
        ((unit, name) for unit, name in _UNITS if length_s >= 3.0 * unit), (1.0, "s")
    )


def _values(chart: LineChart) -> list[float]:
    known = [
        value for line in chart.lines for value in line.values if value is not None
    ]
    return known + ([] if chart.limit is None else [chart.limit])


def _x(at_s: float, times: TimeAxis) -> float:
    begin, end = times.span_s
    # What lies outside, such as a fault that began in the warm-up, is drawn at the edge.
    share = min(max((at_s - begin) / (end - begin), 0.0), 1.0)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(value: float, scale: Range) -> float:
    low, high = scale
    return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def _frame(times: TimeAxis, scale: Range, ticks: Sequence[float]) -> Iterator[str]:
    """Grid, axes and their figures."""
    right = WIDTH - RIGHT
    bottom = HEIGHT - BOTTOM
    for value in ticks:
        y = _y(value, scale)
        yield f'<path class="grid" d="M{LEFT:g} {y:.1f}H{right:g}"/>'
        yield f'<text x="{LEFT - 5:g}" y="{y + 4:.1f}" text-anchor="end">{_tick(value)}</text>'
    unit_s, name = time_unit(times.span_s[1] - times.span_s[0])
    # Round in the unit that is shown: about six ticks of whole hours, not of thousands of seconds.
    step_s = round_step((times.span_s[1] - times.span_s[0]) / unit_s / 6.0) * unit_s
    for number in range(
        math.ceil(times.span_s[0] / step_s), math.floor(times.span_s[1] / step_s) + 1
    ):
        x = _x(number * step_s, times)
        yield f'<path class="grid" d="M{x:.1f} {bottom:g}v4"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 15:g}" text-anchor="middle">{_tick(number * step_s / unit_s)}</text>'
    yield f'<path class="axis" d="M{LEFT:g} {bottom:g}H{right:g}"/>'
    yield f'<text x="{right:g}" y="{HEIGHT - 5:g}" text-anchor="end">simulated time, {name}</text>'


def _limit(chart: LineChart, scale: Range) -> Iterator[str]:
    if chart.limit is None:
        return
    y = _y(chart.limit, scale)
    yield f'<path class="limit" d="M{LEFT:g} {y:.1f}H{WIDTH - RIGHT:g}"/>'
    # Where the level is near the top, its words go below it.
    base = y + 12 if y < TOP + 14 else y - 4
    yield f'<text class="level" x="{LEFT + 4:g}" y="{base:.1f}">{escape(chart.limit_label)}</text>'


def _spans(times: TimeAxis) -> Iterator[str]:
    for span in times.marked:
        left = _x(span.start_s, times)
        right = _x(span.end_s, times)
        # At least 1.5 wide: a short fault in a long run would not be seen.
        yield (
            f'<rect class="fault" x="{left:.1f}" y="{TOP:g}" width="{max(right - left, 1.5):.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM:g}"><title>{escape(span.title)}</title></rect>'
            f'<text x="{left + 1:.1f}" y="{TOP - 4:g}">{escape(span.label)}</text>'
        )


def _path(line: Line, times: TimeAxis, scale: Range) -> str:
    """A path that is interrupted where nothing is known; a value between two gaps is a short dash."""
    parts: list[str] = []
    is_drawing = False
    for at_s, value in zip(times.at_s, line.values, strict=True):
        if value is None:
            is_drawing = False
            continue
        point = f"{_x(at_s, times):.1f} {_y(value, scale):.1f}"
        # A path of one point alone would be invisible, so each piece begins with a dash of length 1.
        parts.append(f"L{point}" if is_drawing else f"M{point}h1")
        is_drawing = True
    return f'<path class="line" {line.look} d="{"".join(parts)}"><title>{escape(line.label)}</title></path>'


def _bar(bar: ChartBar, top: float, longest: float) -> Iterator[str]:
    across = WIDTH - 2 * RIGHT
    width = bar.value / longest * across
    base = top + BAR
    label = shortened(bar.label, MAX_LETTERS)
    yield f'<text class="name" x="{RIGHT:g}" y="{base - 5:g}">{escape(label)}<title>{escape(bar.label)}</title></text>'
    yield f'<text class="name" x="{WIDTH - RIGHT:g}" y="{base - 5:g}" text-anchor="end">{escape(bar.text)}</text>'
    yield f'<rect x="{RIGHT:g}" y="{base:g}" width="{width:.1f}" height="{BAR:g}" rx="2" fill="{bar.colour}"/>'
    if bar.half_width is not None:
        low = RIGHT + max(bar.value - bar.half_width, 0.0) / longest * across
        high = RIGHT + (bar.value + bar.half_width) / longest * across
        middle = base + BAR / 2
        ends = f"M{low:.1f} {middle - 4:g}v8M{high:.1f} {middle - 4:g}v8"
        yield f'<path class="whisker" d="M{low:.1f} {middle:g}H{high:.1f}{ends}"/>'


def shortened(name: str, letters: int) -> str:
    """A name cut to this number of letters, the last of them an ellipsis."""
    return name if len(name) <= letters else name[: letters - 1] + "…"


def _tick(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:g}"
