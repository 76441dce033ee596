"""Charts: every value at its place, gaps stay gaps, axes hold what they show, colours can be told from both grounds."""

import re
import xml.etree.ElementTree as ET

import pytest

from app.simulate.report.charts import (
    BOTTOM,
    COLOURS,
    DASHES,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Line,
    LineChart,
    TimeAxis,
    axis,
    line_chart,
    look_of,
)

TIMES = TimeAxis(at_s=[0.0, 60.0, 120.0], span_s=(0.0, 120.0))


def a_chart(
    *values: float | None, times: TimeAxis = TIMES, limit: float | None = None
) -> ET.Element:
    lines = [Line(label="a & b", look=look_of(0), values=values)]
    return ET.fromstring(
        line_chart(
            LineChart(
                title="t", times=times, lines=lines, limit=limit, limit_label="SLO"
            )
        )
    )


def path_of(chart: ET.Element) -> str:
    return chart.find("path[@class='line']").attrib["d"]  # type: ignore[union-attr]


def test_a_line_goes_from_corner_to_corner() -> None:
    drawn = path_of(a_chart(0.0, 5.0, 10.0))
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    middle = f"L{(left + right) / 2:.1f} {(top + bottom) / 2:.1f}"
    assert drawn == f"M{left:.1f} {bottom:.1f}h1{middle}L{right:.1f} {top:.1f}"


def test_a_gap_interrupts_the_line() -> None:
    assert re.sub(r"[0-9. ]+", "", path_of(a_chart(1.0, None, 2.0))) == "MhMh"


def test_the_first_thirty_two_policies_look_different() -> None:
    assert len({look_of(place) for place in range(len(COLOURS) * len(DASHES))}) == 32


@pytest.mark.parametrize("ground", ["#ffffff", "#f5f6f8", "#14171a", "#1c2025"])
def test_every_colour_stands_out_from_light_and_dark(ground: str) -> None:
    for colour in COLOURS:
        light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3.0, colour


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4
        for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_an_axis_of_percents_ends_at_a_hundred_and_shows_what_differs() -> None:
    differ = axis([97.2, 100.0], from_zero=False, highest=100.0)
    assert differ == (97.0, 100.0, [97, 98, 99, 100])
    low, high, ticks = axis([100.0, 100.0], from_zero=False, highest=100.0)
    assert (high, ticks[-1]) == (100.0, 100.0) and low < 100.0
