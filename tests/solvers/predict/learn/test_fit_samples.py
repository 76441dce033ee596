"""Samples to fits: what is learned, what is left out, and that neither order nor chance changes it."""

from dataclasses import replace

import numpy as np
import pytest

from solvers.predict.data.fit import Fits
from solvers.predict.data.fit_json import fits_to_json
from solvers.predict.data.samples import Group, Samples
from solvers.predict.estimate.predict import predict_latency, predict_quantity
from solvers.predict.learn.fit_samples import make_fits
from solvers.types.errors import InvalidInput
from tests.solvers.synthetic_samples import (
    beside,
    grid_samples,
    joined,
    known_latency_ms,
    samples_at,
    shuffled,
)

V100 = "V100-16GB"


def test_a_known_curve_is_recovered_between_its_samples() -> None:
    fits = make_fits(grid_samples())
    (fit,) = fits.fits
    assert (fit.quantity, fit.group) == ("latency_ms", Group("a", V100))
    assert fit.quality.cross_validated_error < 0.01
    asked = samples_at([3, 6, 1], [15, 45, 77], [1, 1, 1]).at
    truth = known_latency_ms(asked.batch, asked.sm_percent)
    assert predict_latency(fits, asked).latency_ms == pytest.approx(truth, rel=0.02)


def test_the_technique_that_foresees_held_out_samples_best_is_kept() -> None:
    (fit,) = make_fits(grid_samples(noise=0.03, seed=4)).fits
    errors = [fit.quality.cross_validated_error, *(error for _, error in fit.rejected)]
    assert len(errors) > 1
    assert errors == sorted(errors)
    alone = make_fits(grid_samples(noise=0.03, seed=4), technique=fit.rejected[0][0])
    assert alone.fits[0].quality.cross_validated_error == errors[1]


def test_a_technique_can_be_demanded() -> None:
    fits = make_fits(grid_samples(("a", "b")), technique="piecewise_linear")
    assert [
        (fit.group.network, fit.technique, fit.rejected)
        for fit in fits.of("latency_ms")
    ] == [
        ("a", "piecewise_linear", ()),
        ("b", "piecewise_linear", ()),
    ]


def test_an_unknown_technique_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        InvalidInput,
        match=r"technique: no technique is called 'magic'; there are auto, hierarchical_kriging",
    ):
        make_fits(grid_samples(), technique="magic")


def everything() -> Samples:
    """Two networks alone and next to each other, one only with neighbours; watts and MiB of one of them."""
    alone = grid_samples(("a", "b"), noise=0.03)
    is_a = np.array(alone.at.network) == "a"
    alone = replace(
        alone,
        power_w=np.where(is_a, 80.0 + alone.at.sm_percent, np.nan),
        memory_mib=np.where(is_a, 700.0 + 20.0 * alone.at.batch, np.nan),
    )
    return joined(
        alone,
        beside("a", "b", factor=1.1),
        beside("b", "a", factor=1.2),
        beside("only_beside", "a", factor=1.2),
    )


@pytest.fixture(scope="module")
def learned() -> Fits:
    return make_fits(everything(), seed=3)


def test_the_order_of_rows_changes_nothing_at_all(learned: Fits) -> None:
    assert fits_to_json(make_fits(shuffled(everything()), seed=3)) == fits_to_json(
        learned
    )


def test_power_and_memory_are_learned_where_measured(learned: Fits) -> None:
    assert [fit.group.network for fit in learned.of("memory_mib")] == ["a"]
    of_a, *others = learned.of("power_w")
    assert (of_a.group.network, of_a.quality.sample_count) == ("a", 40)
    # Watts that follow from latencies alone say that they were not measured.
    assert all(fit.quality.sample_count == 0 for fit in others)
    assert all(fit.quality.cross_validated_error == float("inf") for fit in others)
    at = samples_at([2, 4], [40, 80], [1, 1]).at
    assert predict_quantity(learned, "memory_mib", at) == pytest.approx(
        [740.0, 780.0], rel=0.01
    )
    assert predict_quantity(learned, "power_w", at) == pytest.approx(
        [120.0, 160.0], rel=0.05
    )
    unknown = replace(at, network=("b", "b"))
    assert np.isnan(predict_quantity(learned, "memory_mib", unknown)).all()


def test_rows_beside_neighbours_do_not_blur_the_latency_alone(learned: Fits) -> None:
    fit = learned.find("latency_ms", Group("a", V100))
    assert fit is not None
    assert fit.quality.sample_count == 40


def test_a_network_seen_only_beside_neighbours_is_learned_as_if_alone(
    learned: Fits,
) -> None:
    at = grid_samples(("only_beside",)).at
    truth = known_latency_ms(at.batch, at.sm_percent)
    errors = np.abs(predict_latency(learned, at).latency_ms / truth - 1.0)
    # The factor is known from others only, so that the level is not exact.
    assert errors.max() < 0.1


def test_neighbours_help_a_network_with_too_few_samples_alone() -> None:
    single = samples_at(
        [4.0],
        [50.0],
        [float(known_latency_ms(np.array([4.0]), np.array([50.0]))[0])],
        network="c",
    )
    rest = joined(
        grid_samples(("a", "b")),
        beside("a", "b", factor=1.1),
        beside("b", "a", factor=1.1),
    )
    alone = make_fits(joined(single, rest), technique="linear_fractional")
    assert alone.find("latency_ms", Group("c", V100)) is None
    fits = make_fits(
        joined(single, rest, beside("c", "a", factor=1.1)),
        technique="linear_fractional",
    )
    at = grid_samples(("c",)).at
    truth = known_latency_ms(at.batch, at.sm_percent)
    assert predict_latency(fits, at).latency_ms == pytest.approx(truth, rel=0.05)


def test_measurements_that_nothing_explains_still_give_finite_intervals() -> None:
    random = np.random.default_rng(0)
    samples = replace(grid_samples(), latency_ms=10.0 ** random.uniform(-8.0, 8.0, 40))
    fits = make_fits(samples, technique="linear_fractional")
    assert fits_to_json(fits)
    quantiles = fits.fits[0].quality.ratio_quantiles
    assert quantiles[0] >= 0.99e-6
    assert quantiles[-1] <= 1.01e6
