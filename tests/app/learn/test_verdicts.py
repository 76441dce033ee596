"""Verdicts on the operating points of a refit."""

import pytest

from app.learn.refit import RefitCandidate
from app.learn.verdicts import UNCOMPARED_ERROR, ProfileInForce, error_bar, judge
from solvers.predict.estimate.operating_points import Performance
from solvers.types.problem import OperatingPoint, OperatingPoints


def a_candidate(*, error: float, present_error: float | None) -> RefitCandidate:
    rows = (OperatingPoint(50.0, 4, 1000.0, 1.0, 1.0, 8.0, 900.0, 30.0, 0.1),)
    points = OperatingPoints(
        network="resnet50", gpu_type="T4", sensitivity=0.4, rows=rows
    )
    return RefitCandidate(
        performance=Performance(points=points, latency_sigma=(0.0,)),
        technique="linear_fractional",
        sample_count=20,
        error=error,
        present_error=present_error,
    )


@pytest.mark.parametrize(
    ("error", "bar", "is_alarmed", "apply", "is_applied"),
    [
        (0.02, 0.05, False, True, True),
        (0.05, 0.02, False, True, False),
        (0.05, 0.02, True, True, True),
        (0.05, None, False, True, True),
        (0.02, 0.05, False, False, False),
        (float("inf"), None, False, True, False),
    ],
)
def test_a_candidate_replaces_what_is_no_better_or_drifted(
    error: float, bar: float | None, is_alarmed: bool, apply: bool, is_applied: bool
) -> None:
    candidate = a_candidate(error=error, present_error=bar)
    assert (
        judge(candidate, bar=bar, is_alarmed=is_alarmed, apply=apply).applied
        == is_applied
    )


MEASURED = ProfileInForce(is_estimated=False, fit_error=None)
FITTED = ProfileInForce(is_estimated=False, fit_error=0.06)
ESTIMATED = ProfileInForce(is_estimated=True, fit_error=None)


@pytest.mark.parametrize(
    ("profile", "present_error", "bar"),
    [
        (None, 0.04, None),
        (MEASURED, 0.04, 0.04),
        # It knew the samples, so its error where they were held out counts.
        (FITTED, 0.04, 0.06),
        (FITTED, 0.08, 0.08),
        (ESTIMATED, 0.04, 0.04),
        (MEASURED, None, UNCOMPARED_ERROR),
        (ESTIMATED, None, None),
    ],
)
def test_the_error_not_to_exceed_is_that_of_what_deserves_to_be_kept(
    profile: ProfileInForce | None, present_error: float | None, bar: float | None
) -> None:
    candidate = a_candidate(error=0.05, present_error=present_error)
    assert error_bar(candidate, profile) == bar
