"""Piecewise-linear recovers two lines per batch, hands them out, and bridges what a batch misses."""

import numpy as np
import pytest

from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import Reals, Samples
from solvers.predict.latency.piecewise_linear import curve, fit, predict
from solvers.predict.regression.two_segments import TwoSegments
from tests.solvers.predict.latency.measured_sets import held_out_errors, igniter_solo
from tests.solvers.synthetic_samples import queries_at, samples_at

SHARES = np.arange(10.0, 101.0, 10.0)


def known(batch: float) -> TwoSegments:
    """Everything grows with the batch, the breakpoint too."""
    return TwoSegments(
        breakpoint_percent=20.0 + 5.0 * batch,
        latency_ms_at_breakpoint=5.0 * batch,
        slope_before=-0.3 * batch,
        slope_after=-0.01 * batch,
    )


def known_samples(*batches: float, shares: Reals = SHARES) -> Samples:
    latency_ms = np.concatenate([known(batch).latency_ms(shares) for batch in batches])
    return samples_at(
        np.repeat(batches, len(shares)).tolist(),
        np.tile(shares, len(batches)).tolist(),
        latency_ms.tolist(),
    )


def latency_at(samples: Samples, batch: float, sm_percent: float) -> float:
    asked = queries_at(batch=[batch], sm_percent=[sm_percent])
    return float(predict(fit(samples), asked)[0])


@pytest.mark.parametrize("batch", [2.0, 3.0, 4.0])
def test_breakpoint_and_slopes_come_back_at_and_between_measured_batches(
    batch: float,
) -> None:
    found = curve(fit(known_samples(2.0, 4.0)), batch)
    assert found.breakpoint_percent == pytest.approx(
        known(batch).breakpoint_percent, abs=0.05
    )
    assert found.latency_ms_at_breakpoint == pytest.approx(
        known(batch).latency_ms_at_breakpoint, rel=0.01
    )
    assert found.slope_before == pytest.approx(known(batch).slope_before, rel=0.01)
    assert found.slope_after == pytest.approx(known(batch).slope_after, rel=0.01)


def test_a_share_that_one_batch_misses_is_filled_in_from_the_others() -> None:
    # Work over the share: without the fill-in, batch 2 at 10 % would lie on a line through 20, 40 and 80 %.
    full = [
        (batch, share)
        for batch in (1.0, 2.0, 4.0)
        for share in (10.0, 20.0, 40.0, 80.0)
    ]
    seen = [pair for pair in full if pair != (2.0, 10.0)]
    batch, share = zip(*seen, strict=True)
    samples = samples_at(batch, share, [100.0 * b / s for b, s in seen])
    assert latency_at(samples, 2.0, 10.0) == pytest.approx(20.0, rel=0.1)


def test_a_batch_with_one_share_takes_its_neighbours_curve_at_its_own_level() -> None:
    pairs = [
        (batch, share) for batch in (1.0, 4.0) for share in (10.0, 20.0, 40.0, 80.0)
    ] + [(2.0, 30.0)]
    batch, share = zip(*pairs, strict=True)
    curve_ms = np.interp(share, [10.0, 30.0, 80.0], [30.0, 10.0, 5.0])
    samples = samples_at(
        batch, share, (curve_ms * np.where(np.array(batch) == 2.0, 2.0, 1.0)).tolist()
    )
    assert latency_at(samples, 2.0, 10.0) == pytest.approx(60.0, rel=0.02)
    assert latency_at(samples, 2.0, 80.0) == pytest.approx(10.0, rel=0.02)


def test_beyond_the_measured_range_the_worst_case_is_taken() -> None:
    samples = known_samples(2.0, 4.0)
    assert latency_at(samples, 8.0, 50.0) == pytest.approx(
        2.0 * latency_at(samples, 4.0, 50.0)
    )
    assert latency_at(samples, 4.0, 5.0) == pytest.approx(
        2.0 * latency_at(samples, 4.0, 10.0)
    )
    assert latency_at(samples, 1.0, 50.0) == pytest.approx(
        latency_at(samples, 2.0, 50.0)
    )


def test_a_line_that_would_reach_zero_stops_at_half_of_the_least_latency() -> None:
    # Batch 1 falls by 1 ms per 10 % up to 40 %; only batch 8 was measured beyond.
    batch, share = [1.0] * 4 + [8.0] * 3, [10.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0]
    assert (
        latency_at(
            samples_at(batch, share, [4.0, 3.0, 2.0, 1.0, 9.0, 8.0, 7.0]), 1.0, 100.0
        )
        == 0.5
    )


def test_too_few_shares_are_refused() -> None:
    with pytest.raises(TooFewSamples, match="3 distinct SM shares"):
        fit(
            samples_at(
                [1.0, 1.0, 2.0, 2.0, 4.0],
                [10.0, 50.0, 10.0, 90.0, 70.0],
                [5.0, 1.0, 9.0, 2.0, 4.0],
            )
        )


def test_measured_latencies_are_foretold_within_three_percent() -> None:
    assert held_out_errors("piecewise_linear", igniter_solo()).mean() <= 0.03
