"""What the loop's metrics say of a tick; no figure outlives what it is about."""

from prometheus_client import CollectorRegistry

from app.loop.tick import TickOutcome
from app.serve.loop_metrics import LoopMetrics
from solvers.types.outcome import PlanReport, SolveReport, SolveStatus


def outcome(
    policy: str = "hetsev",
    *,
    gap_percent: float | None = 5.0,
    steps: tuple[SolveReport, ...] = (),
) -> TickOutcome:
    report = PlanReport(
        status="feasible",
        cost_usd_per_hour=4.0,
        lower_bound_usd_per_hour=None if gap_percent is None else 3.8,
        gap_percent=gap_percent,
        steps=steps,
    )
    return TickOutcome(
        state="target",
        policy=policy,
        cost_usd_per_hour=4.0,
        report=report,
        unserved_rps=7.0,
        seconds={"total": 0.2},
    )


def noted(*outcomes: TickOutcome) -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics = LoopMetrics(registry)
    for each in outcomes:
        metrics.note(each)
    return registry


def test_a_gap_that_is_not_known_any_more_is_not_shown() -> None:
    hetsev = {"policy": "hetsev"}
    assert noted(outcome()).get_sample_value("plimsoll_plan_gap_ratio", hetsev) == 0.05
    registry = noted(outcome(), outcome(gap_percent=None))
    assert registry.get_sample_value("plimsoll_plan_gap_ratio", hetsev) is None
    assert (
        registry.get_sample_value("plimsoll_plan_unserved_requests_per_second", hetsev)
        == 7.0
    )


def test_a_policy_that_no_longer_decides_has_no_newest_plan() -> None:
    registry = noted(outcome("hetsev"), outcome("joint"))
    assert (
        registry.get_sample_value(
            "plimsoll_plan_cost_usd_per_hour", {"policy": "hetsev"}
        )
        is None
    )
    assert (
        registry.get_sample_value(
            "plimsoll_plan_cost_usd_per_hour", {"policy": "joint"}
        )
        == 4.0
    )
    assert (
        registry.get_sample_value(
            "plimsoll_plans_total", {"policy": "hetsev", "status": "feasible"}
        )
        == 1
    )


def test_solves_are_timed_by_problem_solver_and_end_and_those_without_a_solution_counted() -> (
    None
):
    slow = SolveReport(
        technique="batch: autoscale",
        method="cp-sat",
        status=SolveStatus.TIME_LIMIT,
        seconds=0.8,
    )
    registry = noted(outcome(steps=(slow,)))
    labels = {"problem": "autoscale", "solver": "cp-sat", "status": "time_limit"}
    assert registry.get_sample_value("plimsoll_solver_seconds_sum", labels) == 0.8
    fallback = {"problem": "autoscale", "status": "time_limit"}
    assert registry.get_sample_value("plimsoll_solver_fallbacks_total", fallback) == 1
