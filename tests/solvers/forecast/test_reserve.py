"""The reserve: what bursts ask for that come too suddenly, and nothing for what is followed in time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.forecast.reserve import FORGIVEN_S, reserve_rps
from tests.solvers.forecast.histories import NAN, Reals, a_series, poisson_rates

WINDOW_S = 5.0
HOUR = 720
"""Windows of WINDOW_S."""


def reserve_of(
    rates_rps: Reals,
    *,
    percentile: float = 0.99,
    hold_s: float = 60.0,
    window_s: float = WINDOW_S,
) -> float:
    series = a_series(rates_rps, window_s=window_s)
    return reserve_rps(series, percentile=percentile, hold_s=hold_s, reaction_s=15.0)


def bursts(
    rate_rps: float, *, every: int, length: int = 4, windows: int = HOUR
) -> Reals:
    """Silence but for a burst of `length` windows at the end of every `every` ones."""
    return np.where(np.arange(windows) % every >= every - length, rate_rps, 0.0)


def test_bursts_from_silence_are_kept_room_for_but_for_what_the_slo_forgives() -> None:
    # Of each burst of four windows three come before anything that started for the first one is there; the fourth is
    # followed. The worst minute (12 windows, the first that hold so much: 27 to 38) leaves out one of 18 bursts but for
    # its followed window. So 17 · 4 + 1 = 69 windows of 100 rps came, 51 of them beyond. With the reserve R those miss
    # 100 − R each, and 1 % of 6900 is forgiven: R = 100 − 69 / 51 = 98.647.
    assert reserve_of(bursts(100.0, every=40)) == pytest.approx(98.647, abs=0.001)


def test_a_looser_slo_asks_for_less() -> None:
    # 10 % of 6900 over 51 windows: R = 100 − 690 / 51.
    assert reserve_of(bursts(100.0, every=40), percentile=0.9) == pytest.approx(
        86.471, abs=0.001
    )


def test_steady_load_after_a_gap_is_no_burst() -> None:
    rates = np.full(HOUR, 50.0)
    for gap in (100, 300, 500):
        rates[gap : gap + 30] = NAN
    assert reserve_of(rates) == 0.0


def test_bursts_within_the_hold_of_one_another_are_followed() -> None:
    assert reserve_of(bursts(100.0, every=12)) == 0.0
    assert reserve_of(bursts(100.0, every=40), hold_s=300.0) == 0.0


def test_one_burst_is_an_accident_and_two_are_a_habit() -> None:
    quiet = np.full(HOUR, 10.0)
    once, twice = quiet.copy(), quiet.copy()
    once[300:308] = twice[300:308] = twice[500:508] = 400.0
    assert reserve_of(once) == 0.0
    assert 300.0 < reserve_of(twice) < 400.0


def test_what_is_followed_in_time_needs_no_reserve() -> None:
    draw = np.random.default_rng(1)
    steady = np.full(HOUR, 50.0)
    day = 100.0 * (1.0 + 0.8 * np.sin(np.arange(HOUR) * 2.0 * np.pi / HOUR))
    ramp = np.interp(
        np.arange(HOUR),
        [0, 300, 312, 372, 384, HOUR],
        [50.0, 50.0, 200.0, 200.0, 50.0, 50.0],
    )
    for means in (steady, day, ramp):
        assert reserve_of(poisson_rates(draw, means, WINDOW_S)) == 0.0


def test_rare_requests_are_no_bursts() -> None:
    # One request in five minutes: of twelve in an hour the SLO forgives 0.12, so that nothing can be said.
    assert reserve_of(bursts(1.0 / WINDOW_S, every=60, length=1)) == 0.0


def test_too_short_a_past_says_nothing() -> None:
    assert (
        reserve_of(bursts(100.0, every=40, windows=round(FORGIVEN_S / WINDOW_S))) == 0.0
    )
    assert reserve_of(np.full(0, 1.0)) == 0.0


def test_short_windows_say_what_longer_ones_say() -> None:
    rates = bursts(100.0, every=40)
    assert reserve_of(np.repeat(rates, 5), window_s=1.0) == pytest.approx(
        reserve_of(rates)
    )


def test_windows_that_were_not_heard_ask_for_nothing() -> None:
    rates = bursts(100.0, every=40)
    gone = np.where(rates > 0.0, NAN, rates)
    assert reserve_of(gone) == 0.0


@given(
    rates=st.lists(st.floats(0.0, 1e4), min_size=61, max_size=200),
    percentile=st.floats(0.5, 0.999),
)
def test_no_more_is_kept_than_ever_came_and_a_stricter_slo_never_asks_for_less(
    rates: list[float], percentile: float
) -> None:
    kept = reserve_of(np.array(rates), percentile=percentile)
    assert 0.0 <= kept <= max(rates)
    assert (
        reserve_of(np.array(rates), percentile=(1.0 + percentile) / 2.0)
        >= kept * (1.0 - 1e-3) - 1e-2
    )
