"""Anti-affinity: no GPU carries a network twice, of whatever services."""

from dataclasses import replace

import pytest

from solvers.papers.hetsev.policy import make_plan
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Observed
from tests.examples import seeds
from tests.solvers.instances import a_problem, a_service, random_problem, with_rates


def plan_of(problem: Problem) -> Plan:
    plan, _, _ = make_plan(problem, Observed(at_s=0.0), None, Budget())
    return plan


def test_two_services_of_one_network_do_not_share_a_gpu() -> None:
    services = (a_service("chat", rate_rps=40.0), a_service("photo", rate_rps=50.0))
    plan = plan_of(a_problem(*services))
    assert sum(gpu.count for gpu in plan.gpus) == 2
    assert all(len(gpu.replicas) == 1 for gpu in plan.gpus)


@pytest.mark.parametrize("seed", seeds(6))
def test_identical_networks_are_apart_whatever_runs(seed: int) -> None:
    problem = random_problem(seed, services=12)
    plan = plan_of(problem)
    for problem_now in (problem, replace(with_rates(problem, 1.3), current=plan)):
        for gpu in plan_of(problem_now).gpus:
            networks = [problem.service(each.service).network for each in gpu.replicas]
            assert len(set(networks)) == len(networks)
