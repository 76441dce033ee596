"""What partners are worth: who ignores them pays more, or is late, and who draws them pays most."""

import numpy as np
import pytest

from agents.sim.truth.truth import Truth, load_truth
from bench.catalogue.measured import read_types
from bench.partner_stakes import (
    StakeScenario,
    capacities,
    draw_scenario,
    fewest_gpus,
    judge,
    stakes,
)

pytestmark = pytest.mark.thorough

WORLDS = (("V100-16GB", True), ("A100-40GB", False))


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load_truth()


def scenario_of(
    truth: Truth, gpu_type: str, seed: int = 0, *, is_capped: bool
) -> StakeScenario:
    kinds = {kind.name: kind for kind in read_types()}
    return draw_scenario(truth, kinds[gpu_type], seed, is_capped=is_capped)


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: world[0])
def found(request: pytest.FixtureRequest, truth: Truth) -> dict[str, tuple[float, ...]]:
    """Late and corrected percent of each belief, means over three scenarios."""
    gpu_type, is_capped = request.param
    each = [
        dict(stakes(truth, scenario_of(truth, gpu_type, seed, is_capped=is_capped)))
        for seed in range(3)
    ]
    return {
        name: (
            float(np.mean([one[name].late_percent for one in each])),
            float(np.mean([one[name].corrected_percent for one in each])),
        )
        for name in each[0]
    }


def test_knowing_each_network_beats_one_constant_and_that_beats_nothing(
    found: dict[str, tuple[float, ...]],
) -> None:
    known, constant, ignored = (
        found[name] for name in ("scalars", "one constant", "no interference")
    )
    late, corrected = zip(known, constant, ignored, strict=True)
    assert late[0] < late[1] < late[2]
    assert corrected[0] < corrected[1] < corrected[2]


def test_planned_partners_are_cheaper_than_random_ones_and_those_than_none(
    found: dict[str, tuple[float, ...]],
) -> None:
    planned, drawn, none = (
        found[name][1] for name in ("scalars", "random partners", "one service per GPU")
    )
    assert planned < drawn < none


def test_a_plan_made_with_the_truth_is_the_cheapest_and_in_time(truth: Truth) -> None:
    scenario = scenario_of(truth, "V100-16GB", is_capped=True)
    true = capacities(scenario, lambda placed: truth.execution_ms(placed, 8))
    stake = judge(scenario, fewest_gpus(true, scenario.rates_rps), true, true)
    assert stake.late_percent == pytest.approx(0.0, abs=1e-6)
    assert stake.corrected_percent == pytest.approx(0.0, abs=1e-6)
