"""Room: as much as the error budget asks for, and nothing for what is followed in time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.forecast.room import (
    MAX_FACTOR,
    MIN_FACTOR,
    SLACK,
    SPENT_AT_FIRST,
    UNKNOWN_ROOM,
    Outcomes,
    Reaction,
    Room,
    factor_of,
    has_burst,
    learn_room,
    spent_share,
)
from tests.solvers.forecast.histories import NAN, Reals, a_series

WINDOW_S = 5.0
HOUR = 720
"""Windows of WINDOW_S."""
REACTION = Reaction(hold_s=60.0, reaction_s=15.0)


def room_of(
    rates_rps: Reals,
    *,
    percentile: float = 0.99,
    spent: float = 0.5,
    hold_s: float = 60.0,
    bursts: bool = False,
) -> Room:
    return learn_room(
        a_series(rates_rps, window_s=WINDOW_S),
        REACTION._replace(hold_s=hold_s),
        percentile=percentile,
        spent=spent,
        bursts=bursts,
    )


def bursts_of(
    rate_rps: float, *, every: int, length: int = 4, windows: int = HOUR
) -> Reals:
    """Silence but for a burst of `length` windows at the end of every `every` ones."""
    return np.where(np.arange(windows) % every >= every - length, rate_rps, 0.0)


def test_the_factor_rises_with_what_is_spent() -> None:
    assert [factor_of(spent) for spent in (-1.0, 0.0, 0.3)] == [MIN_FACTOR] * 3
    assert [factor_of(spent) for spent in (0.9, 1.0, 7.0)] == [MAX_FACTOR] * 3
    assert factor_of(0.6) == pytest.approx((MIN_FACTOR + MAX_FACTOR) / 2)
    assert Room(factor_of(SPENT_AT_FIRST), 0.0) == UNKNOWN_ROOM
    assert 1.1 < UNKNOWN_ROOM.factor < 1.15


@pytest.mark.parametrize(
    ("finished", "late", "heard_s", "spent"),
    [
        # An hour of 10 rps at 98 %: 720 of 36,000 are forgiven, and 120 of the 6,000 of ten minutes, of which 90 count.
        (36_000.0, 0.0, 3600.0, 90.0 / 840.0),
        (36_000.0, 720.0, 3600.0, 810.0 / 840.0),
        (36_000.0, 1440.0, 3600.0, 1530.0 / 840.0),
        # A minute: 12 are forgiven, and all the more of ten minutes.
        (600.0, 0.0, 60.0, 90.0 / 132.0),
        # There were no requests, or nothing was heard.
        (0.0, 0.0, 3600.0, SPENT_AT_FIRST),
        (0.0, 0.0, 0.0, SPENT_AT_FIRST),
    ],
)
def test_what_is_spent_is_a_share_of_what_the_slo_forgives(
    finished: float, late: float, heard_s: float, spent: float
) -> None:
    found = spent_share(0.98, Outcomes(finished, late, heard_s))
    assert found == pytest.approx(spent)


def test_who_forgives_nothing_has_spent_all() -> None:
    assert spent_share(1.0, Outcomes(36_000.0, 0.0, 3600.0)) == 1.0


def test_bursts_from_silence_are_kept_room_for_but_for_what_may_be_spent() -> None:
    # Of each burst of four windows three come before anything that started for the first one is there. So 72 windows of
    # 100 rps came, 54 of them beyond: 54 · (100 − 1.2 · F) ≤ 0.01 · 7200, as fast as it is forgiven.
    kept = room_of(bursts_of(100.0, every=40))
    assert SLACK * kept.floor_rps == pytest.approx(100.0 - 72.0 / 54.0, abs=0.001)
    # Who has spent nothing may spend twice as fast, who has spent all 0.4 times.
    rich = room_of(bursts_of(100.0, every=40), spent=0.0)
    assert SLACK * rich.floor_rps == pytest.approx(100.0 - 144.0 / 54.0, abs=0.001)
    poor = room_of(bursts_of(100.0, every=40), spent=1.0)
    assert SLACK * poor.floor_rps == pytest.approx(100.0 - 28.8 / 54.0, abs=0.001)


def test_a_looser_slo_asks_for_less() -> None:
    loose = room_of(bursts_of(100.0, every=40), percentile=0.9)
    assert SLACK * loose.floor_rps == pytest.approx(100.0 - 720.0 / 54.0, abs=0.001)


def test_where_nothing_is_forgiven_the_highest_burst_is_carried() -> None:
    kept = room_of(bursts_of(100.0, every=40), percentile=1.0, spent=1.0)
    assert SLACK * kept.floor_rps == pytest.approx(100.0, abs=0.001)


def test_steady_load_after_a_gap_is_no_burst() -> None:
    rates = np.full(HOUR, 50.0)
    for gap in (100, 300, 500):
        rates[gap : gap + 30] = NAN
    assert room_of(rates).floor_rps == 0.0
    assert not has_burst(a_series(rates, window_s=WINDOW_S), REACTION)


def test_bursts_within_the_hold_of_one_another_are_followed() -> None:
    assert room_of(bursts_of(100.0, every=12)).floor_rps == 0.0
    assert room_of(bursts_of(100.0, every=40), hold_s=300.0).floor_rps == 0.0


def test_a_burst_that_the_slo_forgives_asks_for_nothing_a_larger_one_does() -> None:
    quiet = np.full(HOUR, 10.0)
    small, large = quiet.copy(), quiet.copy()
    # Eight windows, of which three are beyond: 150 requests of 36,400, or 5850 of 51,600.
    small[300:308], large[300:308] = 20.0, 400.0
    assert room_of(small).floor_rps == 0.0
    assert 350.0 < SLACK * room_of(large).floor_rps < 400.0
    assert has_burst(a_series(large, window_s=WINDOW_S), REACTION)


def test_a_ramp_is_no_burst_and_neither_is_noise() -> None:
    ramp = np.linspace(10.0, 200.0, HOUR)
    draw = np.random.default_rng(4)
    noise = draw.poisson(50.0 * WINDOW_S, HOUR) / WINDOW_S
    for rates in (ramp, noise):
        assert not has_burst(a_series(rates, window_s=WINDOW_S), REACTION)


def test_where_the_load_of_others_bursts_a_calm_service_has_room_until_it_has_stayed_calm() -> (
    None
):
    floors = {
        minutes: room_of(np.full(12 * minutes, 50.0), percentile=0.98, bursts=True)
        for minutes in (2, 5, 10, 60)
    }
    kept = [floors[minutes].floor_rps for minutes in (2, 5, 10, 60)]
    assert 200.0 > kept[0] > kept[1] > kept[2] > kept[3] == 0.0
    # In proportion to what it usually gets.
    twice = room_of(np.full(24, 100.0), percentile=0.98, bursts=True)
    assert twice.floor_rps == pytest.approx(2.0 * kept[0], rel=1e-3)
    assert room_of(np.full(24, 50.0), percentile=0.98).floor_rps == 0.0


def test_windows_that_were_not_heard_ask_for_nothing() -> None:
    rates = bursts_of(100.0, every=40)
    gone = np.where(rates > 0.0, NAN, rates)
    assert room_of(gone).floor_rps == 0.0
    assert room_of(np.full(3, NAN)) == Room(factor_of(0.5))


@given(
    rates=st.lists(st.floats(0.0, 1e4), min_size=61, max_size=200),
    percentile=st.floats(0.5, 0.999),
    spent=st.floats(0.0, 2.0),
)
def test_no_more_is_kept_than_may_come_and_a_stricter_slo_never_asks_for_less(
    rates: list[float], percentile: float, spent: float
) -> None:
    kept = room_of(np.array(rates), percentile=percentile, spent=spent, bursts=True)
    # A burst of the prior is four times the usual rate at most.
    assert 0.0 <= kept.floor_rps <= 4.0 * max(rates)
    stricter = room_of(
        np.array(rates), percentile=(1.0 + percentile) / 2.0, spent=spent, bursts=True
    )
    # Where less than one request may be late nothing is said; else never less.
    if stricter.floor_rps:
        assert stricter.floor_rps >= kept.floor_rps * (1.0 - 1e-3) - 1e-2


def test_a_burst_begins_at_one_and_a_half_times_the_usual_rate_and_what_is_noise() -> (
    None
):
    calm = room_of(np.full(HOUR, 100.0))
    # Three standard deviations of what comes in 5 s.
    assert calm.burst_rps == pytest.approx(150.0 + 3.0 * (100.0 / WINDOW_S) ** 0.5)
    # The usual rate is the median of five minutes, which a crowd of two does not move.
    crowd = np.concatenate([np.full(HOUR - 24, 100.0), np.full(24, 400.0)])
    assert room_of(crowd).burst_rps == pytest.approx(calm.burst_rps)
    assert Room(0.85).factor_at(1e9) == 0.85
    assert calm.factor_at(calm.burst_rps + 1.0) == max(1.0, calm.factor)
