"""iGniter: the least share that suffices alone, and the extra that neighbours make necessary."""

from functools import partial
from typing import Any

import pytest

from bench.plan_runs import FOLDER, load
from bench.v100_problems import SERVICES, with_services
from solvers.baselines.igniter import make_plan
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

QUIET = (a_row(20.0, 24.0), a_row(30.0, 15.0), a_row(60.0, 12.0), a_row(100.0, 10.0))


def plan_of(problem: Problem) -> Plan:
    plan, report, memory = make_plan(problem, Observed(at_s=0.0), None, Budget())
    assert memory is None
    assert report.method == "igniter"
    assert {entry.severity for entry in violations(problem, plan)} <= {"promise"}
    return plan


a_problem = partial(problem_of_networks, sm_percent_step=5.0)


def test_alone_a_service_gets_the_least_share_that_keeps_half_the_slo() -> None:
    # 40 rps within 50 ms. At 25 %: 25 rps at batch 1, 80 ms at batch 4. At 50 % both batches do; batch 1 may grow by
    # 1.25 (25 ms per request), batch 4 by 50 / 48.
    rows = (
        a_row(25.0, 40.0),
        a_row(25.0, 80.0, batch=4),
        a_row(50.0, 20.0),
        a_row(50.0, 48.0, batch=4),
        a_row(100.0, 10.0),
    )
    (gpu,) = plan_of(a_problem(a_service(rate_rps=40.0), networks={"net": rows})).gpus
    assert [
        (one.sm_percent, one.batch, one.arrival_rate_rps) for one in gpu.replicas
    ] == [(50.0, 1, pytest.approx(40.0))]


def test_neighbours_are_widened_until_both_keep_their_rule() -> None:
    # 20 % serve 40 rps alone (24 of 25 ms). Next to a pressure of 0.1 that is 26.4 ms, so that both need 30 %:
    # 15 · 1.1 = 16.5 ms.
    rows = tuple(row._replace(pressure=0.1) for row in QUIET)
    services = (a_service("a", rate_rps=40.0), a_service("b", rate_rps=40.0))
    assert shares_by_gpu(plan_of(a_problem(*services, networks={"net": rows}))) == [
        {"a": 30.0, "b": 30.0}
    ]


def test_a_service_goes_where_it_needs_the_least_extra_share() -> None:
    # Two services of 60 % do not fit together. The third, 20 % alone, would need 30 % next to the one that presses.
    networks = {
        "loud": [a_row(60.0, 20.0, pressure=0.2)],
        "calm": [a_row(60.0, 20.0, pressure=0.01)],
        "small": [a_row(20.0, 24.0), a_row(30.0, 15.0)],
    }
    services = (
        a_service("a-loud", network="loud", rate_rps=30.0),
        a_service("b-calm", network="calm", rate_rps=30.0),
        a_service("c-small", network="small", rate_rps=40.0),
    )
    found = shares_by_gpu(plan_of(a_problem(*services, networks=networks)))
    assert found == [{"a-loud": 60.0}, {"b-calm": 60.0, "c-small": 20.0}]
    # Where the calm one is not there, it takes the extra share rather than a GPU of its own.
    found = shares_by_gpu(
        plan_of(a_problem(services[0], services[2], networks=networks))
    )
    assert found == [{"a-loud": 60.0, "c-small": 30.0}]


def test_a_rate_beyond_a_whole_gpu_is_split_evenly_over_few_replicas() -> None:
    # A whole GPU serves 100 rps: three replicas of 83.3 rps, which 60 % serve (12 ms).
    plan = plan_of(a_problem(a_service(rate_rps=250.0), networks={"net": QUIET}))
    (gpu,) = plan.gpus
    assert (gpu.count, gpu.replicas[0].sm_percent) == (3, 60.0)
    assert gpu.replicas[0].arrival_rate_rps == pytest.approx(250.0 / 3)


@pytest.mark.parametrize("case", unserved_cases(83.333, 50.0, 250.0))
def test_what_cannot_be_served_names_its_rule(case: tuple[Any, ...]) -> None:
    service, count, *expected = case
    plan = plan_of(a_problem(service, networks={"net": QUIET}, count=count))
    assert_unserved(plan, *expected)


@pytest.mark.skipif(
    not (FOLDER.is_dir() and SERVICES.is_dir()), reason="needs the shared problems"
)
@pytest.mark.parametrize(
    ("services", "gpus"),
    [
        (12, 3),
        (50, 10),
        pytest.param(100, 22, marks=pytest.mark.thorough),
        pytest.param(400, 83, marks=pytest.mark.thorough),
    ],
)
def test_on_its_own_v100_problems_it_needs_about_the_gpus_that_the_papers_program_needs(
    services: int, gpus: int
) -> None:
    problem = with_services(load("v100_3models_n100_half"), services)
    plan = plan_of(problem)
    assert plan.unserved == ()
    assert (
        violations(problem, plan) == ()
    )  # the law of these problems is iGniter's own rule
    assert sum(gpu.count for gpu in plan.gpus) == pytest.approx(gpus, rel=0.05)
