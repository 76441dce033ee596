"""The soft minimum of two ceilings."""

import numpy as np
import pytest

from solvers.predict.regression.soft_minimum import soft_minimum


def test_equal_ceilings_give_the_stated_part_of_them() -> None:
    # 2^(-1/2) · 10
    assert soft_minimum(10.0, 10.0, sharpness=2.0) == pytest.approx(7.0711, rel=1e-4)


def test_a_harmonic_sum_is_the_soft_minimum_of_sharpness_one() -> None:
    np.testing.assert_allclose(
        soft_minimum(np.array([3.0, 1.0]), np.array([6.0, 1.0]), sharpness=1.0),
        [2.0, 0.5],
    )


def test_it_is_never_above_the_lower_ceiling_and_near_it_far_from_the_other() -> None:
    far = soft_minimum(5.0, np.array([5.5, 50.0, 5e300, np.inf]), sharpness=6.0)
    assert np.all(far <= 5.0)
    assert np.all(np.diff(far) >= 0.0)
    np.testing.assert_allclose(far[1:], 5.0, rtol=1e-6)


@pytest.mark.parametrize("sharpness", [0.5, 2.0, 500.0])
def test_it_is_the_same_both_ways_and_does_not_overflow(sharpness: float) -> None:
    one, other = np.array([1e-200, 3.0, 1e200]), np.array([1e200, 2.0, 1e-200])
    result = soft_minimum(one, other, sharpness=sharpness)
    np.testing.assert_array_equal(result, soft_minimum(other, one, sharpness=sharpness))
    assert np.all(np.isfinite(result))
