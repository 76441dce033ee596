"""Plans that serve as much with fewer or cheaper GPUs."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from solvers.joint.heuristics.diving import DiveContext, complete_greedily
from solvers.joint.heuristics.gpu_elimination import eliminate_gpus
from solvers.joint.kernels.exchange import ExchangeState, exchange
from solvers.joint.patterns.carried import carried
from solvers.joint.patterns.deadline import never
from solvers.joint.relaxation.column_pool import LossPool
from tests.examples import seeds
from tests.solvers.instances import a_problem, a_service, a_type, random_problem
from tests.solvers.whole_program import dive_of, on_whole_gpus


def search_of(seed: int, is_over: Callable[[], bool] = never) -> DiveContext:
    problem = random_problem(seed, services=8, types=2, gpus=12)
    return dive_of(problem, seed=seed, is_over=is_over)


def greedy_plan(search: DiveContext) -> Counter[int]:
    return complete_greedily(search.tools, search.demand, search.duals, {})


@pytest.mark.parametrize("seed", seeds(6))
def test_a_shrunk_plan_serves_as_much_for_less(seed: int) -> None:
    search = search_of(seed)
    plan = greedy_plan(search)
    before = carried(search.tools.tables, search.tools.columns, plan)
    if (before.rps < search.demand.rate).any():
        return
    found = eliminate_gpus(search, plan)
    if found is not None:
        after = carried(search.tools.tables, search.tools.columns, found)
        assert (after.rps >= search.demand.rate * (1.0 - 1e-9)).all()
        assert (after.gpus <= search.demand.stock).all()
        assert after.cost < before.cost


def test_a_superfluous_gpu_goes() -> None:
    # A GPU carries 100 rps: two do for 130.
    service = a_service("chat", rate_rps=130.0)
    search = dive_of(a_problem(service, types=(a_type(count=6),)))
    found = eliminate_gpus(search, on_whole_gpus(search, 4))
    assert found is not None
    assert sum(found.values()) < 4


def test_nothing_is_found_when_time_is_over() -> None:
    search = search_of(0, is_over=lambda: True)
    assert eliminate_gpus(search, greedy_plan(search)) is None


@pytest.mark.parametrize("seed", seeds(6))
def test_exchanges_keep_the_types_and_never_make_it_worse(seed: int) -> None:
    search = search_of(seed)
    tools, demand = search.tools, search.demand
    stack = LossPool(tools.tables, tools.columns, search.duals).stack()
    gpus = np.array(sorted(greedy_plan(search).elements()), np.int32)[1:]
    taken = carried(tools.tables, tools.columns, Counter(gpus.tolist()))
    worth = 4.0 * np.maximum(search.duals.rps, 1e-3)
    fleet = ExchangeState(
        gpus=gpus.copy(),
        need=demand.rate - taken.rps,
        missing=demand.fewest - taken.replicas,
        room=demand.most - taken.replicas,
        worth=worth,
        missing_price=demand.missing_price,
        types=len(demand.stock),
    )

    def value(numbers: np.ndarray[tuple[int], np.dtype[np.int32]]) -> float:
        own = carried(tools.tables, tools.columns, Counter(numbers.tolist()))
        short = np.maximum(demand.rate - own.rps, 0.0) @ worth
        missing = np.maximum(demand.fewest - own.replicas, 0.0) @ demand.missing_price
        return float(short + missing + stack.price[numbers].sum())

    before = value(gpus)
    exchange(stack, fleet, 200, np.array([seed + 1], np.uint64))
    after = carried(tools.tables, tools.columns, Counter(fleet.gpus.tolist()))
    assert value(fleet.gpus) <= before + 1e-6
    assert sorted(stack.gpu_type[fleet.gpus]) == sorted(stack.gpu_type[gpus])
    assert fleet.need == pytest.approx(demand.rate - after.rps, abs=1e-6)
    assert (after.replicas <= demand.most).all()
