import numpy as np
import pytest

from solvers.predict.latency.ftrl_proximal import (
    CoordinateWeights,
    FtrlRates,
    RowWeights,
)


def test_two_steps_of_one_coordinate_by_hand() -> None:
    # η = 0.5, ζ = 1, λ₁ = 0.25, λ₂ = 2, start c = 1.
    # g = 3: n = 9, z = 3 − (3 − 0) / 0.5 · 0 = 3, w = 1 − (3 − 0.25) / ((1 + 3) / 0.5 + 2) = 1 − 2.75 / 10 = 0.725
    # g = 4: n = 25, z = 3 + 4 − (5 − 3) / 0.5 · (0.725 − 1) = 8.1,
    #        w = 1 − (8.1 − 0.25) / ((1 + 5) / 0.5 + 2) = 1 − 7.85 / 14
    weights = CoordinateWeights.at(
        np.array([1.0]), FtrlRates(eta=0.5, zeta=1.0, l1=0.25, l2=2.0)
    )
    weights.step(np.array([3.0]))
    assert weights.values == pytest.approx([0.725])
    weights.step(np.array([4.0]))
    assert weights.values == pytest.approx([1.0 - 7.85 / 14.0])


def test_a_row_is_the_ridge_regression_of_all_that_it_saw() -> None:
    random = np.random.default_rng(2)
    inputs, targets = random.normal(size=(40, 3)), random.normal(size=40)
    penalty = np.array([0.5, 1.0, 2.0])
    row = RowWeights.at(1, penalty)
    for x, y in zip(inputs, targets, strict=True):
        row.step(x[None], np.array([y - row.values[0] @ x]), clip=1e9)
    ridge = np.linalg.solve(inputs.T @ inputs + np.diag(penalty), inputs.T @ targets)
    assert row.values[0] == pytest.approx(ridge)
    assert row.covariance[0] == pytest.approx(
        np.linalg.inv(inputs.T @ inputs + np.diag(penalty))
    )


def test_a_row_returns_the_residual_that_is_left_and_takes_at_most_the_clip() -> None:
    # One weight, λ₂ = 1, x = 1: spread 1 + 1 = 2, limit 0.5 √2; the gain is 1 / 2, so half of what is taken is left.
    row = RowWeights.at(2, np.array([1.0]))
    left = row.step(np.ones((2, 1)), np.array([0.2, 10.0]), clip=0.5)
    limit = 0.5 * np.sqrt(2.0)
    assert row.values[:, 0] == pytest.approx([0.1, limit / 2.0])
    assert left == pytest.approx([0.1, 10.0 - limit / 2.0])
