"""Locally weighted regression follows what no formula says, and stays near it where nothing was measured."""

import numpy as np
import pytest

from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import Reals, Samples, make_samples
from solvers.predict.latency import linear_fractional
from solvers.predict.latency.locally_weighted import fit, predict
from tests.solvers.predict.latency.measured_sets import (
    held_out_errors,
    igniter_solo,
)
from tests.solvers.synthetic_samples import grid_samples, queries_at, samples_at


def step_samples() -> Samples:
    """A network whose host is slower in the processes that were given more than half of the SMs."""
    known = grid_samples()
    return make_samples(
        known.at, known.latency_ms * np.where(known.at.sm_percent > 50.0, 1.3, 1.0)
    )


def errors_of(predicted: Reals, samples: Samples) -> Reals:
    return np.abs(predicted / samples.latency_ms - 1.0)


def test_a_step_that_no_formula_has_is_followed() -> None:
    samples = step_samples()
    rows = np.arange(len(samples))
    seen, unseen = samples.take(rows[rows % 4 != 0]), samples.take(rows[rows % 4 == 0])
    local = errors_of(predict(fit(seen), unseen.at), unseen)
    formula = errors_of(
        linear_fractional.predict(linear_fractional.fit(seen), unseen.at), unseen
    )
    assert local.mean() < 0.5 * formula.mean()


def test_noise_alone_widens_the_neighbourhood() -> None:
    # In sample the nearest points always look best; only leaving each out tells that wide is better here.
    random = np.random.default_rng(11)
    batch, share = random.uniform(1.0, 16.0, 150), random.uniform(5.0, 100.0, 150)
    latency_ms = (5.0 + 40.0 * batch) / share * np.exp(random.normal(0.0, 0.1, 150))
    assert (
        fit(samples_at(batch.tolist(), share.tolist(), latency_ms.tolist())).arrays[
            "neighbours"
        ]
        >= 13
    )


def test_far_outside_the_correction_stays_what_it_is_at_the_edge() -> None:
    coefficients = fit(step_samples())
    asked = queries_at(batch=[8.0, 512.0], sm_percent=[100.0] * 2)
    trend = linear_fractional.predict(linear_fractional.fit(step_samples()), asked)
    edge, far = predict(coefficients, asked) / trend
    assert far == pytest.approx(edge)


def test_samples_that_determine_no_trend_are_refused() -> None:
    with pytest.raises(TooFewSamples):
        fit(samples_at([1.0, 2.0], [50.0, 60.0], [1.0, 2.0]))


def test_measured_latencies_are_foretold_better_than_by_the_formula() -> None:
    errors = held_out_errors("locally_weighted", igniter_solo())
    assert errors.mean() <= 0.014
    assert np.quantile(errors, 0.9) <= 0.035
