"""How figures of the planner's bench are judged against what must be and what is aimed at."""

import pytest

from bench.plan_runs import Run, judge


@pytest.mark.parametrize(
    ("value", "must", "aim", "met"),
    [
        (1.0, 2.0, 1.0, "aim"),
        (1.5, 2.0, 1.0, "must"),
        (2.5, 2.0, 1.0, "no"),
        (2.0, None, 1.0, "short of aim"),
        (1.5, 2.0, None, "must"),
        (None, 2.0, 1.0, "no"),
        (None, None, 1.0, "no"),
        (7.0, None, None, "-"),
    ],
)
def test_less_is_better(value: float | None, must: float | None, aim: float | None, met: str) -> None:
    assert judge(value, must, aim) == met


def test_a_figure_of_an_unsound_plan_counts_for_nothing() -> None:
    assert judge(1.0, 2.0, 1.0, is_sound=False) == "no"


@pytest.mark.parametrize(
    ("limit_s", "seconds", "in_time"), [(10.0, 10.9, True), (10.0, 11.1, False), (0.1, 0.14, True)]
)
def test_a_limit_may_be_passed_by_a_tenth_or_50_ms(limit_s: float, seconds: float, *, in_time: bool) -> None:
    run = Run(
        cost=1.0,
        bound=0.5,
        status="feasible",
        gpus=1,
        seconds=seconds,
        found_s=0.0,
        limit_s=limit_s,
        is_valid=True,
    )
    assert run.is_in_time is run.is_sound is in_time
    assert run.gap_percent == pytest.approx(100.0)
