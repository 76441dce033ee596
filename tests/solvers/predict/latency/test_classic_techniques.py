"""What every technique that learns a group by itself must do alike."""

from typing import cast

import numpy as np
import pytest

from solvers.predict.data.fit import Coefficients, FitTechnique, TooFewSamples
from solvers.predict.data.samples import Queries, Samples, make_samples
from solvers.predict.latency import (
    gaussian_process,
    hierarchical_kriging,
    linear_fractional,
    locally_weighted,
    piecewise_linear,
)
from tests.solvers.synthetic_samples import grid_samples, queries_at, samples_at


class Kriging:
    """Hierarchical kriging of one group."""

    @staticmethod
    def fit(samples: Samples) -> Coefficients:
        (learned,) = hierarchical_kriging.fit_groups(samples).values()
        return learned

    predict = staticmethod(hierarchical_kriging.predict)


CLASSIC = [
    pytest.param(
        cast(FitTechnique, technique), id=technique.__name__.rpartition(".")[2]
    )
    for technique in (linear_fractional, locally_weighted, piecewise_linear)
]
TECHNIQUES = [
    *CLASSIC,
    pytest.param(cast(FitTechnique, gaussian_process), id="gaussian_process"),
    pytest.param(cast(FitTechnique, Kriging), id="hierarchical_kriging"),
]


def far_and_wide(size: int = 500) -> Queries:
    random = np.random.default_rng(7)
    return queries_at(
        batch=10.0 ** random.uniform(0.0, 4.5, size),
        sm_percent=10.0 ** random.uniform(-2.0, 2.0, size),
        clock_mhz=np.where(
            random.random(size) < 0.3, np.nan, random.uniform(1.0, 4000.0, size)
        ),
        time_quota_percent=10.0 ** random.uniform(-2.0, 2.0, size),
    )


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_the_order_of_samples_changes_nothing(technique: FitTechnique) -> None:
    samples = grid_samples(noise=0.05)
    shuffled = samples.take(np.random.default_rng(1).permutation(len(samples)))
    first, second = technique.fit(samples), technique.fit(shuffled)
    assert first.arrays.keys() == second.arrays.keys()
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, second.arrays[name])


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_milliseconds_in_are_milliseconds_out(technique: FitTechnique) -> None:
    samples = grid_samples(noise=0.02)
    thousandfold = make_samples(samples.at, 1000.0 * samples.latency_ms)
    small, large = (
        technique.predict(technique.fit(given), samples.at)
        for given in (samples, thousandfold)
    )
    np.testing.assert_allclose(large, 1000.0 * small, rtol=1e-6)


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_every_condition_has_a_positive_finite_latency(technique: FitTechnique) -> None:
    for seed in range(8):
        random = np.random.default_rng(seed)
        size = 12 + 4 * seed
        wild = samples_at(
            random.choice([1.0, 2.0, 4.0], size).tolist(),
            random.choice([10.0, 20.0, 50.0, 100.0], size).tolist(),
            (10.0 ** random.uniform(-6.0, 6.0, size)).tolist(),
        )
        found = technique.predict(technique.fit(wild), far_and_wide())
        assert np.all(np.isfinite(found) & (found > 0.0)), f"seed {seed}"


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_one_sample_is_too_few_however_often_it_was_taken(
    technique: FitTechnique,
) -> None:
    for times in (1, 20):
        with pytest.raises(TooFewSamples):
            technique.fit(samples_at([4.0] * times, [50.0] * times, [3.0] * times))
