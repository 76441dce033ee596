"""Linear-fractional recovers its own law, keeps to physics everywhere and foretells measured latencies."""

import numpy as np
import pytest

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import Reals, Samples, make_samples
from solvers.predict.latency.linear_fractional import fit, predict
from tests.examples import seeds
from tests.solvers.predict.latency.measured_sets import held_out_errors, igniter_solo
from tests.solvers.synthetic_samples import grid_samples, queries_at, samples_at


def samples_with(
    latency_ms: Reals,
    batch: Reals,
    sm_percent: Reals,
    *,
    clock_mhz: Reals | None = None,
    time_quota_percent: Reals | None = None,
) -> Samples:
    at = queries_at(
        batch=batch,
        sm_percent=sm_percent,
        clock_mhz=clock_mhz,
        time_quota_percent=time_quota_percent,
    )
    return make_samples(at, latency_ms)


def mesh(*axes: list[float]) -> list[Reals]:
    return [
        axis.ravel()
        for axis in np.meshgrid(*(np.array(axis) for axis in axes), indexing="ij")
    ]


def errors_of(coefficients: Coefficients, samples: Samples) -> Reals:
    return np.abs(predict(coefficients, samples.at) / samples.latency_ms - 1.0)


def test_a_known_law_comes_back_between_and_beyond_its_samples() -> None:
    known = grid_samples()
    coefficients = fit(known.take(np.arange(0, len(known), 3)))
    assert errors_of(coefficients, known).max() < 0.003


def test_a_hosts_floor_is_found() -> None:
    batch, share = mesh(
        [1.0, 2.0, 4.0, 8.0], [5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    )
    samples = samples_with(np.maximum(120.0 * batch / share, 20.0), batch, share)
    found = predict(fit(samples), samples.at)
    assert np.abs(found / samples.latency_ms - 1.0).mean() < 0.03
    flat = samples.latency_ms == 20.0
    assert np.ptp(found[flat & (batch == 1.0)]) < 1.0


def test_work_slows_down_with_the_clock_by_an_exponent_of_its_own() -> None:
    batch, share, clock = mesh(
        [1.0, 4.0, 16.0], [10.0, 40.0, 100.0], [600.0, 1000.0, 1500.0]
    )
    samples = samples_with(
        (20.0 + 50.0 * batch) / share * (1500.0 / clock) ** 0.8 + 0.5,
        batch,
        share,
        clock_mhz=clock,
    )
    assert errors_of(fit(samples), samples).max() < 0.005


def test_an_unknown_clock_means_the_highest() -> None:
    batch, share, clock = mesh(
        [1.0, 4.0, 16.0], [10.0, 40.0, 100.0], [750.0, 1000.0, 1500.0]
    )
    latency_ms = (20.0 + 50.0 * batch) / share * 1500.0 / clock
    known = fit(samples_with(latency_ms, batch, share, clock_mhz=clock))
    asked = queries_at(batch=[4.0] * 2, sm_percent=[40.0] * 2, clock_mhz=[np.nan, 1500])
    unknown_clock, highest_clock = predict(known, asked)
    assert unknown_clock == highest_clock == pytest.approx(5.5, rel=0.01)


def test_a_time_quota_slows_the_host_down_and_leaves_long_kernels_alone() -> None:
    batch, share, quota = mesh(
        [1.0, 8.0], [10.0, 30.0, 100.0], [10.0, 25.0, 50.0, 100.0]
    )
    latency_ms = np.maximum(100.0 * batch / share, 500.0 / quota)
    samples = samples_with(latency_ms, batch, share, time_quota_percent=quota)
    assert errors_of(fit(samples), samples).mean() < 0.05


def test_one_quota_measured_means_less_time_costs_in_proportion() -> None:
    coefficients = fit(grid_samples())
    asked = queries_at(
        batch=[4.0] * 2, sm_percent=[50.0] * 2, time_quota_percent=[100.0, 25.0]
    )
    full, quarter = predict(coefficients, asked)
    assert quarter == pytest.approx(4.0 * full)


@pytest.mark.parametrize("seed", seeds(4))
def test_latency_never_rises_with_share_or_quota_nor_falls_with_the_batch(
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    size = 30
    samples = samples_with(
        np.exp(random.normal(1.0, 1.0, size)),
        random.choice([1.0, 2.0, 8.0], size),
        random.choice([10.0, 50.0, 90.0], size),
        time_quota_percent=random.choice([20.0, 60.0, 100.0], size),
    )
    batch, share, quota = mesh(
        [1.0, 3.0, 9.0, 64.0],
        [1.0, 5.0, 33.0, 70.0, 100.0],
        [5.0, 20.0, 40.0, 80.0, 100.0],
    )
    asked = samples_with(np.ones(len(batch)), batch, share, time_quota_percent=quota).at
    found = predict(fit(samples), asked).reshape(4, 5, 5)
    tolerance = 1e-9 * found.max()
    assert np.diff(found, axis=0).min() >= -tolerance
    assert np.diff(found, axis=1).max() <= tolerance
    assert np.diff(found, axis=2).max() <= tolerance
    assert found.min() > 0.0


def test_measured_latencies_are_foretold_within_two_percent() -> None:
    errors = held_out_errors("linear_fractional", igniter_solo())
    assert errors.mean() <= 0.016
    assert np.quantile(errors, 0.9) <= 0.035


@pytest.mark.parametrize(
    ("batch", "sm_percent"),
    [([1, 2] * 3, [50, 80] * 3), ([4] * 4, [9, 20, 40, 80]), ([1, 2, 4, 8], [50] * 4)],
)
def test_samples_of_few_conditions_one_batch_or_one_share_are_refused(
    batch: list[float], sm_percent: list[float]
) -> None:
    with pytest.raises(TooFewSamples):
        fit(samples_at(batch, sm_percent, [2.0] * len(batch)))
