"""The capacity law's values, and that its table never promises more than the queue keeps."""

import gzip
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.laws.bulk_queue import miss_probability
from solvers.laws.capacity_law import (
    MAX_UTILISATION,
    make_capacity_law,
    max_utilisation,
)
from solvers.types.problem import CapacityLaw
from tests.examples import IS_THOROUGH, examples

PERCENTILES = (0.5, 0.98, 0.999) if IS_THOROUGH else (0.98, 0.999)
BATCHES = (1, 4, 16, 64, 128) if IS_THOROUGH else (1, 16, 128)
COLUMNS = [(percentile, batch) for percentile in PERCENTILES for batch in BATCHES]
SHARED_PROBLEM = (
    Path(__file__).parents[4] / "shared" / "problems" / "synthetic_4x8_s1.json.gz"
)


@pytest.fixture(scope="module")
def law() -> CapacityLaw:
    return make_capacity_law(PERCENTILES, BATCHES)


def _make_off_grid_ratios(
    law: CapacityLaw, percentile: float
) -> npt.NDArray[np.float64]:
    """Three in every cell, some on both sides of whole ratios and of the steep rise, and random ones."""
    grid = np.asarray(law.slo_ratios)
    width = np.diff(grid)
    inside = np.concatenate([grid[:-1] + width * part for part in (0.1, 0.5, 0.9)])
    near = [
        centre + sign * 10.0**-power
        for centre in (2.0, 3.0, 4.0, 5.0, 9.0, 17.0, 1.0 + percentile)
        for power in range(1, 10)
        for sign in (-1, 1)
    ]
    rng = np.random.default_rng(7)
    return np.concatenate(
        [inside, near, rng.uniform(1.0, 2.1, 50), rng.uniform(2.0, 20.0, 50)]
    )


def _interpolate(
    law: CapacityLaw, percentile: float, batch: int, ratios: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    return np.array(
        [law.utilisation(percentile, batch, float(ratio)) for ratio in ratios]
    )


@pytest.mark.parametrize(
    ("batch", "slo_ratio", "expected"),
    [
        (1, 2.0, 0.1878),
        (16, 1.9, 0.0127),
        (16, 2.0, 0.7180),
        (64, 2.0, 0.8871),
        (16, 0.999, 0.0),
        (16, 500, 0.995),
    ],
)
def test_known_values_at_98_percent(
    batch: int, slo_ratio: float, expected: float
) -> None:
    assert max_utilisation(
        batch, percentile=0.98, slo_ratio=slo_ratio
    ) == pytest.approx(expected, abs=5e-5)


@given(
    batch=st.integers(min_value=1, max_value=128),
    percentile=st.floats(min_value=0.5, max_value=0.999),
    slo_ratio=st.floats(min_value=1.001, max_value=20.0),
)
@settings(max_examples=examples(40))
def test_the_utilisation_keeps_the_promise_and_a_little_more_breaks_it(
    batch: int, percentile: float, slo_ratio: float
) -> None:
    utilisation = max_utilisation(batch, percentile=percentile, slo_ratio=slo_ratio)
    kept, broken = miss_probability(
        batch,
        utilisation=[utilisation + 1e-12, utilisation + 4e-6],
        slo_ratio=slo_ratio,
    )
    assert kept <= 1.0 - percentile
    # Within the guard against rounding, 1e-9, a flat piece of the miss probability may count as broken.
    assert broken > 1.0 - percentile - 2e-9 or utilisation == MAX_UTILISATION


@given(
    batch=st.integers(min_value=1, max_value=128),
    percentiles=st.tuples(*[st.floats(min_value=0.5, max_value=0.999)] * 2),
    slo_ratio=st.floats(min_value=1.0, max_value=20.0),
)
@settings(max_examples=examples(25))
def test_a_higher_percentile_never_allows_more(
    batch: int, percentiles: tuple[float, float], slo_ratio: float
) -> None:
    low, high = sorted(percentiles)
    allowed = max_utilisation(batch, percentile=low, slo_ratio=slo_ratio)
    assert (
        max_utilisation(batch, percentile=high, slo_ratio=slo_ratio) <= allowed + 1e-6
    )


@pytest.mark.parametrize(
    ("percentile", "batch"), [(0.5, 3), (0.98, 1), (0.98, 16), (0.99, 64)]
)
def test_a_row_keeps_its_promise_at_its_own_ratios(
    percentile: float, batch: int
) -> None:
    alone = make_capacity_law((percentile,), (batch,))
    utilisation = np.maximum(alone.max_utilisation[0][0], 1e-9)
    assert np.all(
        miss_probability(batch, utilisation=utilisation, slo_ratio=alone.slo_ratios)
        <= 1.0 - percentile
    )


@pytest.mark.seeded
@pytest.mark.parametrize(("percentile", "batch"), COLUMNS)
def test_interpolation_nowhere_overstates_by_more_than_0_005(
    law: CapacityLaw, percentile: float, batch: int
) -> None:
    ratios = _make_off_grid_ratios(law, percentile)
    values = _interpolate(law, percentile, batch, ratios)
    miss = miss_probability(
        batch, utilisation=np.maximum(values - 0.005, 1e-9), slo_ratio=ratios
    )
    assert np.all(miss <= 1.0 - percentile), ratios[miss > 1.0 - percentile]


@pytest.mark.seeded
@pytest.mark.parametrize(("percentile", "batch"), COLUMNS)
def test_interpolation_understates_by_0_01_at_most_but_at_the_step(
    law: CapacityLaw, percentile: float, batch: int
) -> None:
    ratios = _make_off_grid_ratios(law, percentile)
    ratios = ratios[np.abs(ratios - (1.0 + percentile)) > 1e-5]
    raised = _interpolate(law, percentile, batch, ratios) + 0.01
    ratios, raised = ratios[raised < MAX_UTILISATION], raised[raised < MAX_UTILISATION]
    miss = miss_probability(batch, utilisation=raised, slo_ratio=ratios)
    assert np.all(miss > 1.0 - percentile), ratios[miss <= 1.0 - percentile]


@pytest.mark.seeded
@pytest.mark.parametrize(("percentile", "batch"), COLUMNS)
def test_a_row_never_falls_and_ends_at_the_largest_utilisation(
    law: CapacityLaw, percentile: float, batch: int
) -> None:
    row = law.max_utilisation[PERCENTILES.index(percentile)][BATCHES.index(batch)]
    assert np.all(np.diff(row) >= 0.0)
    assert row[-1] == MAX_UTILISATION


def test_order_and_duplicates_change_nothing() -> None:
    assert make_capacity_law([0.98, 0.5, 0.98], [2, 1, 1]) == make_capacity_law(
        [0.5, 0.98], [1, 2]
    )


@pytest.mark.parametrize(
    ("percentiles", "batches", "message"),
    [
        ((), (1,), "at least one"),
        ((0.98,), (), "at least one"),
        ((98.0,), (1,), "percentile 98.0"),
        ((1.0,), (1,), "percentile 1.0"),
        ((0.98,), (0,), "batch 0"),
    ],
)
def test_bad_lists_are_refused(
    percentiles: tuple[float, ...], batches: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_capacity_law(percentiles, batches)


@pytest.mark.skipif(
    not SHARED_PROBLEM.exists(), reason="the shared planner problems are not here"
)
def test_the_shared_planner_problems_hold_the_same_law_from_ratio_two_on() -> None:
    theirs = json.loads(gzip.decompress(SHARED_PROBLEM.read_bytes()))["capacity_law"]
    rows = dict(
        zip(
            theirs["batches"],
            theirs["max_utilisation"][theirs["percentiles"].index(0.98)],
            strict=True,
        )
    )
    compared = (1, 4, 12, 32)
    ours = make_capacity_law((0.98,), compared)
    for batch in compared:
        pairs = [
            (ratio, value)
            for ratio, value in zip(theirs["slo_ratios"], rows[batch], strict=True)
            if ratio >= 2.0
        ]
        expected = [value for _, value in pairs]
        assert [
            ours.utilisation(0.98, batch, ratio) for ratio, _ in pairs
        ] == pytest.approx(expected, abs=0.01)
