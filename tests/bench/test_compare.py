"""What the comparison reads out of runs, on runs made by hand; and that every scenario of it is one."""

from pathlib import Path

import pytest

from app.cli.simulation.scenario_files import read_scenario
from app.simulate.report.report import make_report
from app.simulate.run.build import make_cluster, shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.scenario.scenario import SimulationScenario
from bench.compare import (
    EXPERIMENTS,
    SCENARIOS,
    Claim,
    Experiment,
    provenance,
    rows_of,
)
from tests.app.runs import POOL, a_run, a_scenario

FILES = sorted(SCENARIOS.glob("*.yaml"))


def a_comparison(
    *runs: RunResult, stated: float, is_at_least: bool
) -> dict[str, object]:
    claim = Claim(
        figure="cost ratio",
        stated=stated,
        unit="x",
        is_at_least=is_at_least,
        policy="ours",
        baseline="rival",
        read=lambda ours, rival: (
            rival.cost_usd / ours.cost_usd,
            ours.cost_usd,
            rival.cost_usd,
        ),
    )
    experiment = Experiment(title="made by hand", scenarios=("small",), claims=(claim,))
    (row,) = rows_of(
        experiment, make_report(a_scenario(), runs), scenario="small", truth="scaled"
    )
    return dict(row)


def test_a_figure_is_the_mean_over_seeds_of_ratios_within_each_seed() -> None:
    runs = [
        a_run("ours", seed=1, cost_usd=1.0),
        a_run("rival", seed=1, cost_usd=2.0),
        a_run("ours", seed=2, cost_usd=4.0),
        a_run("rival", seed=2, cost_usd=12.0),
    ]
    row = a_comparison(*runs, stated=2.5, is_at_least=True)
    assert (row["found"], row["ours"], row["baseline"], row["holds"], row["truth"]) == (
        2.5,
        2.5,
        7.0,
        "yes",
        "scaled",
    )


@pytest.mark.parametrize("gpu_type", ["T4", "A100-40GB"])
def test_a_fleet_with_any_scaled_gpu_is_scaled(gpu_type: str) -> None:
    def fleet(*pools: dict[str, object]) -> SimulationScenario:
        return a_scenario(fleet=list(pools))

    assert provenance(fleet(POOL)) == "measured"
    assert provenance(fleet(POOL, {"name": "other", "gpu_type": gpu_type})) == "scaled"


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_every_scenario_can_be_built_and_has_the_policies_that_its_claims_name(
    file: Path,
) -> None:
    scenario = read_scenario(file)
    catalogue = shipped_catalogue(scenario)
    for run in scenario.spec.policies:
        assert make_cluster(
            scenario, run, 1, catalogue=catalogue, folder=file.parent
        ).services
    claims = [
        claim
        for each in EXPERIMENTS
        if file.stem in each.scenarios
        for claim in each.claims
    ]
    assert claims
    assert {name for claim in claims for name in (claim.policy, claim.baseline)} <= {
        run.label for run in scenario.spec.policies
    }


def test_every_scenario_that_an_experiment_names_is_there() -> None:
    assert {name for each in EXPERIMENTS for name in each.scenarios} == {
        file.stem for file in FILES
    }
