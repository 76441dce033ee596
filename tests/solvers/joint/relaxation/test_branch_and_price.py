from itertools import count

import numpy as np
import pytest

from solvers.joint.patterns.carried import carried
from solvers.joint.relaxation.branch_and_price import BranchResult, Incumbent, branch
from tests.examples import tried
from tests.solvers.problems import tiny_problem
from tests.solvers.whole_program import Setting, optimum, set_up

GAP = 1e-6


def _branch(
    setting: Setting, incumbent: Incumbent | None = None, *, max_asked: int = 20_000
) -> BranchResult:
    """Time is over when it was asked for that number of times."""
    asked = count(1)
    pricer = setting.pricer()
    relaxation = setting.relaxed(pricer)
    return branch(
        setting.tables,
        setting.demand,
        pricer,
        setting.columns,
        relaxation,
        incumbent=incumbent,
        gap=GAP,
        is_over=lambda: next(asked) > max_asked,
    )


@pytest.mark.seeded
def test_equals_the_best_whole_plan_of_tiny_problems() -> None:
    for seed in range(tried(72)):
        setting = set_up(tiny_problem(seed), has_stock=seed % 3 > 0)
        found, best = _branch(setting), optimum(setting)
        assert found.bound <= best * (1 + 1e-6) + 1e-9, seed
        assert found.incumbent is not None
        assert found.bound >= found.incumbent.cost_usd_per_hour * (1.0 - GAP), seed
        assert found.incumbent.cost_usd_per_hour == pytest.approx(
            best, rel=2e-5, abs=1e-9
        ), seed


@pytest.mark.seeded
def test_its_plan_costs_what_it_says() -> None:
    for seed in range(tried(16)):
        setting = set_up(tiny_problem(seed))
        demand, incumbent = setting.demand, _branch(setting).incumbent
        assert incumbent is not None
        taken = carried(setting.tables, setting.columns, incumbent.counts)
        short = demand.shortage_price @ np.maximum(demand.rate - taken.rps, 0.0)
        missing = demand.missing_price @ np.maximum(demand.fewest - taken.replicas, 0.0)
        assert taken.cost + short + missing == pytest.approx(
            incumbent.cost_usd_per_hour, rel=1e-6, abs=1e-6
        ), seed
        assert (taken.gpus <= demand.stock).all()
        assert (taken.replicas <= demand.most).all()


@pytest.mark.seeded
def test_from_a_plan_that_serves_all_finds_the_best_that_does() -> None:
    compared = 0
    for seed in range(tried(40)):
        setting = set_up(tiny_problem(seed, services=4))
        best = optimum(setting, serves_all=True)
        if not np.isfinite(best) or best == 0.0:
            continue
        first = _a_plan_that_serves_all(setting)
        if first is None:
            continue
        found = _branch(setting, first)
        assert found.incumbent is not None
        assert found.bound <= best * (1 + 1e-6), seed
        assert found.incumbent.cost_usd_per_hour == pytest.approx(best, rel=2e-5), seed
        compared += 1
    assert compared >= tried(40) // 4


def _a_plan_that_serves_all(setting: Setting) -> Incumbent | None:
    """Single replicas, each service's cheapest per rps, as many as it takes; None where stock or limits forbid it."""
    counts: dict[int, int] = {}
    for service, rate in enumerate(setting.demand.rate):
        own = [
            number
            for number, column in enumerate(setting.columns)
            if column.service.tolist() == [service]
        ]
        if rate > 0.0:
            best = min(
                own,
                key=lambda number: (
                    setting.columns[number].price / setting.columns[number].capacity[0]
                ),
            )
            counts[best] = int(np.ceil(rate / setting.columns[best].capacity[0]))
    taken = carried(setting.tables, setting.columns, counts)
    demand = setting.demand
    is_lawful = (
        (taken.gpus <= demand.stock).all()
        and (taken.replicas <= demand.most).all()
        and (taken.replicas >= demand.fewest).all()
    )
    return Incumbent(counts=counts, cost_usd_per_hour=taken.cost) if is_lawful else None


@pytest.mark.seeded
def test_bound_never_falls_with_more_time_and_never_passes_the_optimum() -> None:
    for seed in range(tried(8)):
        problem = tiny_problem(seed, services=4)
        best = optimum(set_up(problem))
        bounds = [
            _branch(set_up(problem), max_asked=asked).bound
            for asked in (1, 4, 16, 64, 20_000)
        ]
        assert bounds == sorted(bounds), seed
        assert bounds[-1] <= best * (1 + 1e-6) + 1e-9, seed


def test_stops_at_once_when_time_is_over_with_what_is_known() -> None:
    setting = set_up(tiny_problem(3))
    pricer = setting.pricer()
    relaxation = setting.relaxed(pricer)
    given = Incumbent(counts={0: 1}, cost_usd_per_hour=relaxation.bound + 100.0)
    found = branch(
        setting.tables,
        setting.demand,
        pricer,
        setting.columns,
        relaxation,
        incumbent=given,
        is_over=lambda: True,
    )
    assert found.incumbent == given
    assert relaxation.bound <= found.bound < (1.0 - GAP) * given.cost_usd_per_hour
