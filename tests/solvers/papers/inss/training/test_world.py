"""The world of InSS's actor: rewards and masks by hand, and the same laws as the batch decision and the policy."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.papers.inss.local_search import (
    SLOTS_PER_WORK_UNIT,
    SearchEffort,
    improve,
    random_starts,
)
from solvers.papers.inss.options import ServiceFigures
from solvers.papers.inss.provisioning import (
    BatchDecider,
    Provisioned,
    ProvisioningRules,
    Share,
)
from solvers.papers.inss.training.world import (
    PENALTY,
    ProvisioningWorld,
    late_shares,
)
from solvers.types.outcome import Budget
from solvers.types.problem import OperatingPoints, Problem
from tests.examples import seeds
from tests.solvers.instances import a_problem, a_row, a_service, a_type, random_problem
from tests.solvers.papers.inss.actors import world_of

ROWS = tuple(
    a_row(
        percent,
        batch * 1000.0 / percent,
        batch=batch,
        memory_mib=3000.0 + 1000.0 * batch,
        pressure=0.1,
    )
    for percent in (50.0, 100.0)
    for batch in (1, 4)
)


def two_services(**changes: float) -> Problem:
    services = (
        a_service("one", rate_rps=20.0, slo_ms=200.0),
        a_service("two", rate_rps=5.0, slo_ms=300.0),
    )
    problem = a_problem(
        services[0],
        replace(services[1], network="other"),
        types=(a_type(count=2, **changes),),
        rows=ROWS,
    )
    other = OperatingPoints(network="other", gpu_type="gpu", sensitivity=0.0, rows=ROWS)
    return replace(problem, points=(*problem.points, other))


NONE = np.zeros((1, 2))
RATES = np.array([[20.0, 5.0]])
# Options: 0 and 1 are 50 % and 100 % of the first GPU, 2 and 3 of the second one, 4 is nowhere.
NOWHERE = 4


def test_rewards_by_hand() -> None:
    world = world_of(two_services())
    decided = world.decide(np.array([[0, 3]]), NONE)
    # Half a GPU: batch 4 in 80 ms, 4 / 80 ms · 0.8 = 40/s. A whole one: batch 4 in 40 ms, 80/s.
    assert decided.carried_rps[0] == pytest.approx([40.0, 80.0])
    # A whole GPU with batch 1 executes 100/s: 0.4 + 0.8, and none is late.
    assert world.entire_gpu_rps == pytest.approx([100.0, 100.0])
    assert world.rewards(decided, RATES)[0] == pytest.approx(1.2)
    assert world.used_mib(np.array([[0, 3]]), decided)[0] == pytest.approx(
        [7000.0, 7000.0]
    )


def test_what_is_not_carried_is_punished() -> None:
    world = world_of(two_services())
    rates = np.array([[50.0, 5.0]])
    decided = world.decide(np.array([[0, NOWHERE]]), NONE)
    # 10 of 50 and 5 of 5 are late: −100 · (0.2 + 1) + 0.4.
    assert late_shares(world.carried_of_services(decided), rates)[0] == pytest.approx(
        [0.2, 1.0]
    )
    assert world.rewards(decided, rates)[0] == pytest.approx(0.4 - 1.2 * PENALTY)


def test_masks_keep_every_limit() -> None:
    world = world_of(two_services())
    nobody = np.full((1, 2), NOWHERE)
    assert world.allowed(nobody, 0, RATES).tolist() == [[True, True, True, True, False]]
    # The first GPU is given away as a whole, so only the second one is left.
    assert world.allowed(np.array([[1, NOWHERE]]), 1, RATES).tolist() == [
        [False, False, True, True, False]
    ]
    # No one asks for the second service: it goes nowhere.
    assert world.allowed(nobody, 1, np.array([[20.0, 0.0]])).tolist() == [
        [False] * 4 + [True]
    ]
    # 7000 MiB hold one smallest batch of 4000 only.
    small = world_of(two_services(memory_mib=7000.0))
    assert small.allowed(np.array([[0, NOWHERE]]), 1, RATES).tolist() == [
        [False, False, True, True, False]
    ]


def test_a_gpu_that_is_given_away_twice_carries_nothing() -> None:
    world = world_of(two_services())
    assert world.decide(np.array([[1, 0]]), NONE).carried_rps[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize("knows_neighbours", [True, False])
def test_the_world_decides_as_the_policy_does(
    seed: int, knows_neighbours: bool
) -> None:
    problem = random_problem(seed, services=4, types=2, gpus=2)
    world = world_of(problem, knows_neighbours=knows_neighbours)
    decider = BatchDecider(
        problem=problem, rules=ProvisioningRules(knows_neighbours=knows_neighbours)
    )
    rates = np.array(
        [problem.service(name).arrival_rate_rps for name in world.setting.services]
    )
    starts = random_starts(world, rates, count=20, seed=seed)
    carried = world.carried_of_services(
        world.decide(starts, np.zeros((len(starts), len(rates))))
    )
    for chosen, found in zip(starts, carried, strict=True):
        shares: list[list[Share]] = [[] for _ in world.setting.gpus]
        for slot, option in enumerate(chosen.tolist()):
            if option < world.options - 1:
                gpu, percent = world.place(option)
                shares[gpu].append(Share(world.setting.services[slot], percent))
        provision = tuple(
            Provisioned(name, tuple(given))
            for name, given in zip(world.setting.gpus, shares, strict=True)
        )
        settled = decider.settle(provision)
        expected = [settled.carried_rps[name] for name in world.setting.services]
        assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", seeds(4))
def test_search_is_no_worse_than_its_starts_and_repeatable(seed: int) -> None:
    problem = random_problem(seed, services=4, types=2, gpus=2)
    world = world_of(problem)
    rates = np.array(
        [problem.service(name).arrival_rate_rps for name in world.setting.services]
    )
    starts = random_starts(world, rates, count=6, seed=seed)
    weights, queued = np.ones(len(rates)), np.zeros(len(rates))
    figures = ServiceFigures(rates, queued, weights)
    chosen, score = improve(world, starts, figures, passes=4, effort=plenty())
    again, same = improve(world, starts, figures, passes=4, effort=plenty())
    assert chosen.tolist() == again.tolist()
    assert score == same
    for start in starts:
        alone = improve(world, start[None], figures, passes=0, effort=plenty())
        assert score >= alone[1]


def plenty() -> SearchEffort:
    return SearchEffort(Budget(seconds=math.inf, work=math.inf))


@pytest.mark.parametrize(
    "budget", [Budget(work=0.01), Budget(work=math.inf, elapsed=lambda: 2.0)]
)
def test_a_search_ends_with_its_budget_at_no_less_than_it_began_with(
    budget: Budget,
) -> None:
    world = world_of(random_problem(1, services=6, types=2, gpus=3))
    rates = np.full(len(world.setting.services), 100.0)
    figures = ServiceFigures(rates, np.zeros(len(rates)), np.ones(len(rates)))
    starts = random_starts(world, rates, count=16, seed=1)
    counted = Counted(world)
    effort = SearchEffort(budget)
    _, score = improve(counted, starts, figures, passes=100, effort=effort)  # type: ignore[arg-type]
    assert effort.is_spent
    _, begun = improve(world, starts, figures, passes=0, effort=plenty())
    assert score >= begun
    # What was judged, the starts apart, is what the work pays for; seconds that are over pay for nothing.
    paid = budget.work * SLOTS_PER_WORK_UNIT if budget.elapsed() == 0.0 else 0.0
    assert counted.slots - starts.size <= paid


class Counted:
    """A world that counts the slots of the provisions that it is asked about."""

    def __init__(self, world: ProvisioningWorld) -> None:
        self._world = world
        self.slots = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def decide(self, chosen: Any, queued: Any) -> Any:
        self.slots += chosen.size
        return self._world.decide(chosen, queued)
