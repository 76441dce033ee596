"""The least SLO that a network can promise."""

from dataclasses import replace

import pytest

from app.answers.feasible import infeasibility, min_slo
from solvers.laws.capacity_law import max_utilisation
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import Slo
from tests.app.fleets import FAST, POINTS, a_service

SLOW = replace(FAST, name="slow")
SLOW_POINTS = OperatingPoints(
    network="net",
    gpu_type="slow",
    sensitivity=0.0,
    rows=(OperatingPoint(100.0, 4, 1000.0, 1.0, 2.0, 17.0, 4000.0, 90.0, 0.0),),
)
CHAT = a_service()


def test_the_least_slo_is_the_execution_time_of_the_fastest_point_alone() -> None:
    # The whole GPU runs a batch of one in 5 ms; at ratio 1 a request that meets an idle server is in time.
    least = min_slo(CHAT, [FAST, SLOW], [POINTS, SLOW_POINTS])
    assert least is not None
    assert (least.latency_ms, least.gpu_type, least.sm_percent, least.batch) == (
        5.0,
        "fast",
        100.0,
        1,
    )


@pytest.mark.parametrize("percentile", [0.5, 0.98, 0.999])
@pytest.mark.parametrize("batch", [1, 4, 64])
def test_at_the_least_slo_the_law_lets_something_through_and_below_it_nothing(
    percentile: float, batch: int
) -> None:
    points = replace(POINTS, rows=(POINTS.rows[0]._replace(batch=batch),))
    least = min_slo(
        replace(CHAT, slo=Slo(latency_ms=1.0, percentile=percentile)), [FAST], [points]
    )
    assert least is not None
    ratio = least.latency_ms / points.rows[0].solo_ms
    assert max_utilisation(batch, percentile=percentile, slo_ratio=ratio) > 0.0
    assert max_utilisation(batch, percentile=percentile, slo_ratio=ratio * 0.999) == 0.0


def test_an_excluded_type_does_not_help() -> None:
    tight = replace(
        CHAT, slo=Slo(latency_ms=19.0, percentile=0.98), excluded_gpu_types=("fast",)
    )
    reason = infeasibility(tight, [FAST, SLOW], [POINTS, SLOW_POINTS])
    assert (
        reason is not None
        and "the shortest possible SLO is 20 ms (slow, 100 % of its SMs, batch 4)"
        in reason
    )
    assert (
        infeasibility(
            replace(tight, excluded_gpu_types=()), [FAST, SLOW], [POINTS, SLOW_POINTS]
        )
        is None
    )


@pytest.mark.parametrize("row", [{"memory_mib": 20_000.0}, {"power_w": 201.0}])
def test_points_that_do_not_fit_the_gpu_do_not_count(row: dict[str, float]) -> None:
    points = replace(POINTS, rows=tuple(entry._replace(**row) for entry in POINTS.rows))
    assert min_slo(CHAT, [FAST], [points]) is None
    reason = infeasibility(CHAT, [FAST], [points])
    assert reason is not None and "no operating point on fast" in reason


def test_nothing_allowed_is_its_own_reason() -> None:
    assert "no GPU type is left" in (
        infeasibility(replace(CHAT, allowed_gpu_types=()), [FAST], [POINTS]) or ""
    )
