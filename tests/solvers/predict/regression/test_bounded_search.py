"""Least residuals of parameters that must not be negative."""

import numpy as np

from solvers.predict.data.samples import Reals
from solvers.predict.regression.bounded_search import BoundedSearch

X = np.linspace(0.1, 2.0, 20)
CURVE = np.stack([np.ones_like(X), X, X**2], axis=1)
FREE = np.full(3, np.inf)


def curve_search(
    observed: Reals, *, highest: Reals = FREE, outlier: float = 100.0
) -> BoundedSearch:
    return BoundedSearch(
        residuals=lambda values: CURVE @ values - observed,
        slopes=lambda _: CURVE,
        highest=highest,
        outlier=outlier,
    )


def test_a_bottom_inside_the_bounds_is_found_to_the_last_digits() -> None:
    found = curve_search(CURVE @ np.array([0.5, 2.0, 0.1])).find(np.ones(3))
    np.testing.assert_allclose(found, [0.5, 2.0, 0.1], rtol=1e-9)


def test_what_a_bound_forbids_stays_on_it_and_the_others_adapt() -> None:
    observed = CURVE @ np.array([-0.5, 2.0, 0.1])
    found = curve_search(observed).find(np.ones(3))
    rest = np.linalg.lstsq(CURVE[:, 1:], observed, rcond=None)[0]
    assert found[0] == 0.0
    np.testing.assert_allclose(
        found[1:], rest, rtol=1e-4
    )  # The loss is not quite a square.
    held = curve_search(
        CURVE @ np.array([0.5, 2.0, 0.1]), highest=np.array([np.inf, 1.5, np.inf])
    ).find(np.ones(3))
    assert held[1] == 1.5


def test_an_outlier_counts_with_its_size_only() -> None:
    observed = CURVE @ np.array([0.5, 2.0, 0.1])
    observed[7] += 1000.0
    found = curve_search(observed, outlier=0.01).find(np.ones(3))
    np.testing.assert_allclose(
        CURVE @ found, CURVE @ np.array([0.5, 2.0, 0.1]), rtol=0.02
    )


def test_a_curved_valley_is_followed_to_where_no_slope_is_left() -> None:
    def residuals(values: Reals) -> Reals:
        return np.array([10.0 * (values[1] - values[0] ** 2), 2.0 - values[0]])

    def slopes(values: Reals) -> Reals:
        return np.array([[-20.0 * values[0], 10.0], [-1.0, 0.0]])

    search = BoundedSearch(
        residuals=residuals, slopes=slopes, highest=np.full(2, np.inf), outlier=10.0
    )
    np.testing.assert_allclose(search.find(np.array([0.1, 3.0])), [2.0, 4.0], rtol=1e-9)
