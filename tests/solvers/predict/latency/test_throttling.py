"""Execution time under a power limit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import (
    Queries,
    Reals,
    Samples,
    make_samples,
)
from solvers.predict.latency import throttling
from tests.examples import examples
from tests.solvers.synthetic_samples import queries_at

LIMITS_W = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)
BATCHES = (8, 16, 32, 64, 128)
DEMAND_W, IDLE_W, BUSY = 220.0, 40.0, 0.8


def _at(batch: list[float], limits_w: list[float]) -> Queries:
    size = len(batch)
    return queries_at(
        batch=batch,
        sm_percent=[100] * size,
        power_limit_w=limits_w,
        network="net",
        gpu_type="T4",
    )


def _true_ms(at: Queries) -> Reals:
    """An epoch: a part per step and a part per example; dynamic watts grow with the square of the clock."""
    clock = np.minimum(1.0, ((at.power_limit_w - IDLE_W) / (DEMAND_W - IDLE_W)) ** 0.5)
    latency: Reals = 1000.0 * (1.0 + 20.0 / at.batch) * (1.0 - BUSY + BUSY / clock)
    return latency


def _truth() -> Samples:
    at = _at(
        [b for b in BATCHES for _ in LIMITS_W],
        [limit for _ in BATCHES for limit in LIMITS_W],
    )
    return make_samples(at, _true_ms(at))


def test_a_known_curve_is_found_again_at_points_between_the_samples() -> None:
    between = _at([12, 24, 96, 48], [110, 160, 190, 240])
    predicted = throttling.predict(throttling.fit(_truth()), between)
    np.testing.assert_allclose(predicted, _true_ms(between), rtol=0.04)


def test_a_row_without_a_limit_has_the_highest_of_the_samples() -> None:
    unlimited, limited = throttling.predict(
        throttling.fit(_truth()), _at([32, 32], [np.nan, max(LIMITS_W)])
    )
    assert unlimited == limited


@settings(max_examples=examples(25))
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(6, 16),
    noise=st.sampled_from((0.0, 0.05, 0.5)),
)
def test_the_time_never_falls_with_the_limit_however_few_and_scattered_the_samples(
    seed: int, count: int, noise: float
) -> None:
    rng = np.random.default_rng(seed)
    samples = _truth()
    few = samples.take(
        np.concatenate(([0, 1], 2 + rng.permutation(len(samples) - 2)[: count - 2]))
    )
    coefficients = throttling.fit(
        replace(
            few, latency_ms=few.latency_ms * np.exp(noise * rng.standard_normal(count))
        )
    )
    for batch in (4, 20, 200):
        times = throttling.predict(
            coefficients, _at([batch] * 40, np.linspace(600.0, 20.0, 40).tolist())
        )
        assert np.all(np.isfinite(times)), (seed, batch)
        assert np.all(np.diff(times) >= -1e-9 * times[1:]), (seed, batch)


def test_beyond_the_sampled_batches_time_grows_and_before_them_it_stays() -> None:
    coefficients = throttling.fit(_truth())
    twice, far = throttling.predict(coefficients, _at([256, 65536], [150, 150]))
    assert far / twice == pytest.approx(65536 / 256)
    half, first = throttling.predict(coefficients, _at([4, 1], [150, 150]))
    assert first == pytest.approx(half)


def test_too_few_samples_say_what_is_missing() -> None:
    samples = _truth()
    with pytest.raises(TooFewSamples, match="5 of 5 have one, at 5"):
        throttling.fit(samples.take(np.arange(5)))
    unlimited = replace(
        samples, at=replace(samples.at, power_limit_w=np.full(len(samples), np.nan))
    )
    with pytest.raises(TooFewSamples, match="0 of 35 have one, at 0"):
        throttling.fit(unlimited)
