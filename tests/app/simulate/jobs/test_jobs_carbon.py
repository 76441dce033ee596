"""Grid intensity: a step function of time, read from CSV with errors that name the remedy."""

from pathlib import Path

import pytest

from app.errors import InvalidRequest
from app.simulate.jobs.carbon import GridIntensity, read_grid_intensity


def test_a_value_holds_until_the_next_one_and_the_first_before_all() -> None:
    grid = GridIntensity(starts_s=(100.0, 200.0), g_per_kwh=(300.0, 500.0))
    assert [grid.at(time_s) for time_s in (0.0, 100.0, 199.0, 200.0, 1e6)] == [300.0, 300.0, 300.0, 500.0, 500.0]
    # 1.8 MJ are half a kilowatt hour.
    assert grid.grams(1.8e6, 250.0) == pytest.approx(250.0)


@pytest.mark.parametrize(("unit", "starts_s"), [("second", (0.0, 1.0)), ("hour", (0.0, 3600.0))])
def test_it_is_read_by_the_second_or_the_hour(tmp_path: Path, unit: str, starts_s: tuple[float, float]) -> None:
    path = tmp_path / "grid.csv"
    path.write_text(f"{unit},g_co2_per_kwh\n0,400\n1,420.5\n")
    assert read_grid_intensity(path) == GridIntensity(starts_s=starts_s, g_per_kwh=(400.0, 420.5))


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "give it both"),
        ("minute,g_co2_per_kwh\n0,1\n", "second or hour"),
        ("hour,grams\n0,1\n", "g_co2_per_kwh"),
        ("hour,g_co2_per_kwh\n0,much\n", "must be numbers"),
        ("hour,g_co2_per_kwh\n0\n", "must be numbers"),
        ("hour,g_co2_per_kwh\n1,400\n1,400\n", "must grow"),
        ("hour,g_co2_per_kwh\n0,-1\n", "from 0 to 100,000"),
        ("hour,g_co2_per_kwh\n0,nan\n", "from 0 to 100,000"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, remedy: str) -> None:
    path = tmp_path / "grid.csv"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=remedy) as refused:
        read_grid_intensity(path)
    assert refused.value.field == "grid.csv"
