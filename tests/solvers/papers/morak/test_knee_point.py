"""The knee stands where the slope changes most; a curve without a knee says so by its end."""

import numpy as np
import pytest

from solvers.papers.morak.knee_partition import knee_point
from solvers.predict.data.fit import TooFewSamples

SHARES = np.arange(5.0, 101.0, 5.0)


def test_the_knee_of_two_lines_is_where_they_meet() -> None:
    latency_ms = np.where(SHARES <= 30.0, 40.0 - SHARES, 10.0 - 0.02 * (SHARES - 30.0))
    knee = knee_point(SHARES, latency_ms)
    assert knee.sm_percent == pytest.approx(30.0, abs=0.05)
    assert knee.latency_ms == pytest.approx(10.0, abs=0.05)
    assert knee.slope_before == pytest.approx(-1.0, rel=0.01)
    assert knee.slope_after == pytest.approx(-0.02, rel=0.01)


def test_a_flat_curve_needs_no_more_than_the_least_share() -> None:
    assert knee_point(SHARES, np.full(len(SHARES), 20.0)).sm_percent == 5.0
    noisy = 20.0 + np.random.default_rng(1).normal(0.0, 0.1, len(SHARES))
    assert knee_point(SHARES, noisy).sm_percent == 5.0


def test_a_straight_fall_pays_until_the_largest_share() -> None:
    assert knee_point(SHARES, 200.0 - 1.5 * SHARES).sm_percent == 100.0


def test_two_shares_have_no_knee() -> None:
    with pytest.raises(TooFewSamples):
        knee_point(np.array([10.0, 100.0]), np.array([5.0, 1.0]))
