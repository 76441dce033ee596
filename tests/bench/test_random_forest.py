import numpy as np
import pytest

pytest.importorskip("sklearn.ensemble", reason="needs the extra ml")

from bench.random_forest import fit_predict
from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import make_queries
from tests.solvers.synthetic_samples import grid_samples

pytestmark = pytest.mark.thorough


def test_a_forest_predicts_held_out_points_of_a_dense_grid() -> None:
    samples = grid_samples(("a", "b"), scales=(1.0, 3.0))
    held_out = np.arange(5, len(samples), 9)
    seen = samples.take(np.setdiff1d(np.arange(len(samples)), held_out))
    predicted = fit_predict(seen, samples.at.take(held_out))
    assert np.mean(np.abs(predicted / samples.latency_ms[held_out] - 1.0)) < 0.25
    np.testing.assert_array_equal(
        predicted, fit_predict(seen, samples.at.take(held_out))
    )


def test_strangers_and_no_samples_are_refused() -> None:
    samples = grid_samples(("a",))
    with pytest.raises(ValueError, match="no samples of b"):
        fit_predict(
            samples, make_queries(["b"], ["V100-16GB"], batch=[1.0], sm_percent=[50.0])
        )
    with pytest.raises(TooFewSamples):
        fit_predict(samples.take(np.arange(0)), samples.at)
