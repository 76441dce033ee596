"""Locally weighted regression follows what no formula says, and stays near it where nothing was measured."""

import json

import numpy as np
import pytest

from solvers.predict.data.fit import TooFewSamples, nested
from solvers.predict.data.samples import Reals, Samples, make_samples
from solvers.predict.latency import linear_fractional
from solvers.predict.latency.locally_weighted import Points, fit, predict, regress
from tests.solvers.predict.latency.measured_sets import (
    held_out_errors,
    igniter_solo,
    rapp_full_quota,
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


def test_a_known_curve_comes_back_between_its_samples() -> None:
    known = grid_samples()
    coefficients = fit(known.take(np.arange(0, len(known), 2)))
    assert errors_of(predict(coefficients, known.at), known).max() < 0.01


def test_a_step_that_no_formula_has_is_followed() -> None:
    samples = step_samples()
    rows = np.arange(len(samples))
    seen, unseen = samples.take(rows[rows % 4 != 0]), samples.take(rows[rows % 4 == 0])
    local = errors_of(predict(fit(seen), unseen.at), unseen)
    formula = errors_of(
        linear_fractional.predict(linear_fractional.fit(seen), unseen.at), unseen
    )
    assert local.mean() < 0.5 * formula.mean()


def test_repetitions_count_and_do_not_narrow_the_neighbourhood() -> None:
    noisy = grid_samples(noise=0.05)
    twice = noisy.take(np.repeat(np.arange(len(noisy)), 2))
    assert fit(twice).arrays["neighbours"] >= fit(noisy).arrays["neighbours"]
    assert errors_of(predict(fit(twice), noisy.at), grid_samples()).mean() < 0.04


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


def test_answers_do_not_depend_on_what_else_is_asked() -> None:
    coefficients = fit(step_samples())
    at = step_samples().at
    order = np.random.default_rng(0).integers(0, len(at), 500)
    np.testing.assert_array_equal(
        predict(coefficients, at.take(order)), predict(coefficients, at)[order]
    )


@pytest.mark.parametrize("network", ["resnet101", "efficientnet_b1", "densenet121"])
def test_between_the_nodes_of_its_table_it_is_off_by_far_less_than_from_measurements(
    network: str,
) -> None:
    samples = rapp_full_quota(network)
    coefficients = fit(samples)
    trend = linear_fractional.fit(samples)
    assert coefficients.arrays["metric"].shape == (2,)  # Batch and share vary.
    residual = np.log(samples.latency_ms / linear_fractional.predict(trend, samples.at))
    logs = np.log(np.stack([samples.at.batch, samples.at.sm_percent], axis=1))
    random = np.random.default_rng(0)
    asked = random.uniform(logs.min(axis=0), logs.max(axis=0), (500, 2))
    metric, neighbours = (
        coefficients.arrays["metric"],
        int(coefficients.arrays["neighbours"]),
    )
    exact, _ = regress(
        Points(logs=logs, residual=residual, count=np.ones(len(logs))),
        asked,
        metric,
        neighbours,
    )
    at = queries_at(
        batch=np.exp(asked[:, 0]), sm_percent=np.exp(asked[:, 1]), gpu_type="T4"
    )
    tabulated = np.log(predict(coefficients, at) / linear_fractional.predict(trend, at))
    off = np.abs(tabulated - np.clip(exact, residual.min(), residual.max()))
    assert off.mean() < 0.05 * held_out_errors("locally_weighted", samples).mean()


def test_its_coefficients_stay_small_however_many_conditions_vary() -> None:
    random = np.random.default_rng(4)
    size = 500
    at = queries_at(
        batch=random.uniform(1.0, 64.0, size),
        sm_percent=random.uniform(2.0, 100.0, size),
        clock_mhz=random.uniform(500.0, 1500.0, size),
        time_quota_percent=random.uniform(10.0, 100.0, size),
    )
    coefficients = fit(
        make_samples(at, 20.0 * at.batch / at.sm_percent + 1500.0 / at.clock_mhz)
    )
    written = {name: array.tolist() for name, array in coefficients.arrays.items()}
    assert len(json.dumps(written)) < 50_000


def test_no_queries_have_no_answers() -> None:
    assert predict(
        fit(step_samples()), step_samples().at.take(np.array([], dtype=np.intp))
    ).shape == (0,)


def test_the_trend_that_it_builds_on_stands_among_its_coefficients() -> None:
    own, alone = (
        nested(fit(step_samples()), "linear_fractional"),
        linear_fractional.fit(step_samples()),
    )
    assert own.arrays.keys() == alone.arrays.keys()
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(own.arrays[name], array)


def test_clock_and_quota_are_conditions_like_the_others() -> None:
    random = np.random.default_rng(2)
    size = 200
    at = queries_at(
        batch=random.choice([1.0, 2.0, 4.0, 8.0], size),
        sm_percent=random.choice([10.0, 30.0, 60.0, 100.0], size),
        clock_mhz=random.choice([600.0, 900.0, 1200.0, 1500.0], size),
        time_quota_percent=random.choice([25.0, 50.0, 100.0], size),
    )
    step = np.where(at.clock_mhz < 1000.0, 1.2, 1.0)
    latency_ms = (
        step
        * at.batch
        / at.sm_percent
        * 1500.0
        / at.clock_mhz
        * 100.0
        / at.time_quota_percent
    )
    samples = make_samples(at, latency_ms)
    assert (
        errors_of(predict(fit(samples.take(np.arange(150))), at), samples)[150:].mean()
        < 0.03
    )


def test_samples_that_determine_no_trend_are_refused() -> None:
    with pytest.raises(TooFewSamples):
        fit(samples_at([1.0, 2.0], [50.0, 60.0], [1.0, 2.0]))


def test_measured_latencies_are_foretold_better_than_by_the_formula() -> None:
    errors = held_out_errors("locally_weighted", igniter_solo())
    assert errors.mean() <= 0.014
    assert np.quantile(errors, 0.9) <= 0.035


def test_steps_of_a_measured_host_are_followed() -> None:
    samples = rapp_full_quota("resnet101", "efficientnet_b1", "densenet121")
    local = held_out_errors("locally_weighted", samples).mean()
    formula = held_out_errors("linear_fractional", samples).mean()
    assert local < 0.7 * formula
