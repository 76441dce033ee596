"""The constant factor: medians by hand, and counts that were never seen."""

import numpy as np
import pytest

from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import Neighbour, make_queries, make_samples
from solvers.predict.interference import constant
from tests.solvers.predict.neighbour_sets import colocated

ONE = [Neighbour("b", 1.0, 20.0)]


def by_count(*counts: int) -> list[tuple[str, float, float, list[Neighbour]]]:
    return [("a", 1.0, 20.0, ONE * count) for count in counts]


def test_the_factor_is_the_median_of_its_count() -> None:
    # Alone 10 ms each: one neighbour 1.0, 1.1, 1.5 (median 1.1); three neighbours 1.3.
    samples = make_samples(colocated(by_count(1, 1, 1, 3)), [10.0, 11.0, 15.0, 13.0])
    fit = constant.fit(samples, np.full(4, 10.0))
    # Two lies halfway between 1.1 and 1.3; six is three times two: 1 + 0.3 · 6/3.
    predicted = constant.predict(fit, colocated(by_count(0, 1, 2, 3, 6)), np.ones(5))
    assert predicted == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.6])


def test_more_neighbours_never_help_however_the_samples_fell() -> None:
    fit = constant.fit(
        make_samples(colocated(by_count(1, 2)), [13.0, 11.0]), np.full(2, 10.0)
    )
    assert constant.predict(
        fit, colocated(by_count(1, 2)), np.ones(2)
    ) == pytest.approx([1.3, 1.3])


def test_a_factor_below_one_counts_as_one() -> None:
    fit = constant.fit(make_samples(colocated(by_count(1)), [9.0]), np.array([10.0]))
    assert constant.predict(fit, colocated(by_count(1)), np.ones(1)) == pytest.approx(
        [1.0]
    )


@pytest.mark.parametrize("alone_ms", [np.nan, 0.0])
def test_samples_without_a_known_latency_alone_are_too_few(alone_ms: float) -> None:
    with pytest.raises(TooFewSamples, match="known latency alone"):
        constant.fit(make_samples(colocated(by_count(1)), [11.0]), np.array([alone_ms]))


def test_samples_without_neighbours_are_too_few() -> None:
    with pytest.raises(TooFewSamples, match="no sample has neighbours"):
        constant.fit(make_samples(colocated(by_count(0)), [11.0]), np.array([10.0]))


def test_two_gpu_types_at_once_are_refused() -> None:
    at = make_queries(
        ["a", "a"],
        ["A100", "T4"],
        batch=[1, 1],
        sm_percent=[20, 20],
        neighbours=[tuple(ONE)] * 2,
    )
    with pytest.raises(ValueError, match="A100, T4"):
        constant.fit(make_samples(at, [1.0, 1.0]), np.ones(2))
