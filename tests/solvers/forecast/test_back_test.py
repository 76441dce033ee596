"""Back-tests and the choice: the right technique wins, the choice does not flap, the cost is bounded."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from solvers.forecast.back_test import (
    MAX_MARGIN,
    BackTestOrigin,
    ForecastScore,
    back_test,
)
from solvers.forecast.choose_technique import (
    HALF_LIFE_S,
    MIN_FORECASTS,
    choose,
    margin_of,
    merge,
)
from solvers.forecast.techniques import DEFAULT
from solvers.forecast.types import RequestSeries
from tests.solvers.forecast.histories import NAN, a_series, poisson_rates

SCORE = ForecastScore(
    forecasts=500.0,
    pinball_rps=1.0,
    coverage=0.95,
    interval_coverage=0.9,
    error_rps=3.0,
    observed_rps=50.0,
)
NEXT = BackTestOrigin(horizon_s=1.0)


def scores(**pinball_rps: float) -> Mapping[str, ForecastScore]:
    return {DEFAULT: SCORE} | {
        name: replace(SCORE, pinball_rps=loss) for name, loss in pinball_rps.items()
    }


def best(found: Mapping[str, ForecastScore]) -> str:
    return min(found, key=lambda name: found[name].pinball_rps)


def noise(means_rps: Sequence[float], seed: int = 0) -> RequestSeries:
    return a_series(
        poisson_rates(np.random.default_rng(seed), np.asarray(means_rps), 1.0)
    )


def test_loss_coverage_and_error_are_those_of_the_formula() -> None:
    # The last value: forecast 10 ± …, then 30 came: above the 0.95 quantile by 30 − q, below by nothing.
    series = a_series([10.0, 30.0])
    found = back_test(series, NEXT)["last_value"]
    planned = 10.0 + 1.6449 * np.sqrt(10.0)
    assert found.pinball_rps == pytest.approx(0.95 * (30.0 - planned), abs=1e-3)
    assert (found.forecasts, found.coverage, found.interval_coverage) == (1.0, 0.0, 0.0)
    assert (found.error_rps, found.observed_rps) == (20.0, 30.0)
    down = back_test(a_series([30.0, 10.0]), NEXT)["last_value"]
    assert down.pinball_rps == pytest.approx(
        0.05 * (30.0 + 1.6449 * np.sqrt(30.0) - 10.0), abs=1e-3
    )
    assert (down.coverage, down.interval_coverage) == (1.0, 0.0)


def test_missing_windows_judge_nobody_and_silence_does() -> None:
    assert back_test(a_series([NAN] * 50), NEXT) == {}
    assert back_test(a_series([1.0]), NEXT) == {}
    found = back_test(a_series([*[5.0] * 20, *[NAN] * 30]), NEXT)
    assert {score.forecasts for score in found.values()} == {19.0}
    quiet = back_test(a_series([0.0] * 50), NEXT)
    assert {(score.pinball_rps, score.coverage) for score in quiet.values()} == {
        (0.0, 1.0)
    }


def test_the_right_technique_wins_on_each_signal() -> None:
    draw = np.random.default_rng(6)
    steady = back_test(
        noise([200.0] * 600), BackTestOrigin(horizon_s=5.0, max_origins=500)
    )
    assert best(steady) in {"ewma", DEFAULT}
    assert steady["last_value"].pinball_rps > 1.2 * steady["ewma"].pinball_rps
    wandering = 2000.0 * np.exp(np.cumsum(draw.normal(0.0, 0.05, size=600)))
    assert best(
        back_test(noise(wandering), BackTestOrigin(horizon_s=1.0, max_origins=500))
    ) in {
        "last_value",
        "ewma_fast",
    }
    ramps = noise(500.0 + 4.0 * np.abs(np.arange(600) % 400 - 200))
    errors = {
        name: one.error_rps
        for name, one in back_test(
            ramps, BackTestOrigin(horizon_s=10.0, max_origins=500)
        ).items()
    }
    assert min(errors, key=lambda name: errors[name]) in {"holt", "holt_fast"}


def test_no_forecast_sees_what_it_is_judged_by() -> None:
    rates = np.random.default_rng(10).uniform(1.0, 100.0, size=300)
    changed = rates.copy()
    changed[-1] = 1e6
    question = BackTestOrigin(horizon_s=5.0, max_origins=1000)
    before = back_test(a_series(rates[:-1]), question)
    after = back_test(a_series(changed), question)
    for name, score in after.items():
        # One forecast more, which missed by a million; nothing else moved.
        assert score.coverage * score.forecasts == pytest.approx(
            before[name].coverage * before[name].forecasts
        )


def test_the_default_stays_until_another_is_better_by_a_margin() -> None:
    assert choose({}) == DEFAULT
    assert choose(scores(ewma=0.96)) == DEFAULT
    assert choose(scores(ewma=0.94)) == "ewma"
    assert choose(scores(ewma=0.94, holt=0.9)) == "holt"


def test_a_choice_is_not_left_for_a_little_and_does_not_flap() -> None:
    assert choose(scores(ewma=1.03), "ewma") == "ewma"
    assert choose(scores(ewma=1.06), "ewma") == DEFAULT
    draw = np.random.default_rng(11)
    current, changes = DEFAULT, 0
    for _ in range(1000):
        chosen = choose(scores(ewma=float(draw.uniform(0.965, 1.035))), current)
        changes += chosen != current
        current = chosen
    assert changes == 0


def test_few_forecasts_choose_nothing() -> None:
    few = {
        name: replace(score, forecasts=MIN_FORECASTS - 1.0)
        for name, score in scores(ewma=0.1).items()
    }
    assert choose(few) == DEFAULT
    assert choose(few, "ewma") == "ewma"
    assert choose(scores(ewma=0.1), "gone") == "ewma"


def test_scores_add_up_and_old_ones_fade() -> None:
    old, new = (
        {DEFAULT: SCORE},
        {DEFAULT: replace(SCORE, forecasts=250.0, pinball_rps=4.0, coverage=0.5)},
    )
    now = merge(old, new, elapsed_s=0.0)[DEFAULT]
    # (500 · 1 + 250 · 4) / 750 = 2.
    assert (now.forecasts, now.pinball_rps) == (750.0, pytest.approx(2.0))
    assert now.coverage == pytest.approx(0.8)
    faded = merge(old, new, elapsed_s=HALF_LIFE_S)[DEFAULT]
    assert (faded.forecasts, faded.pinball_rps) == (500.0, pytest.approx(2.5))
    assert merge({}, new, elapsed_s=5.0) == new
    assert merge(old | {"gone": SCORE}, {}, elapsed_s=0.0) == old


def test_the_margin_makes_the_forecast_keep_what_it_promises() -> None:
    # Bursts that no technique foresees: a twelfth of the windows has twice the rate.
    draw = np.random.default_rng(13)
    series = noise(np.where(draw.random(2400) < 1.0 / 12.0, 200.0, 100.0), seed=14)
    question = BackTestOrigin(horizon_s=1.0, max_origins=2000)
    before = back_test(series.part(0, 1200), question)
    margins = {name: margin_of(score) for name, score in before.items()}
    bare, wide = (
        back_test(series, question, margins=given, since=1200)
        for given in ({}, margins)
    )
    for name, score in wide.items():
        assert bare[name].coverage < 0.945
        assert 0.93 <= score.coverage <= 0.97, name
        assert score.pinball_rps <= 1.01 * bare[name].pinball_rps
        assert score.margin == bare[name].margin > 1.0


def test_a_margin_is_never_less_than_the_technique_s_own_and_grows_with_trust() -> None:
    assert margin_of(None) == 1.0
    assert margin_of(replace(SCORE, margin=0.5)) == 1.0
    assert margin_of(replace(SCORE, margin=2.0, forecasts=MIN_FORECASTS)) == 1.5
    assert margin_of(replace(SCORE, margin=2.0, forecasts=0.0)) == 1.0


def test_without_any_spread_there_is_no_margin_and_a_hopeless_one_is_bounded() -> None:
    assert {
        score.margin for score in back_test(a_series([0.0] * 50), NEXT).values()
    } == {1.0}
    explosion = back_test(a_series(10.0 ** np.arange(12)), NEXT)
    assert max(score.margin for score in explosion.values()) == MAX_MARGIN
