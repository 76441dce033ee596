"""Fits to latencies: interference on top of the latency alone, intervals, and the cost of many rows."""

import sys
from dataclasses import replace
from types import FrameType

import numpy as np
import pytest

from solvers.predict.data.fit import LEVELS, Coefficients, Fit, Fits
from solvers.predict.data.samples import Group, Neighbour, Queries, make_queries
from solvers.predict.data.techniques import ratio_quantile
from solvers.predict.estimate.predict import predict_latency
from solvers.predict.learn.fit_samples import make_fits
from solvers.types.errors import InvalidInput
from tests.solvers.synthetic_samples import beside, grid_samples, joined, queries_at

V100 = "V100-16GB"
BESIDE_B = (Neighbour("b", 4.0, 50.0),)


def queries_of(network: str, *neighbour_sets: tuple[Neighbour, ...]) -> Queries:
    size = len(neighbour_sets)
    return queries_at(
        batch=[2.0] * size,
        sm_percent=[30.0] * size,
        neighbours=neighbour_sets,
        network=network,
        gpu_type=V100,
    )


@pytest.fixture(scope="module")
def fits() -> Fits:
    """a and b next to each other; b alone is measured badly, so that its interval is wide."""
    samples = joined(
        grid_samples(("a",), noise=0.01),
        grid_samples(("b", "c"), noise=0.2, seed=1),
        beside("a", "b", factor=1.1),
        beside("b", "a", factor=1.3),
    )
    return make_fits(samples, technique="linear_fractional")


def fit_of(fits: Fits, network: str) -> Fit:
    fit = fits.find("latency_ms", Group(network, V100))
    assert fit is not None
    return fit


def test_neighbours_stretch_the_latency_by_what_was_measured(fits: Fits) -> None:
    predicted = predict_latency(fits, queries_of("a", (), BESIDE_B))
    assert predicted.latency_ms[1] / predicted.latency_ms[0] == pytest.approx(
        1.1, rel=0.03
    )
    interference = fits.interference(V100)
    assert interference is not None
    assert predicted.technique == (
        "linear_fractional",
        f"linear_fractional+{interference.technique}",
    )


def test_a_neighbour_that_was_never_sampled_is_spoken_for_by_the_fit_for_strangers(
    fits: Fits,
) -> None:
    (known,), (strangers,) = fits.of("interference"), fits.of("stranger_interference")
    doubled = Coefficients(
        arrays={"counts": np.array([1.0]), "factors": np.array([2.0])}
    )
    changed = replace(strangers, technique="constant", coefficients=doubled)
    fits = Fits(fits=(*(fit for fit in fits.fits if fit is not strangers), changed))
    stranger = (Neighbour("never", 4.0, 50.0),)
    predicted = predict_latency(
        fits, queries_of("a", stranger, BESIDE_B, (*BESIDE_B, *stranger), ())
    )
    names = [name.split("+")[-1] for name in predicted.technique]
    assert names == ["constant", known.technique, "constant", "linear_fractional"]
    assert predicted.latency_ms[0] == pytest.approx(2.0 * predicted.latency_ms[3])


def test_the_interval_is_the_fits_own_and_holds_its_middle(fits: Fits) -> None:
    predicted = predict_latency(fits, queries_of("b", ()))
    quality = fit_of(fits, "b").quality
    assert predicted.latency_ms_low / predicted.latency_ms == pytest.approx(
        quality.ratio_quantiles[0]
    )
    assert predicted.latency_ms_high / predicted.latency_ms == pytest.approx(
        quality.ratio_quantiles[LEVELS.index(0.95)]
    )


@pytest.mark.parametrize(
    "quantiles",
    [(1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7), (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)],
)
def test_the_interval_of_a_biased_fit_still_holds_what_it_says(
    fits: Fits, quantiles: tuple[float, ...]
) -> None:
    fit = fit_of(fits, "a")
    biased = Fits(
        fits=(replace(fit, quality=replace(fit.quality, ratio_quantiles=quantiles)),)
    )
    predicted = predict_latency(biased, queries_of("a", ()))
    ends = (
        predicted.latency_ms_low / predicted.latency_ms,
        predicted.latency_ms_high / predicted.latency_ms,
    )
    assert ends == (
        pytest.approx(min(1.0, quantiles[0])),
        pytest.approx(max(1.0, quantiles[LEVELS.index(0.95)])),
    )


@pytest.mark.parametrize("coverage", [0.0, -0.5, 0.91, 1.0, float("nan")])
def test_a_coverage_whose_ends_nobody_knows_is_refused(
    fits: Fits, coverage: float
) -> None:
    with pytest.raises(
        InvalidInput, match=r"coverage: must be above 0 and at most 0\.9"
    ):
        predict_latency(fits, queries_of("a", ()), coverage=coverage)


def test_who_was_never_seen_beside_neighbours_is_no_surer_there_than_alone(
    fits: Fits,
) -> None:
    predictions = [
        predict_latency(fits, queries_of("c", neighbours))
        for neighbours in ((), BESIDE_B)
    ]
    alone, together = (
        (each.latency_ms_low[0], each.latency_ms_high[0]) / each.latency_ms
        for each in predictions
    )
    assert together[0] <= alone[0] + 1e-9
    assert together[1] >= alone[1] - 1e-9
    interference = fits.interference(V100)
    assert interference is not None
    assert interference.quality.ratio_quantiles[0] > alone[0] + 0.05


@pytest.mark.parametrize(
    ("technique", "noise", "seeds"),
    [
        ("linear_fractional", 0.1, 3),
        pytest.param("linear_fractional", 0.03, 8, marks=pytest.mark.thorough),
        pytest.param("auto", 0.05, 2, marks=pytest.mark.thorough),
    ],
)
def test_the_stated_interval_covers_about_nine_of_ten_new_measurements(
    technique: str, noise: float, seeds: int
) -> None:
    networks = tuple("abcd")
    inside = []
    for seed in range(seeds):
        fits = make_fits(
            grid_samples(networks, noise=noise, seed=seed), technique=technique
        )
        fresh = grid_samples(networks, noise=noise, seed=100 + seed)
        predicted = predict_latency(fits, fresh.at)
        inside.append(
            (predicted.latency_ms_low <= fresh.latency_ms)
            & (fresh.latency_ms <= predicted.latency_ms_high)
        )
    assert 0.85 <= np.mean(inside) <= 0.95


def test_levels_between_the_known_ones_are_interpolated_in_logarithms(
    fits: Fits,
) -> None:
    quality = replace(
        fit_of(fits, "a").quality, ratio_quantiles=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    )
    assert [ratio_quantile(quality, level) for level in LEVELS] == pytest.approx(
        quality.ratio_quantiles
    )
    # Half way from 0.5 to 0.75: the geometric mean of 1 and 2.
    assert ratio_quantile(quality, 0.625) == pytest.approx(2.0**0.5)


def test_answers_keep_the_order_of_the_queries(fits: Fits) -> None:
    queries = joined(
        grid_samples(("a", "b")),
        beside("a", "b", factor=1.0),
        beside("b", "z", factor=1.0),
    ).at
    order = np.random.default_rng(5).permutation(len(queries))
    straight, mixed = (
        predict_latency(fits, queries),
        predict_latency(fits, queries.take(order)),
    )
    assert mixed.latency_ms == pytest.approx(straight.latency_ms[order], rel=1e-12)
    assert mixed.latency_ms_high == pytest.approx(
        straight.latency_ms_high[order], rel=1e-12
    )
    assert mixed.technique == tuple(straight.technique[row] for row in order)


class _CallCounter:
    """Counts calls of Python functions, generators' steps included: the work that grows with rows in slow code."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        self.calls += event == "call"


def test_many_queries_are_computed_in_columns(fits: Fits) -> None:
    def count(size: int) -> int:
        random = np.random.default_rng(0)
        queries = make_queries(
            [("a", "b", "c")[number] for number in random.integers(0, 3, size)],
            [V100] * size,
            batch=random.integers(1, 9, size).astype(np.float64),
            sm_percent=random.uniform(10.0, 100.0, size),
            neighbours=[BESIDE_B] * size,
        )
        counter = _CallCounter()
        before = sys.getprofile()
        sys.setprofile(counter)
        try:
            predict_latency(fits, queries)
        finally:
            sys.setprofile(before)
        return counter.calls

    count(10)  # Imports are done once.
    assert count(20_000) < 5_000
