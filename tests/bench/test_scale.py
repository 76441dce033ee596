"""How cost grows: the exponent from one size of fleet to the next, and what is too steep."""

import pytest

from bench.report import Figures
from bench.scale import GROWING, slopes

pytestmark = pytest.mark.thorough


def a_row(gpus: int, **figures: float) -> Figures:
    return {"gpus": gpus, **{name: float(gpus) for name in GROWING}, **figures}


def test_a_cost_in_proportion_to_the_fleet_has_slope_one() -> None:
    (row,) = slopes([a_row(100), a_row(1000)])
    assert (row["from"], row["to"], row["met"]) == (100, 1000, "must")
    assert [row[name] for name in GROWING] == pytest.approx([1.0] * len(GROWING))


def test_each_step_is_judged_by_its_steepest_figure() -> None:
    rows = [a_row(100), a_row(1000, loop_mib=100.0), a_row(10000, loop_mib=1e5)]
    first, second = slopes(rows)
    assert (first["loop_mib"], first["met"]) == (pytest.approx(0.0), "must")
    assert (second["loop_mib"], second["met"]) == (pytest.approx(3.0), "no")


def test_one_size_alone_has_no_slope() -> None:
    assert slopes([a_row(100)]) == []
