from dataclasses import replace

import numpy as np
import pytest

from solvers.joint.kernels.types import Effort
from solvers.joint.patterns.branching_rows import Boxes, BranchingRow, min_cost
from solvers.joint.patterns.tables import Tables, make_tables
from solvers.joint.relaxation.bounds import lower_bound, min_to_reach, whole_gpus
from solvers.joint.relaxation.column_generation import generate, price
from solvers.joint.relaxation.master_solution import Duals
from tests.examples import tried
from tests.solvers.instances import a_problem, a_service
from tests.solvers.problems import tiny_problem
from tests.solvers.whole_program import Setting, optimum, set_up

SLACK = 1 + 1e-9


def _some_duals(setting: Setting, seed: int) -> Duals:
    """Any prices at all, of the size that matters."""
    draw, demand = np.random.default_rng(seed), setting.demand
    services = len(demand.rate)
    least, most = (
        draw.uniform(0.0, 0.5, services),
        -draw.uniform(0.0, 0.5, services) * np.isfinite(demand.most),
    )
    limits = np.where(np.isfinite(demand.most), demand.most, 0.0)
    return Duals(
        rps=draw.uniform(0.0, 0.05, services),
        presence=least + most,
        stock=-draw.uniform(0.0, 1.0, len(demand.stock)),
        replicas_value=float(least @ demand.fewest + most @ limits),
    )


def _bound_of(setting: Setting, duals: Duals) -> float:
    priced = price(
        setting.tables, setting.pricer(), setting.demand, duals, Effort(4, 100, 2, 1e-3)
    )
    return lower_bound(
        setting.tables,
        setting.demand,
        duals,
        np.array([entry.bound for entry in priced]),
    )


def _is_affordable(setting: Setting, duals: Duals) -> bool:
    """Duals above the prices of shortages prove nothing of plans that leave something unserved."""
    demand = setting.demand
    least = duals.presence  # An upper limit is all that it can be lowered by.
    return bool(
        (duals.rps <= demand.shortage_price).all()
        and (least <= demand.missing_price).all()
    )


@pytest.mark.seeded
@pytest.mark.parametrize("has_stock", [True, False])
def test_any_duals_bound_the_best_plan_from_below(has_stock: bool) -> None:
    compared = 0
    for seed in range(tried(60)):
        setting = set_up(tiny_problem(seed), has_stock=has_stock)
        duals = _some_duals(setting, seed)
        if _is_affordable(setting, duals):
            assert _bound_of(setting, duals) <= optimum(setting) * SLACK + 1e-9, seed
            compared += 1
    assert compared >= 0.6 * tried(60)


@pytest.mark.seeded
@pytest.mark.parametrize("has_stock", [True, False])
def test_the_bound_of_the_relaxation_is_its_optimum_over_all_patterns(
    has_stock: bool,
) -> None:
    for seed in range(tried(24)):
        setting = set_up(tiny_problem(seed), has_stock=has_stock)
        found = setting.relaxed()
        best = optimum(setting, is_whole=False)
        assert found.is_exact
        assert found.bound <= best * SLACK + 1e-9, seed
        assert found.bound >= best * (1 - 2e-3) - 1e-3, seed
        assert found.solution.objective <= best * (1 + 2e-3) + 1e-3, seed


@pytest.mark.seeded
def test_with_cuts_the_bound_of_plans_that_serve_everything_is_no_worse() -> None:
    gains = 0
    for seed in range(tried(36)):
        problem = tiny_problem(seed)
        setting, plain = set_up(problem), set_up(problem)
        best = optimum(setting, serves_all=True)
        with_cuts = generate(
            setting.tables,
            setting.demand,
            setting.pricer(),
            setting.columns,
            has_cuts=True,
        )
        without = plain.relaxed()
        assert with_cuts.bound <= best * SLACK + 1e-9, seed
        assert with_cuts.bound >= 0.98 * without.bound, seed
        gains += with_cuts.bound > without.bound * 1.01
    assert gains >= tried(36) // 6


def test_unlimited_gpus_are_bounded_by_the_price_of_the_best_work_per_dollar() -> None:
    # A GPU for 1 USD carries 100 rps. Priced at 0.02 per rps it is worth 2, so prices are halved: 150 · 0.01.
    tables = make_tables(a_problem(a_service(rate_rps=150.0)))
    setting = set_up(a_problem(a_service(rate_rps=150.0)))
    duals = Duals(
        rps=np.array([0.02]),
        presence=np.zeros(1),
        stock=np.zeros(1),
        replicas_value=0.0,
    )
    assert lower_bound(tables, setting.demand, duals, np.array([2.0])) == pytest.approx(
        1.5
    )


def test_limited_gpus_lower_the_bound_by_what_all_of_them_are_worth() -> None:
    # The same with one GPU: 150 · 0.02 less the 1 that it earns beyond its price.
    setting = set_up(a_problem(a_service(rate_rps=150.0)))
    demand = replace(setting.demand, stock=np.array([1.0]))
    duals = Duals(
        rps=np.array([0.02]),
        presence=np.zeros(1),
        stock=np.zeros(1),
        replicas_value=0.0,
    )
    assert lower_bound(setting.tables, demand, duals, np.array([2.0])) == pytest.approx(
        2.0
    )


def test_limits_that_contradict_each_other_leave_no_plan() -> None:
    setting = set_up(tiny_problem(1))
    duals, worths = _some_duals(setting, 1), np.zeros(len(setting.tables.modes))
    too_many = {BranchingRow((0,)): (float(setting.demand.stock[0]) + 1.0, np.inf)}
    assert (
        lower_bound(setting.tables, setting.demand, duals, worths, too_many) == np.inf
    )


def test_counts_within_limits_cost_what_the_best_of_all_counts_does() -> None:
    draw = np.random.default_rng(3)
    tables = _two_types_of_two_modes()
    for _ in range(200):
        low = draw.integers(0, 2, 4).astype(float)
        high = low + draw.integers(0, 3, 4).astype(float)
        type_low = draw.integers(0, 4, 2).astype(float)
        boxes = Boxes(
            low, high, type_low, type_low + draw.integers(0, 3, 2).astype(float)
        )
        costs = draw.uniform(-1.0, 1.0, 4)
        assert min_cost(tables, boxes, costs) == pytest.approx(
            _min_by_trying(boxes, costs)
        )


def _two_types_of_two_modes() -> Tables:
    mode = make_tables(a_problem(a_service(rate_rps=1.0))).modes[0]
    modes = tuple(mode._replace(gpu_type=gpu_type) for gpu_type in (0, 0, 1, 1))
    return make_tables(a_problem(a_service(rate_rps=1.0)))._replace(modes=modes)


def _min_by_trying(boxes: Boxes, costs: np.ndarray) -> float:
    best = np.inf
    for counts in np.ndindex(5, 5, 5, 5):
        of_type = np.array([counts[0] + counts[1], counts[2] + counts[3]])
        is_within = (counts >= boxes.mode_low).all() and (
            counts <= boxes.mode_high
        ).all()
        if (
            is_within
            and (of_type >= boxes.type_low).all()
            and (of_type <= boxes.type_high).all()
        ):
            best = min(best, float(costs @ counts))
    return best


def test_bounds_are_rounded_up_to_whole_gpus_where_all_cost_the_same() -> None:
    tables = make_tables(a_problem(a_service(rate_rps=1.0)))
    assert whole_gpus(tables, 2.2) == pytest.approx(3.0)
    assert whole_gpus(tables, 3.0 + 1e-9) == pytest.approx(3.0)
    with_energy = make_tables(
        a_problem(a_service(rate_rps=1.0), energy_price_usd_per_kwh=0.1)
    )
    assert whole_gpus(with_energy, 2.2) == 2.2


def test_a_bound_just_above_whole_gpus_reaches_the_next_number_of_them() -> None:
    tables = make_tables(a_problem(a_service(rate_rps=1.0)))
    least = min_to_reach(tables, 3.0)
    assert 2.0 < least < 2.001
    assert whole_gpus(tables, least) == pytest.approx(3.0)
    with_energy = make_tables(
        a_problem(a_service(rate_rps=1.0), energy_price_usd_per_kwh=0.1)
    )
    assert min_to_reach(with_energy, 3.0) == 3.0
