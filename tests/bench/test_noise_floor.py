"""The noise floor of the bench: the noise that was put in is found, and none where there is none."""

import numpy as np
import pytest

from bench.noise_floor import residuals
from solvers.predict.data.samples import Samples, make_queries, make_samples

pytestmark = pytest.mark.thorough


def curves(*, noise: float, exponent: float = 0.8) -> Samples:
    """Sixty curves over twenty shares, whose ln latency is a line in ln share."""
    shares = np.tile(np.arange(5.0, 101.0, 5.0), 60)
    names = [f"n{number}" for number in range(60) for _ in range(20)]
    random = (
        np.random.default_rng(0).normal(0.0, noise, len(shares))
        if noise
        else np.zeros(len(shares))
    )
    at = make_queries(
        names, ["T4"] * len(shares), batch=np.ones(len(shares)), sm_percent=shares
    )
    return make_samples(at, 300.0 / shares**exponent * np.exp(random))


@pytest.mark.parametrize("each_side", [1, 2])
@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_the_noise_that_was_put_in_is_found(noise: float, each_side: int) -> None:
    found, _ = residuals(curves(noise=noise), each_side=each_side)
    assert found.std() == pytest.approx(noise, rel=0.1)


def test_a_smooth_curve_has_no_noise() -> None:
    found, latency_ms = residuals(curves(noise=0.0), each_side=2)
    assert np.abs(found).max() < 1e-9
    assert len(found) == len(latency_ms) == 60 * 16
