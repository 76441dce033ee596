"""Sampled range: what a fit has seen, and how much wider its interval is elsewhere."""

from dataclasses import replace

import numpy as np
import pytest

from solvers.predict.data.fit import Fits
from solvers.predict.data.sampled_range import (
    ANYWHERE,
    EXTRAPOLATION,
    SampledRange,
    SampledSpan,
    sampled_range,
    widening,
)
from solvers.predict.data.samples import Queries
from solvers.predict.estimate.predict import predict_latency
from solvers.predict.learn.fit_samples import make_fits
from tests.solvers.synthetic_samples import (
    beside,
    grid_samples,
    joined,
    queries_at,
    samples_at,
)


def at(batch: float, sm_percent: float, clock_mhz: float = np.nan) -> Queries:
    return queries_at(batch=[batch], sm_percent=[sm_percent], clock_mhz=[clock_mhz])


def test_the_range_spans_what_is_known() -> None:
    found = sampled_range(samples_at([1, 4, 2], [50, 20, 100], [1, 1, 1]).at)
    assert found == SampledRange(
        batch=SampledSpan(1, 4),
        sm_percent=SampledSpan(20, 100),
        time_quota_percent=SampledSpan(100, 100),
    )


@pytest.mark.parametrize(
    ("asked", "doublings"),
    [
        (at(2, 50), 0.0),
        (at(4, 100), 0.0),
        (at(8, 50), 1.0),
        (at(0.5, 50), 1.0),
        (at(2, 5), 2.0),
        (at(16, 10), 3.0),
        (at(2, 50, clock_mhz=500), 1.0),
        (at(2, 50, clock_mhz=np.nan), 0.0),
    ],
)
def test_every_doubling_outside_counts_alike_and_they_add_up(
    asked: Queries, doublings: float
) -> None:
    known = SampledRange(
        batch=SampledSpan(1, 4),
        sm_percent=SampledSpan(20, 100),
        clock_mhz=SampledSpan(1000, 1500),
    )
    assert widening(known, asked) == pytest.approx(
        np.hypot(1.0, EXTRAPOLATION * doublings)
    )
    assert widening(ANYWHERE, asked) == 1.0


def test_the_interval_of_a_prediction_widens_outside_of_what_was_sampled() -> None:
    samples = joined(
        grid_samples(("a", "b"), noise=0.02),
        beside("a", "b", factor=1.1),
        beside("b", "a", factor=1.2),
    )
    fits = make_fits(samples)
    forgetful = Fits(fits=tuple(replace(fit, sampled=ANYWHERE) for fit in fits.fits))
    inside = beside("a", "b", factor=1.0).at.take(np.array([0]))
    for query in (at(2, 50), inside):
        outside = replace(query, sm_percent=np.array([2.5]))
        factor = float(widening(fits.of("latency_ms")[0].sampled, outside)[0])
        assert factor == pytest.approx(np.hypot(1.0, 2.0 * EXTRAPOLATION))
        for asked, expected in ((query, 1.0), (outside, factor)):
            wide, narrow = (predict_latency(each, asked) for each in (fits, forgetful))
            assert wide.latency_ms == narrow.latency_ms
            for end in ("latency_ms_low", "latency_ms_high"):
                widths = [
                    np.log(getattr(each, end) / each.latency_ms)
                    for each in (wide, narrow)
                ]
                assert widths[0] == pytest.approx(expected * widths[1])
