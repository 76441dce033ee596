"""Slopes by hand: the share that a service asks for next to tasks, and which of two services asks for less."""

import math

import numpy as np
import pytest

from solvers.backfill.hosts import make_host
from solvers.backfill.residents import Seats
from solvers.laws.operating_rows import OperatingRows
from solvers.papers.mudi.smallest_slope import (
    NOWHERE,
    Demanded,
    Slopes,
    Stretched,
    waiting_requests,
)
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import Task
from tests.solvers.training_beside import (
    POINTS,
    a_problem,
    a_service,
    a_task,
    bound_gpu,
)

CURVE = Stretched(1, np.array([10.0, 20.0, 100.0]), np.array([100.0, 50.0, 40.0]))


@pytest.mark.parametrize(
    ("limit_ms", "share"),
    # Between 10 and 20 % a percent is worth 5 ms, beyond 0.125: 75 ms are reached half-way, 45 at 60 %.
    [
        (200.0, 10.0),
        (100.0, 10.0),
        (75.0, 15.0),
        (50.0, 20.0),
        (45.0, 60.0),
        (40.0, 100.0),
        (20.0, 200.0),
    ],
)
def test_where_a_curve_reaches_its_limit(limit_ms: float, share: float) -> None:
    assert CURVE.demanded(limit_ms) == Demanded(
        pytest.approx(share), pytest.approx(5.0 / limit_ms)
    )


def test_a_single_row_has_no_slope_and_no_limit_no_share() -> None:
    single = Stretched(1, np.array([50.0]), np.array([10.0]))
    assert single.demanded(20.0) == Demanded(50.0, 0.0)
    assert single.demanded(0.0).share_percent > 1e9


def test_what_waits_is_what_comes_within_one_slo_but_a_batch_at_least() -> None:
    service = a_service(slo_ms=500.0)
    assert waiting_requests(service, batch=4, rate_rps=60.0) == 30.0
    assert waiting_requests(service, batch=64, rate_rps=60.0) == 64.0


def demanded(
    problem: Problem, tasks: list[Task], *, service: str = "web", rate_rps: float = 60.0
) -> Demanded:
    network = problem.service(service).network
    gpu = bound_gpu(rate_rps=rate_rps, service=service, network=network)
    seats = Seats(POINTS)

    def limit_ms(of: ServiceDemand, batch: int, rate_rps: float) -> float:
        del of
        return 1000.0 * batch / rate_rps

    slopes = Slopes(problem, seats, limit_ms)
    return slopes.of(make_host(problem, OperatingRows(problem), gpu), tasks)


def test_beside_a_task_a_service_asks_for_more_and_beside_two_for_more_still() -> None:
    problem = a_problem()
    none_yet = 1100.0 / (4000.0 / 60.0)  # 16.5 % with batch 4, alone
    one, two = (
        demanded(problem, [a_task("a")]),
        demanded(problem, [a_task("a"), a_task("b", "light")]),
    )
    # Between 10 and 30 % next to the rest in `train`: about 1100 / p · (1 + (100 − p) / 200) = 66.7.
    assert none_yet < one.share_percent < 30.0
    # `light` presses a fifth as much, so that two, one of each, press less than one `train` on the whole rest.
    assert two.share_percent < one.share_percent
    # Two halves of `train` press as one that has the whole rest, and delay launches by one more.
    halves = demanded(problem, [a_task("a"), a_task("b")])
    assert halves.share_percent == pytest.approx(one.share_percent, rel=0.01)


def test_of_two_services_the_slower_and_the_busier_ask_for_more() -> None:
    problem = a_problem(a_service(), a_service("heavy", network="slow"))
    assert demanded(problem, [a_task()]) < demanded(
        problem, [a_task()], service="heavy"
    )
    assert demanded(problem, [a_task()]) < demanded(problem, [a_task()], rate_rps=90.0)


def test_a_task_without_rows_finds_no_place() -> None:
    assert demanded(a_problem(), [a_task(network="unknown")]) == NOWHERE
    assert all(math.isinf(each) for each in NOWHERE)
