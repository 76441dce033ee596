"""The bench of the promise: what it simulates is the plan, and its shares are those of the law."""

import numpy as np
import pytest

from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem


@pytest.fixture(scope="module")
def problem() -> Problem:
    from bench.synthetic_problems import synthetic_problem

    return synthetic_problem(4, 4, 3)


@pytest.fixture(scope="module")
def plan(problem: Problem) -> Plan:
    from solvers.joint.solve import solve

    return solve(problem, Budget(seconds=np.inf, work=0.2))[0].plan


def test_the_stations_of_a_service_carry_all_of_its_rate(
    problem: Problem, plan: Plan
) -> None:
    from bench.promise import stations

    shares = dict.fromkeys((service.name for service in problem.services), 0.0)
    for station in stations(problem, plan):
        shares[station.service] += station.share
    assert list(shares.values()) == pytest.approx([1.0] * len(shares))


def test_the_share_in_time_is_the_laws(problem: Problem, plan: Plan) -> None:
    from bench.promise import attainment, stations
    from solvers.laws.bulk_queue import miss_probability

    found = attainment(problem, plan, 400_000, seed=1)
    expected = dict.fromkeys(found, 0.0)
    for station in stations(problem, plan):
        pace, execution_s = station.pace, float(station.pace.batch_s[-1])
        utilisation = station.arrival_rate_rps * execution_s / pace.batch
        late = miss_probability(
            pace.batch, utilisation=utilisation, slo_ratio=pace.slo_s / execution_s
        )
        expected[station.service] += station.share * (1.0 - float(late))
    for name, share in found.items():
        assert share == pytest.approx(expected[name], abs=0.02)
        assert share >= problem.service(name).percentile - 0.02
