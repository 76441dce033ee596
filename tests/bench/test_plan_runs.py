"""How figures of the planner's bench are judged against what must be and what is aimed at."""

from dataclasses import replace

import pytest

from bench.plan_runs import Known, Run, judge

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    ("value", "must", "aim", "met"),
    [
        (1.0, 2.0, 1.0, "aim"),
        (1.5, 2.0, 1.0, "must"),
        (2.5, 2.0, 1.0, "no"),
        (2.0, None, 1.0, "short"),
        (1.5, 2.0, None, "must"),
        (None, 2.0, 1.0, "no"),
        (None, None, 1.0, "no"),
        (7.0, None, None, "-"),
    ],
)
def test_less_is_better(
    value: float | None, must: float | None, aim: float | None, met: str
) -> None:
    assert judge(value, must, aim) == met


def test_a_figure_of_a_plan_with_a_fault_counts_for_nothing() -> None:
    assert (
        judge(1.0, 2.0, 1.0, fault="late")
        == judge(1.0, None, None, fault="broken")
        == "no"
    )


RUN = Run(
    cost=1.5,
    bound=1.0,
    status="feasible",
    gpus=1,
    seconds=1.0,
    found_s=0.0,
    limit_s=1.0,
    is_valid=True,
)


@pytest.mark.parametrize(
    ("limit_s", "seconds", "fault"),
    [(10.0, 10.9, None), (10.0, 11.1, "late"), (0.1, 0.14, None), (0.1, 0.16, "late")],
)
def test_a_limit_may_be_passed_by_a_tenth_or_50_ms(
    limit_s: float, seconds: float, fault: str | None
) -> None:
    assert replace(RUN, limit_s=limit_s, seconds=seconds).fault() == fault


@pytest.mark.parametrize(
    ("cost", "bound", "fault"),
    [(1.5, 1.0, None), (1.5, 1.3, "bound"), (0.8, 0.7, "bound"), (1.5, 1.2, None)],
)
def test_no_plan_ours_or_the_known_one_costs_less_than_a_bound(
    cost: float, bound: float, fault: str | None
) -> None:
    known = Known(name="known", bound=0.9, best=1.2)
    assert replace(RUN, cost=cost, bound=bound).fault(known) == fault


def test_a_plan_that_breaks_a_rule_is_broken_before_it_is_late() -> None:
    assert replace(RUN, is_valid=False, seconds=9.0).fault() == "broken"


def test_the_gap_is_relative_to_the_bound() -> None:
    assert RUN.gap_percent == pytest.approx(50.0)
    assert replace(RUN, bound=0.0).gap_percent is None
