"""What the shipped catalogue believes of training networks: near the simulated truth, seldom on it, for tasks alone."""

import json
from dataclasses import replace
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
from app.simulate.run.planned_world import PlannedWorld
from bench.catalogue.training_belief import (
    fit_step,
)
from bench.catalogue.training_shape import (
    step_shapes,
)
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
"""Greatest mean relative error of any network's steps; types that nobody trained on are worse known."""
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


def test_a_planned_world_takes_training_at_its_word() -> None:
    gpu_type = TYPES["V100-32GB"]
    entries = {
        each.network: each
        for each in load_profiles(["bert-training", "resnet50"], [gpu_type.name])
    }
    world = PlannedWorld([gpu_type], entries.values(), training=["bert-training"])
    task = next(
        row
        for row in entries["bert-training"].rows
        if (row.sm_percent, row.batch) == (40.0, 16)
    )
    service = next(
        row
        for row in entries["resnet50"].rows
        if (row.sm_percent, row.batch, row.clock_mhz) == (60, 8, task.clock_mhz)
    )
    alone = placed(entries["bert-training"], task)
    assert world.batch_ms(alone)[16] == pytest.approx(task.solo_ms)
    assert world.busy_w(alone, 16) == task.power_w
    beside = replace(
        placed(entries["resnet50"], service),
        neighbours=(SimulatedNeighbour("bert-training", task.sm_percent, task.batch),),
    )
    # Two on the GPU: launches grow for each, the run by the task's pressure.
    slowed_ms = (
        service.transfer_ms
        + (1.0 + 2.0 * gpu_type.launch_per_neighbour) * service.launch_ms
        + service.run_ms * (1.0 + entries["resnet50"].sensitivity * task.pressure)
    )
    assert world.batch_ms(beside)[8] == pytest.approx(slowed_ms)


def test_a_steps_fit_finds_the_law_that_it_assumes_and_never_a_negative_part() -> None:
    # 20 * 100 / share + 5 milliseconds.
    fit = fit_step({10.0: 205.0, 25.0: 85.0, 50.0: 45.0, 100.0: 25.0}, 0.0, "any")
    assert fit.a_ms == pytest.approx(20.0)
    assert fit.b_ms == pytest.approx(5.0)
    steep = fit_step({10.0: 300.0, 25.0: 85.0, 50.0: 40.0, 100.0: 19.0}, 0.0, "any")
    assert steep.b_ms == 0.0
    assert 20.0 < steep.a_ms < 30.0


def test_host_bound_steps_stay_on_their_floor_and_no_larger_batch_has_a_lower_one() -> (
    None
):
    # 40 + 2.5 * batch milliseconds: the host takes 40, an item at least 3.125 (64 of them take 200). With batch 8,
    # 25 ms of work: at their knee both round to (40 ** 4 + 25 ** 4) ** 0.25 = 41.4, so the floor is 60 * 40 / 41.4.
    whole_ms = {8: 60.0, 16: 80.0, 64: 200.0}
    shapes = step_shapes(whole_ms, 1.0)
    floors_ms = [whole_ms[batch] * shape.floor for batch, shape in shapes.items()]
    assert floors_ms[0] == pytest.approx(57.9, rel=1e-3)
    assert floors_ms == sorted(floors_ms)
    for shape in shapes.values():
        assert shape.over(100.0) == 1.0
        assert shape.over(1e9) == pytest.approx(shape.floor)
    assert shapes[64].over(50.0) > 1.9


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
