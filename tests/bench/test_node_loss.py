"""The node-loss bench: moments by seed, and shares counted by hand."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from app.cli.simulation.scenario_files import read_scenario
from app.simulate.run.loss_notes import AFTER_S
from app.simulate.run.results import LossImpact, NodeLossResult, RunResult
from bench.node_loss import LOSSES, SCENARIO, jobs, losses_of, rows_of, service_rows
from tests.app.runs import a_run

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_node_is_back_and_its_loss_judged_before_the_next_one(seed: int) -> None:
    faults = losses_of(seed)
    assert faults == losses_of(seed)
    assert len(faults) == LOSSES
    for fault, following in pairwise(faults):
        assert fault["end_s"] < following["start_s"]
        assert fault["start_s"] + AFTER_S < following["start_s"]


def test_losses_differ_by_seed_and_all_of_them_count_in_the_scenario() -> None:
    assert losses_of(1) != losses_of(2)
    scenario = read_scenario(SCENARIO)
    made = jobs(scenario, 2)
    assert [(job.seed, job.run.label) for job in made] == [
        (1, "hetsev"),
        (1, "joint"),
        (2, "hetsev"),
        (2, "joint"),
    ]
    for job in made:
        spec = job.scenario.spec
        assert all(
            spec.warm_up_s <= each.start_s <= spec.duration_s - AFTER_S
            for each in spec.faults
        )


def an_impact(service: str, *, replicas: int, lost: int, missed: int) -> LossImpact:
    return LossImpact(
        service=service,
        replicas=replicas,
        replicas_lost=lost,
        judged=100,
        missed=missed,
        late=missed / 100,
    )


def a_run_with_a_loss() -> RunResult:
    impacts = (
        an_impact("a", replicas=2, lost=1, missed=10),
        an_impact("b", replicas=3, lost=1, missed=30),
        an_impact("c", replicas=1, lost=1, missed=60),
        an_impact("d", replicas=2, lost=0, missed=90),
    )
    # 190 of 400 requests.
    loss = NodeLossResult(
        node="v100-1", at_s=100.0, late=190 / 400, worst=0.9, services=impacts
    )
    return replace(a_run("joint"), node_losses=(loss,))


def test_services_are_counted_by_their_replicas_and_only_where_they_were_hit() -> None:
    rows = list(rows_of([a_run_with_a_loss()]))
    expected: list[Any] = [
        ("all", 1, pytest.approx(47.5), pytest.approx(90.0)),
        ("several", 2, pytest.approx(20.0), pytest.approx(30.0)),
        ("one", 1, pytest.approx(60.0), pytest.approx(60.0)),
    ]
    assert [
        (
            row["replicas"],
            row["cases"],
            row["late_percent_mean"],
            row["late_percent_worst_service"],
        )
        for row in rows
    ] == expected


def test_every_service_that_was_hit_has_a_row_of_its_own() -> None:
    assert [
        (row["service"], row["late_percent"])
        for row in service_rows([a_run_with_a_loss()])
    ] == [("a", 10.0), ("b", 30.0), ("c", 60.0)]


def test_a_run_without_losses_has_nothing_to_tell() -> None:
    assert [(row["cases"], row["late_percent_mean"]) for row in rows_of([a_run()])] == [
        (0, None),
        (0, None),
        (0, None),
    ]
