"""The plot of `plimsoll policy train --plot`: reward, late requests and throughput over episodes, as SVG."""

from collections.abc import Iterator, Sequence
from html import escape

from app.cli.prediction.svg import COLOURS

Point = tuple[float, float]

_WIDTH, _HEIGHT = 300.0, 200.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 12.0, 30.0, 36.0
_GREY = "#767676"


def curves_text(curves: Sequence[tuple[str, Sequence[Point]]]) -> str:
    """An SVG document with one linear chart per named curve, side by side."""
    width = _WIDTH * len(curves)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{_HEIGHT:g}" '
        f'viewBox="0 0 {width:g} {_HEIGHT:g}">',
        f"<style>text{{font:11px sans-serif;fill:{_GREY}}}path{{fill:none}}</style>",
    ]
    for place, (title, points) in enumerate(curves):
        lines += _chart(
            title, points, left=place * _WIDTH, colour=COLOURS[place % len(COLOURS)]
        )
    return "\n".join([*lines, "</svg>\n"])


def _chart(
    title: str, points: Sequence[Point], *, left: float, colour: str
) -> Iterator[str]:
    start, end = left + _LEFT, left + _WIDTH - _RIGHT
    base, top = _HEIGHT - _BOTTOM, _TOP
    # Without points (a training that was ended before its first report) the axes stay, empty.
    last = max((episode for episode, _ in points), default=1.0)
    values = [value for _, value in points] or [0.0]
    # The axis holds 0, so that curves of different trainings can be compared by eye.
    low, high = min(0.0, *values), max(0.0, *values)
    # A flat curve at 0 would divide by nothing.
    high = high if high > low else low + 1.0

    def at(point: Point) -> str:
        across = start + (end - start) * point[0] / last
        return (
            f"{across:.1f} {base + (top - base) * (point[1] - low) / (high - low):.1f}"
        )

    yield f'<text x="{left + 12:g}" y="16">{escape(title)}</text>'
    yield f'<path stroke="{_GREY}" d="M{start:g} {top:g}V{base:g}H{end:g}"/>'
    for value in (low, high):
        yield f'<text x="{start - 5:g}" y="{at((0.0, value)).split()[1]}" text-anchor="end">{value:.4g}</text>'
    yield f'<text x="{end:g}" y="{base + 16:g}" text-anchor="end">{last:g} episodes</text>'
    if len(points) > 1:
        yield f'<path stroke="{colour}" d="M{"L".join(at(point) for point in points)}"/>'
