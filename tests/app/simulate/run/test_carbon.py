"""Grid intensity: a step function of time, read from CSV with errors that name the remedy."""

from io import StringIO
from pathlib import Path, PurePath

import pytest

from app.base.errors import InvalidRequest
from app.cli.simulation.show import show_report
from app.simulate.figures import SeedMean
from app.simulate.report.html import report_to_html
from app.simulate.report.report import make_report
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.run import jobs_of, simulate
from app.simulate.scenario.carbon import GridIntensity, read_grid_intensity
from app.simulate.scenario.scenario import files_of
from app.simulate.scenario.unusable_files import unusable_files
from tests.app.runs import a_scenario


def test_a_value_holds_until_the_next_one_and_the_first_before_all() -> None:
    grid = GridIntensity(starts_s=(100.0, 200.0), g_per_kwh=(300.0, 500.0))
    assert [grid.at(time_s) for time_s in (0.0, 100.0, 199.0, 200.0, 1e6)] == [
        300.0,
        300.0,
        300.0,
        500.0,
        500.0,
    ]
    # 1.8 MJ are half a kilowatt hour.
    assert grid.grams(1.8e6, 250.0) == pytest.approx(250.0)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "file is empty"),
        ("hour,g_co2_per_kwh\n", "no rows below"),
        ("minute,g_co2_per_kwh\n0,1\n", "second or hour"),
        ("hour,grams\n0,1\n", "g_co2_per_kwh"),
        ("hour,g_co2_per_kwh\n0,much\n", "must be numbers"),
        ("hour,g_co2_per_kwh\n0\n", "grid.csv:2"),
        ("hour,g_co2_per_kwh\n1,400\n1,400\n", "must grow"),
        ("hour,g_co2_per_kwh\n0,-1\n", "from 0 to 100,000"),
        ("hour,g_co2_per_kwh\n0,nan\n", "from 0 to 100,000"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, remedy: str) -> None:
    path = tmp_path / "grid.csv"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=remedy):
        read_grid_intensity(path)


def test_a_scenarios_report_says_what_its_energy_comes_to(tmp_path: Path) -> None:
    # 400 g in the first minute, which is the warm-up, 1000 g in the second: only the second one counts.
    (tmp_path / "grid.csv").write_text("second,g_co2_per_kwh\n0,400\n60,1000\n")
    scenario = a_scenario(grid_intensity="grid.csv", warm_up_s=60, step_s=30)
    assert list(files_of(scenario.spec)) == [PurePath("grid.csv")]
    assert list(unusable_files(scenario, tmp_path)) == []
    (job,) = jobs_of(scenario, shipped_catalogue(scenario), tmp_path)
    run = simulate(job)
    assert run.carbon_g == pytest.approx(1000.0 * run.energy_kwh)
    report = make_report(scenario, [run])
    assert report.policies[0].carbon_g == SeedMean(mean=run.carbon_g, half_width=None)
    shown = StringIO()
    show_report(report, shown)
    assert f"g CO2e: hetsev_greedy {run.carbon_g:.3g}" in shown.getvalue()
    assert "grid intensity" in report_to_html(report)
