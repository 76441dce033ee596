"""Two segments recover known lines, fall with the share and bend one way only."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import Reals
from solvers.predict.regression.two_segments import TwoSegments, fit_two_segments

SHARES = np.arange(5.0, 101.0, 5.0)
KNOWN = TwoSegments(
    breakpoint_percent=32.0,
    latency_ms_at_breakpoint=11.0,
    slope_before=-1.5,
    slope_after=-0.05,
)


def fit(sm_percent: Reals, latency_ms: Reals) -> TwoSegments:
    return fit_two_segments(sm_percent, latency_ms, weight=np.ones_like(latency_ms))


def assert_same(found: TwoSegments, expected: TwoSegments) -> None:
    assert found.breakpoint_percent == pytest.approx(
        expected.breakpoint_percent, abs=0.02
    )
    assert found.latency_ms_at_breakpoint == pytest.approx(
        expected.latency_ms_at_breakpoint, abs=0.03
    )
    assert found.slope_before == pytest.approx(expected.slope_before, abs=0.01)
    assert found.slope_after == pytest.approx(expected.slope_after, abs=0.001)


def test_known_lines_come_back_with_their_breakpoint_between_two_samples() -> None:
    assert_same(fit(SHARES, KNOWN.latency_ms(SHARES)), KNOWN)


def test_three_shares_are_met_exactly_with_the_breakpoint_in_the_middle() -> None:
    found = fit(np.array([80.0, 10.0, 30.0]), np.array([4.0, 20.0, 5.0]))
    assert found.breakpoint_percent == 30.0
    np.testing.assert_allclose(found.latency_ms([10.0, 30.0, 80.0]), [20.0, 5.0, 4.0])
    assert found.slope_before == pytest.approx(-0.75)
    assert found.slope_after == pytest.approx(-0.02)


def test_weights_decide_between_samples_that_disagree() -> None:
    share = np.array([10.0, 30.0, 80.0, 80.0])
    latency_ms = np.array([20.0, 5.0, 4.0, 2.0])
    found = fit_two_segments(share, latency_ms, weight=np.array([1.0, 1.0, 1.0, 0.0]))
    assert float(found.latency_ms(80.0)) == pytest.approx(4.0)


@given(
    latency_ms=st.lists(st.floats(0.01, 1000.0), min_size=4, max_size=20),
)
def test_no_measurements_make_it_rise_or_steepen_or_turn_negative(
    latency_ms: list[float],
) -> None:
    share = np.linspace(5.0, 100.0, len(latency_ms))
    found = fit(share, np.array(latency_ms))
    assert found.slope_before <= found.slope_after <= 0.0
    assert share[1] <= found.breakpoint_percent <= share[-2]
    assert found.latency_ms(share).min() >= -1e-9


@pytest.mark.parametrize("share", [[50.0], [50.0, 50.0, 50.0], [10.0, 20.0, 20.0]])
def test_fewer_than_three_distinct_shares_are_refused(share: list[float]) -> None:
    with pytest.raises(TooFewSamples, match="3 distinct SM shares"):
        fit(np.array(share), np.ones(len(share)))
