"""The reserve: what bursts ask for that come too suddenly, and nothing for what is followed in time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.forecast.reserve import reserve_rps, unsteadiness
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
    confidence: float = 0.5,
    unsteady: float = 0.0,
) -> float:
    return reserve_rps(
        a_series(rates_rps, window_s=window_s),
        percentile=percentile,
        hold_s=hold_s,
        reaction_s=15.0,
        confidence=confidence,
        unsteadiness=unsteady,
    )


def bursts(
    rate_rps: float, *, every: int, length: int = 4, windows: int = HOUR
) -> Reals:
    """Silence but for a burst of `length` windows at the end of every `every` ones."""
    return np.where(np.arange(windows) % every >= every - length, rate_rps, 0.0)


def test_bursts_from_silence_are_kept_room_for_but_for_what_the_slo_forgives() -> None:
    # Of each burst of four windows three come before anything that started for the first one is there; the fourth is
    # followed. So 18 · 4 = 72 windows of 100 rps came, 54 of them beyond. With the reserve R those miss 100 − R each,
    # and 1 % of 7200 is forgiven. The rate of bursts has the shape 18, whose median is 18 − 1/3 + 8/(405 · 18) =
    # 17.668, 0.98154 of the mean: R = 100 − 72 / (54 · 0.98154) = 98.642.
    assert reserve_of(bursts(100.0, every=40)) == pytest.approx(98.642, abs=0.001)


def test_a_looser_slo_asks_for_less_and_more_confidence_for_more() -> None:
    # 10 % of 7200 over 54 windows: R = 100 − 720 / (54 · 0.98154).
    loose = reserve_of(bursts(100.0, every=40), percentile=0.9)
    assert loose == pytest.approx(86.416, abs=0.001)
    sure = reserve_of(bursts(100.0, every=40), percentile=0.9, confidence=0.99)
    assert loose < sure < 100.0
    assert reserve_of(bursts(100.0, every=40), confidence=0.0) == 0.0


def test_steady_load_after_a_gap_is_no_burst() -> None:
    rates = np.full(HOUR, 50.0)
    for gap in (100, 300, 500):
        rates[gap : gap + 30] = NAN
    assert reserve_of(rates) == 0.0


def test_bursts_within_the_hold_of_one_another_are_followed() -> None:
    assert reserve_of(bursts(100.0, every=12)) == 0.0
    assert reserve_of(bursts(100.0, every=40), hold_s=300.0) == 0.0


def test_a_burst_that_the_slo_forgives_asks_for_nothing_a_larger_one_does() -> None:
    quiet = np.full(HOUR, 10.0)
    small, large = quiet.copy(), quiet.copy()
    # Eight windows, of which three are beyond: 150 requests of 36,400, or 5850 of 51,600.
    small[300:308], large[300:308] = 20.0, 400.0
    assert reserve_of(small) == 0.0
    assert 350.0 < reserve_of(large) < 400.0


def test_a_service_that_nobody_knows_gets_room_until_it_has_stayed_calm() -> None:
    minutes = {
        length: reserve_of(np.full(12 * length, 50.0), confidence=0.8, unsteady=1.0)
        for length in (2, 4, 8, 60)
    }
    assert 200.0 > minutes[2] > minutes[4] > minutes[8] > minutes[60] >= 0.0
    # The room is in proportion to what it usually gets, and to how unsteady the load is.
    twice = reserve_of(np.full(24, 100.0), confidence=0.8, unsteady=1.0)
    assert twice == pytest.approx(2.0 * minutes[2], rel=1e-3)
    half = reserve_of(np.full(24, 50.0), confidence=0.8, unsteady=0.2)
    assert minutes[2] > half > 0.0
    assert reserve_of(np.full(24, 50.0), confidence=0.8) == 0.0


def test_load_is_unsteady_where_it_moves_by_more_than_noise() -> None:
    draw = np.random.default_rng(3)
    means = np.full(HOUR, 200.0)
    # A level that wanders within half a minute by a seventh, as crowds of people do.
    wander = np.zeros(HOUR)
    for at in range(1, HOUR):
        wander[at] = 0.85 * wander[at - 1] + 0.075 * draw.normal()

    def of(*loads: Reals) -> float:
        return unsteadiness(
            [
                a_series(poisson_rates(draw, load, WINDOW_S), window_s=WINDOW_S)
                for load in loads
            ],
            15.0,
        )

    unsteady = means * np.exp(wander)
    assert of(means, means, means) < 0.05
    # One crowd, or one service of three, is not the load of all.
    crowd = np.where((np.arange(HOUR) // 20) == 15, 4.0, 1.0)
    assert of(crowd * means) < 0.05
    assert of(means, means, unsteady) < 0.05
    # Nine of ten, at first; less with every minute of calm; and all, once most of them have burst.
    early, late = of(unsteady[:60], unsteady[:60]), of(unsteady, unsteady)
    assert 0.8 > early > 0.3 > 0.01 > late > 0.0
    assert of(unsteady * crowd, unsteady * crowd, unsteady) > 0.8
    # Nobody was heard, or not for long enough.
    assert unsteadiness([], 15.0) == of(means[:5]) == of(np.zeros(60)) == 0.0


def test_windows_that_were_not_heard_ask_for_nothing() -> None:
    rates = bursts(100.0, every=40)
    gone = np.where(rates > 0.0, NAN, rates)
    assert reserve_of(gone) == 0.0


@given(
    rates=st.lists(st.floats(0.0, 1e4), min_size=61, max_size=200),
    percentile=st.floats(0.5, 0.999),
)
def test_no_more_is_kept_than_may_come_and_a_stricter_slo_never_asks_for_less(
    rates: list[float], percentile: float
) -> None:
    kept = reserve_of(np.array(rates), percentile=percentile, unsteady=1.0)
    # A burst of the prior is four times the usual rate at most.
    assert 0.0 <= kept <= 4.0 * max(rates)
    assert (
        reserve_of(np.array(rates), percentile=(1.0 + percentile) / 2.0, unsteady=1.0)
        >= kept * (1.0 - 1e-3) - 1e-2
    )
