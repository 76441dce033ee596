"""The plot: every sample is drawn where it belongs, and curves are what the fits say."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from app.cli.prediction.plot_fit import plot_text
from app.cli.prediction.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
)
from app.measurements.csv_files import read_samples
from solvers.predict.data.fit import Fits
from solvers.predict.data.samples import Samples, make_queries, make_samples
from solvers.predict.learn.fit_samples import make_fits

SAMPLES = read_samples(
    [Path(__file__).parents[3] / "data" / "measurements" / "samples.csv"]
).samples
SVG = "{http://www.w3.org/2000/svg}"


def parse(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def samples_at(
    batches: list[float], shares: list[float], latency_ms: list[float]
) -> Samples:
    size = len(batches)
    return make_samples(
        make_queries(["n<&>"] * size, ["g"] * size, batch=batches, sm_percent=shares),
        latency_ms,
    )


@pytest.fixture(scope="module")
def fits() -> Fits:
    return make_fits(SAMPLES, technique="linear_fractional")


def test_every_sample_is_drawn_and_those_with_neighbours_as_rings(fits: Fits) -> None:
    root = parse(plot_text(SAMPLES, fits))
    titles = [panel.findtext(f"{SVG}title") for panel in root.iter(f"{SVG}g")]
    assert titles == ["alexnet on V100", "resnet50 on V100"]
    for panel in root.iter(f"{SVG}g"):
        circles = panel.findall(f"{SVG}circle")
        assert len(circles) == 32
        assert (
            len([circle for circle in circles if circle.get("class") == "other"]) == 2
        )
        xs = [float(circle.get("cx", "nan")) % WIDTH for circle in circles]
        ys = [float(circle.get("cy", "nan")) for circle in circles]
        assert LEFT < min(xs) < max(xs) < WIDTH - RIGHT
        assert TOP < min(ys) < max(ys) < HEIGHT - BOTTOM
        words = [text.text for text in panel.iter(f"{SVG}text")]
        assert {
            "batch",
            "1",
            "2",
            "4",
            "8",
            "16",
            "SM percent",
            "latency, ms",
            "linear fractional",
        } <= set(words)


def test_a_group_without_a_fit_is_still_drawn_and_names_are_escaped() -> None:
    panel = next(
        parse(plot_text(samples_at([1], [50], [3]), Fits(fits=()))).iter(f"{SVG}g")
    )
    assert panel.findtext(f"{SVG}title") == "n<&> on g"
    assert len(panel.findall(f"{SVG}circle")) == 1
    assert "no fit" in [text.text for text in panel.iter(f"{SVG}text")]
