"""The smallest SM percent: by hand, by scan against CVXPY, and at the edges."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.laws.colocation import Neighbours
from solvers.sharing.problem import LimitedCurve, ShareCurve, SharingProblem, make_curve
from solvers.sharing.row_scan import crossing_sm_percent, smallest_rows
from solvers.sharing.solve import solve
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Budget, SolveStatus
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuType
from tests.examples import examples, seeds

KNEE = ShareCurve(
    sm_percent=(10.0, 20.0, 30.0, 40.0, 100.0),
    execution_ms=(40.0, 20.0, 16.0, 14.0, 12.0),
)
"""Slopes −2, −0.4, −0.2, −0.033 ms per percent: one convex piece."""
STEPPED = ShareCurve(
    sm_percent=(10.0, 20.0, 30.0, 40.0, 50.0),
    execution_ms=(40.0, 39.0, 20.0, 19.0, 9.0),
)
"""Slopes −0.1, −1.9, −0.1, −1.0: three convex pieces, cut at 20 % and at 40 %."""


def limited(
    curve: ShareCurve,
    limit_ms: float,
    name: str = "chat",
    least: float = 0.0,
    most: float = 100.0,
) -> LimitedCurve:
    return LimitedCurve(
        name=name,
        curve=curve,
        limit_ms=limit_ms,
        min_sm_percent=least,
        max_sm_percent=most,
    )


def exact_rows(*replicas: LimitedCurve) -> tuple[float | None, ...]:
    from solvers.sharing.exact import solve_exact

    solution, status = solve_exact(SharingProblem(replicas=replicas), seconds=10.0)
    assert status is SolveStatus.OPTIMAL
    assert solution is not None
    return solution.sm_percent


@pytest.mark.parametrize(
    ("curve", "limit_ms", "crossing", "row"),
    [
        (
            KNEE,
            18.0,
            25.0,
            30.0,
        ),  # 20 + (20 − 18) / 0.4 = 25, rounded up to the next row.
        (KNEE, 16.0, 30.0, 30.0),  # Met exactly by a row: not rounded beyond it.
        (KNEE, 15.999, 30.005, 40.0),  # A hair less: the next row.
        (KNEE, 50.0, 10.0, 10.0),  # Met everywhere: the first row.
        (KNEE, 12.0, 100.0, 100.0),
        (KNEE, 11.9, None, None),
        (KNEE, 0.0, None, None),
        (KNEE, math.inf, 10.0, 10.0),
        (
            STEPPED,
            19.5,
            35.0,
            40.0,
        ),  # 30 + (20 − 19.5) / 0.1 = 35, in the second piece.
        (STEPPED, 14.0, 45.0, 50.0),  # 40 + (19 − 14) / 1.0 = 45, in the third.
        (STEPPED, 39.0, 20.0, 20.0),  # Where two pieces meet.
        (ShareCurve(sm_percent=(50.0,), execution_ms=(7.0,)), 7.0, 50.0, 50.0),
        (ShareCurve(sm_percent=(), execution_ms=()), 7.0, None, None),
        # A curve that rises again: within the limit at 20 % and, between the rows, from 15 to 27.5 % only.
        (
            ShareCurve(sm_percent=(10.0, 20.0, 30.0), execution_ms=(9.0, 3.0, 7.0)),
            6.0,
            15.0,
            20.0,
        ),
    ],
)
def test_hand_solved_curves(
    curve: ShareCurve, limit_ms: float, crossing: float | None, row: float | None
) -> None:
    assert crossing_sm_percent(curve, limit_ms) == pytest.approx(crossing)
    assert smallest_rows(
        SharingProblem(replicas=(limited(curve, limit_ms),))
    ).sm_percent == (row,)
    assert exact_rows(limited(curve, limit_ms)) == (row,)


def test_a_range_of_sm_percents_narrows_the_rows() -> None:
    replicas = (
        limited(KNEE, 50.0, least=15.0),
        limited(KNEE, 13.0, most=60.0),
        limited(KNEE, 50.0, least=41, most=99),
    )
    assert exact_rows(*replicas) == (20.0, None, None)
    assert smallest_rows(SharingProblem(replicas=replicas)).sm_percent == (
        20.0,
        None,
        None,
    )


def random_curve(draw: random.Random) -> ShareCurve:
    """Any shape: falling with a knee, with steps, with noise that makes it rise here and there, or flat."""
    rows = sorted(draw.sample(range(1, 41), draw.randint(1, 20)))
    noise = draw.choice((0.0, 0.0, 0.3))
    floor = draw.uniform(0.1, 50.0)
    slope = draw.choice((0.0, 10.0, 1000.0))
    execution = [
        floor + slope / min(row, 25) * (1.0 + noise * draw.random()) for row in rows
    ]
    return ShareCurve(
        sm_percent=tuple(2.5 * row for row in rows), execution_ms=tuple(execution)
    )


@pytest.mark.parametrize("seed", seeds(4))
def test_cvxpy_and_the_scan_agree_on_random_curves(seed: int) -> None:
    draw = random.Random(seed)
    replicas = []
    for number in range(70):
        curve = random_curve(draw)
        at_a_row = draw.choice(curve.execution_ms)
        replicas.append(
            limited(
                curve,
                at_a_row * draw.choice((1.0, 1.0, draw.uniform(0.5, 2.0))),
                f"r{number}",
            )
        )
    assert (
        exact_rows(*replicas)
        == smallest_rows(SharingProblem(replicas=tuple(replicas))).sm_percent
    )


@given(
    st.lists(st.floats(0.5, 100.0), min_size=1, max_size=12),
    st.floats(0.1, 120.0),
)
@settings(max_examples=examples(50))
def test_no_answer_breaks_the_limit_and_no_smaller_row_keeps_it(
    executions: list[float], limit_ms: float
) -> None:
    curve = ShareCurve(
        sm_percent=tuple(5.0 * (row + 1) for row in range(len(executions))),
        execution_ms=tuple(executions),
    )
    (answer,) = exact_rows(limited(curve, limit_ms))
    within = [
        sm
        for sm, execution in zip(curve.sm_percent, executions, strict=True)
        if execution <= limit_ms
    ]
    assert answer == min(within, default=None)


def test_solve_tells_the_method_and_names_who_cannot_be_served() -> None:
    problem = SharingProblem(
        replicas=(limited(KNEE, 18.0, "fast"), limited(KNEE, 1.0, "impossible"))
    )
    solution, report = solve(problem, Budget(seconds=10.0))
    assert solution.sm_percent == (30.0, None)
    assert (report.status, report.method) == (SolveStatus.INFEASIBLE, "cvxpy-clarabel")
    assert report.messages == ("impossible: no SM percent is fast enough",)


def test_without_time_the_scan_answers_and_the_report_says_so() -> None:
    problem = SharingProblem(replicas=(limited(KNEE, 18.0),))
    solution, report = solve(problem, Budget(seconds=0.0))
    assert solution.sm_percent == (30.0,)
    assert (report.status, report.method) == (SolveStatus.OPTIMAL, "closed-form")
    assert report.messages == ("no time left for CVXPY",)


def test_a_programme_cut_by_its_time_limit_gives_no_answer_of_its_own() -> None:
    from solvers.sharing.exact import solve_exact

    solution, status = solve_exact(
        SharingProblem(replicas=(limited(KNEE, 18.0),)), seconds=1e-9
    )
    assert (solution, status) == (None, SolveStatus.TIME_LIMIT)


def test_a_curve_is_made_of_the_rows_with_that_batch_and_clock() -> None:
    def row(sm: float, batch: int, clock_mhz: float, run_ms: float) -> OperatingPoint:
        return OperatingPoint(sm, batch, clock_mhz, 0.5, 1.0, run_ms, 1000.0, 50.0, 0.1)

    rows = (
        row(40.0, 4, 1000.0, 10.0),
        row(20.0, 4, 1000.0, 16.0),
        row(20.0, 8, 1000.0, 9.0),
        row(20.0, 4, 900.0, 9.0),
    )
    points = OperatingPoints(
        network="resnet", gpu_type="big", sensitivity=0.5, rows=rows
    )
    gpu_type = GpuType(
        name="big",
        price_usd_per_hour=1.0,
        memory_mib=1.0,
        sm_percent_step=20.0,
        idle_w=0.0,
        power_cap_w=1.0,
        clocks_mhz=(900.0, 1000.0),
        launch_per_neighbour=0.25,
    )
    curve = make_curve(
        points,
        batch=4,
        clock_mhz=1000.0,
        gpu_type=gpu_type,
        neighbours=Neighbours(count=1, pressure=0.2),
    )
    # 0.5 + 1.0·(1 + 0.25·2) + run·(1 + 0.5·0.2) = 2 + 1.1·run.
    assert curve.sm_percent == (20.0, 40.0)
    assert curve.execution_ms == pytest.approx((19.6, 13.0))


@pytest.mark.parametrize(
    ("sm_percent", "execution_ms"),
    [
        ((20.0, 10.0), (1.0, 2.0)),
        ((10.0, 10.0), (1.0, 2.0)),
        ((10.0,), (1.0, 2.0)),
        ((10.0,), (math.nan,)),
        ((10.0,), (0.0,)),
        ((101.0,), (1.0,)),
    ],
)
def test_a_senseless_curve_is_refused(
    sm_percent: tuple[float, ...], execution_ms: tuple[float, ...]
) -> None:
    with pytest.raises(InvalidInput):
        ShareCurve(sm_percent=sm_percent, execution_ms=execution_ms)
