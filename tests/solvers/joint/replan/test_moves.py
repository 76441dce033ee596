"""Prices of moves: what a new GPU costs beyond its worth, and problems too fine to look for new patterns."""

import random
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np

from solvers.check import violations
from solvers.joint.heuristics.fluid import is_too_fine
from solvers.joint.heuristics.residual import SearchContext
from solvers.joint.kernels.scan import ScanPrices, Stack, move_costs
from solvers.joint.kernels.types import Effort, Reals, Worth
from solvers.joint.patterns.columns import Priced
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.running import NO_KIND
from solvers.joint.relaxation.pricing import Pricer
from solvers.joint.replan.change import change
from solvers.joint.replan.warm_start import WarmStart
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from tests.solvers.instances import gpu_plan, replica_on
from tests.solvers.joint.heuristics.test_fluid import a_fluid_problem

STACK = Stack(
    service=np.array(
        [[0, 1], [1, 2]], np.int32
    ),  # 2 services: the second column has one replica.
    capacity=np.array([[10.0, 4.0], [30.0, 0.0]]),
    price=np.array([3.0, 5.0]),
    gpu_type=np.array([0, 1], np.int32),
)
KINDS = np.array([[1, NO_KIND], [0, NO_KIND]])


class Refusing(Pricer):
    """Fails when it is asked for patterns."""

    def price(
        self, worth: Sequence[Worth], thresholds: Sequence[float], effort: Effort
    ) -> list[Priced]:
        raise AssertionError("priced")


class Unpriced(WarmStart):
    """Warm state with columns alone."""

    def tools(self, problem: Problem, executor: Executor | None) -> SearchContext:
        tools = super().tools(problem, executor)
        return tools._replace(pricer=Refusing(tools.tables))


def costs(*, stock: tuple[float, float] = (9.0, 9.0)) -> Reals:
    prices = ScanPrices(
        rate=np.array([8.0, 20.0]),
        rps=np.array([0.1, 0.2]),
        presence=np.zeros(2),
        max_replicas=np.full(2, np.inf),
        stock=np.array(stock),
        gpu=np.array([0.0, -0.5]),
    )
    return move_costs(
        STACK, np.array([0.7, 0.2]), KINDS, prices, np.array([-0.05, -0.3])
    )


def test_a_new_gpu_costs_its_price_and_its_starts_less_what_of_it_is_wanted() -> None:
    first = 3.0 + 0.7 - (0.1 * 8.0 + 0.2 * 4.0) + 0.3
    second = 5.0 + 0.2 + 0.5 - 0.2 * 20.0 + 0.05
    np.testing.assert_allclose(costs(), (first, second))


def test_a_gpu_of_which_none_is_left_is_out_of_the_question() -> None:
    first, second = costs(stock=(9.0, 0.0))
    assert np.isfinite(first)
    assert np.isinf(second)


def test_growth_of_shares_too_fine_to_price_is_served_by_the_columns_at_hand() -> None:
    problem = a_fluid_problem(random.Random(1), services=2, types=1, step=0.02)
    narrow = tuple(replica_on(one.name, 1.0) for one in problem.services)
    runs = Plan(
        policy="joint",
        gpus=(gpu_plan(*narrow, gpu_type="type0"),),
    )
    problem = replace(problem, current=runs)
    warm = Unpriced(problem)
    assert is_too_fine(warm.tables(problem))
    found = change(problem, warm, None, is_over=never)
    assert found.changed is not None
    assert found.changed.unserved == ()
    assert violations(problem, found.changed) == ()
