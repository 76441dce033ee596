"""Every technique on signals that are understood: constant, ramp, silence, gaps, Poisson noise."""

import numpy as np
import numpy.typing as npt
import pytest

from solvers.forecast import smoothing
from solvers.forecast.techniques import DEFAULT, TECHNIQUES, forecast_by
from solvers.forecast.types import (
    ExpectedRate,
    Forecast,
    ForecastTechnique,
    RequestSeries,
    Season,
    make_forecast,
    widen,
)
from solvers.types.errors import InvalidInput
from tests.solvers.forecast.histories import (
    NAN,
    a_history,
    forecast_of,
    poisson_rates,
    rate_of,
)

Reals = npt.NDArray[np.float64]
NOON_S = 12 * 3600.0
FLAT = tuple(
    Season(period_s=period_s, rates_rps=(100.0,) * 12)
    for period_s in (86_400.0, 3_600.0)
)
LEVELS = (0.05, 0.5, 0.95)

every_technique = pytest.mark.parametrize(
    "technique", TECHNIQUES.values(), ids=list(TECHNIQUES)
)


def forecast(
    technique: ForecastTechnique,
    rates_rps: list[float] | Reals,
    *,
    level: float = 0.5,
    horizon_s: float = 1.0,
) -> float:
    """With a season that knows a constant rate of 100 rps."""
    history = a_history(rates_rps, start_s=NOON_S, seasons=FLAT)
    return rate_of(technique, history, level=level, horizon_s=horizon_s)


@every_technique
@pytest.mark.parametrize("horizon_s", (1.0, 5.0, 60.0))
def test_a_constant_rate_goes_on(
    technique: ForecastTechnique, horizon_s: float
) -> None:
    assert forecast(technique, [100.0] * 60, horizon_s=horizon_s) == pytest.approx(
        100.0, rel=0.001
    )


@every_technique
def test_nothing_heard_says_nothing(technique: ForecastTechnique) -> None:
    for rates_rps in ([], [NAN] * 20):
        assert technique(a_history(rates_rps, seasons=FLAT), 1.0) is None


@every_technique
def test_a_quiet_service_falls_to_zero_at_every_level(
    technique: ForecastTechnique,
) -> None:
    history = a_history([0.0] * 60, seasons=FLAT)
    made = forecast_of(technique, history, horizon_s=5.0, levels=LEVELS)
    assert made is not None
    assert made.rates_rps == (0.0, 0.0, 0.0)


@every_technique
def test_missing_windows_change_nothing_and_zeros_do(
    technique: ForecastTechnique,
) -> None:
    holes = np.full(60, 100.0)
    holes[[5, 17, 18, 19, 40, 55]] = np.nan
    assert forecast(technique, holes) == pytest.approx(100.0, rel=0.001)
    assert forecast(technique, [*[100.0] * 50, *[NAN] * 10]) == pytest.approx(
        100.0, rel=0.001
    )
    assert forecast(technique, [*[100.0] * 50, *[0.0] * 10]) < 90.0


@every_technique
def test_poisson_noise_is_covered_as_promised(technique: ForecastTechnique) -> None:
    draw = np.random.default_rng(7)
    rates = poisson_rates(draw, np.full((500, 65), 100.0), 1.0)
    made = [
        forecast_of(
            technique,
            a_history(row[:60], start_s=NOON_S, seasons=FLAT),
            horizon_s=5.0,
            levels=(0.05, 0.95),
        )
        for row in rates
    ]
    bounds = np.array([one.rates_rps for one in made if one is not None])
    assert len(bounds) == 500
    assert 0.92 <= np.mean(rates[:, 64] <= bounds[:, 1]) <= 0.98
    assert (
        0.86
        <= np.mean((rates[:, 64] >= bounds[:, 0]) & (rates[:, 64] <= bounds[:, 1]))
        <= 0.95
    )


@every_technique
@pytest.mark.parametrize(
    ("horizon_s", "level"), [(0.0, 0.5), (NAN, 0.5), (1.0, 1.0), (1.0, 0.0)]
)
def test_bad_questions_are_refused(
    technique: ForecastTechnique, horizon_s: float, level: float
) -> None:
    with pytest.raises(InvalidInput):
        forecast_of(
            technique,
            a_history([1.0] * 5, seasons=FLAT),
            horizon_s=horizon_s,
            levels=(level,),
        )


@pytest.mark.parametrize(
    ("arrivals", "window_s"),
    [([-1.0], 1.0), ([float("inf")], 1.0), ([[1.0]], 1.0), ([1.0], 0.0), ([1.0], NAN)],
)
def test_bad_series_are_refused(arrivals: list[float], window_s: float) -> None:
    with pytest.raises(InvalidInput):
        RequestSeries(start_s=0.0, window_s=window_s, arrivals=np.array(arrivals))


def test_the_last_value_is_the_newest_rate_and_its_changes_are_the_margin() -> None:
    # Changes of 10 up and down: a spread of 10, more than Poisson's √(100 / 25) = 2.
    history = a_history([100.0, 110.0] * 10 + [100.0, NAN], window_s=25.0)
    assert rate_of(smoothing.last_value, history, level=0.5) == 100.0
    assert rate_of(smoothing.last_value, history, level=0.95) == pytest.approx(
        100.0 + 1.6449 * 10.0, abs=0.01
    )


def test_one_value_has_poisson_s_margin() -> None:
    # √(100 / 1) = 10.
    for technique in (smoothing.last_value, smoothing.ewma, smoothing.holt):
        assert rate_of(technique, a_history([100.0])) == pytest.approx(
            100.0 + 1.6449 * 10.0, abs=0.01
        )


def test_ewma_takes_up_63_percent_of_a_step_in_its_reach() -> None:
    # The first windows count as a plain mean; after 100 of them α is 1 − exp(−1 / 20).
    before, after = [100.0] * 100, [200.0] * 20
    assert rate_of(
        smoothing.ewma, a_history(before + after), level=0.5
    ) == pytest.approx(200.0 - 100.0 / np.e, abs=0.01)
    assert rate_of(
        smoothing.fast_ewma, a_history(before + after), level=0.5
    ) == pytest.approx(200.0, abs=1.0)


@pytest.mark.parametrize("technique", (smoothing.holt, smoothing.fast_holt))
def test_holt_follows_a_ramp_and_ewma_lags_behind(technique: ForecastTechnique) -> None:
    ramp = 100.0 + 2.0 * np.arange(120)
    following = ramp[-1] + 10.0
    assert forecast(technique, ramp, horizon_s=5.0) == pytest.approx(
        following, rel=0.02
    )
    assert forecast(smoothing.ewma, ramp, horizon_s=5.0) < following - 30.0


def test_an_unknown_technique_and_one_without_its_season_speak_as_the_default() -> None:
    history = a_history([50.0] * 20)
    for name in ("gone", "seasonal_daily", DEFAULT):
        made = forecast_by(name, history, horizon_s=1.0, levels=(0.5,))
        assert isinstance(made, Forecast)
        assert made.technique == DEFAULT


def test_a_wider_forecast_has_the_same_median_and_a_wider_spread() -> None:
    made = make_forecast("x", ExpectedRate(10.0, 5.0), horizon_s=1.0, levels=LEVELS)
    wide = widen(made, 2.0)
    # 10 ± 1.6449 · 5, then · 10, cut off at 0.
    assert made.rates_rps == pytest.approx((1.776, 10.0, 18.224), abs=0.001)
    assert wide.rates_rps == pytest.approx((0.0, 10.0, 26.449), abs=0.001)
    assert widen(made, 1.0) is made
