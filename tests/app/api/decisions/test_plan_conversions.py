"""Stored plans as the API answers them."""

import pytest

from app.api.decisions.plan_conversions import summary_view
from app.db.decisions.plans import PlanSummary
from tests.app.snapshots import NOW


def a_summary(policy: str, method: str) -> PlanSummary:
    return PlanSummary(
        id=1,
        at=NOW,
        state="target",
        policy=policy,
        policy_version=1,
        catalogue_revision=1,
        generation=1,
        parent=None,
        solution="feasible",
        cost_usd_per_hour=1.0,
        lower_bound_usd_per_hour=None,
        gap_percent=None,
        seconds=0.1,
        method=method,
        reason="",
        replaced_by=None,
    )


@pytest.mark.parametrize(
    ("policy", "method", "shown"),
    [
        ("joint", "joint whole GPUs, filled", "whole GPUs, filled"),
        (
            "hetsev",
            "autoscale cp-sat + sharing closed form",
            "autoscale cp-sat + sharing closed form",
        ),
        ("gslice", "gslice", "gslice"),
        ("inss", "inss_ni", "inss_ni"),
    ],
)
def test_a_method_comes_without_its_policys_name(
    policy: str, method: str, shown: str
) -> None:
    assert summary_view(a_summary(policy, method)).method == shown
