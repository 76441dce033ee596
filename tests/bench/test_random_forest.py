import numpy as np
import pytest

from tests.solvers.synthetic_samples import grid_samples

pytestmark = pytest.mark.thorough


def test_a_forest_predicts_held_out_points_of_a_dense_grid() -> None:
    pytest.importorskip("sklearn.ensemble", reason="needs the extra ml")
    from bench.random_forest import fit_predict

    samples = grid_samples(("a", "b"), scales=(1.0, 3.0))
    held_out = np.arange(5, len(samples), 9)
    seen = samples.take(np.setdiff1d(np.arange(len(samples)), held_out))
    predicted = fit_predict(seen, samples.at.take(held_out))
    assert np.mean(np.abs(predicted / samples.latency_ms[held_out] - 1.0)) < 0.25
    np.testing.assert_array_equal(
        predicted, fit_predict(seen, samples.at.take(held_out))
    )
