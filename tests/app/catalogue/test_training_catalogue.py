"""What the shipped catalogue believes of training networks: near the simulated truth, seldom on it, for tasks alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import Truth, load_truth
from app.catalogue.catalogue import (
    list_networks,
    load_gpu_types,
    load_profiles,
    not_for_services,
)
from app.cli.common.manifest_files import ManifestErrors
from app.cli.simulation.scenario_files import read_scenario
from solvers.laws.colocation import execution_ms, neighbours_with
from solvers.types.problem import OperatingPoint, OperatingPoints
from tests.app.runs import SERVICE, a_document

TRAINING = list_networks("training")
TYPES = {gpu_type.name: gpu_type for gpu_type in load_gpu_types()}
MEAN_ERROR = {
    "V100-16GB": 0.05,
    "V100-32GB": 0.05,
    "RTX-2080-Ti": 0.07,
    "A100-40GB": 0.09,
    "T4": 0.13,
}
"""Greatest mean relative error of any network's steps; types that were not trained on are worse known."""
ELSEWHERE = 0.40


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load_truth()


def placed(
    entry: OperatingPoints, row: OperatingPoint, *neighbours: SimulatedNeighbour
) -> RunningPart:
    return RunningPart(
        network=entry.network,
        gpu_type=entry.gpu_type,
        sm_percent=row.sm_percent,
        batch=row.batch,
        clock_mhz=row.clock_mhz,
        neighbours=neighbours,
    )


def top_rows(
    network: str, gpu_type: str, sm_percent: float
) -> tuple[OperatingPoints, list[OperatingPoint]]:
    (entry,) = load_profiles([network], [gpu_type])
    clock_mhz = TYPES[gpu_type].clocks_mhz[-1]
    return entry, [
        row
        for row in entry.rows
        if (row.sm_percent, row.clock_mhz) == (sm_percent, clock_mhz)
    ]


def test_the_truth_knows_the_training_networks_of_the_catalogue(truth: Truth) -> None:
    assert set(truth.training_networks) == set(TRAINING)
    for network in TRAINING:
        (entry,) = load_profiles([network], ["T4"])
        assert max(row.batch for row in entry.rows) == truth.max_batch(network)
        memory_mib = {row.batch: row.memory_mib for row in entry.rows}
        for batch, mib in memory_mib.items():
            assert mib == pytest.approx(truth.memory_mib(network, batch), rel=0.01)


def test_believed_steps_are_near_the_truth_and_seldom_on_it(truth: Truth) -> None:
    for entry in load_profiles(TRAINING):
        errors = np.array(
            [
                row.solo_ms / truth.execution_ms(placed(entry, row), row.batch) - 1.0
                for row in entry.rows
            ]
        )
        most = MEAN_ERROR.get(entry.gpu_type, ELSEWHERE)
        where = entry.network, entry.gpu_type
        assert np.mean(np.abs(errors)) < most, where
        assert np.mean(np.abs(errors) < 1e-3) <= 0.2, where
        assert np.ptp(errors) > 0.04, where


@pytest.mark.parametrize(
    ("task_percent", "gpu_type"),
    [
        (30.0, "A100-40GB"),
        *(
            pytest.param(share, name, marks=pytest.mark.thorough)
            for share, name in (
                *((10.0, "V100-16GB"), (50.0, "A100-40GB"), (50.0, "H100")),
            )
        ),
    ],
)
def test_inference_suffers_from_training_about_as_the_planner_believes(
    truth: Truth, task_percent: float, gpu_type: str
) -> None:
    errors = []
    for network in TRAINING:
        _, (*_, task) = top_rows(network, gpu_type, task_percent)
        for service in list_networks("inference"):
            entry, rows = top_rows(service, gpu_type, 100.0 - task_percent)
            for row in rows:
                believed_ms = execution_ms(
                    row,
                    neighbours_with([task]),
                    sensitivity=entry.sensitivity,
                    gpu_type=TYPES[gpu_type],
                )
                neighbour = SimulatedNeighbour(network, task.sm_percent, task.batch)
                true_ms = [
                    truth.execution_ms(placed(entry, row, *neighbours), row.batch)
                    for neighbours in ((), (neighbour,))
                ]
                errors.append(true_ms[1] / true_ms[0] * row.solo_ms / believed_ms - 1.0)
    assert len(errors) > 500
    # Each pair is slowed in its own way, which no law of one number per network can know.
    assert np.mean(np.abs(errors)) < 0.05
    assert np.mean(np.array(errors) > 0.1) < 0.1


def test_a_scenarios_service_on_a_training_network_is_refused_with_what_to_do_instead(
    tmp_path: Path,
) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(
        json.dumps(a_document(services=[{**SERVICE, "network": "bert-training"}]))
    )
    with pytest.raises(ManifestErrors) as refused:
        read_scenario(file)
    assert not_for_services("bert-training") in str(refused.value)
    assert "run it as a task" in not_for_services("bert-training")


def test_stalls_are_believed_nearly_as_long_as_they_truly_are(truth: Truth) -> None:
    (victim,) = load_profiles(["resnet50"], ["V100-16GB"])
    rows = [
        (entry.network, row)
        for entry in load_profiles(TRAINING, ["V100-16GB"])
        for row in entry.rows
        if row.sm_percent in (20.0, 50.0)
    ]
    for network, row in rows:
        beside = placed(
            victim,
            victim.rows[0]._replace(sm_percent=50.0),
            SimulatedNeighbour(network, row.sm_percent, row.batch),
        )
        # Two of a hundred batches draw from an exponential; one of a hundred passes its mean times ln 2.
        true_ms = truth.stall_ms(beside) * np.log(2.0)
        assert row.stall_ms == pytest.approx(true_ms, rel=0.35), network
