"""Annealed plans: lawful, the best of tiny problems, the same for the same seed on any number of threads."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from solvers.check import violations
from solvers.joint.heuristics.annealing import Annealer, advance
from solvers.joint.heuristics.integer_plans import shortage_cost, state_plan
from solvers.joint.patterns.columns import Pattern
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.decode import decode
from tests.examples import seeds
from tests.solvers.instances import random_problem, with_services, with_types
from tests.solvers.whole_program import Setting, optimum, set_up

MOVES = 20_000


def annealed(
    setting: Setting, fleet: tuple[int, ...], *, seed: int = 0, moves: int = MOVES
) -> Counter[Pattern]:
    chain = Annealer(setting.tables, setting.demand).chain(
        fleet, moves=moves, seed=seed
    )
    advance([chain], None, never)
    return chain.plan()


def numbered(setting: Setting, plan: Counter[Pattern]) -> dict[int, int]:
    setting.columns.add(plan)
    return {setting.columns.number(pattern): count for pattern, count in plan.items()}


@pytest.mark.parametrize("seed", seeds(8))
def test_plans_keep_every_limit_of_the_gpus_and_the_fleet(seed: int) -> None:
    problem = random_problem(seed, services=5, types=2, gpus=6)
    setting = set_up(problem)
    fleet = (2, 3)
    plan = annealed(setting, fleet)
    used = Counter[int]()
    for pattern, count in plan.items():
        used[setting.tables.modes[pattern.mode].gpu_type] += count
    assert all(used[gpu_type] <= count for gpu_type, count in enumerate(fleet))
    roomy = with_types(problem, count=None)
    decoded = decode(
        roomy, setting.tables, setting.columns, numbered(setting, plan), policy="joint"
    )
    assert not [entry for entry in violations(roomy, decoded) if entry.rule != "demand"]


@pytest.mark.parametrize("seed", seeds(8))
def test_tiny_fleets_are_used_as_well_as_any_plan_could(seed: int) -> None:
    """With GPUs that cost the same used or not, the least of shortages and watts is what the whole program finds."""
    setting = set_up(random_problem(seed, services=3, types=1, gpus=2))
    free = setting.tables._replace(
        modes=tuple(mode._replace(price=0.0) for mode in setting.tables.modes),
        price=0.0 * setting.tables.price,
    )
    free_setting = Setting(free, setting.demand, type(setting.columns)(free))
    gpus = int(setting.demand.stock[0])
    plan = annealed(setting, (gpus,), moves=60_000)
    stated = state_plan(
        free_setting.tools(), setting.demand, numbered(free_setting, plan)
    )
    reached = stated.cost_usd_per_hour + shortage_cost(setting.demand, stated)
    assert reached == pytest.approx(optimum(free_setting), rel=1e-6, abs=1e-9)


def test_the_same_seed_gives_the_same_plan_on_any_number_of_threads() -> None:
    setting = set_up(random_problem(3, services=6, types=2, gpus=8))

    def plans(executor: ThreadPoolExecutor | None) -> list[Counter[Pattern]]:
        annealer = Annealer(setting.tables, setting.demand)
        chains = [annealer.chain((3, 3), moves=MOVES, seed=seed) for seed in (1, 2)]
        advance(chains, executor, never)
        return [chain.plan() for chain in chains]

    alone = plans(None)
    with ThreadPoolExecutor(2) as executor:
        assert plans(executor) == alone
    assert alone[0] != alone[1]


def test_annealing_from_a_plan_never_ends_worse() -> None:
    setting = set_up(random_problem(5, services=6, types=2, gpus=8))

    def reached(plan: Counter[Pattern]) -> float:
        stated = state_plan(setting.tools(), setting.demand, numbered(setting, plan))
        watts = stated.cost_usd_per_hour - sum(
            count * setting.tables.modes[pattern.mode].price
            for pattern, count in plan.items()
        )
        return watts + shortage_cost(setting.demand, stated)

    annealer, plan = Annealer(setting.tables, setting.demand), annealed(setting, (3, 3))
    for seed in range(3):
        start = [
            setting.columns[number]
            for number, count in numbered(setting, plan).items()
            for _ in range(count)
        ]
        chain = annealer.chain((3, 3), moves=10_000, seed=seed, start=start)
        advance([chain], None, never)
        assert reached(chain.plan()) <= reached(plan) + 1e-9
        plan = chain.plan()


def test_it_stops_after_the_part_in_which_time_is_over() -> None:
    setting = set_up(random_problem(3, services=6, types=2, gpus=8))
    chain = Annealer(setting.tables, setting.demand).chain((3, 3), moves=10**9, seed=0)
    asked = iter((False, False, True))
    advance([chain], None, lambda: next(asked))
    assert not chain.is_done
    assert chain.plan()


def test_most_replicas_are_kept_where_that_is_cheaper() -> None:
    problem = random_problem(2, services=3, types=1, gpus=4)
    limited = with_services(problem, max_replicas=2, min_replicas=0)
    setting = set_up(limited)
    plan = annealed(setting, (4,))
    replicas = np.zeros(3)
    for pattern, count in plan.items():
        np.add.at(
            replicas,
            setting.tables.modes[pattern.mode].service[list(pattern.items)],
            float(count),
        )
    assert (replicas <= setting.demand.most).all()
