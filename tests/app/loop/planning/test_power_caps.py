"""Budgets of watts: refused with a remedy where a plan draws more, shared out as caps where it does not."""

from dataclasses import replace

import pytest

from app.loop.make_problem import make_problem
from app.loop.plan import Decision, decide
from app.loop.planning.power_caps import holds_power, with_caps
from solvers.check import violations
from solvers.types.plan import BoundPlan
from solvers.types.problem import OperatingPoint, Problem
from solvers.types.state import ClusterState, Demand, Observed
from tests.app.fleets import (
    FAST,
    POINTS,
    SETTINGS,
    Answering,
    a_service,
    on_half_gpus,
)
from tests.app.snapshots import a_bound_plan, a_replica, a_state
from tests.waiting import run

# Each GPU draws 50 W idle, and 60 W for one half; two services on one GPU draw 170 W, three on two GPUs 280 W.
SERVICES = tuple(a_service(name) for name in ("a", "b", "c"))
STATE = a_state(services=SERVICES)
DEMANDS = tuple(Demand(service=each.name, arrival_rate_rps=20.0) for each in SERVICES)


def a_problem(budget_w: float | None, *, state: ClusterState = STATE) -> Problem:
    return make_problem(
        state,
        (POINTS,),
        DEMANDS,
        replace(SETTINGS, power_budget_w=budget_w),
        target=None,
    )


def decided(
    budget_w: float | None,
    *,
    governor: str | None = None,
    node_caps_w: tuple[float | None, float | None] = (None, None),
    target: BoundPlan | None = None,
) -> Decision:
    nodes = tuple(
        replace(node, power_cap_w=cap_w)
        for node, cap_w in zip(STATE.nodes, node_caps_w, strict=True)
    )
    state = replace(STATE, nodes=nodes)
    return run(
        decide(
            Answering(),
            a_problem(budget_w, state=state),
            state,
            Observed(at_s=0.0),
            settings=replace(
                SETTINGS, policy="any", governor=governor, power_budget_w=budget_w
            ),
            target=target,
            memory=None,
            promises_may_break=True,
        )
    )


def caps(made: Decision) -> list[float]:
    assert made.bound is not None, made.reason
    return [gpu.power_cap_w for gpu in made.bound.gpus]


def test_without_limits_caps_are_those_of_the_gpu_types() -> None:
    assert caps(decided(None)) == [250.0, 250.0]


@pytest.mark.parametrize("budget_w", [279.0, 100.0, 1.0])
def test_a_plan_that_draws_more_than_the_budget_is_refused_with_the_remedy(
    budget_w: float,
) -> None:
    made = decided(budget_w)
    assert (made.state, made.bound) == ("refused", None)
    words = (
        f"power at plan: 280 W at full load; power_budget_w is {budget_w:g}: raise "
        f"it, plan with policy joint, or set"
    )
    assert words in made.reason
    (found,) = violations(a_problem(budget_w), on_half_gpus(a_problem(budget_w)))
    assert (found.rule, found.severity, found.where) == ("power", "physical", "plan")


def test_what_the_plan_leaves_of_the_budget_is_head_room_in_equal_parts() -> None:
    # 170 and 110 W are drawn; of 320 W each gets half of the 40 W that are left, of 300 W half of the 20 W.
    assert caps(decided(320.0)) == [190.0, 130.0]
    assert caps(decided(300.0)) == [180.0, 120.0]
    assert caps(decided(280.0)) == [170.0, 110.0]
    assert caps(decided(9_999.0)) == [250.0, 250.0]


def test_a_nodes_cap_binds_its_own_gpus_only() -> None:
    assert caps(decided(None, node_caps_w=(200.0, None))) == [200.0, 250.0]
    assert caps(decided(330.0, node_caps_w=(180.0, None))) == [180.0, 150.0]


def test_a_node_that_would_draw_more_than_its_cap_refuses_the_plan_by_name() -> None:
    made = decided(None, node_caps_w=(None, 100.0))
    assert (made.state, made.bound) == ("refused", None)
    assert "at least 110 W on node n2; its power_cap_w is 100: raise it" in made.reason
    assert "or set the policy's governor to power_latency" in made.reason


def test_a_plan_with_the_same_caps_is_kept_and_another_budget_makes_a_new_target() -> (
    None
):
    first = decided(320.0).bound
    assert decided(320.0, target=first).state == "kept"
    made = decided(300.0, target=first)
    assert made.state == "proposed"
    assert caps(made) == [180.0, 120.0]


# A second, slower and thriftier clock: 800 MHz, 12 ms instead of 10, 30 W instead of 60.
TWO_CLOCKS = replace(
    POINTS,
    rows=(
        *POINTS.rows,
        OperatingPoint(50.0, 1, 800.0, 0.0, 0.0, 12.0, 4000.0, 30.0, 0.0),
    ),
)


def governed(budget_w: float, governor: str = "power_latency") -> BoundPlan | None:
    types = (replace(FAST, clocks_mhz=(800.0, 1000.0)),)
    state = replace(STATE, gpu_types=types)
    settings = replace(SETTINGS, power_budget_w=budget_w)
    problem = make_problem(state, (TWO_CLOCKS,), DEMANDS, settings, target=None)
    bound = a_bound_plan([a_replica("a"), a_replica("b")], [a_replica("c")])
    return with_caps(problem, replace(bound, governor=governor), state.nodes)


def test_under_a_governor_that_holds_power_caps_may_be_below_what_the_plan_draws() -> (
    None
):
    # Two halves: 110 W at 800 MHz bring 2 · 10 / 12 = 1.667, 170 W bring 2: 0.00556 per watt. One half: 80 W bring
    # 0.833 and 110 W bring 1: as much per watt. Both need 190 W at least; the first in the order is filled first.
    for budget_w, expected in (
        (190.0, (110.0, 80.0)),
        (220.0, (140.0, 80.0)),
        (260.0, (170.0, 90.0)),
    ):
        plan = governed(budget_w)
        assert plan is not None
        assert tuple(gpu.power_cap_w for gpu in plan.gpus) == expected
    assert governed(189.0) is None
    assert governed(260.0, governor="clipper_latency") is None


def test_a_governed_plan_is_pushed_under_a_budget_that_it_would_break() -> None:
    assert decided(200.0).state == "refused"
    # There is one clock only, so that it draws 280 W at least, whatever the governor does.
    made = decided(200.0, governor="power_latency")
    assert made.state == "refused"
    assert "draws at least 280 W; the policy's power_budget_w is 200" in made.reason


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("power_latency", True),
        ("dfs", True),
        ("clipper_latency", False),
        (None, False),
        ("no", False),
    ],
)
def test_which_governors_hold_power(name: str | None, holds: bool) -> None:
    assert holds_power(name) is holds
