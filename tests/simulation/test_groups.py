"""A fleet whose services follow two policies: through the whole loop, and into the simulation's report."""

from app.simulate.report.report import make_report
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.run import jobs_of
from app.simulate.run.runner import make_runner, simulate_all
from app.simulate.scenario.scenario import SimulationScenario
from tests.app.runs import POOL, SERVICE, a_scenario

GROUPS = [{"name": "web", "policy": "hetsev_greedy", "projects": ["shop"]}]


def a_grouped_scenario(**settings: object) -> SimulationScenario:
    runs = [
        {"policy": "joint", "settings": settings},
        {"policy": "joint", "name": "alone"},
    ]
    services = [
        {**SERVICE, "name": "cart", "project": "shop"},
        {**SERVICE, "name": "mail"},
    ]
    pool = {**POOL, "nodes": 3}
    return a_scenario(
        duration_s=180,
        step_s=60,
        warm_up_s=60,
        policies=runs,
        services=services,
        fleet=[pool],
    )


def test_groups_keep_their_slos_on_gpus_of_their_own(tmp_path: object) -> None:
    scenario = a_grouped_scenario(groups=GROUPS)
    jobs = jobs_of(scenario, shipped_catalogue(scenario), tmp_path)  # type: ignore[arg-type]
    report = make_report(scenario, simulate_all(jobs, make_runner(1)))
    assert not report.failed
    grouped, alone = report.policies
    assert grouped.violations.mean < 0.02
    # Two groups share no GPU; one policy alone puts both services on one.
    grouped_run, alone_run = report.runs
    assert (
        max(grouped_run.series.gpus["V100-32GB"])
        >= 2.0
        > 1.0
        >= min(alone_run.series.gpus["V100-32GB"])
    )
    assert grouped.cost_usd.mean > alone.cost_usd.mean
