"""The forecast on steady, rising, falling, spiking and silent traffic."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from solvers.forecast import burst_aware
from tests.solvers.forecast.histories import NAN, a_history, rate_of

Reals = npt.NDArray[np.float64]
WINDOW_S = 5.0


def forecast(
    rates_rps: list[float] | Reals, *, window_s: float = WINDOW_S, level: float = 0.95
) -> float:
    """The forecast of the next window after windows that counted exactly these rates."""
    return rate_of(
        burst_aware.forecast, a_history(rates_rps, window_s=window_s), level=level
    )


def test_one_window_is_its_own_forecast_with_a_poisson_margin() -> None:
    # 20 rps in 5 s: 20 + 1.6449 · sqrt(20 / 5) = 23.29.
    assert forecast([20.0]) == pytest.approx(23.2897, abs=1e-4)


def test_steady_poisson_traffic_stays_below_the_forecast_as_often_as_promised() -> None:
    draw = np.random.default_rng(11)
    rates = draw.poisson(100.0 * WINDOW_S, size=(600, 31)) / WINDOW_S
    forecasts = np.array([forecast(row[:30]) for row in rates])
    covered = np.mean(rates[:, 30] <= forecasts)
    assert 0.92 <= covered <= 0.98
    # The noise of one window is 4.5 rps: little is added beyond it.
    assert np.mean(forecasts) < 100 + 2.2 * 4.5
    assert np.std(forecasts) < 4.5


@pytest.mark.parametrize("step_rps", [5.0, -3.0])
def test_ramps_are_followed_to_the_next_window(step_rps: float) -> None:
    rates = 100.0 + step_rps * np.arange(20)
    following = rates[-1] + step_rps
    assert forecast(rates, level=0.5) == pytest.approx(following, rel=0.05)
    assert following <= forecast(rates) <= following * 1.25 + 10


def test_a_spike_is_taken_at_its_face_at_once_and_forgotten_when_it_is_over() -> None:
    steady = [100.0] * 20
    assert forecast([*steady, 400.0]) >= 400.0
    # One window without it is no proof that it is over: the newest one may be incomplete.
    after = [forecast([*steady, 400.0, *[100.0] * quiet]) for quiet in (1, 12, 60)]
    assert after[0] > 1.2 * forecast(steady)
    assert after[1:] == pytest.approx([forecast(steady)] * 2, rel=0.1)


def test_a_crowd_that_falls_is_followed_down_within_half_a_minute() -> None:
    # From five times the rate, falling by a factor of e every 30 s; windows of 5 s.
    crowd = [100.0 + 400.0 * math.exp(-WINDOW_S * age / 30.0) for age in range(18)]
    rates = [*[100.0] * 40, *crowd]
    for ahead in range(6, len(crowd)):
        now = rates[: 40 + ahead]
        # A line falls below the curve that flattens, but not far: its reach is half of what it has seen.
        assert 0.9 * rates[40 + ahead] <= forecast(now) <= 1.4 * now[-1]


@pytest.mark.parametrize("missing", (1, 2))
def test_windows_of_which_not_all_nodes_have_reported_are_no_fall(missing: int) -> None:
    steady = [100.0] * 30
    late = [*steady, *[40.0] * missing]
    assert forecast(late) == pytest.approx(forecast(steady), rel=0.2)


def test_noise_of_the_newest_window_is_not_taken_for_a_spike() -> None:
    # Two standard deviations of 4.5 rps: the forecast does not jump to 109 plus its margin.
    assert forecast([*[100.0] * 20, 109.0]) < 109.0 + 0.6 * 4.5


def test_bursty_traffic_gets_more_margin_than_steady_traffic_of_the_same_mean() -> None:
    assert forecast([50.0, 150.0] * 10) > forecast([100.0] * 20) + 50.0


def test_silence_after_traffic_decays_and_ends_in_zero() -> None:
    quiet = [forecast([*[100.0] * 20, *[0.0] * count]) for count in (1, 6, 24, 60, 97)]
    assert quiet == sorted(quiet, reverse=True)
    assert (
        quiet[-2] < 15.0
    )  # After 300 s; the scatter remembers the fall for twice as long as the level does.
    assert quiet[-1] == 0.0  # 97 windows of 5 s are more than 8 · 60 s.


def test_first_requests_after_silence_count_at_once() -> None:
    assert forecast([*[0.0] * 20, 10.0]) >= 10.0


@pytest.mark.parametrize("gap", (1, 5, 20))
def test_a_gap_is_no_silence(gap: int) -> None:
    assert forecast([*[100.0] * 20, *[NAN] * gap, 100.0]) == pytest.approx(
        forecast([100.0] * (21 + gap)), rel=0.01
    )
    assert forecast([*[100.0] * 20, *[NAN] * gap]) > 100.0
    assert forecast([*[100.0] * 20, *[0.0] * gap], level=0.5) < 95.0
