"""Courses: means over seeds, and thinned to what a chart can show without moving in time."""

import pytest

from app.simulate.report.timelines import (
    MAX_POINTS,
    mean_course,
    mean_known,
    point_times_s,
    thinned,
)
from tests.app.runs import a_run


def test_a_mean_leaves_out_what_is_unknown() -> None:
    assert mean_known([None, 1.0, 3.0]) == 2.0
    assert mean_known([None]) is None


@pytest.mark.parametrize("steps", [MAX_POINTS, MAX_POINTS + 1, 9_999, 10_000])
def test_long_courses_become_means_of_neighbours(steps: int) -> None:
    values = [float(step) for step in range(steps)]
    found = thinned(values)
    times = point_times_s(steps, 10.0, first_s=60.0)
    assert len(found) == len(times) <= MAX_POINTS
    # A straight line stays on itself: step k, of which the middle is at 60 + 10 (k + 0.5).
    assert [
        60.0 + 10.0 * (value + 0.5) for value in found if value is not None
    ] == pytest.approx(times)


def test_seeds_are_averaged_step_by_step() -> None:
    runs = [a_run(seed=1, cost_usd=1.0), a_run(seed=2, cost_usd=3.0)]
    assert mean_course(runs, lambda series: series.cost_usd_per_hour) == [2.0]
