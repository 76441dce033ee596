"""What a part of a plan leaves over, and what in a plan is superfluous; by hand."""

import numpy as np
import pytest

from solvers.joint.heuristics.residual import prune, relax_rest
from solvers.joint.heuristics.residual_cover import solve_small_program
from solvers.joint.kernels.types import Effort
from solvers.joint.patterns.carried import carried, is_met, rest_of
from solvers.joint.patterns.columns import Columns
from solvers.joint.relaxation.column_generation import Phase, generate, price
from solvers.joint.relaxation.pricing import NarrowPricer
from tests.examples import seeds
from tests.solvers.instances import a_problem, a_service, a_type, random_problem
from tests.solvers.problems import tiny_problem
from tests.solvers.whole_program import Setting, optimum, set_up

CHEAP = Effort(2, 0, 0, 2e-3)


def two_services(chat_rps: float = 130.0) -> Setting:
    """One type at 1 USD/h of which there are 4; a single replica on the whole GPU carries 100 rps."""
    services = (
        a_service("chat", rate_rps=chat_rps, max_replicas=3),
        a_service("photo", rate_rps=40.0, min_replicas=2),
    )
    return set_up(a_problem(*services, types=(a_type(count=4),)))


def single(columns: Columns, service: int) -> int:
    """The number of a column with that service alone."""
    return next(
        number
        for number, column in enumerate(columns)
        if column.service.tolist() == [service]
    )


def test_what_is_carried_adds_up() -> None:
    setting = two_services()
    chat = setting.columns[single(setting.columns, 0)]
    taken = carried(setting.tables, setting.columns, {single(setting.columns, 0): 2})
    assert taken.rps.tolist() == [2.0 * chat.capacity[0], 0.0]
    assert taken.replicas.tolist() == [2.0, 0.0]
    assert taken.gpus.tolist() == [2.0]
    assert taken.cost == 2.0 * chat.price


def test_the_rest_is_what_was_wanted_less_what_is_taken() -> None:
    setting = two_services()
    chat, photo = single(setting.columns, 0), single(setting.columns, 1)
    capacity = float(setting.columns[chat].capacity[0])
    rest = rest_of(
        setting.demand,
        setting.tables,
        carried(setting.tables, setting.columns, {chat: 1, photo: 1}),
    )
    assert rest.rate == pytest.approx([130.0 - capacity, 0.0])
    assert rest.fewest.tolist() == [0.0, 1.0]
    assert rest.most.tolist() == [2.0, np.inf]
    assert rest.stock.tolist() == [2.0]
    assert not is_met(rest)
    all_of_it = carried(setting.tables, setting.columns, {chat: 2, photo: 2})
    assert is_met(rest_of(setting.demand, setting.tables, all_of_it))


def test_shortage_of_a_small_rest_stays_dearer_than_a_gpu_and_priorities_stay() -> None:
    setting = two_services(chat_rps=100.001)
    taken = carried(setting.tables, setting.columns, {single(setting.columns, 0): 1})
    rest = rest_of(setting.demand, setting.tables, taken)
    assert 0.0 < rest.rate[0] < 0.01
    assert rest.rate[0] * rest.shortage_price[0] >= 8.0 * setting.tables.price.max()
    before, after = setting.demand.shortage_price, rest.shortage_price
    assert after[0] / after[1] == pytest.approx(before[0] / before[1])


def test_prune_removes_what_is_superfluous_and_nothing_else() -> None:
    setting = two_services()
    chat, photo = single(setting.columns, 0), single(setting.columns, 1)
    # 130 rps need two GPUs; of photo one would carry the rate, but two replicas are wanted.
    kept = prune(setting.tools(), setting.demand, {chat: 3, photo: 3})
    assert kept == {chat: 2, photo: 2}


def test_prune_keeps_all_that_serves_though_it_is_not_enough() -> None:
    setting = two_services(chat_rps=1000.0)
    chat = single(setting.columns, 0)
    assert prune(setting.tools(), setting.demand, {chat: 3}) == {chat: 3}


def test_the_relaxation_of_a_whole_demand_is_that_of_column_generation() -> None:
    setting = set_up(random_problem(3))
    tools = setting.tools()
    phases = (Phase(effort=CHEAP, min_gain=0.0),)
    found = generate(
        setting.tables,
        setting.demand,
        setting.pricer(),
        Columns(setting.tables),
        phases=phases,
    )
    part = relax_rest(tools, setting.demand, range(len(setting.columns)), rounds=200)
    assert part.solution.objective == pytest.approx(found.solution.objective, rel=5e-3)


def test_pricing_for_some_services_finds_patterns_of_the_whole_tables() -> None:
    setting = set_up(
        a_problem(*(a_service(f"s{number}", rate_rps=40.0) for number in range(3)))
    )
    services = np.array([0, 2], dtype=np.int32)
    duals = relax_rest(
        setting.tools(), setting.demand, range(len(setting.columns)), rounds=0
    ).solution.duals
    priced = price(
        setting.tables,
        NarrowPricer(setting.tables, services),
        setting.demand,
        duals,
        CHEAP,
    )
    patterns = [pattern for entry in priced for pattern in entry.patterns]
    assert patterns
    for pattern in patterns:
        setting.columns.add([pattern])
        column = setting.columns[setting.columns.number(pattern)]
        assert column.service.tolist() == [0, 2]
        mode = setting.tables.modes[pattern.mode]
        assert mode.width[list(pattern.items)].sum() <= mode.steps
        assert (column.capacity > 0.0).all()


@pytest.mark.parametrize("seed", seeds(8))
def test_the_small_program_is_exact_where_it_has_all_columns_and_few_gpus(
    seed: int,
) -> None:
    setting = set_up(tiny_problem(seed, services=3))
    tools = setting.tools()
    part = relax_rest(tools, setting.demand, range(len(setting.columns)), rounds=50)
    numbers = tools.pool.cheapest(
        tools.pool.reduced_costs(setting.demand, part.solution.duals), 400
    )
    found = solve_small_program(
        tools.pool, setting.demand, part.solution.duals, numbers, below=1e9
    )
    assert found is not None
    taken = carried(setting.tables, setting.columns, found.counts)
    rest = rest_of(setting.demand, setting.tables, taken)
    short = (
        rest.rate @ setting.demand.shortage_price
        + rest.fewest @ setting.demand.missing_price
    )
    assert found.cost == pytest.approx(taken.cost + short)
    assert (taken.gpus <= setting.demand.stock).all()
    assert (taken.replicas <= setting.demand.most).all()
    assert found.cost >= optimum(setting) - 1e-6
    assert (
        solve_small_program(
            tools.pool, setting.demand, part.solution.duals, numbers, below=found.cost
        )
        is None
    )
