"""Explanations of plans, with capacities computed by hand."""

from dataclasses import replace

import pytest

from app.answers.explain import Explanation, ServiceExplanation, explain
from app.loop.make_problem import make_problem
from solvers.types.outcome import GpuTypePrice, PlanReport, Prices, ServicePrice
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan
from solvers.types.problem import Problem
from solvers.types.state import Demand
from solvers.types.survival import SurvivalGoal
from tests.app.fleets import POINTS, SETTINGS, a_service
from tests.app.snapshots import a_state

DEMANDS = (
    Demand(service="chat", arrival_rate_rps=60.0),
    Demand(service="search", arrival_rate_rps=0.0),
)
REPORT = PlanReport(
    status="optimal",
    cost_usd_per_hour=2.0,
    gap_percent=0.0,
    seconds=0.02,
    method="by hand",
)


def _problem(**scaling: int) -> Problem:
    services = (a_service(**scaling), a_service("search"))
    points = replace(
        POINTS,
        sensitivity=0.5,
        rows=tuple(row._replace(pressure=0.4) for row in POINTS.rows),
    )
    return make_problem(
        a_state(services=services), [points], DEMANDS, SETTINGS, target=None
    )


def _replica(service: str, rate_rps: float) -> ReplicaPlan:
    return ReplicaPlan(
        service=service, sm_percent=50.0, batch=1, arrival_rate_rps=rate_rps
    )


PAIR = GpuPlan(
    gpu_type="fast",
    clock_mhz=1000.0,
    replicas=(_replica("chat", 40.0), _replica("search", 0.0)),
)
ALONE = GpuPlan(gpu_type="fast", clock_mhz=1000.0, replicas=(_replica("chat", 20.0),))
PLAN = Plan(policy="test", gpus=(PAIR, ALONE))

PROBLEM = _problem()


def told(
    plan: Plan = PLAN,
    report: PlanReport = REPORT,
    problem: Problem | None = PROBLEM,
) -> Explanation:
    return explain(
        plan, report, problem=problem, demands=DEMANDS, violations=(), reason=""
    )


def _chat(plan: Plan, problem: Problem | None) -> ServiceExplanation:
    found = told(plan, problem=problem)
    return next(entry for entry in found.services if entry.service == "chat")


def test_neighbours_lengthen_the_execution_by_their_pressure() -> None:
    # 10 ms of run term, sensitivity 0.5, one neighbour of pressure 0.4: 10 · (1 + 0.5 · 0.4) = 12 ms.
    beside, alone = _chat(PLAN, _problem()).replicas
    assert beside.execution_ms == pytest.approx(12.0) and beside.neighbours == (
        "search",
    )
    assert alone.execution_ms == pytest.approx(10.0) and alone.neighbours == ()
    assert alone.capacity_rps is not None and beside.capacity_rps is not None
    assert alone.capacity_rps > beside.capacity_rps > 20.0


@pytest.mark.parametrize(
    ("scaling", "limit"),
    [
        ({"max_replicas": 2}, "max_replicas 2"),
        ({"min_replicas": 2}, "the minimum number of replicas: min_replicas +"),
    ],
)
def test_limits_of_the_service_are_named(scaling: dict[str, int], limit: str) -> None:
    assert _chat(PLAN, _problem(**scaling)).limit.startswith(limit)


def test_replicas_for_a_loss_are_no_minimum_of_the_team() -> None:
    problem = _problem(min_replicas=2)
    services = tuple(replace(each, max_replica_rps=50.0) for each in problem.services)

    def limit(minimum: int) -> str:
        goal = SurvivalGoal(
            service="chat",
            loss="node",
            share=0.5,
            needed_rps=30.0,
            is_asked=True,
            rate_rps=60.0,
            min_replicas=minimum,
        )
        limited = replace(problem, services=services, survival=(goal,))
        return _chat(PLAN, limited).limit

    assert limit(1) == (
        "survive: 2 replicas, so that enough of them is left after a loss"
    )
    assert limit(2).startswith("the minimum number of replicas")


def test_changes_are_against_the_plan_in_force() -> None:
    problem = replace(_problem(), current=Plan(policy="test", gpus=(ALONE,)))
    found = told(problem=problem)
    assert [
        (change.service, change.before, change.after) for change in found.changes
    ] == [
        ("chat", 1, 2),
        ("search", 0, 1),
    ]


PRICES = Prices(
    unit="usd_per_hour",
    services=(ServicePrice(service="chat", per_rps=0.02, per_rps_more=0.01),),
    gpu_types=(GpuTypePrice(gpu_type="fast", per_gpu=0.3),),
)


def test_prices_of_the_report_are_told_with_what_the_gpus_earn() -> None:
    found = told(report=replace(REPORT, prices=PRICES))
    chat = next(entry for entry in found.services if entry.service == "chat")
    assert (chat.worth_per_rps, chat.price_per_rps) == (0.02, 0.01)
    assert (
        next(
            entry for entry in found.services if entry.service == "search"
        ).worth_per_rps
        is None
    )
    pair = next(gpu for gpu in found.gpus if len(gpu.replicas) == 2)
    # It earns the price of a request times what it can carry, up to the whole rate of 60.
    carried = min(60.0, chat.replicas[0].capacity_rps or 0.0)
    assert pair.replicas[0].earns == pytest.approx(0.02 * carried)
    assert pair.loss == pytest.approx(pair.price + 0.3 - 0.02 * carried)
    assert (found.price_unit, found.kinds_left_out) == ("usd_per_hour", 0)


def test_moves_count_what_starts_and_stops_and_what_that_costs() -> None:
    running = Plan(policy="test", gpus=(ALONE, ALONE))
    problem = replace(_problem(), current=running, migration_cost_usd_per_hour=0.5)
    moves = told(problem=problem).moves
    # One more search; of chat there are two before and after.
    assert (
        moves.replicas_started,
        moves.replicas_stopped,
        moves.migration_cost_usd_per_hour,
    ) == (1, 0, 0.5)


def test_a_refused_plan_with_a_row_that_does_not_exist_can_be_explained() -> None:
    odd = replace(ALONE, replicas=(replace(ALONE.replicas[0], sm_percent=33.0),))
    assert (
        _chat(Plan(policy="test", gpus=(odd,)), _problem()).replicas[0].capacity_rps
        is None
    )


def test_the_summary_is_the_reason_or_else_the_figures() -> None:
    def said(reason: str) -> str:
        return explain(
            PLAN, REPORT, problem=None, demands=(), violations=(), reason=reason
        ).summary

    assert said("nothing would change") == "optimal: nothing would change"
    assert said("") == (
        "optimal at $2.0000 per hour, found by by hand, at most 0.00 % above the lowest possible cost, in 20 ms"
    )
