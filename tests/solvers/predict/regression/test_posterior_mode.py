"""Least squares with priors and without respect for outliers."""

import numpy as np
import pytest

from solvers.predict.data.samples import Reals
from solvers.predict.regression.posterior_mode import Priors, posterior_mode


def _priors(mean: tuple[float, ...], sigma: tuple[float, ...]) -> Priors:
    return Priors(mean=np.array(mean), sigma=np.array(sigma))


def test_one_observation_as_sure_as_the_prior_meets_it_in_the_middle() -> None:
    # Both deviate by half a standard deviation, where the loss is still nearly a square.
    best = posterior_mode(lambda values: values - 1.0, _priors((0.0,), (1.0,)))
    assert best[0] == pytest.approx(0.5, abs=0.01)


def test_an_outlier_pulls_with_its_size_and_not_with_its_square() -> None:
    observed = np.array([0.0] * 10 + [1000.0])
    best = posterior_mode(
        lambda values: (values[0] - observed) / 1.0, _priors((0.0,), (1000.0,))
    )
    # The mean would be 91; of the ten, each pulls back with its distance, the outlier with OUTLIER_FROM.
    assert best[0] == pytest.approx(0.3, abs=0.01)


def test_a_second_start_finds_the_lower_valley() -> None:
    def residuals(values: Reals) -> Reals:
        return np.array([4.0 * (values[0] ** 2 - 1.0), values[0] - 1.0])

    priors = _priors((-1.0,), (100.0,))
    assert posterior_mode(residuals, priors)[0] < 0.0
    assert posterior_mode(residuals, priors, starts=(np.array([2.0]),))[
        0
    ] == pytest.approx(1.0, abs=0.01)
