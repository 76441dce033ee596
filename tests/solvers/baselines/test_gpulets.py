"""Elastic partitioning: at most two shares per GPU, split, best fit, merge."""

from functools import partial
from typing import Any

import pytest

from solvers.baselines.gpulets import make_plan
from solvers.check import violations
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import (
    Problem,
)
from solvers.types.state import Observed
from tests.solvers.instances import (
    a_row,
    a_service,
    assert_unserved,
    problem_of_networks,
    shares_by_gpu,
    unserved_cases,
)

# 50, 80, 90 and 100 rps: the most efficient share is 40 % (80 rps, where the chord has 40).
BENT = (
    a_row(20.0, 20.0),
    a_row(40.0, 12.5),
    a_row(60.0, 1000 / 90),
    a_row(100.0, 10.0),
)


def plan_of(problem: Problem) -> Plan:
    plan, report, memory = make_plan(problem, Observed(at_s=0.0), None, Budget())
    assert memory is None
    assert report.method == "gpulets"
    assert {entry.severity for entry in violations(problem, plan)} <= {"promise"}
    return plan


a_problem = partial(problem_of_networks, sm_percent_step=20.0)


def test_a_small_rate_gets_the_smallest_share_and_a_large_one_the_knee() -> None:
    assert shares_by_gpu(
        plan_of(a_problem(a_service(rate_rps=45.0), networks={"net": BENT}))
    ) == [{"chat": 20.0}]
    assert shares_by_gpu(
        plan_of(a_problem(a_service(rate_rps=75.0), networks={"net": BENT}))
    ) == [{"chat": 40.0}]
    # 80 rps at the knee of one GPU; the other 80 would need the other half of it, where the service already is.
    assert (
        shares_by_gpu(
            plan_of(a_problem(a_service(rate_rps=160.0), networks={"net": BENT}))
        )
        == [{"chat": 40.0}] * 2
    )


def test_the_batch_is_the_largest_within_half_the_slo() -> None:
    rows = (a_row(100.0, 20.0), a_row(100.0, 50.0, batch=4))
    (gpu,) = plan_of(a_problem(a_service(rate_rps=45.0), networks={"net": rows})).gpus
    assert gpu.replicas[0].batch == 4
    (gpu,) = plan_of(
        a_problem(a_service(rate_rps=45.0, slo_ms=99.0), networks={"net": rows})
    ).gpus
    assert gpu.replicas[0].batch == 1


def test_services_by_falling_rate_take_all_of_the_best_fitting_free_share() -> None:
    # `big` splits a GPU at 40 %; `small`, that needs 20 %, gets all of the other 60 %; `tiny` is the third, and needs a
    # GPU of its own.
    services = (
        a_service("tiny", rate_rps=30.0),
        a_service("small", rate_rps=40.0),
        a_service("big", rate_rps=75.0),
    )
    assert shares_by_gpu(plan_of(a_problem(*services, networks={"net": BENT}))) == [
        {"big": 40.0, "small": 60.0},
        {"tiny": 20.0},
    ]


def test_interference_that_breaks_half_the_slo_of_either_keeps_two_apart() -> None:
    # 45 ms alone, of 50: a neighbour's pressure of 0.1 is just borne (49.5 ms), 0.2 is not (54 ms).
    services = (
        a_service("a", network="tight", rate_rps=20.0),
        a_service("b", network="loud", rate_rps=10.0),
    )

    def gpus(pressure: float) -> int:
        networks = {
            "tight": [a_row(40.0, 45.0)],
            "loud": [a_row(40.0, 10.0, pressure=pressure)],
        }
        return len(shares_by_gpu(plan_of(a_problem(*services, networks=networks))))

    assert (gpus(0.1), gpus(0.2)) == (1, 2)


def test_two_shares_of_one_service_on_a_gpu_merge_where_that_is_worth_a_share() -> None:
    # 40, 50 and 100 rps: the knee is 20 %, and a whole GPU serves as much more than it as a second GPU-let would.
    rows = (a_row(20.0, 25.0), a_row(40.0, 20.0), a_row(100.0, 10.0))
    assert shares_by_gpu(
        plan_of(a_problem(a_service(rate_rps=80.0), networks={"net": rows}))
    ) == [{"chat": 100.0}]


@pytest.mark.parametrize("case", unserved_cases(100.0, 100.0, 300.0))
def test_what_cannot_be_served_names_its_rule(case: tuple[Any, ...]) -> None:
    service, count, *expected = case
    plan = plan_of(a_problem(service, networks={"net": BENT}, count=count))
    assert_unserved(plan, *expected)


def test_memory_and_watts_keep_two_apart() -> None:
    services = (a_service("a", rate_rps=40.0), a_service("b", rate_rps=40.0))
    for changes in ({"memory_mib": 9000.0}, {"power_w": 101.0}):
        rows = tuple(row._replace(**changes) for row in BENT)
        assert (
            len(shares_by_gpu(plan_of(a_problem(*services, networks={"net": rows}))))
            == 2
        )
