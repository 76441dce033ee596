"""The checker of reports: the contract's worked example, and figures that its plan contradicts."""

import math
from dataclasses import replace

import pytest

from solvers.check_report import report_violations
from solvers.types.outcome import PlanReport
from tests.solvers.small_plans import example
from tests.solvers.test_check import with_type


def test_the_example_report_follows_from_the_example_plan() -> None:
    assert report_violations(*example()) == ()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cost_usd_per_hour": 1.7643}, "cost_usd_per_hour"),
        ({"cost_usd_per_hour": math.nan}, "cost_usd_per_hour"),
        ({"lower_bound_usd_per_hour": 1.7643}, "lower_bound_usd_per_hour"),
        ({"lower_bound_usd_per_hour": math.nan}, "lower_bound_usd_per_hour"),
        ({"lower_bound_usd_per_hour": 1.6}, "gap_percent"),
        ({"gap_percent": 1.0}, "gap_percent"),
        ({"gap_percent": math.nan}, "gap_percent"),
    ],
)
def test_a_report_that_the_plan_contradicts_is_caught(
    changes: dict[str, float], field: str
) -> None:
    problem, plan, report = example()
    found = report_violations(problem, plan, replace(report, **changes))
    assert f"report.{field}" in {violation.where for violation in found}


def test_goodput_reports_are_held_to_the_served_weight_and_all_listed_gpus() -> None:
    problem, plan, _ = example()
    listed = with_type(problem, "big", lambda each: replace(each, count=2))
    listed = replace(listed, objective="max_goodput")
    # One idle `small` (0.5 + 0.2 · 0.020 = 0.504) and one idle `big` (1.2 + 0.2 · 0.050 = 1.21) besides 1.7642.
    report = PlanReport(
        status="optimal",
        cost_usd_per_hour=1.7642 + 0.504 + 1.21,
        served_weight=150.0 + 120.0 + 130.0,
        served_weight_upper_bound=500.0,
        gap_percent=20.0,
    )
    assert report_violations(listed, plan, report) == ()
    for lie in (
        {"served_weight": 401.0},
        {"served_weight_upper_bound": 399.0},
        {"gap_percent": 0.0},
    ):
        assert report_violations(listed, plan, replace(report, **lie)) != ()
