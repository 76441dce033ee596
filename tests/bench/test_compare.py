"""What the comparison reads out of runs, on runs made by hand; and that every scenario of it is one."""

from dataclasses import replace
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
    mean_throughput,
    paper_cost_ratios,
    provenance,
    response_ms,
    rows_of,
    throughput,
    worst_late_percent,
)
from tests.app.runs import POOL, a_run, a_scenario, a_service_result

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


@pytest.mark.thorough
def test_seeds_that_one_of_the_two_lacks_do_not_count_and_less_may_be_better() -> None:
    runs = [
        a_run("ours", seed=1),
        a_run("rival", seed=1, cost_usd=3.0),
        a_run("rival", seed=2, cost_usd=9.0),
    ]
    for is_at_least, holds in ((True, "NO"), (False, "yes")):
        row = a_comparison(*runs, stated=3.1, is_at_least=is_at_least)
        assert (row["found"], row["holds"]) == (3.0, holds)


@pytest.mark.thorough
def test_the_papers_cost_is_used_memory_of_ours_against_whole_gpus_of_the_rival() -> (
    None
):
    ours = a_run(
        services=(
            replace(a_service_result("a"), cost_usd=9.0, memory_usd=0.5),
            a_service_result("b"),
        )
    )
    rival = a_run(
        services=(
            replace(a_service_result("a"), cost_usd=2.0, memory_usd=7.0),
            a_service_result("b"),
        )
    )
    assert paper_cost_ratios(ours, rival) == pytest.approx((4.0, 10.0))


@pytest.mark.thorough
def test_the_worst_service_counts_late_and_rejected_requests() -> None:
    rejecting = a_service_result("b", served=90, rejected=10)
    run = a_run(services=(a_service_result("a", in_slo=99), rejecting))
    assert worst_late_percent(run) == pytest.approx(10.0)


@pytest.mark.thorough
def test_the_response_time_is_a_mean_over_served_requests_not_over_services() -> None:
    slow = replace(a_service_result("a", served=300), sojourn_s=90.0)
    fast = replace(a_service_result("b", served=100), sojourn_s=2.0)
    assert response_ms(a_run(services=(slow, fast))) == pytest.approx(230.0)
    # The time of rejected requests is not charged to the served ones.
    shared = replace(a_service_result("a", served=60, rejected=40), sojourn_s=20.0)
    assert response_ms(a_run(services=(shared,))) == pytest.approx(200.0)


@pytest.mark.thorough
def test_throughput_is_what_was_served_from_the_spike_on_not_what_arrived() -> None:
    def spiked(*served_rps: float) -> RunResult:
        run = a_run()
        (service,) = run.series.services.values()
        # The spike comes after 3500 s: at step 50 of 70 s.
        steps = [1.0] * 50 + list(served_rps)
        arrived = [100.0] * len(steps)
        rates = replace(service, arrival_rate_rps=arrived, served_rps=steps)
        return replace(
            run, series=replace(run.series, step_s=70.0, services={"a": rates})
        )

    assert throughput(spiked(30.0), spiked(20.0)) == (1.5, 30.0, 20.0)
    ours, rival = spiked(30.0, 10.0), spiked(20.0, 20.0)
    assert mean_throughput(ours, rival) == (1.0, 20.0, 20.0)
    assert throughput(ours, rival) == (1.5, 20.0, 20.0)


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
