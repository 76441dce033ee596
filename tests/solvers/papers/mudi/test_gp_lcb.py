"""GP-LCB: the posterior is a Gaussian process's, the bound uses σ, and few trials find the best batch."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.papers.mudi.gp_lcb import (
    LENGTH,
    NOISE,
    LcbSearch,
    Trial,
    lower_bounds,
    posterior,
    search_batch,
)
from solvers.types.errors import InvalidInput

POWERS = (1, 2, 4, 8, 16, 32, 64, 128)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_the_posterior_is_that_of_scikit_learn(seed: int) -> None:
    # Here, since it takes a second and every test process reads this module.
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    draw = np.random.default_rng(seed)
    tried, asked = draw.uniform(0.0, 7.0, 6), np.linspace(0.0, 7.0, 15)
    values = draw.normal(size=6)
    oracle = GaussianProcessRegressor(
        kernel=RBF(LENGTH), alpha=NOISE, optimizer=None
    ).fit(tried[:, None], values)
    expected, spread = oracle.predict(asked[:, None], return_std=True)
    mean, deviation = posterior(tried, values, asked)
    assert mean == pytest.approx(expected, abs=1e-6)
    assert deviation == pytest.approx(spread, abs=1e-4)


def test_one_observation_by_hand() -> None:
    # Kernel of one doubling: k = e^(-1/2). Mean k·y / (1 + noise), variance 1 − k² / (1 + noise).
    k = math.exp(-0.5)
    mean, deviation = posterior(np.array([3.0]), np.array([2.0]), np.array([4.0]))
    assert mean[0] == pytest.approx(2.0 * k / (1.0 + NOISE))
    assert deviation[0] == pytest.approx(math.sqrt(1.0 - k**2 / (1.0 + NOISE)))


def test_the_bound_uses_the_standard_deviation_and_not_its_root() -> None:
    # β_1 of 8 candidates: 2 ln(8 · π² / 0.6) = 9.7596; √β = 3.1240. With σ = 0.25 the bound is 1 − 0.7810; the root
    # that the slide prints would make it 1 − 1.5620.
    (bound,) = lower_bounds(np.array([1.0]), np.array([0.25]), trial=1, candidates=8)
    root_beta = math.sqrt(2.0 * math.log(8.0 * math.pi**2 / 0.6))
    assert root_beta == pytest.approx(3.1240, abs=1e-4)
    assert bound == pytest.approx(1.0 - 0.25 * root_beta)
    assert bound != pytest.approx(1.0 - 0.5 * root_beta)


def test_it_ends_early_where_nothing_better_can_be_expected() -> None:
    # After 62 the others are known to within a hundredth: σ at 61 is sqrt(1 − exp(−0.0235²)) = 0.025.
    found = search_batch((60, 61, 62, 63, 64), lambda batch: 1000.0 + abs(batch - 62))
    assert found.best == 62
    assert len(found.trials) < 5


@pytest.mark.parametrize("best", POWERS)
def test_it_finds_the_best_of_a_few_batches(best: int) -> None:
    found = search_batch(
        POWERS, lambda batch: 1.0 + abs(math.log2(batch) - math.log2(best))
    )
    assert found.best == best


def test_what_cannot_keep_its_limits_is_never_chosen() -> None:
    found = search_batch(POWERS, lambda batch: None if batch < 16 else 1.0 / batch)
    assert found.best == 128
    assert Trial(batch=16, value=1.0 / 16.0) in found.trials


def test_nothing_to_choose_from_and_nothing_possible() -> None:
    assert search_batch((), lambda _: 1.0) == LcbSearch(trials=())
    nothing = search_batch((1, 2), lambda _: None)
    assert nothing.best is None
    assert {trial.batch for trial in nothing.trials} == {1, 2}


def test_a_batch_below_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be at least 1, not 0"):
        search_batch((0, 1), float)


@given(
    st.lists(st.integers(1, 4096), min_size=1, max_size=200, unique=True),
    st.integers(0, 2**31),
)
def test_fewer_than_25_trials_each_once_whatever_the_order(
    batches: list[int], seed: int
) -> None:
    values = {batch: ((batch * 2654435761 + seed) % 997) / 997.0 for batch in batches}
    found = search_batch(batches, values.__getitem__)
    tried = [trial.batch for trial in found.trials]
    assert len(tried) == len(set(tried)) < 25
    assert found.best is not None
    assert values[found.best] == min(values[batch] for batch in tried)
    assert search_batch(batches[::-1], values.__getitem__) == found
