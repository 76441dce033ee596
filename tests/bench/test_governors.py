"""What the bench of governors reads out of a course of watts, and one of its rows."""

import pytest

from bench.governors import CAP_W, SETTLED_S, against_cap, row_of

pytestmark = pytest.mark.thorough


def test_the_beginning_and_the_settled_seconds_are_read_apart() -> None:
    watts = [
        1.2 * CAP_W,
        *[0.5 * CAP_W] * (SETTLED_S - 1),
        0.9 * CAP_W,
        1.1 * CAP_W,
        0.7 * CAP_W,
    ]
    assert against_cap(watts) == {
        "first_percent": pytest.approx(120.0),
        "mean_percent": pytest.approx(90.0),  # (90 + 110 + 70) / 3
        "min_percent": pytest.approx(70.0),
        "max_percent": pytest.approx(110.0),
        "above_s": 1,
        "settled_s": 3,
    }


def test_a_governor_that_holds_power_keeps_the_cap_that_its_plan_would_break() -> None:
    row = row_of(600, "dfs")
    assert row["first_percent"] > 105.0  # type: ignore[operator]
    assert (row["above_s"], row["settled_s"]) == (0, 170)
