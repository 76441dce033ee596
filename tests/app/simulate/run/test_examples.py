"""The documented scenarios run, cut to a few minutes and one policy."""

from pathlib import Path

import pytest

from app.cli.simulation.scenario_files import read_scenario
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.run.run import jobs_of, simulate
from app.simulate.scenario.scenario import SimulationScenario

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"


def run(name: str, *, duration_s: float, policy: str) -> RunResult:
    whole = read_scenario(EXAMPLES / name).model_dump(mode="json")
    whole["spec"] |= {"duration_s": duration_s, "seeds": [1], "policies": [policy]}
    for each in (
        whole["spec"],
        *(service["load"] for service in whole["spec"]["services"]),
    ):
        for later in {"faults", "spikes"} & each.keys():
            each[later] = [
                entry for entry in each[later] if entry["start_s"] < duration_s
            ]
    scenario = SimulationScenario.model_validate(whole)
    (job,) = jobs_of(scenario, shipped_catalogue(scenario), EXAMPLES)
    return simulate(job)


@pytest.mark.thorough
def test_the_spike_is_ahead_of_four_services_that_keep_their_slos() -> None:
    done = run("spike.yaml", duration_s=240, policy="hetsev")
    assert [each.service for each in done.services] == [
        "detection",
        "inception",
        "resnet50",
        "translation",
    ]
    assert all(
        each.attainment is not None and each.attainment >= each.percentile
        for each in done.services
    )


@pytest.mark.thorough
def test_tasks_go_on_while_services_keep_their_slos() -> None:
    done = run("training.yaml", duration_s=300, policy="joint")
    assert [each.task for each in done.tasks] == [
        "team-1",
        "vision",
        "language",
        "team-2",
        "nightly",
        "team-3",
    ]
    assert all(
        each.attainment is not None and each.attainment >= each.percentile
        for each in done.services
    )
    assert sum(each.progress > 0.1 for each in done.tasks) >= 2


def test_every_service_is_back_two_minutes_after_a_gpu_is_lost() -> None:
    done = run("gpu_loss.yaml", duration_s=300, policy="hetsev")
    worst = {
        name: min(share or 0.0 for share in each.attainment)
        for name, each in done.series.services.items()
    }
    assert min(worst.values()) < 0.98
    assert all(
        (each.attainment[-1] or 0.0) >= 0.98 for each in done.series.services.values()
    )


def test_dispatched_jobs_are_done_in_time_and_their_carbon_is_told() -> None:
    done = run("jobs.yaml", duration_s=420, policy="oltunes")
    jobs = {each.task: each for each in done.tasks}
    assert jobs["report"].is_in_time
    assert jobs["labels"].is_in_time
    assert all(
        each.attainment is not None and each.attainment >= each.percentile
        for each in done.services
    )
    assert done.carbon_g is not None
    # The grid gives between 290 and 410 g per kWh.
    assert 290.0 < done.carbon_g / done.energy_kwh < 410.0
