"""First latencies of what was never measured: how near, how sure, and in which order the sources are asked."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from solvers.predict.data.fit import Fits, TooFewSamples
from solvers.predict.data.samples import Group, LayerCounts, Queries, Samples
from solvers.predict.estimate.cold_start import (
    MIN_PROFILED_NETWORKS,
    RATIO_SIGMA,
    ColdStartEstimate,
    estimate_from_layers,
    estimate_on_gpu_type,
)
from solvers.predict.estimate.predict import predict_latency
from solvers.predict.learn.fit_samples import make_fits
from solvers.types.errors import InvalidInput
from tests.solvers.synthetic_samples import grid_samples, joined

V100 = "V100-16GB"
SIZES = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 450)
NAMES = tuple(f"net{size}" for size in SIZES)
OWN = np.random.default_rng(3).normal(0.0, 0.15, len(SIZES))
"""Of ln latency: what each network differs from what its layers say."""


def layers_of(name: str, size: int, *, gmacs: bool = True) -> LayerCounts:
    """`size` convolutions and half as many activations; parameters and operations in proportion."""
    counts = {"convolution": size, "activation": size // 2}
    return LayerCounts(
        network=name,
        counts=counts,
        parameters_millions=size / 4.0,
        gmacs=size / 20.0 if gmacs else None,
    )


LAYERS: Mapping[str, LayerCounts] = {
    name: layers_of(name, size) for name, size in zip(NAMES, SIZES, strict=True)
}


def family(*, gpu_type: str = V100, speed: float = 1.0) -> Samples:
    """Networks whose latency grows with their layers, each with a deviation of its own."""
    scales = np.array(SIZES) / 50.0 * np.exp(OWN) / speed
    return grid_samples(NAMES, scales=scales.tolist(), gpu_type=gpu_type)


@pytest.fixture(scope="module")
def fits() -> Fits:
    return make_fits(family(), technique="linear_fractional")


def without(fits: Fits, *groups: Group) -> Fits:
    return Fits(fits=tuple(fit for fit in fits.fits if fit.group not in groups))


def leave_out(fits: Fits) -> list[tuple[float, float]]:
    """(ln of measured over estimated, sigma) of every network's mean, from all others."""
    pairs = []
    for name in NAMES:
        measured = family().take(np.flatnonzero(np.array(family().at.network) == name))
        estimate = estimate_from_layers(
            without(fits, Group(name, V100)),
            tuple(LAYERS.values()),
            LAYERS[name],
            measured.at,
        )
        ratio = np.log(measured.latency_ms / estimate.latency_ms).mean()
        pairs.append((float(ratio), float(estimate.sigma.mean())))
    return pairs


def test_a_network_is_estimated_from_networks_of_like_layers(fits: Fits) -> None:
    ratios = np.array([ratio for ratio, _ in leave_out(fits)])
    # No estimate can know a network's own deviation; the others' deviations and the ends of the family add to it.
    assert np.sqrt(np.mean(ratios**2)) < 1.5 * OWN.std()
    # Without layers every network would be taken for the middle of the family.
    assert np.sqrt(np.mean(ratios**2)) < 0.3 * np.log(SIZES).std()


def test_sigma_is_as_large_as_the_error_of_networks_left_out(fits: Fits) -> None:
    ratios, sigmas = np.array(leave_out(fits)).T
    assert 0.6 < np.sqrt(np.mean(ratios**2)) / sigmas.mean() < 1.4
    assert np.mean(np.abs(ratios) <= 1.645 * sigmas) >= 0.8


def test_a_network_unlike_all_others_is_less_sure(fits: Fits) -> None:
    at = grid_samples(("new",)).at
    like = estimate_from_layers(fits, tuple(LAYERS.values()), layers_of("new", 100), at)
    unlike = estimate_from_layers(
        fits, tuple(LAYERS.values()), layers_of("new", 20_000), at
    )
    assert (unlike.sigma > 1.5 * like.sigma).all()


def test_operations_help_only_where_all_have_them(fits: Fits) -> None:
    at = grid_samples(("new",)).at
    known = tuple(replace(entry, gmacs=None) for entry in LAYERS.values())
    estimate = estimate_from_layers(fits, known, layers_of("new", 100), at)
    assert np.isfinite(estimate.latency_ms).all()
    assert estimate.latency_ms == pytest.approx(
        2.0 * grid_samples(("new",)).latency_ms, rel=0.5
    )


@pytest.fixture(scope="module")
def two_types(fits: Fits) -> Fits:
    """Three of the networks are known on a T4 as well, where everything takes 2.5 times as long."""
    on_t4 = family(gpu_type="T4", speed=0.4)
    rows = np.flatnonzero(np.isin(on_t4.at.network, NAMES[:3]))
    return Fits(
        fits=(
            *fits.fits,
            *make_fits(on_t4.take(rows), technique="linear_fractional").fits,
        )
    )


def on_t4(network: str) -> Samples:
    samples = family(gpu_type="T4", speed=0.4)
    return samples.take(np.flatnonzero(np.array(samples.at.network) == network))


def test_a_curve_moves_by_the_ratio_of_networks_known_on_both_gpu_types(
    two_types: Fits,
) -> None:
    truth = on_t4("net320")
    estimate = estimate_on_gpu_type(two_types, truth.at, known_on=V100)
    assert estimate.latency_ms == pytest.approx(truth.latency_ms, rel=0.03)
    assert (estimate.sigma >= RATIO_SIGMA / np.sqrt(3.0)).all()
    assert (
        estimate.source == f"moved from {V100} by the ratio of 3 networks known on both"
    )


def test_a_clock_or_power_limit_of_the_new_type_is_not_asked_of_the_old_one(
    two_types: Fits,
) -> None:
    at = on_t4("net320").at
    limited = replace(
        at, clock_mhz=np.full(40, 1590.0), power_limit_w=np.full(40, 70.0)
    )
    plain, of_clock = (
        estimate_on_gpu_type(two_types, each, known_on=V100) for each in (at, limited)
    )
    assert of_clock.latency_ms == pytest.approx(plain.latency_ms)


def test_a_published_ratio_of_speeds_serves_where_no_network_is_known_on_both(
    fits: Fits,
) -> None:
    at = on_t4("net320").at
    estimate = estimate_on_gpu_type(fits, at, known_on=V100, speed_ratio=0.4)
    assert estimate.latency_ms == pytest.approx(on_t4("net320").latency_ms, rel=0.02)
    assert (estimate.sigma >= RATIO_SIGMA).all()
    with pytest.raises(
        TooFewSamples,
        match="no network is known on both V100-16GB and T4, and no ratio of speeds",
    ):
        estimate_on_gpu_type(fits, at, known_on=V100)
    with pytest.raises(
        TooFewSamples, match="net320 has no fit on A100, so it cannot be moved to T4"
    ):
        estimate_on_gpu_type(fits, at, known_on="A100", speed_ratio=0.4)


def ends(
    estimate: ColdStartEstimate, z: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(estimate.latency_ms * np.exp(z * estimate.sigma))


def new_on(gpu_type: str) -> Queries:
    return grid_samples(("new",), gpu_type=gpu_type).at


def test_predictions_fall_back_on_another_gpu_type_with_the_estimates_interval(
    two_types: Fits,
) -> None:
    at = on_t4("net320").at
    predicted = predict_latency(two_types, at, layers=LAYERS)
    estimate = estimate_on_gpu_type(two_types, at, known_on=V100)
    assert set(predicted.technique) == {"gpu_type_ratio"}
    assert predicted.latency_ms == pytest.approx(estimate.latency_ms)
    assert predicted.latency_ms_low == pytest.approx(ends(estimate, -1.6449), rel=1e-4)
    assert predicted.latency_ms_high == pytest.approx(ends(estimate, 1.6449), rel=1e-4)


def test_of_several_gpu_types_the_surest_is_moved(two_types: Fits) -> None:
    # On an A100 only one network is known on both types, so that the ratio is less sure than from the V100.
    a100 = make_fits(
        joined(grid_samples((NAMES[0], "net320"), gpu_type="A100")),
        technique="linear_fractional",
    )
    predicted = predict_latency(
        Fits(fits=(*a100.fits, *two_types.fits)), on_t4("net320").at
    )
    estimate = estimate_on_gpu_type(two_types, on_t4("net320").at, known_on=V100)
    assert predicted.latency_ms == pytest.approx(estimate.latency_ms)


def test_without_anything_to_estimate_from_the_row_is_refused(fits: Fits) -> None:
    fits = without(
        fits, *(Group(name, V100) for name in NAMES[MIN_PROFILED_NETWORKS - 1 :])
    )
    known = {**LAYERS, "new": layers_of("new", 100)}
    for layers in ({}, LAYERS, known):
        with pytest.raises(
            InvalidInput,
            match=r"rows\[0\]\.network: the fits know nothing of new on V100-16GB; they",
        ):
            predict_latency(fits, new_on(V100), layers=layers)
