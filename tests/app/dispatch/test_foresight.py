"""Foresight: it learns from what is done, and trains anew when its error passes θ."""

import numpy as np
import pytest

from app.dispatch.foresight import LATEST, MIN_SEEN, Foresight
from solvers.predict.latency.factorisation_features import ServedConditions


def a_row(batch: float, sm_percent: float, network: str = "net") -> ServedConditions:
    return ServedConditions(network, "fast", batch, sm_percent)


def true_ms(row: ServedConditions, factor: float = 1.0) -> float:
    """A host floor of 5 ms, and work of 1 ms for each input on the whole GPU."""
    return factor * max(5.0, row.batch * 100.0 / row.sm_percent)


def rows_of(count: int, seed: int = 0) -> list[ServedConditions]:
    draw = np.random.default_rng(seed)
    return [
        a_row(float(2 ** draw.integers(0, 4)), float(5 * draw.integers(1, 21)))
        for _ in range(count)
    ]


def mean_error(foresight: Foresight, factor: float) -> float:
    rows = rows_of(100, seed=1)
    predicted = foresight.predict_ms(rows)
    return float(
        np.mean(np.abs(np.log(predicted / [true_ms(row, factor) for row in rows])))
    )


def test_it_learns_a_network_from_its_history() -> None:
    foresight = Foresight()
    foresight.learn((row, true_ms(row)) for row in rows_of(200))
    assert mean_error(foresight, 1.0) < 0.15
    assert foresight.revision == 200
    assert foresight.trainings == 0


def test_it_keeps_quiet_while_its_error_is_below_theta() -> None:
    foresight = Foresight()
    foresight.learn((row, true_ms(row)) for row in rows_of(200))
    assert not any(foresight.observe(row, true_ms(row)) for row in rows_of(300, seed=2))
    assert foresight.error < foresight.theta


def test_it_trains_anew_on_the_latest_rows_when_the_world_has_changed() -> None:
    # Everything takes three times as long from now on, an error of ln 3 = 1.1.
    foresight, fixed = Foresight(), Foresight(theta=float("inf"))
    for each in (foresight, fixed):
        each.learn((row, true_ms(row)) for row in rows_of(LATEST))
        for row in rows_of(400, seed=3):
            each.observe(row, true_ms(row, 3.0))
    assert foresight.trainings >= 1
    assert fixed.trainings == 0
    assert mean_error(foresight, 3.0) < 0.1


def test_it_judges_its_error_on_some_rows_at_least() -> None:
    foresight = Foresight(theta=0.01)
    foresight.learn((row, true_ms(row)) for row in rows_of(50))
    judged = [
        foresight.observe(row, true_ms(row, 3.0)) for row in rows_of(MIN_SEEN, seed=4)
    ]
    assert judged == [False] * (MIN_SEEN - 1) + [True]
    assert foresight.error == 0.0


def test_the_same_rows_give_the_same_predictions() -> None:
    made = []
    for _ in range(2):
        foresight = Foresight(theta=0.05)
        for row in rows_of(60, seed=5):
            foresight.observe(row, true_ms(row))
        made.append(foresight.predict_ms(rows_of(20, seed=6)).tolist())
    assert made[0] == made[1]


def test_impossible_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="latency_ms"):
        Foresight().observe(a_row(1.0, 100.0), float("nan"))
