"""The flash-crowd bench: a trace per seed, and margins counted by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.simulate.run.results import RunResult
from bench.flash_crowds import (
    rows_of,
    write_trace,
)
from tests.app.runs import a_run

pytestmark = pytest.mark.thorough


def test_a_seed_draws_the_same_trace_and_another_one_another(tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    first = write_trace(1, tmp_path).read_text(encoding="utf-8")
    assert write_trace(1, again).read_text(encoding="utf-8") == first
    assert write_trace(2, tmp_path).read_text(encoding="utf-8") != first


def named(policy: str, *, cost_usd: float, in_slo: tuple[int, int]) -> RunResult:
    """Two services with a hundred requests each and a percentile of 0.98."""
    run = a_run()
    (service, *_) = run.services
    services = tuple(
        replace(
            service,
            service=name,
            percentile=0.98,
            served=100,
            rejected=0,
            overdue=0,
            in_slo=count,
        )
        for name, count in zip(("a", "b"), in_slo, strict=True)
    )
    return replace(run, policy=policy, cost_usd=cost_usd, services=services)


def test_a_row_has_the_worst_services_margin_and_the_cost_against_others() -> None:
    rows = rows_of(
        [
            named("joint", cost_usd=1.5, in_slo=(99, 97)),
            named("joint, room 1.25", cost_usd=2.0, in_slo=(100, 97)),
            named("joint, room 1.5", cost_usd=3.0, in_slo=(100, 98)),
            named("joint, room 2", cost_usd=4.0, in_slo=(100, 100)),
            named("hetsev", cost_usd=1.0, in_slo=(100, 97)),
            named("hetsev, room 1.5", cost_usd=2.5, in_slo=(98, 98)),
        ]
    )
    # The worst service has 97 % where 98 are asked for; 4 of 200 requests are late.
    assert rows[0]["worst_minus_percentile_points"] == pytest.approx(-1.0)
    assert rows[0]["late_percent"] == pytest.approx(2.0)
    # A uniform room of 1.25 costs less and does not keep the SLOs.
    assert [row["cost_to_uniform"] for row in rows] == pytest.approx(
        [1.5 / 3.0, 2.0 / 3.0, 1.0, 4.0 / 3.0, 1.0 / 3.0, 2.5 / 3.0]
    )
    # Without a room of its own hetsev does not keep them either.
    assert rows[0]["cost_to_other"] == pytest.approx(1.5 / 2.5)
    assert rows[-1]["cost_to_other"] == pytest.approx(1.0)


def test_nothing_is_compared_with_where_nobody_keeps_the_slos() -> None:
    rows = rows_of(
        [
            named("joint", cost_usd=1.5, in_slo=(100, 100)),
            named("joint, room 2", cost_usd=4.0, in_slo=(100, 97)),
            named("igniter", cost_usd=1.0, in_slo=(100, 97)),
        ]
    )
    assert [row["cost_to_uniform"] for row in rows] == [None] * 3
    assert [row["cost_to_other"] for row in rows] == [None] * 3
