"""One step up after a miss, one down where there is slack."""

import json
from dataclasses import replace

import pytest

from solvers.baselines.gslice_tuning import (
    MISS_COUNTS_S,
    SETTLE_S,
    StepRange,
    Tuning,
    tune,
    tuning_from_json,
    tuning_to_json,
)
from solvers.types.state import ServiceObservation

START, ANY = Tuning(), StepRange(lowest=-5, highest=5)
NOW_S = 200.0


def a_reading(
    latency_ms: float | None = 90.0,
    *,
    rate: float = 10.0,
    served: float = 10.0,
    age_s: float = 1.0,
) -> ServiceObservation:
    return ServiceObservation(
        service="chat",
        arrival_rate_rps=rate,
        served_rps=served,
        latency_ms=latency_ms,
        attainment=None,
        age_s=age_s,
    )


def steps_after(
    reading: ServiceObservation | None, tuning: Tuning = START, allowed: StepRange = ANY
) -> int:
    return tune(tuning, reading, allowed, slo_ms=100.0, now_s=NOW_S).steps


@pytest.mark.parametrize(
    ("reading", "steps"),
    [
        (None, 0),
        (a_reading(101.0), 1),
        (a_reading(100.0), 0),
        (a_reading(80.0), 0),
        (a_reading(79.0), -1),
        (a_reading(50.0, served=8.9), 1),
        (a_reading(50.0, served=9.1), -1),
        (a_reading(None, served=0.0), 1),
        (a_reading(None, rate=0.0, served=0.0), 0),
    ],
)
def test_a_miss_is_a_step_up_and_slack_a_step_down(
    reading: ServiceObservation | None, steps: int
) -> None:
    assert steps_after(reading) == steps


def test_steps_stay_within_their_range() -> None:
    assert steps_after(a_reading(101.0), allowed=StepRange(lowest=0, highest=0)) == 0
    assert steps_after(a_reading(1.0), allowed=StepRange(lowest=0, highest=0)) == 0


def test_a_reading_from_before_a_change_has_settled_says_nothing_of_it() -> None:
    tuning = Tuning(steps=1, changed_at_s=NOW_S - SETTLE_S - 5.0)
    assert steps_after(a_reading(200.0, age_s=6.0), tuning) == 1
    assert steps_after(a_reading(200.0, age_s=5.0), tuning) == 2


def test_what_missed_is_not_tried_again_while_the_miss_is_fresh() -> None:
    missed = tune(Tuning(), a_reading(101.0, rate=10.0), ANY, slo_ms=100.0, now_s=0.0)
    assert (missed.steps, missed.missed_steps) == (1, 0)
    assert steps_after(a_reading(10.0, rate=9.1, served=9.1), missed) == 1
    assert steps_after(a_reading(10.0, rate=8.9, served=8.9), missed) == 0
    assert steps_after(a_reading(10.0), replace(missed, steps=2)) == 1
    assert (
        tune(missed, a_reading(10.0), ANY, slo_ms=100.0, now_s=MISS_COUNTS_S).steps == 1
    )
    assert (
        tune(
            missed, a_reading(10.0), ANY, slo_ms=100.0, now_s=MISS_COUNTS_S + 1.0
        ).steps
        == 0
    )


def test_a_tuning_survives_json() -> None:
    for tuning in (
        Tuning(),
        Tuning(
            steps=-2, changed_at_s=5.0, missed_steps=-3, missed_rps=7.5, missed_at_s=4.0
        ),
    ):
        memory = json.loads(json.dumps(tuning_to_json(tuning)))
        assert tuning_from_json(memory, now_s=NOW_S) == tuning


def test_times_after_now_are_forgotten_where_the_clock_was_set_back() -> None:
    later = Tuning(steps=2, changed_at_s=201.0, missed_steps=1, missed_at_s=201.0)
    assert tuning_from_json(tuning_to_json(later), now_s=NOW_S) == Tuning(steps=2)
    garbled = {"steps": "x", "changed_at_s": True, "missed_steps": 1.5}
    assert tuning_from_json(garbled, now_s=NOW_S) == Tuning()
