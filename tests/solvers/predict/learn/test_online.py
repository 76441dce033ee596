"""Online learning: biases are found, outliers, repeats and late readings are not believed, alarms come and go."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from solvers.predict.data.samples import Reals
from solvers.predict.learn.online import (
    MAX_ROWS,
    MIN_BAND,
    ExecutionReading,
    FitState,
    RowKey,
    learn,
    log_factors,
    new_fit_state,
    row_beliefs,
)

A, B = RowKey(50.0, 8, 1500.0), RowKey(20.0, 4, 1500.0)
PERIOD_S = 10.0
Z90 = 1.2816
EXACT, WIDE = {A: 0.0, B: 0.0}, {A: 0.25, B: 0.25}


def sigmas(stated: dict[RowKey, float]) -> Reals:
    return np.array([stated[A], stated[B]])


def reading(
    log_ratio: float, *, replica: str = "r1", row: RowKey = A, variance: float = 0.03**2
) -> ExecutionReading:
    return ExecutionReading(
        replica=replica, row=row, log_ratio=log_ratio, variance=variance
    )


def after(
    log_ratios: list[float],
    stated: dict[RowKey, float] = EXACT,
    *,
    health: FitState | None = None,
    row: RowKey = A,
) -> FitState:
    """The health after one reading of `row` per period."""
    health = health or new_fit_state(sigmas(stated), 0.0)
    for log_ratio in log_ratios:
        health = learn(
            health,
            [reading(log_ratio, row=row)],
            stated,
            health.seen_until_s + PERIOD_S,
        )
    return health


def factors(
    health: FitState, stated: dict[RowKey, float] = EXACT, z: float = Z90
) -> list[float]:
    return [
        float(factor)
        for factor in np.exp(log_factors(health, [A, B], sigmas(stated), z))
    ]


def test_unsure_rows_are_planned_at_their_quantile() -> None:
    # exp(1.2816 · 0.25) = 1.378; the mean where the median is asked for.
    fresh = new_fit_state(sigmas(WIDE), 0.0)
    assert factors(fresh, WIDE) == pytest.approx([1.378, 1.378], abs=0.001)
    assert factors(fresh, WIDE, z=0.0) == [1.0, 1.0]


@pytest.mark.parametrize("bias", [math.log(1.3), math.log(0.75), 0.02])
def test_a_bias_is_found_within_two_minutes_whatever_the_noise(bias: float) -> None:
    draw = random.Random(4)
    health = after([bias + draw.gauss(0.0, 0.03) for _ in range(12)])
    mean, sd, first = row_beliefs(health, [A, B], sigmas(EXACT))
    assert mean[0] == pytest.approx(bias, abs=0.04)
    assert sd[0] < 0.5 * first[0]
    assert sd[0] < sd[1]


def test_what_a_row_shows_moves_the_others_less() -> None:
    health = after([-0.1] * 3)
    mean, _, _ = row_beliefs(health, [A, B], sigmas(EXACT))
    assert mean[0] < 0.6 * mean[0] < mean[1] < 0.0
    served, other = factors(health)
    assert served < other <= 1.0


def test_evidence_of_two_rows_is_kept_apart() -> None:
    health = new_fit_state(sigmas(EXACT), 0.0)
    for period in range(1, 13):
        seen = [reading(0.1, replica="a"), reading(-0.05, replica="b", row=B)]
        health = learn(health, seen, EXACT, PERIOD_S * period)
    mean, _, _ = row_beliefs(health, [A, B], sigmas(EXACT))
    assert mean == pytest.approx([0.1, -0.05], abs=0.01)


def test_faster_than_stated_is_believed_only_as_far_as_the_evidence_goes() -> None:
    one, many = after([-0.2]), after([-0.2] * 20)
    assert factors(many)[0] < factors(one)[0] < 1.0
    assert factors(many)[0] > math.exp(-0.2)


def test_one_wild_period_moves_little_and_raises_no_alarm() -> None:
    calm = after([0.0] * 10)
    shaken = after([2.0], health=calm)
    assert not shaken.is_alarmed
    assert factors(shaken)[0] < 1.06
    assert factors(after([0.0] * 5, health=shaken))[0] < 1.01


def test_one_slow_gpu_does_not_speak_for_the_others() -> None:
    health = new_fit_state(sigmas(EXACT), 0.0)
    for period in range(1, 11):
        seen = [reading(0.0, replica=f"r{index}") for index in range(6)] + [
            reading(1.0, replica="straggler")
        ]
        health = learn(health, seen, EXACT, PERIOD_S * period)
    assert not health.is_alarmed
    assert factors(health)[0] < 1.03


def test_a_repeated_or_late_period_changes_nothing() -> None:
    health = after([0.1] * 3)
    assert learn(health, [reading(0.1)], EXACT, health.seen_until_s) is health
    assert (
        learn(health, [reading(-1.0)], EXACT, health.seen_until_s - PERIOD_S) is health
    )
    assert learn(health, [], EXACT, health.seen_until_s + PERIOD_S) is health


def test_a_replica_counts_once_and_order_does_not_count() -> None:
    seen = [
        reading(0.05 * index, replica=f"r{index}", row=A if index % 2 else B)
        for index in range(7)
    ]
    once = learn(new_fit_state(sigmas(EXACT), 0.0), seen, EXACT, PERIOD_S)
    for seed in range(5):
        shuffled = random.Random(seed).sample([*seen, *seen], 14)
        assert (
            learn(new_fit_state(sigmas(EXACT), 0.0), shuffled, EXACT, PERIOD_S) == once
        )


def test_what_cannot_be_is_not_learned() -> None:
    health = after([0.0] * 3)
    assert (
        learn(health, [reading(9.0)], EXACT, health.seen_until_s + PERIOD_S) is health
    )


def test_drift_raises_the_alarm_and_following_it_clears_it() -> None:
    jump = math.log(1.4)
    health = after([0.0] * 10)
    health = after([jump], health=health)
    assert not health.is_alarmed and health.error > MIN_BAND
    health = after([jump], health=health)
    assert health.is_alarmed and health.alarm_since_s == 120.0
    assert factors(health)[0] > 1.4  # the guard covers what is not yet learned
    health = after([jump] * 3, health=health)
    assert not health.is_alarmed and health.error < health.band
    assert factors(after([jump] * 5, health=health))[0] == pytest.approx(1.4, abs=0.03)


def test_under_alarm_nothing_is_planned_faster_than_stated() -> None:
    health = after([-0.5] * 2)
    assert health.is_alarmed and health.shortfall == 0.0
    assert factors(health) == [1.0, 1.0]
    assert factors(replace(health, alarm_since_s=None))[0] < 1.0


def test_the_guard_stays_as_long_as_nothing_new_is_seen() -> None:
    health = after([0.5] * 2)
    later = learn(health, [], EXACT, health.seen_until_s + 3600.0)
    assert later.is_alarmed
    mean, _, _ = row_beliefs(later, [A], np.zeros(1))
    assert log_factors(later, [A], np.zeros(1), 0.0)[0] == pytest.approx(
        mean[0] + 1.6449 * later.shortfall, rel=1e-4
    )
    assert later.shortfall > 0.3


def test_what_was_learned_grows_old() -> None:
    health = after([0.1] * 10)
    old = learn(health, [reading(0.1, row=B)], EXACT, health.seen_until_s + 7200.0)
    assert (
        row_beliefs(old, [A], np.zeros(1))[1][0]
        > 1.5 * row_beliefs(health, [A], np.zeros(1))[1][0]
    )


def test_the_number_of_rows_that_are_remembered_is_bounded() -> None:
    health = new_fit_state(np.zeros(1), 0.0)
    keys = [RowKey(1.0 + index, 1, 1500.0) for index in range(2 * MAX_ROWS)]
    for period, row in enumerate(keys, start=1):
        health = learn(health, [reading(0.1, row=row)], {}, PERIOD_S * period)
    assert len(health.belief.rows) == MAX_ROWS
    assert np.linalg.eigvalsh(np.array(health.belief.covariance)).min() > 0.0
    assert health.belief.mean[0] == pytest.approx(0.1, abs=0.02)
