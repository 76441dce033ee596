"""Deflation: alone latencies behind co-located ones."""

from dataclasses import replace

import numpy as np
import pytest

from solvers.predict.data.fit import Coefficients
from solvers.predict.data.samples import Neighbour, make_samples
from solvers.predict.interference import constant, pressure
from solvers.predict.interference.deflate import alone_samples, deflated_ms
from tests.solvers.predict.neighbour_sets import Law, colocated, samples_by

B = Neighbour("b", 4.0, 30.0)
TWENTY_PERCENT = Coefficients(
    arrays={"counts": np.array([1.0]), "factors": np.array([1.2])}
)


def test_a_group_without_samples_alone_lends_its_colocated_ones() -> None:
    queries = colocated(
        [
            ("a", 1.0, 30.0, [B]),
            ("b", 1.0, 30.0, []),
            ("b", 1.0, 30.0, [B]),
            ("a", 2.0, 30.0, [B]),
        ]
    )
    samples = make_samples(
        queries, [12.0, 7.0, 9.0, 24.0], power_w=[100.0] * 4, memory_mib=[5.0] * 4
    )
    alone = alone_samples(samples, constant, TWENTY_PERCENT)
    # 12 / 1.2 and 24 / 1.2; b was measured alone, so its co-located row is left out.
    assert alone.at.network == ("a", "b", "a")
    assert alone.at.neighbours == ((), (), ())
    assert alone.latency_ms == pytest.approx([10.0, 7.0, 20.0])
    assert np.isnan(alone.power_w).tolist() == [True, False, True]
    assert np.isnan(alone.memory_mib).tolist() == [True, False, True]


def test_a_group_with_too_few_samples_alone_keeps_them_and_lends_the_rest() -> None:
    queries = colocated([("b", 1.0, 30.0, []), ("b", 1.0, 30.0, [B])])
    alone = alone_samples(
        make_samples(queries, [10.0, 12.0]), constant, TWENTY_PERCENT, min_alone=2
    )
    assert alone.latency_ms == pytest.approx([10.0, 10.0])


def test_deflating_undoes_stretching_where_the_factor_depends_on_the_latency() -> None:
    law = Law(sensitivity={"a": 2.0}, weight={"b": 1.0})
    queries = colocated(
        [("a", batch, 30.0, [B] * count) for batch in (1.0, 8.0) for count in (0, 1, 2)]
    )
    alone_ms = np.array([0.4, 0.4, 0.4, 30.0, 30.0, 30.0])
    fit = pressure.fit(samples_by(law, queries, alone_ms), alone_ms)
    fit = replace(fit, arrays={**fit.arrays, "launch": np.array([0.5, 0.2])})
    stretched_ms = alone_ms * pressure.predict(fit, queries, alone_ms)
    assert deflated_ms(pressure, fit, queries, stretched_ms) == pytest.approx(
        alone_ms, rel=1e-9
    )
