"""Average watts under a power limit."""

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
from solvers.predict.resources import duty_cycle
from tests.examples import examples
from tests.solvers.synthetic_samples import queries_at

IDLE_W = 40.0
LIMITS_W = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)
BATCHES = (8, 16, 32, 64, 128)


def _at(batch: list[float], limits_w: list[float]) -> Queries:
    size = len(batch)
    return queries_at(
        batch=batch,
        sm_percent=[100] * size,
        power_limit_w=limits_w,
        network="net",
        gpu_type="T4",
    )


def _true_w(at: Queries) -> Reals:
    """A board that keeps its limit sharply; it computes for 0.9 of the time at batch 8, for 0.6 at batch 128."""
    demand = 180.0 + 15.0 * np.log2(at.batch / 8.0)
    busy = 0.9 - 0.075 * np.log2(at.batch / 8.0)
    watts: Reals = IDLE_W + busy * (np.minimum(demand, at.power_limit_w) - IDLE_W)
    return watts


def _truth() -> Samples:
    at = _at(
        [b for b in BATCHES for _ in LIMITS_W],
        [limit for _ in BATCHES for limit in LIMITS_W],
    )
    return make_samples(at, np.full(len(at), np.nan), power_w=_true_w(at))


def test_a_known_surface_is_found_again_at_points_between_the_samples() -> None:
    coefficients = duty_cycle.fit(_truth())
    between = _at([12, 24, 96, 48], [110, 160, 190, 240])
    np.testing.assert_allclose(
        duty_cycle.predict(coefficients, between), _true_w(between), rtol=0.04
    )


def test_a_row_without_a_limit_has_the_highest_of_the_samples() -> None:
    coefficients = duty_cycle.fit(_truth())
    unlimited, limited = duty_cycle.predict(
        coefficients, _at([32, 32], [np.nan, max(LIMITS_W)])
    )
    assert unlimited == limited


@settings(max_examples=examples(25))
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(4, 16),
    noise=st.sampled_from((0.0, 0.05, 0.5)),
)
def test_watts_never_fall_with_the_limit_however_few_and_scattered_the_samples(
    seed: int, count: int, noise: float
) -> None:
    rng = np.random.default_rng(seed)
    samples = _truth()
    few = samples.take(
        np.concatenate(([0, 1], 2 + rng.permutation(len(samples) - 2)[: count - 2]))
    )
    scattered = replace(
        few, power_w=few.power_w * np.exp(noise * rng.standard_normal(count))
    )
    coefficients = duty_cycle.fit(scattered)
    for batch in (1, 20, 1000):
        watts = duty_cycle.predict(
            coefficients, _at([batch] * 40, np.linspace(20.0, 600.0, 40).tolist())
        )
        assert np.all(np.isfinite(watts)), (seed, batch)
        assert np.all(watts > 0.0), (seed, batch)
        assert np.all(np.diff(watts) >= -1e-9 * watts[1:]), (seed, batch)


def test_too_few_samples_say_what_is_missing() -> None:
    samples = _truth()
    with pytest.raises(TooFewSamples, match="3 of 3 have both, at 3"):
        duty_cycle.fit(samples.take(np.arange(3)))
    one_limit = samples.take(np.flatnonzero(samples.at.power_limit_w == 150.0))
    with pytest.raises(
        TooFewSamples, match="two limits or more; 5 of 5 have both, at 1"
    ):
        duty_cycle.fit(one_limit)
