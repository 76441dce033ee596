"""Least squares with priors and without respect for outliers."""

import numpy as np
import pytest

from solvers.predict.data.samples import Reals
from solvers.predict.regression.posterior_mode import Priors, posterior_mode

X = np.linspace(-1.0, 1.0, 21)


def _priors(mean: tuple[float, ...], sigma: tuple[float, ...]) -> Priors:
    return Priors(mean=np.array(mean), sigma=np.array(sigma))


def test_well_measured_parameters_hardly_feel_their_priors() -> None:
    def residuals(line: Reals) -> Reals:
        deviations: Reals = (line[0] + line[1] * X - (3.0 + 2.0 * X)) / 0.01
        return deviations

    np.testing.assert_allclose(
        posterior_mode(residuals, _priors((0.0, 0.0), (5.0, 5.0))),
        [3.0, 2.0],
        atol=1e-4,
    )


def test_a_parameter_that_nothing_depends_on_stays_at_its_prior() -> None:
    best = posterior_mode(
        lambda line: (line[:1] - 3.0) / 0.01, _priors((0.0, 7.0), (5.0, 5.0))
    )
    np.testing.assert_allclose(best, [3.0, 7.0], atol=1e-4)


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


def test_slopes_that_are_given_lead_to_the_same_mode_outliers_or_not() -> None:
    observed = 3.0 + 2.0 * X + np.where(np.arange(len(X)) == 4, 50.0, 0.0)

    def residuals(line: Reals) -> Reals:
        return np.asarray((line[0] + line[1] * X - observed) / 0.1)

    def slopes(_: Reals) -> Reals:
        return np.stack([np.ones_like(X), X], axis=1) / 0.1

    priors = _priors((0.0, 0.0), (5.0, 5.0))
    given, found = (
        posterior_mode(residuals, priors, slopes=slopes),
        posterior_mode(residuals, priors),
    )
    np.testing.assert_allclose(given, found, atol=1e-5)
