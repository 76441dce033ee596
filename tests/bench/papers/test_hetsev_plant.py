"""HetSev's curves like TensorFlow Serving's: what a T4 is next to a V100, and which rows are left."""

import pytest

from app.cli.simulation.scenario_files import read_scenario
from bench.compare import SCENARIOS
from bench.papers.hetsev_plant import serving_curves, with_serving_curves
from solvers.laws.colocation import Neighbours, execution_ms

pytestmark = pytest.mark.thorough


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


@pytest.mark.parametrize(
    ("board", "replicas", "served"),
    [("V100-32GB", 2, 1.94), ("V100-32GB", 3, 2.00), ("T4", 3, 1.36)],
)
def test_replicas_without_sm_limits_serve_about_what_the_paper_s_do(
    board: str, replicas: int, served: float
) -> None:
    """The paper's figure 1: three identical ones serve 1.85 times one on a V100, 1.28 on a T4."""
    _, catalogue = with_serving_curves(read_scenario(SCENARIOS / "hetsev_6_3.yaml"))
    (entry,) = (
        each
        for each in catalogue.points
        if (each.network, each.gpu_type) == ("resnet50", board)
    )
    (gpu_type,) = (each for each in catalogue.gpu_types if each.name == board)
    row = next(row for row in entry.rows if row.batch == 8)
    others = Neighbours(count=replicas - 1, pressure=(replicas - 1) * row.pressure)
    together_ms = execution_ms(
        row, others, sensitivity=entry.sensitivity, gpu_type=gpu_type
    )
    assert replicas * row.solo_ms / together_ms == pytest.approx(served, abs=0.02)
