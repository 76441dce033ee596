"""HetSev's curves like TensorFlow Serving's: what a T4 is beside a V100, and which rows are left."""

import pytest

from app.cli.simulation.scenario_files import read_scenario
from bench.compare import SCENARIOS
from bench.papers.hetsev_plant import serving_curves, with_serving_curves


def test_a_t4_is_half_a_v100_and_batches_are_the_papers() -> None:
    scenario, catalogue = with_serving_curves(
        read_scenario(SCENARIOS / "hetsev_6_3.yaml")
    )
    assert scenario.spec.truth == "planned"
    times = {
        (entry.network, entry.gpu_type): row.solo_ms
        for entry in catalogue.points
        for row in entry.rows
        if row.sm_percent == 100.0
        and row.batch == serving_curves()[entry.network].batch
    }
    parts = {
        network: times[network, "V100-32GB"] / times[network, "T4"]
        for network in serving_curves()
    }
    assert all(0.50 < part < 0.58 for part in parts.values())
    # ResNet-50, batch 8: 6.3 ms of host and 5.8 ms of GPU.
    assert times["resnet50", "V100-32GB"] == pytest.approx(12.1, abs=0.05)
    for entry in catalogue.points:
        largest = max(row.batch for row in entry.rows)
        assert largest == serving_curves()[entry.network].batch


def test_half_of_the_sms_double_the_gpus_part_only() -> None:
    _, catalogue = with_serving_curves(read_scenario(SCENARIOS / "hetsev_6_3.yaml"))
    (entry,) = (
        each
        for each in catalogue.points
        if (each.network, each.gpu_type) == ("resnet50", "T4")
    )
    whole, half = (
        next(row for row in entry.rows if (row.sm_percent, row.batch) == (percent, 8))
        for percent in (100.0, 50.0)
    )
    assert half.solo_ms - whole.solo_ms == pytest.approx(15.0552)
    # 3 % for a neighbour on a V100, where the GPU's part is 48 %.
    assert whole.pressure * whole.run_ms == pytest.approx(0.0625 * 15.0552)
