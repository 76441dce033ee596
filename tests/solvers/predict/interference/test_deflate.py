"""Deflation: alone latencies behind co-located ones."""

import numpy as np
import pytest

from solvers.predict.data.fit import Coefficients
from solvers.predict.data.samples import Neighbour, make_samples
from solvers.predict.interference import constant
from solvers.predict.interference.deflate import alone_samples
from tests.solvers.predict.neighbour_sets import colocated


@pytest.mark.parametrize(("min_alone", "of_b"), [(1, [7.0]), (2, [7.0, 7.5])])
def test_a_group_with_too_few_samples_alone_lends_its_others_without_their_watts(
    min_alone: int, of_b: list[float]
) -> None:
    b = Neighbour("b", 4.0, 30.0)
    at = colocated([("a", 1.0, 30.0, [b]), ("b", 1.0, 30.0, []), ("b", 1.0, 30.0, [b])])
    factor = {"counts": np.array([1.0]), "factors": np.array([1.2])}
    samples = make_samples(at, [12.0, 7.0, 9.0], power_w=[9.0] * 3)
    fit = Coefficients(arrays=factor)
    alone = alone_samples(samples, constant, fit, min_alone=min_alone)
    assert alone.latency_ms == pytest.approx([10.0, *of_b])
    assert np.isnan(alone.power_w).tolist() == [True, False, True][: len(of_b) + 1]
    assert alone.at.neighbours == ((),) * (len(of_b) + 1)
