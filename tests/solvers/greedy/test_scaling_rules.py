"""The two triggers over time: HetSev's saturation with hold and cool-down, and the Kubernetes autoscaler."""

import json
from collections.abc import Iterable

import pytest

from solvers.greedy.scaling_rules import (
    HpaRule,
    ReplicaLoad,
    SaturationRule,
    ScalingStep,
    decide_hpa,
    decide_saturation,
)
from solvers.types.state import Json

RULE = SaturationRule(threshold=0.8, hold_s=30.0, cool_down_s=60.0)
HPA = HpaRule(tolerance=0.1, scale_down_window_s=300.0)


def run_saturation(
    steps: Iterable[tuple[float, float]], memory: Json = None
) -> list[ScalingStep]:
    """The decisions at (time, rate) on three replicas of 100 rps each; the memory passes through JSON."""
    decisions = []
    for now_s, rate_rps in steps:
        load = ReplicaLoad(
            rate_rps=rate_rps, capacity_rps=300.0, capacity_without_one_rps=200.0
        )
        decision, memory = decide_saturation(load, RULE, now_s=now_s, memory=memory)
        memory = json.loads(json.dumps(memory))
        decisions.append(decision)
    return decisions


def run_hpa(
    current: int,
    steps: Iterable[tuple[float, float]],
    rule: HpaRule = HPA,
    memory: Json = None,
) -> list[int]:
    """The replica counts after each (time, metric over target *at 10 replicas*); the load does not follow the count."""
    counts = []
    for now_s, load in steps:
        decision, memory = decide_hpa(
            current, load * 10 / current, rule, now_s=now_s, memory=memory
        )
        memory = json.loads(json.dumps(memory))
        current = decision.replicas
        counts.append(current)
    return counts


def test_saturation_above_the_threshold_for_the_hold_period_scales_out() -> None:
    # 80 % of 300 rps is 240.
    assert run_saturation([(0, 250), (15, 250), (29, 250), (30, 250)]) == [
        ScalingStep.HOLD,
        ScalingStep.HOLD,
        ScalingStep.HOLD,
        ScalingStep.OUT,
    ]


def test_a_short_spike_does_not_scale_out() -> None:
    assert (
        run_saturation([(0, 250), (15, 239), (30, 250), (45, 250)])
        == [ScalingStep.HOLD] * 4
    )


def test_exactly_at_the_threshold_holds() -> None:
    assert run_saturation([(0, 240), (60, 240)]) == [ScalingStep.HOLD] * 2


def test_scale_in_waits_for_the_cool_down_and_takes_one_at_a_time() -> None:
    # Without one replica 200 rps are left, of which 80 % are 160.
    steps = [(0, 100), (59, 100), (60, 100), (61, 100), (119, 100), (120, 100)]
    assert run_saturation(steps) == [
        ScalingStep.HOLD,
        ScalingStep.HOLD,
        ScalingStep.IN,
        ScalingStep.HOLD,
        ScalingStep.HOLD,
        ScalingStep.IN,
    ]


def test_load_that_the_rest_could_not_carry_restarts_the_cool_down() -> None:
    assert run_saturation([(0, 100), (50, 161), (60, 100), (119, 100), (120, 100)])[
        -2:
    ] == [
        ScalingStep.HOLD,
        ScalingStep.IN,
    ]


def test_rate_without_any_replica_scales_out_at_once() -> None:
    load = ReplicaLoad(rate_rps=1.0, capacity_rps=0.0, capacity_without_one_rps=0.0)
    assert decide_saturation(load, RULE, now_s=0, memory=None)[0] is ScalingStep.OUT
    idle = ReplicaLoad(rate_rps=0.0, capacity_rps=0.0, capacity_without_one_rps=0.0)
    assert decide_saturation(idle, RULE, now_s=0, memory=None)[0] is ScalingStep.HOLD


def test_the_last_replica_goes_only_without_any_rate() -> None:
    for rate_rps, expected in ((0.0, ScalingStep.IN), (0.1, ScalingStep.HOLD)):
        load = ReplicaLoad(
            rate_rps=rate_rps, capacity_rps=100.0, capacity_without_one_rps=0.0
        )
        _, memory = decide_saturation(load, RULE, now_s=0, memory=None)
        assert decide_saturation(load, RULE, now_s=60, memory=memory)[0] is expected


@pytest.mark.parametrize(
    "memory",
    [None, [], "x", {"version": 99, "saturated_since_s": 0}, {"saturated_since_s": 0}],
)
def test_unknown_memory_starts_afresh(memory: Json) -> None:
    assert run_saturation([(1000, 250)], memory) == [ScalingStep.HOLD]


def test_a_clock_that_was_set_back_restarts_the_hold() -> None:
    assert run_saturation([(1000, 250), (500, 250), (529, 250), (530, 250)])[1:] == [
        ScalingStep.HOLD,
        ScalingStep.HOLD,
        ScalingStep.OUT,
    ]


@pytest.mark.parametrize(
    ("ratio", "replicas"),
    [
        (1.1, 10),  # within the tolerance
        (1.11, 12),  # ceil(11.1)
        (1.2, 12),
        (3.0, 30),
    ],
)
def test_hpa_scales_up_at_once_beyond_the_tolerance(
    ratio: float, replicas: int
) -> None:
    assert run_hpa(10, [(0, ratio)]) == [replicas]


def test_hpa_scales_down_to_the_largest_recommendation_of_the_window() -> None:
    # The load falls to 0.5 and briefly rises to 0.8: 300 s after 10, and after 8, the count may follow.
    steps = [
        (0, 1.0),
        (60, 0.5),
        (120, 0.8),
        (299, 0.5),
        (300, 0.5),
        (419, 0.5),
        (420, 0.5),
    ]
    assert run_hpa(10, steps) == [10, 10, 10, 10, 8, 8, 5]


def test_hpa_scales_down_first_after_a_whole_window() -> None:
    assert run_hpa(10, [(0, 0.5), (299, 0.5), (300, 0.5)]) == [10, 10, 5]


def test_hpa_keeps_to_its_limits() -> None:
    rule = HpaRule(min_replicas=2, max_replicas=12, scale_down_window_s=10)
    assert run_hpa(10, [(0, 5.0), (20, 0.0), (40, 0.0)], rule) == [12, 2, 2]
    assert run_hpa(1, [(0, 0.1)], rule) == [2]
