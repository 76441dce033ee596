from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from solvers.joint.patterns.branching_rows import BranchingRow
from solvers.joint.patterns.columns import Columns, Pattern
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables, make_tables
from solvers.joint.relaxation.master import Master
from solvers.joint.relaxation.master_solution import Solution
from tests.solvers.instances import a_problem, a_service

# One GPU for 1 USD per hour carries 100 rps of `chat`; the half that stands first among the candidates, 50 rps.
HALF, WHOLE = Pattern(0, (0,)), Pattern(0, (1,))


class Hand(NamedTuple):
    tables: Tables
    demand: CoverDemand
    columns: Columns


def _hand(**changes: np.ndarray) -> Hand:
    """150 rps are wanted, one rps short costs 0.08 USD per hour, a missing replica 10."""
    tables = make_tables(a_problem(a_service(rate_rps=150.0)))
    columns = Columns(tables)
    columns.add([HALF, WHOLE])
    demand = CoverDemand(
        rate=np.array([150.0]),
        fewest=np.zeros(1),
        most=np.array([np.inf]),
        stock=np.array([np.inf]),
        shortage_price=np.array([0.08]),
        missing_price=np.array([10.0]),
    )
    return Hand(tables, replace(demand, **changes), columns)


def _solve(hand: Hand, *, has_cuts: bool = False) -> Solution:
    master = Master(hand.tables, hand.demand, has_cuts=has_cuts)
    master.add(hand.columns)
    return master.solve()


def test_demand_is_covered_at_the_price_of_a_gpu() -> None:
    # 1.5 GPUs of 100 rps; one more rps costs a hundredth of a GPU.
    found = _solve(_hand())
    assert found.objective == pytest.approx(1.5)
    assert found.counts == pytest.approx([0.0, 1.5])
    assert found.duals.rps == pytest.approx([0.01])
    assert found.duals.stock == pytest.approx([0.0])
    assert found.shortage_rps == pytest.approx([0.0])


def test_capacity_beyond_what_is_wanted_counts_for_nothing() -> None:
    # 80 rps are wanted and a GPU carries 100, cut to 80: a whole GPU is bought, not 0.8.
    found = _solve(_hand(rate=np.array([80.0])))
    assert found.objective == pytest.approx(1.0)
    assert found.duals.rps == pytest.approx([1.0 / 80.0])


def test_a_stock_that_binds_has_a_negative_dual_and_leaves_a_shortage() -> None:
    # One GPU: 100 rps served, 50 short at 0.08. Another GPU would save 100 · 0.08 = 8 for 1.
    found = _solve(_hand(stock=np.array([1.0])))
    assert found.objective == pytest.approx(1.0 + 50.0 * 0.08)
    assert found.shortage_rps == pytest.approx([50.0])
    assert found.duals.rps == pytest.approx([0.08])
    assert found.duals.stock == pytest.approx([-7.0])


def test_fewest_replicas_have_a_positive_price() -> None:
    # Three replicas are three GPUs here; the demand is covered on the way, so that the price is all the replicas'.
    found = _solve(_hand(fewest=np.array([3.0])))
    assert found.objective == pytest.approx(3.0)
    assert found.duals.presence == pytest.approx([1.0])
    assert found.duals.replicas_value == pytest.approx(3.0)


def test_most_replicas_have_a_negative_price() -> None:
    # One replica: 50 rps short. A second would save 8 and cost 1.
    found = _solve(_hand(most=np.array([1.0])))
    assert found.objective == pytest.approx(1.0 + 4.0)
    assert found.duals.presence == pytest.approx([-7.0])
    assert found.duals.replicas_value == pytest.approx(-7.0)


def test_replicas_that_no_stock_allows_are_missing_at_their_price() -> None:
    found = _solve(_hand(fewest=np.array([3.0]), stock=np.array([2.0])))
    assert found.replicas_missing == pytest.approx([1.0])
    assert found.objective == pytest.approx(2.0 + 10.0)


def test_rounding_cuts_ask_for_whole_gpus() -> None:
    # No GPU carries all 150 rps, so each counts 1 in the first cut, and 2 are wanted.
    found = _solve(_hand(), has_cuts=True)
    assert found.objective == pytest.approx(2.0)
    assert found.counts.sum() == pytest.approx(2.0)
    assert (np.diff(found.duals.stairs) >= 0.0).all()
    assert found.duals.rps @ [150.0] + found.duals.cuts_value == pytest.approx(2.0)


def test_limits_hold_until_others_are_set() -> None:
    hand = _hand()
    master = Master(hand.tables, hand.demand, limit_price=100.0)
    master.add(hand.columns)
    row = BranchingRow((0,))
    master.limit({row: (2.0, np.inf)})
    at_least = master.solve()
    assert at_least.objective == pytest.approx(2.0)
    assert at_least.duals.limits[row] == pytest.approx(1.0)
    master.limit({row: (0.0, 1.0)})
    at_most = master.solve()
    assert at_most.objective == pytest.approx(1.0 + 4.0)
    assert at_most.duals.limits[row] == pytest.approx(-7.0)
    master.limit({})
    assert master.solve().objective == pytest.approx(1.5)
    assert master.solve().duals.limits == {}


def test_a_limit_on_candidates_counts_their_patterns_also_those_added_later() -> None:
    hand = _hand()
    master = Master(hand.tables, hand.demand, limit_price=100.0)
    master.add([hand.columns[0]])
    master.limit({BranchingRow((0,), ((1, 2),)): (0.0, 1.0)})
    master.add([hand.columns[1]])
    # At most one whole GPU; the other 50 rps come from a half one, at the same price.
    found = master.solve()
    assert found.counts == pytest.approx([1.0, 1.0])
    assert found.objective == pytest.approx(2.0)


def test_a_limit_that_no_column_can_meet_falls_short_at_its_price() -> None:
    hand = _hand()
    master = Master(hand.tables, hand.demand, limit_price=100.0)
    master.add([hand.columns[0]])
    master.limit({BranchingRow((0,), ((1, 2),)): (1.0, np.inf)})
    found = master.solve()
    assert found.limits_missing == pytest.approx(1.0)
    assert found.objective == pytest.approx(3.0 + 100.0)


def test_a_gpu_that_a_limit_asks_for_in_vain_stands_idle() -> None:
    hand = _hand(rate=np.array([0.0]))
    master = Master(hand.tables, hand.demand, limit_price=100.0)
    master.limit({BranchingRow((0,)): (1.0, np.inf)})
    found = master.solve()
    assert found.idle == pytest.approx([1.0])
    assert found.objective == pytest.approx(1.0)


def test_whole_solutions_are_whole_and_leave_the_relaxation_as_it_was() -> None:
    hand = _hand()
    master = Master(hand.tables, hand.demand)
    master.add(hand.columns)
    whole = master.solve_whole()
    assert whole is not None
    assert whole.objective == pytest.approx(2.0)
    assert master.solve().objective == pytest.approx(1.5)
