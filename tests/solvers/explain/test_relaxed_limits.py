"""Reliefs: what is said to be saved is saved, and what helps most comes first."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from solvers.explain.neighbours import NeighbourReader
from solvers.explain.relaxed_limits import LOOSER
from solvers.explain.solve_relaxed import POINT, solved_reliefs, with_percentile
from solvers.joint.relaxation.dual_prices import Relaxed, relax
from solvers.joint.solve import solve
from solvers.tick.survive import with_limits
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.survival import SurvivalGoal
from tests.examples import IS_THOROUGH
from tests.solvers.instances import a_problem, a_row, a_service, a_type
from tests.solvers.problems import tiny_problem
from tests.solvers.whole_program import optimum, set_up

SEEDS = range(90 if IS_THOROUGH else 45)


@cache
def cases() -> list[tuple[int, Problem, Plan, Relaxed]]:
    found = []
    for seed in SEEDS:
        problem = tiny_problem(seed)
        base = relax(problem)
        if (
            base is not None
            and base.prices().unit == "usd_per_hour"
            and np.isfinite(min_cost(problem))
        ):
            plan = solve(problem, Budget(seconds=5.0, work=0.2))[0].plan
            found.append((seed, problem, plan, base))
    return found


@cache
def min_cost(problem: Problem) -> float:
    return optimum(set_up(problem), is_whole=False, serves_all=True)


def loosened(problem: Problem, kind: str, subject: str) -> Problem:
    """The problem with one limit loosened, without the code that is tested."""
    types, services = list(problem.gpu_types), list(problem.services)
    for at, gpu_type in enumerate(types):
        if kind == "stock" and gpu_type.name == subject:
            types[at] = replace(gpu_type, count=(gpu_type.count or 0) + 1)
        if kind == "power_cap" and gpu_type.name == subject:
            types[at] = replace(gpu_type, power_cap_w=LOOSER * gpu_type.power_cap_w)
    for at, service in enumerate(services):
        if kind == "slo" and service.name == subject:
            services[at] = replace(service, slo_ms=LOOSER * service.slo_ms)
        if kind == "gpu_types" and service.name == subject:
            services[at] = replace(service, allowed_gpu_types=None)
        if kind == "percentile" and service.name == subject:
            lower = round(service.percentile - POINT, 6)
            return with_percentile(problem, subject, lower)
        if kind == "max_replicas" and service.name == subject:
            services[at] = replace(
                service, max_replicas=(service.max_replicas or 0) + 1
            )
    return replace(problem, gpu_types=tuple(types), services=tuple(services))


@pytest.mark.seeded
def test_tested_savings_are_those_of_the_linear_program_and_the_largest_comes_first() -> (
    None
):
    """The program is over every pattern."""
    tested = ranked = 0
    for seed, problem, plan, base in cases():
        here = min_cost(problem)
        found = []
        for relief in solved_reliefs(
            NeighbourReader(problem), plan, base.prices(), base
        ):
            saved = here - min_cost(loosened(problem, relief.kind, relief.subject))
            if relief.basis == "relaxation":
                assert relief.saving == pytest.approx(saved, abs=3e-3 * here), (
                    seed,
                    relief,
                )
                found.append(saved)
            if relief.basis == "price":
                assert saved <= relief.saving + 3e-3 * here, (seed, relief)
        assert not found or found[0] >= max(found) - 3e-3 * here, seed
        tested += len(found)
        ranked += len(found) > 1
    assert tested > 5
    assert ranked > 1


def test_a_power_cap_that_binds_is_found() -> None:
    # Only half of a GPU may be used under 105 W; 60 % needs 110 W, which 115.5 W allow.
    rows = (a_row(50.0, 10.0), a_row(60.0, 10.0 / 1.2))
    problem = a_problem(
        a_service(rate_rps=150.0),
        types=(a_type(power_cap_w=105.0, sm_percent_step=10.0),),
        rows=rows,
    )
    base = relax(problem)
    assert base is not None
    plan = solve(problem, Budget(seconds=5.0, work=0.2))[0].plan
    (relief,) = (
        one
        for one in solved_reliefs(NeighbourReader(problem), plan, base.prices(), base)
        if one.kind == "power_cap"
    )
    assert relief.words == "power cap of gpu 105 → 115.5 W"
    assert relief.saving == pytest.approx(3.0 - 2.5, rel=1e-3)


def test_where_gpus_are_short_one_more_serves_more() -> None:
    problem = a_problem(a_service(rate_rps=350.0), types=(a_type(count=2),))
    base = relax(problem)
    assert base is not None
    plan = solve(problem, Budget(seconds=5.0, work=0.2))[0].plan
    first = solved_reliefs(NeighbourReader(problem), plan, base.prices(), base)[0]
    assert (first.kind, first.words) == ("stock", "one more gpu (2 → 3)")
    assert first.saving == pytest.approx(100.0, rel=1e-3)


def test_what_it_costs_to_survive_a_loss_is_told() -> None:
    """One replica of 100 rps on half a GPU does; to survive its loss whole takes two of them, on two GPUs."""
    free = a_problem(
        a_service("chat", rate_rps=50.0),
        types=(a_type("gpu", price_usd_per_hour=1.0),),
    )
    goal = SurvivalGoal(
        service="chat", loss="node", share=1.0, needed_rps=50.0, is_asked=True
    )
    problem = with_limits(
        replace(free, survival=(goal,)), {"node": {"gpu": {"n1": 1, "n2": 1}}}
    )
    base = relax(problem)
    assert base is not None
    cheapest = relax(free)
    assert cheapest is not None
    plan = solve(problem, Budget(seconds=5.0, work=0.2))[0].plan
    reliefs = solved_reliefs(NeighbourReader(problem), plan, base.prices(), base)
    (found,) = [relief for relief in reliefs if relief.kind == "survive"]
    assert found.subject == "chat"
    assert found.saving == pytest.approx(
        base.cost_usd_per_hour - cheapest.cost_usd_per_hour, rel=1e-3
    )
    assert found.saving > 0.0
