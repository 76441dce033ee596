"""Ends of budgets: by a clock, and where no time passes by the number of rounds."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from solvers.joint.heuristics.integer_plans import IntegerPlans
from solvers.joint.kernels.types import Effort
from solvers.joint.patterns.deadline import Deadline
from solvers.joint.relaxation.column_generation import Relaxation, generate, price
from solvers.joint.solution import JointSolution
from solvers.joint.solve import solve
from solvers.types.outcome import Budget
from tests.solvers.instances import random_problem
from tests.solvers.whole_program import set_up


class Clock:
    """Ticks when it is looked at."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now_s, self._tick_s = 0.0, tick_s

    def __call__(self) -> float:
        self.now_s += self._tick_s
        return self.now_s


def deadline(
    clock: Callable[[], float], *, seconds: float = 10.0, work: float = 1.0
) -> Deadline:
    return Deadline(
        Budget(seconds=seconds, work=work, elapsed=clock),
        set_up(random_problem(0)).tables,
    )


def test_a_share_ends_at_its_share_of_what_is_left() -> None:
    clock = Clock()
    whole = deadline(clock)
    clock.now_s = 2.0
    is_over, is_past = whole.part(0.5), whole.past(0.5)
    clock.now_s = 5.0
    assert not is_over()
    assert not is_past()
    assert not whole.is_late()
    clock.now_s = 6.0
    assert is_over()
    assert is_past()
    assert not whole.is_late()
    clock.now_s = 10.0
    assert whole.is_late()


def test_where_no_time_passes_rounds_are_counted_and_it_is_never_late() -> None:
    whole = deadline(lambda: 0.0, seconds=1e-3, work=0.0)
    is_over, is_past = whole.part(1.0), whole.past(0.0)
    asked = 0
    while not is_over():
        asked += 1
    assert 5 <= asked <= 1000
    assert not whole.is_late()
    assert not is_past()


def test_pricing_that_is_cut_short_proves_nothing() -> None:
    setting = set_up(random_problem(1))
    relaxation = setting.relaxed()
    late = setting.pricer().on(None, is_late=lambda: True)
    duals = relaxation.solution.duals
    assert all(
        np.isinf(one.bound)
        for one in price(
            setting.tables, late, setting.demand, duals, Effort(2, 0, 0, 2e-3)
        )
    )
    again = set_up(random_problem(1))
    cut = generate(
        again.tables,
        again.demand,
        again.pricer().on(None, is_late=lambda: True),
        again.columns,
        is_over=lambda: True,
    )
    assert cut.bound == -np.inf
    assert not cut.is_exact
    assert cut.solution.objective >= relaxation.bound - 1e-9


def test_a_whole_plan_is_there_before_the_relaxation_ends() -> None:
    setting = set_up(random_problem(2))
    tools = setting.tools()
    events: list[str] = []
    whole = IntegerPlans(
        tools, setting.demand, seed=0, on_better=lambda _: events.append("plan")
    )

    def look(found: Relaxation) -> None:
        events.append("round")
        if not whole.best.counts:
            whole.sketch(found)

    relaxation = generate(
        setting.tables, setting.demand, tools.pricer, setting.columns, on_round=look
    )
    assert events[:2] == ["round", "plan"]
    # The last round is not reported.
    assert events.count("round") == relaxation.rounds - 1 > 1


@cache
def best_of_third_problem() -> JointSolution:
    return solve(random_problem(3), Budget(work=1.0))[0]


@pytest.mark.parametrize("tick_s", [1e-4, 1e-2, 0.5, 20.0])
def test_however_soon_time_is_over_there_is_a_plan_and_no_false_bound(
    tick_s: float,
) -> None:
    problem, best = random_problem(3), best_of_third_problem()
    clock = Clock(tick_s)
    found, report = solve(problem, Budget(seconds=1.0, elapsed=clock))
    assert found.plan.gpus
    assert report.status.has_solution
    if (
        not best.plan.unserved
        and not found.plan.unserved
        and report.bound is not None
        and best.cost_bound is not None
    ):
        assert report.objective is not None
        assert report.objective >= best.cost_bound * (1.0 - 1e-9)


def test_two_threads_make_the_same_plan_as_one_under_a_work_limit() -> None:
    problem = random_problem(4)
    plans = [
        solve(problem, Budget(work=0.5, seed=3, threads=threads))[0].plan
        for threads in (1, 2)
    ]
    assert plans[0] == plans[1]
