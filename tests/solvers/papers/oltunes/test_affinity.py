"""Affinity in its printed form: worked values, and the defects that it has."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.kernel_classes import (
    kernel_ratio,
    load_count_ratios,
    load_kernel_ratios,
)
from solvers.papers.oltunes.affinity import (
    COMPUTE_FROM,
    Character,
    affinity,
    ratios_of,
    sensitivity_ratio,
    suits,
    threshold,
    variant_affinity,
    workload_affinity,
)

ratios = st.floats(0.0, 10.0)


def low(ratio: float = 1.0) -> Character:
    return Character(ratio, is_high=False)


def high(ratio: float = 1.0) -> Character:
    return Character(ratio, is_high=True)


def test_equation_9_by_hand() -> None:
    # |4 − 1| = 3: 100 / (1 + e^−3) = 100 / 1.049787 = 95.2574.
    assert workload_affinity(4.0, 1.0) == pytest.approx(95.2574, abs=1e-4)
    assert workload_affinity(1.0, 4.0) == workload_affinity(4.0, 1.0)


def test_defect_equal_workloads_score_50_and_never_less() -> None:
    assert workload_affinity(2.0, 2.0) == 50.0


@given(ratios, ratios)
def test_defect_no_pair_of_workloads_is_below_50(one: float, other: float) -> None:
    assert 50.0 <= workload_affinity(one, other) <= 100.0


def test_equation_11() -> None:
    assert variant_affinity(high(), low()) == variant_affinity(low(), high()) == 100.0
    assert variant_affinity(low(), low()) == 50.0
    assert variant_affinity(high(), high()) == 0.0


def test_the_mean_over_the_batch_and_of_both_parts() -> None:
    # New: low, ratio 1. Batch: high with ratio 1 (50, 100), low with ratio 4 (95.2574, 50).
    # Workload (50 + 95.2574) / 2 = 72.6287, variants (100 + 50) / 2 = 75, together 73.8144.
    assert affinity(low(1.0), [high(1.0), low(4.0)]) == pytest.approx(73.8144, abs=1e-4)


def test_an_empty_batch_suits_everybody() -> None:
    assert affinity(high(), []) == 100.0


@given(ratios, ratios)
def test_defect_high_beside_low_always_passes_and_high_beside_high_never(
    one: float, other: float
) -> None:
    assert suits(high(one), [low(other)])
    assert not suits(high(one), [high(other)])


def test_two_low_variants_need_ratios_that_differ_by_ln_9() -> None:
    # (w + 50) / 2 ≥ 70 needs w ≥ 90: 1 + e^−Δ ≤ 1 / 0.9, Δ ≥ ln 9 = 2.197.
    needed = math.log(9.0)
    assert suits(low(1.0), [low(1.001 + needed)])
    assert not suits(low(1.0), [low(0.999 + needed)])


def test_in_a_full_fleet_any_two_low_variants_may_share_and_no_two_high_ones() -> None:
    assert threshold(0.0) == 70.0
    assert threshold(1.0) == 50.0
    assert suits(low(1.0), [low(1.0)], load=1.0)
    assert not suits(low(1.0), [low(1.0)], load=0.9)
    assert not suits(high(0.0), [high(9.0)], load=1.0)


def test_equation_1_counts_the_other_kind_alone_where_one_is_missing() -> None:
    assert kernel_ratio(6.0, 3.0) == 2.0
    assert kernel_ratio(6.0, 0.0) == 6.0
    assert kernel_ratio(0.0, 3.0) == 3.0


def test_defect_by_counts_every_profiled_network_is_memory_bound() -> None:
    assert all(ratio < COMPUTE_FROM for ratio in load_count_ratios().values())
    # mobilenet_v2: 1.043 ms / 0.928 ms = 1.12 is the only one below.
    assert [
        name for name, ratio in load_kernel_ratios().items() if ratio < COMPUTE_FROM
    ] == ["mobilenet_v2"]


def test_what_was_not_profiled_follows_from_its_sensitivity() -> None:
    assert sensitivity_ratio(0.8, 0.4) == pytest.approx(0.6)
    assert sensitivity_ratio(0.0, 0.4) == COMPUTE_FROM
    found = ratios_of({"resnet50": 3.8}, {"resnet50": 0.1, "vgg": 0.2, "alexnet": 0.4})
    # The median of 0.1, 0.2, 0.4 is 0.2.
    assert found == {
        "resnet50": 3.8,
        "vgg": COMPUTE_FROM,
        "alexnet": pytest.approx(0.6),
    }
    assert ratios_of({}, {}) == {}
