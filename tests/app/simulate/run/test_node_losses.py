"""The loss of a node in a whole run: what it costs in the minute after it, and how the loop learns of it."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from app.cli.simulation.show import show_report
from app.simulate.report.report import make_report
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import NodeLossResult, RunResult
from app.simulate.run.run import jobs_of, simulate
from tests.app.runs import POOL, SERVICE, a_run, a_scenario


def run(*faults: dict[str, Any], duration_s: int = 180) -> RunResult:
    """Two nodes, of which the service needs one; loads, plans and replicas as in the other runs' tests."""
    scenario = a_scenario(
        duration_s=duration_s,
        warm_up_s=60,
        truth="planned",
        policies=[{"policy": "hetsev_greedy", "room": 1.3}],
        fleet=[{**POOL, "nodes": 2}],
        services=[SERVICE],
        faults=list(faults),
    )
    (job, *_) = jobs_of(scenario, shipped_catalogue(scenario), Path())
    return simulate(job)


def a_loss(start_s: float, end_s: float | None = None) -> dict[str, Any]:
    return {"kind": "node_lost", "node": "busiest", "start_s": start_s, "end_s": end_s}


@pytest.fixture(scope="module")
def lost() -> RunResult:
    return run(a_loss(100.0))


def test_a_service_whose_only_node_is_lost_is_late_until_its_silence_is_known_and_replicas_are_ready(
    lost: RunResult,
) -> None:
    (loss,) = lost.node_losses
    (impact,) = loss.services
    assert loss.at_s == 100.0
    assert impact.replicas == impact.replicas_lost >= 1
    # The agent's last report is of 95 s, and stale 30 s later; a replica is ready 5 s after that, at 130 s. Half of the
    # minute, or somewhat more; less than 0.45 is five standard deviations away for 6,000 requests.
    assert impact.late is not None and 0.45 < impact.late < 1.0
    assert impact.missed == pytest.approx(impact.late * impact.judged)
    assert loss.late == loss.worst == impact.late


def test_the_service_is_planned_on_the_other_node_once_the_silence_is_known(
    lost: RunResult,
) -> None:
    series = lost.series.services["resnet50"]
    # The last step ends 80 s after the loss.
    assert series.replicas[-1] >= 1
    assert series.attainment[-1] is not None


def test_losses_in_the_warm_up_or_without_a_minute_after_them_do_not_count() -> None:
    assert run(a_loss(30.0, 40.0), a_loss(130.0)).node_losses == ()


def test_every_policys_losses_are_told_by_moment_with_means_over_the_seeds() -> None:
    runs = [
        replace(a_run(policy, seed=seed), node_losses=(a_result(late, worst=0.5),))
        for policy, lates in (("one", (0.1, 0.3)), ("two", (0.02, 0.02)))
        for seed, late in enumerate(lates)
    ]
    report = make_report(a_scenario(), runs)
    (first,), (second,) = (each.node_losses for each in report.policies)
    assert first.late is not None and first.late.mean == pytest.approx(0.2)
    assert second.late is not None and second.late.mean == pytest.approx(0.02)
    shown = StringIO()
    show_report(report, shown)
    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert ["1", "min", "40", "s", "two", "2.00±0.00", "50.00±0.00"] in lines


def a_result(late: float, *, worst: float) -> NodeLossResult:
    return NodeLossResult(
        node="v100-1", at_s=100.0, late=late, worst=worst, services=()
    )
