"""The rule of half the SLO, and what a service can do alone by it."""

import pytest

from solvers.baselines.half_slo import (
    SoloProfile,
    half_slo_rps,
    profiles,
    replicas_for,
)
from solvers.greedy.configure import MAX_REPLICAS
from solvers.laws.colocation import Neighbours
from solvers.types.problem import OperatingPoint
from tests.solvers.instances import a_problem, a_row, a_service


def a_profile(
    *rows: OperatingPoint, slo_ms: float = 100.0, sensitivity: float = 0.0
) -> SoloProfile:
    problem = a_problem(a_service(slo_ms=slo_ms), rows=rows, sensitivity=sensitivity)
    return profiles(problem, problem.gpu_types[0])["chat"]


def test_a_replica_serves_all_that_it_executes_within_half_the_slo() -> None:
    row = a_row(50.0, 50.0, batch=4)
    assert half_slo_rps(row, 50.0, slo_ms=100.0) == pytest.approx(80.0)  # 1000 · 4 / 50
    assert half_slo_rps(row, 50.01, slo_ms=100.0) == 0.0


def test_the_largest_batch_runs_within_half_the_slo_beside_the_neighbours() -> None:
    profile = a_profile(
        a_row(50.0, 20.0),
        a_row(50.0, 45.0, batch=4),
        a_row(100.0, 30.0, batch=4),
        a_row(100.0, 10.0),
        sensitivity=1.0,
    )
    assert profile.largest_batch(50.0) == a_row(50.0, 45.0, batch=4)
    # 45 · 1.2 = 54 ms is over half of 100 ms; 20 · 1.2 is not; and nothing is when the run takes three times as long.
    assert profile.largest_batch(50.0, Neighbours(count=1, pressure=0.2)) == a_row(
        50.0, 20.0
    )
    assert profile.largest_batch(50.0, Neighbours(count=1, pressure=2.0)) is None
    assert profile.largest_batch(75.0) is None
    assert profile.rates_rps == pytest.approx(
        {50.0: 1000 * 4 / 45, 100.0: 1000 * 4 / 30}
    )
    assert profile.min_percent(100.0) == 100.0
    assert profile.min_percent(200.0) is None


def test_the_knee_is_where_the_rate_lies_farthest_above_the_chord() -> None:
    # 50, 100, 110, 120 rps: above 1.2 · share they lie by 20, 40, 20 and 0.
    bent = a_profile(
        a_row(25.0, 20.0),
        a_row(50.0, 10.0),
        a_row(75.0, 1000 / 110),
        a_row(100.0, 1000 / 120),
        slo_ms=100.0,
    )
    assert bent.knee_percent == 50.0
    assert (
        a_profile(a_row(25.0, 10.0), a_row(50.0, 10.0), a_row(100.0, 10.0)).knee_percent
        == 25.0
    )


def test_a_remainder_that_is_rounding_needs_no_further_replica() -> None:
    counts = [
        replicas_for(rate, 50.0) for rate in (0.0, 50.0, 100.0 + 1e-9, 101.0, 1e300)
    ]
    assert counts == [0, 1, 2, 3, MAX_REPLICAS]
