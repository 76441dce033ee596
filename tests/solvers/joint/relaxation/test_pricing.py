"""Pricing against all patterns of small random GPU types: bounds hold, found patterns are what they say."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from solvers.joint.kernels.types import Effort
from solvers.joint.patterns.columns import Pattern, Priced
from solvers.joint.patterns.tables import Tables, make_tables
from solvers.joint.relaxation.pricing import MAX_HALVINGS, Pricer
from solvers.types.problem import Problem
from tests.examples import seeds
from tests.solvers.joint.modes import (
    QUICK,
    THOROUGH,
    Gpu,
    Prices,
    best_worth,
    capacities,
    gpus,
    is_lawful,
    random_prices,
    random_problem,
    worth_of,
)

EFFORTS = (
    QUICK,
    Effort(steps=4, nodes=0, halvings=3, tolerance=5e-4),
    Effort(steps=0, nodes=3, halvings=1, tolerance=0.0),
    Effort(steps=8, nodes=0, halvings=MAX_HALVINGS, tolerance=0.0),
    THOROUGH,
)
SEEDS = seeds(40)


def price(tables: Tables, prices: Prices, effort: Effort) -> Priced:
    (priced,) = Pricer(tables).price(prices.worth(tables), [prices.threshold], effort)
    return priced


def gpu_of(problem: Problem, tables: Tables, pattern: Pattern) -> Gpu:
    mode = tables.modes[pattern.mode]
    found = []
    for item in pattern.items:
        service = int(mode.service[item])
        points = problem.points_of(
            problem.services[service].network, problem.gpu_types[0].name
        )
        assert points is not None
        found.append((service, points.rows[mode.row[item]]))
    return tuple(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_pattern_is_worth_more_than_the_bound(seed: int) -> None:
    draw = random.Random(seed)
    problem = random_problem(draw)
    tables = make_tables(problem)
    for _ in range(3):
        prices = random_prices(draw, problem)
        best = best_worth(problem, prices)
        if not tables.modes:
            assert best == 0.0
            continue
        for effort in EFFORTS:
            assert price(tables, prices, effort).bound >= best * (1.0 - 1e-9), effort


@pytest.mark.parametrize("seed", SEEDS)
def test_patterns_obey_all_rules_and_beat_the_threshold(seed: int) -> None:
    draw = random.Random(1000 + seed)
    problem = random_problem(draw)
    tables, prices = make_tables(problem), random_prices(draw, problem)
    if not tables.modes:
        return
    for effort in EFFORTS:
        priced = price(tables, prices, effort)
        for pattern in priced.patterns:
            gpu = gpu_of(problem, tables, pattern)
            assert is_lawful(problem, gpu)
            worth = worth_of(problem, prices, gpu)
            assert (
                prices.threshold * (1.0 + effort.tolerance) * (1.0 - 1e-9)
                <= worth
                <= priced.bound * (1.0 + 1e-9)
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_thorough_pricing_finds_the_best_pattern_and_proves_it(seed: int) -> None:
    draw = random.Random(2000 + seed)
    problem = random_problem(draw)
    tables, prices = make_tables(problem), random_prices(draw, problem)
    if not tables.modes:
        return
    best, priced = best_worth(problem, prices), price(tables, prices, THOROUGH)
    assert priced.bound == pytest.approx(max(prices.threshold, best), rel=1e-5)
    if best > prices.threshold * (1.0 + 1e-9):
        worths = [
            worth_of(problem, prices, gpu_of(problem, tables, pattern))
            for pattern in priced.patterns
        ]
        assert max(worths) == pytest.approx(best, rel=1e-9)
    else:
        assert not priced.patterns


def test_a_tolerance_costs_the_bound_no_more_than_itself() -> None:
    draw = random.Random(5)
    for _ in range(20):
        problem = random_problem(draw)
        tables, prices = make_tables(problem), random_prices(draw, problem)
        if tables.modes:
            bound = price(tables, prices, THOROUGH._replace(tolerance=0.01)).bound
            assert bound <= 1.01 * max(
                prices.threshold, best_worth(problem, prices)
            ) * (1.0 + 1e-5)


@pytest.mark.parametrize("seed", seeds(8))
def test_what_was_priced_before_changes_no_proof(seed: int) -> None:
    """Multipliers stay from one round to the next, whatever the prices were."""
    draw = random.Random(3000 + seed)
    problem = random_problem(draw)
    tables = make_tables(problem)
    if not tables.modes:
        return
    pricer = Pricer(tables)
    for _ in range(8):
        prices = random_prices(draw, problem)
        for effort in (QUICK, THOROUGH):
            (priced,) = pricer.price(prices.worth(tables), [prices.threshold], effort)
            assert priced.bound >= best_worth(problem, prices) * (1.0 - 1e-9)
        assert priced.bound == pytest.approx(
            max(prices.threshold, best_worth(problem, prices)), rel=1e-5
        )


def test_threads_change_nothing() -> None:
    problem = random_problem(random.Random(7), clocks_mhz=(1000.0,))
    tables, prices = make_tables(problem), random_prices(random.Random(8), problem)
    alone = price(tables, prices, THOROUGH)
    with ThreadPoolExecutor(2) as pool:
        (shared,) = Pricer(tables, pool=pool).price(
            prices.worth(tables), [prices.threshold], THOROUGH
        )
    assert (alone.bound, alone.patterns) == (shared.bound, shared.patterns)


def test_more_halvings_than_there_is_memory_for_are_refused() -> None:
    problem = random_problem(random.Random(7))
    tables, prices = make_tables(problem), random_prices(random.Random(8), problem)
    with pytest.raises(ValueError, match="7 times at most, not 8"):
        price(tables, prices, THOROUGH._replace(halvings=MAX_HALVINGS + 1))


def test_where_nothing_earns_nothing_is_found() -> None:
    problem = random_problem(random.Random(7))
    tables, count = make_tables(problem), len(problem.services)
    priced = price(tables, Prices((0.0,) * count, (0.0,) * count, 0.5), THOROUGH)
    assert (priced.bound, priced.patterns) == (0.5, ())


def test_stairs_of_rounding_cuts_count_by_how_much_of_the_rate_is_carried() -> None:
    """One replica that carries more than half of its rate climbs one stair: 0.25 besides what its rps earn."""
    draw = random.Random(11)
    for _ in range(20):
        problem = random_problem(draw)
        tables, prices = make_tables(problem), random_prices(draw, problem)
        if not tables.modes:
            continue
        count = len(problem.services)
        stairs = np.tile([0.0, 0.25], (count, 1))
        worth = [
            entry._replace(edges=np.array([0.5]), stairs=stairs)
            for entry in prices.worth(tables)
        ]
        (priced,) = Pricer(tables).price(worth, [0.0], THOROUGH)
        best = _best_with_stairs(problem, prices)
        assert priced.bound == pytest.approx(best, rel=1e-5)


def _best_with_stairs(problem: Problem, prices: Prices) -> float:
    def climbed(gpu: Gpu) -> float:
        carried = capacities(problem, gpu)
        return 0.25 * sum(
            problem.services[at].arrival_rate_rps * 0.5 < rps
            for at, rps in carried.items()
        )

    return max(
        (worth_of(problem, prices, gpu) + climbed(gpu) for gpu in gpus(problem)),
        default=0.0,
    )
