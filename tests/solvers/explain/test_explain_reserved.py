"""Explanations of GPUs that are owned or reserved: what the plan pays for each, by hand.

Three services need a whole GPU each, at 1 USD per hour.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.solver.analyse import find_out
from app.solver.findings import Findings, Inquiry, quick_findings
from solvers.explain.neighbours import NeighbourReader
from solvers.joint import policy as joint
from solvers.joint.relaxation.dual_prices import relax
from solvers.joint.reserved import split
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import ALL_PAID, GpuType, Observed
from tests.solvers.instances import a_problem, a_service, a_type

BUDGET = Budget(seconds=5.0, work=0.3)


def reserving(paid: int, *others: GpuType, **changes: Any) -> Problem:
    own = a_type("gpu", price_usd_per_hour=1.0, count=4, paid_count=paid)
    services = (
        a_service(f"s{number}", rate_rps=100.0, allowed_gpu_types=("gpu",))
        for number in range(3)
    )
    return replace(a_problem(*services, types=(own, *others)), **changes)


def planned(problem: Problem) -> Plan:
    return joint.make_plan(problem, Observed(at_s=0.0), None, BUDGET)[0]


def thoroughly(problem: Problem) -> Findings:
    plan = planned(problem)
    return find_out(Inquiry(problem=problem, plan=plan, budget=Budget(seconds=20.0)))


def at_once(problem: Problem) -> Findings:
    base = relax(split(problem))
    assert base is not None
    plan = planned(problem)
    return quick_findings(NeighbourReader(problem), plan, base.prices())


@pytest.mark.parametrize("ask", [thoroughly, at_once])
@pytest.mark.parametrize(
    ("paid", "prices", "stock_prices"),
    [
        (0, [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
        # The third is rented, so that one more paid GPU would save its price.
        (2, [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]),
        (ALL_PAID, [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ],
)
def test_a_gpu_costs_what_the_plan_pays_for_it_and_earns_as_much(
    ask: Callable[[Problem], Findings],
    paid: int,
    prices: list[float],
    stock_prices: list[float],
) -> None:
    problem = reserving(paid)
    kinds = ask(problem).gpus.kinds
    assert [kind.price for kind in kinds] == pytest.approx(prices)
    assert [kind.stock_price for kind in kinds] == pytest.approx(stock_prices, abs=1e-5)
    assert [kind.loss for kind in kinds] == pytest.approx([0.0] * 3, abs=1e-5)
    assert {kind.gpu_type for kind in kinds} == {"gpu"}
    assert sum(prices) == cost_usd_per_hour(problem, planned(problem))


def test_an_owned_gpu_costs_its_energy() -> None:
    # 50 W idle and 100 W of the whole GPU, at 0.2 USD per kWh.
    found = thoroughly(reserving(ALL_PAID, energy_price_usd_per_kwh=0.2))
    assert [kind.price for kind in found.gpus.kinds] == pytest.approx([0.03] * 3)


@pytest.mark.parametrize(
    ("paid", "savings"),
    [
        # All three are rented: each would pay 0.4 in place of 1.0 on a cheap GPU.
        (0, [0.6, 0.6, 0.6]),
        # One of them is rented, whichever moves.
        (2, [0.6, 0.6, 0.6]),
        # None is.
        (3, []),
    ],
)
def test_reliefs_save_what_is_paid(paid: int, savings: list[float]) -> None:
    cheap = a_type("cheap", price_usd_per_hour=0.4)
    found = thoroughly(reserving(paid, cheap))
    assert found.prices is not None
    assert found.prices.relaxation_usd_per_hour == pytest.approx(
        max(0.0, 3.0 - paid), abs=1e-5
    )
    assert [one.saving for one in found.reliefs] == pytest.approx(savings, abs=1e-3)
    assert all("(paid)" not in one.words for one in found.reliefs)


def test_alternatives_name_types_that_there_are() -> None:
    found = thoroughly(reserving(2, a_type("cheap", price_usd_per_hour=0.4)))
    others = [one for kind in found.gpus.kinds for one in kind.alternatives]
    assert others and {one.gpu_type for one in others} <= {"gpu", "cheap"}
    # To run the same on the other half of the type is no change.
    assert all(one.change != "gpu_type" for one in others)
