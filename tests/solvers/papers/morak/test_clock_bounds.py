"""The least clock for a latency and the highest for a power cap, against a search through all clocks."""

import numpy as np
import pytest

from solvers.papers.morak.clock_bounds import Predict, highest_clock, min_clock
from solvers.predict.data.samples import Queries, Reals, make_queries

CLOCKS_MHZ = tuple(range(300, 1600, 75))


def _latency_ms(at: Queries) -> Reals:
    return 1.0 + 4.0e5 * at.batch / (at.sm_percent * at.clock_mhz)


def _power_w(at: Queries) -> Reals:
    return 50.0 + at.sm_percent * at.batch**0.3 * (at.clock_mhz / 1500.0) ** 2.5


def _random_queries(seed: int, size: int = 60) -> Queries:
    rng = np.random.default_rng(seed)
    return make_queries(
        ["net"] * size,
        ["T4"] * size,
        batch=rng.uniform(1.0, 64.0, size),
        sm_percent=rng.uniform(5.0, 100.0, size),
    )


def _search(predict: Predict, at: Queries, row: int, limit: float) -> list[float]:
    """The clocks that keep the limit at one row, tried one by one."""
    one = at.take(np.array([row], dtype=np.intp))
    size = ["net"], ["T4"]
    tried = {
        clock: predict(
            make_queries(
                *size, batch=one.batch, sm_percent=one.sm_percent, clock_mhz=[clock]
            )
        )[0]
        for clock in CLOCKS_MHZ
    }
    return [float(clock) for clock, value in tried.items() if value <= limit]


@pytest.mark.parametrize("seed", range(3))
def test_the_least_clock_is_the_least_of_those_that_meet_the_latency(seed: int) -> None:
    at = _random_queries(seed)
    limits = np.random.default_rng(seed).uniform(5.0, 200.0, len(at))
    chosen = min_clock(_latency_ms, at, clocks_mhz=CLOCKS_MHZ, limit_ms=limits)
    expected = [
        min(_search(_latency_ms, at, row, limits[row]), default=np.nan)
        for row in range(len(at))
    ]
    np.testing.assert_array_equal(chosen, expected)
    assert np.isnan(chosen).any()
    assert (chosen > min(CLOCKS_MHZ)).any()


@pytest.mark.parametrize("seed", range(3))
def test_the_highest_clock_is_the_highest_of_those_within_the_cap(seed: int) -> None:
    at = _random_queries(seed)
    caps = np.random.default_rng(seed).uniform(40.0, 200.0, len(at))
    chosen = highest_clock(_power_w, at, clocks_mhz=CLOCKS_MHZ, cap_w=caps)
    expected = [
        max(_search(_power_w, at, row, caps[row]), default=np.nan)
        for row in range(len(at))
    ]
    np.testing.assert_array_equal(chosen, expected)
    assert np.isnan(chosen).any()
    assert (chosen < max(CLOCKS_MHZ)).any()


def test_a_limit_just_reached_is_met() -> None:
    at = make_queries(["net"], ["T4"], batch=[8], sm_percent=[50])
    # 1 + 4e5 · 8 / (50 · 1000) = 65 ms.
    assert (
        min_clock(_latency_ms, at, clocks_mhz=(500, 1000, 1500), limit_ms=65.0)[0]
        == 1000.0
    )
    assert (
        highest_clock(_latency_ms, at, clocks_mhz=(500, 1000, 1500), cap_w=64.99)[0]
        == 1500.0
    )


def test_one_limit_serves_all_rows_and_the_clocks_come_in_any_order() -> None:
    at = _random_queries(5)
    ascending = min_clock(_latency_ms, at, clocks_mhz=CLOCKS_MHZ, limit_ms=40.0)
    shuffled = min_clock(
        _latency_ms,
        at,
        clocks_mhz=CLOCKS_MHZ[::2] + CLOCKS_MHZ[1::2],
        limit_ms=np.full(len(at), 40.0),
    )
    np.testing.assert_array_equal(ascending, shuffled)


def test_a_prediction_that_is_not_known_meets_no_limit() -> None:
    at = _random_queries(5, size=2)
    chosen = min_clock(
        lambda queries: np.full(len(queries), np.nan),
        at,
        clocks_mhz=CLOCKS_MHZ,
        limit_ms=1e9,
    )
    assert np.isnan(chosen).all()


def test_no_queries_give_no_clocks_and_no_clocks_are_an_error() -> None:
    none = _random_queries(0, size=0)
    assert min_clock(_latency_ms, none, clocks_mhz=CLOCKS_MHZ, limit_ms=10.0).shape == (
        0,
    )
    with pytest.raises(ValueError, match="no clocks to choose from"):
        highest_clock(_power_w, none, clocks_mhz=(), cap_w=10.0)
