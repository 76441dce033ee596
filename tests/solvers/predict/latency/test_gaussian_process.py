import numpy as np

from solvers.predict.data.samples import Queries, Samples, make_samples
from solvers.predict.latency import gaussian_process
from tests.solvers.predict.latency.measured_sets import igniter_solo
from tests.solvers.synthetic_samples import (
    grid_samples,
    known_latency_ms,
    queries_at,
    samples_at,
)


def between_the_grid(size: int = 200) -> Queries:
    random = np.random.default_rng(3)
    return queries_at(
        batch=random.uniform(1, 8, size), sm_percent=random.uniform(10, 100, size)
    )


def errors(samples: Samples, queries: Queries) -> np.ndarray:
    found = gaussian_process.predict(gaussian_process.fit(samples), queries)
    return np.abs(found / known_latency_ms(queries.batch, queries.sm_percent) - 1.0)


def test_an_exact_curve_is_followed_between_the_samples() -> None:
    found = errors(grid_samples(), between_the_grid())
    assert found.mean() < 0.005 and found.max() < 0.02


def test_two_samples_give_a_falling_curve() -> None:
    coefficients = gaussian_process.fit(
        samples_at([4.0, 4.0], [20.0, 80.0], [40.0, 12.0])
    )
    at = queries_at(batch=[4.0] * 4, sm_percent=[10.0, 20.0, 40.0, 80.0])
    found = gaussian_process.predict(coefficients, at)
    assert np.all(np.diff(found) < 0.0)
    np.testing.assert_allclose(found[[1, 3]], [40.0, 12.0], rtol=0.04)


def test_the_trend_goes_on_beyond_the_samples_and_then_the_worst_case() -> None:
    coefficients = gaussian_process.fit(grid_samples())
    at = queries_at(batch=[8.0, 16.0, 64.0], sm_percent=[50.0] * 3)
    eight, sixteen, sixty_four = gaussian_process.predict(coefficients, at)
    assert 1.5 < sixteen / eight < 2.2
    np.testing.assert_allclose(sixty_four / sixteen, 4.0)


def test_clock_and_quota_are_learned_where_they_vary() -> None:
    grid = grid_samples()
    size = len(grid)
    clock, quota = (
        np.tile([1530.0, 1100.0, 800.0], size),
        np.repeat([100.0, 80.0, 60.0], size),
    )
    at = queries_at(
        batch=np.tile(grid.at.batch, 3),
        sm_percent=np.tile(grid.at.sm_percent, 3),
        clock_mhz=clock,
        time_quota_percent=quota,
    )
    samples = make_samples(
        at, np.tile(grid.latency_ms, 3) * (1530.0 / clock) ** 0.6 * 100.0 / quota
    )
    found = (
        gaussian_process.predict(gaussian_process.fit(samples), at) / samples.latency_ms
        - 1.0
    )
    assert np.abs(found).mean() < 0.01


def held_out_error(samples: Samples) -> np.ndarray:
    """Relative errors of a random quarter."""
    is_held = np.random.default_rng(0).random(len(samples)) < 0.25
    found = np.full(len(samples), np.nan)
    for rows in samples.at.groups().values():
        coefficients = gaussian_process.fit(samples.take(rows[~is_held[rows]]))
        found[rows] = gaussian_process.predict(coefficients, samples.at.take(rows))
    return np.abs(found[is_held] / samples.latency_ms[is_held] - 1.0)


def test_a_quarter_of_igniters_measurements_is_foreseen_within_two_percent() -> None:
    found = held_out_error(igniter_solo())
    assert found.mean() < 0.02 and np.quantile(found, 0.9) < 0.05
