"""Plans that serve as much with a GPU less, by annealing what changes."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from solvers.joint.heuristics.annealing import Annealer
from solvers.joint.heuristics.diving import DiveContext, complete_greedily
from solvers.joint.heuristics.gpu_elimination import eliminate_by_annealing, soft_demand
from solvers.joint.patterns.carried import carried
from tests.examples import seeds
from tests.solvers.instances import a_problem, a_service, a_type, random_problem
from tests.solvers.whole_program import dive_of, on_whole_gpus


def thinned(
    search: DiveContext, plan: Counter[int], gpus: int = 1
) -> Counter[int] | None:
    soft = soft_demand(search)
    return eliminate_by_annealing(
        search,
        Annealer(search.tools.tables, soft),
        soft,
        plan,
        gpus=gpus,
        is_first=True,
    )


def wasteful_plan(search: DiveContext) -> Counter[int]:
    """The greedy plan and one more GPU of its first column."""
    plan = complete_greedily(search.tools, search.demand, search.duals, {})
    return plan + Counter([min(plan)])


@pytest.mark.parametrize("seed", seeds(6))
def test_a_shrunk_plan_serves_as_much_for_less(seed: int) -> None:
    search = dive_of(random_problem(seed, services=8, types=2, gpus=12))
    plan = wasteful_plan(search)
    before = carried(search.tools.tables, search.tools.columns, plan)
    if (before.rps < search.demand.rate).any() or (
        before.gpus > search.demand.stock
    ).any():
        return
    found = thinned(search, plan)
    assert found is not None
    after = carried(search.tools.tables, search.tools.columns, found)
    assert (after.rps >= search.demand.rate * (1.0 - 1e-9)).all()
    assert (after.replicas >= search.demand.fewest).all()
    assert (after.replicas <= search.demand.most).all()
    assert (after.gpus <= search.demand.stock).all()
    assert after.cost < before.cost
    assert sum(found.values()) < sum(plan.values())


def test_where_all_gpus_are_needed_nothing_is_found() -> None:
    search = dive_of(
        a_problem(a_service("chat", rate_rps=390.0), types=(a_type(count=6),))
    )
    # A GPU carries 100 rps.
    assert thinned(search, on_whole_gpus(search, 4)) is None


@pytest.mark.parametrize("gpus", [2, 3, 50])
def test_several_gpus_may_go_at_once(gpus: int) -> None:
    search = dive_of(
        a_problem(a_service("chat", rate_rps=390.0), types=(a_type(count=20),))
    )
    found = thinned(search, on_whole_gpus(search, 7), gpus)
    if gpus > 3:
        assert found is None
    else:
        assert found is not None and found.total() <= 7 - gpus + 1
        taken = carried(search.tools.tables, search.tools.columns, found)
        assert (taken.rps >= search.demand.rate * (1.0 - 1e-9)).all()


def test_threads_do_not_change_what_is_found() -> None:
    problem = random_problem(3, services=8, types=2, gpus=12)
    alone = dive_of(problem)
    with ThreadPoolExecutor(2) as pool:
        together = dive_of(problem, executor=pool)
        assert thinned(alone, wasteful_plan(alone)) == thinned(
            together, wasteful_plan(together)
        )
