"""Tables: what becomes a candidate, on which grid of SM steps, and what is left out without loss."""

import random
from dataclasses import replace

import numpy as np
import pytest

from solvers.joint.kernels.types import GpuMode
from solvers.joint.patterns.tables import make_tables
from solvers.types.plan import Plan
from solvers.types.problem import OperatingPoints, Problem
from tests.examples import seeds
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    replica_on,
)
from tests.solvers.joint.modes import (
    best_worth,
    random_prices,
    random_problem,
)


def rows_of(problem: Problem) -> list[tuple[float, int]]:
    """(SM percent, batch) of the candidates of the first service."""
    (mode,) = make_tables(problem).modes
    points = problem.points[0]
    return [points.rows[row][:2] for row in mode.row[mode.service == 0]]


def test_a_mode_for_every_type_and_clock_that_has_candidates() -> None:
    rows = (a_row(50.0, 10.0, clock_mhz=1000.0), a_row(50.0, 9.0, clock_mhz=1200.0))
    problem = a_problem(
        a_service(rate_rps=1.0),
        types=(a_type(clocks_mhz=(1000.0, 1200.0, 1400.0)),),
        rows=rows,
    )
    assert [mode.clock_mhz for mode in make_tables(problem).modes] == [1000.0, 1200.0]


@pytest.mark.parametrize(
    "row",
    [
        a_row(50.0, 10.0, memory_mib=16_001.0),
        a_row(50.0, 10.0, power_w=201.0),
        a_row(50.0, 100.1),
    ],
    ids=["memory", "watts", "slo"],
)
def test_rows_that_cannot_run_even_alone_are_no_candidates(row: object) -> None:
    problem = a_problem(a_service(rate_rps=1.0), rows=(a_row(100.0, 5.0), row))  # type: ignore[arg-type]
    assert rows_of(problem) == [(100.0, 1)]


@pytest.mark.parametrize(
    "problem",
    [
        a_problem(),
        a_problem(a_service(rate_rps=1.0), rows=()),
        a_problem(a_service(rate_rps=1.0, network="unknown")),
        a_problem(a_service(rate_rps=1.0, allowed_gpu_types=("other",))),
        a_problem(a_service(rate_rps=1.0, max_replicas=0)),
    ],
    ids=["no services", "no rows", "no points", "not allowed", "no replicas"],
)
def test_without_candidates_there_are_no_modes(problem: Problem) -> None:
    tables = make_tables(problem)
    assert tables.modes == ()
    assert len(tables.rate) == len(problem.services)


@pytest.mark.parametrize(("step", "percents", "widths", "steps"), [
    (25.0, (25.0, 75.0), [1, 3], 4),
    (1.0, (20.0, 60.0), [1, 3], 5),
    # 60 % goes once into a GPU, not 1.67 times rounded to twice.
    (60.0, (60.0,), [1], 1),
    (30.0, (30.0, 90.0), [1, 3], 3),
    (40.0, (40.0, 80.0), [1, 2], 2),
    (100.0 / 3.0, (100.0 / 3.0, 100.0), [1, 3], 3),
])  # fmt: skip
def test_the_grid_is_as_coarse_as_the_shares_allow(
    step: float, percents: tuple[float, ...], widths: list[int], steps: int
) -> None:
    rows = tuple(a_row(percent, 900.0 / percent) for percent in percents)
    problem = a_problem(
        a_service(rate_rps=1e6), types=(a_type(sm_percent_step=step),), rows=rows
    )
    (mode,) = make_tables(problem).modes
    assert (mode.width.tolist(), mode.steps) == (widths, steps)


def test_of_two_rows_that_both_carry_all_the_lighter_stays() -> None:
    rows = (a_row(25.0, 5.0), a_row(50.0, 4.0), a_row(50.0, 8.0, batch=4))
    assert rows_of(a_problem(a_service(rate_rps=1.0), rows=rows)) == [(25.0, 1)]


@pytest.mark.parametrize(
    "changes",
    [{"memory_mib": 4100.0}, {"power_w": 51.0}, {"pressure": 0.2}],
    ids=["memory", "watts", "pressure"],
)
def test_a_row_that_takes_less_of_anything_stays(changes: dict[str, float]) -> None:
    """25 % would do for the rate, but takes more of one thing than 50 %."""
    rows = (a_row(25.0, 5.0, power_w=50.0)._replace(**changes), a_row(50.0, 5.0))
    assert rows_of(a_problem(a_service(rate_rps=1.0), rows=rows)) == [
        (25.0, 1),
        (50.0, 1),
    ]


def test_a_row_that_carries_more_of_the_rate_stays() -> None:
    rows = (a_row(25.0, 20.0), a_row(50.0, 10.0))
    assert rows_of(a_problem(a_service(rate_rps=1e3), rows=rows)) == [
        (25.0, 1),
        (50.0, 1),
    ]


def test_a_row_that_bears_neighbours_better_stays() -> None:
    """Alone both carry all 10 rps; next to pressure 1 the narrow one takes all of its SLO, the wide one 60 ms."""
    rows = (a_row(25.0, 20.0, pressure=0.5), a_row(50.0, 12.0, pressure=0.5))
    problem = a_problem(
        *(a_service(name, rate_rps=10.0) for name in "abcd"), rows=rows, sensitivity=4.0
    )
    assert rows_of(problem) == [(25.0, 1), (50.0, 1)]


def test_what_runs_now_stays_a_candidate() -> None:
    """Its SM percent costs no migration, whatever dominates it."""
    rows = (a_row(25.0, 5.0), a_row(50.0, 4.0), a_row(75.0, 3.0))
    problem = a_problem(a_service(rate_rps=1.0), rows=rows)
    running = replica_on("chat", 50.0, 1.0)
    current = Plan(
        policy="test",
        gpus=(gpu_plan(running),),
    )
    assert rows_of(replace(problem, current=current)) == [(25.0, 1), (50.0, 1)]


@pytest.mark.parametrize("seed", seeds(16))
def test_undominated_rows_alone_earn_as_much_as_all_rows(seed: int) -> None:
    draw = random.Random(seed)
    problem = random_problem(draw)
    tables = make_tables(problem)
    kept = only_candidates(problem, tables.modes)
    for _ in range(5):
        prices = random_prices(draw, problem)
        assert best_worth(kept, prices) == pytest.approx(
            best_worth(problem, prices), rel=1e-12
        )


def only_candidates(problem: Problem, modes: tuple[GpuMode, ...]) -> Problem:
    """Each service with a network of its own that has its candidates' rows."""
    services, points = [], []
    for number, service in enumerate(problem.services):
        rows = [row for mode in modes for row in mode.row[mode.service == number]]
        of_type = problem.points_of(service.network, "gpu")
        services.append(replace(service, network=service.name))
        if of_type is not None:
            kept = tuple(of_type.rows[row] for row in rows)
            points.append(
                OperatingPoints(
                    network=service.name,
                    gpu_type="gpu",
                    sensitivity=of_type.sensitivity,
                    rows=kept,
                )
            )
    return replace(problem, services=tuple(services), points=tuple(points))


def test_candidates_ascend_by_service_and_width() -> None:
    for seed in range(20):
        for mode in make_tables(random_problem(random.Random(seed))).modes:
            order = np.lexsort((mode.batch, mode.width, mode.service))
            assert order.tolist() == list(range(len(order)))
