"""Room: who judges it, what the tick makes of it, and when it gives way."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from app.learn.choose_forecasts import Case, HeardLoad, judge
from app.loop.forecast import RESERVE, make_demands, without_headroom, without_reserves
from app.simulate.run.closed_loop import RememberedForecast
from app.store.store import ServiceWindow, Snapshot
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.forecast.room import SLACK, UNKNOWN_ROOM, Outcomes, Room
from solvers.forecast.types import RequestSeries
from solvers.types.plan import Plan, Unserved, UnservedReason
from solvers.types.problem import Problem
from solvers.types.state import Demand, Scaling
from tests.app.fleets import Answering, a_fleet, a_service, on_half_gpus
from tests.app.snapshots import NOW, a_snapshot, a_state, windows_of

WINDOW_S = 2.0
STEADY = windows_of("chat", [100] * 30)


def burst_counts(windows: int, *, every: int = 100, length: int = 10) -> list[int]:
    """20 requests a window for its last `length` windows of every 200 s, else nothing."""
    return [200 if number % every >= every - length else 0 for number in range(windows)]


def with_reserve(reserve_rps: float) -> Snapshot:
    return replace(
        a_snapshot(windows=STEADY),
        choices={"chat": TechniqueChoice(room=Room(UNKNOWN_ROOM.factor, reserve_rps))},
    )


def test_a_rate_is_lifted_to_the_reserve_and_says_so() -> None:
    (plain,) = make_demands(a_snapshot(windows=STEADY))
    (lifted,) = make_demands(with_reserve(150.0))
    assert (lifted.arrival_rate_rps, lifted.method) == (150.0, RESERVE)
    assert lifted.reserve_rps == pytest.approx(150.0 - plain.arrival_rate_rps)
    assert without_reserves([lifted], {"chat"})[0].arrival_rate_rps == pytest.approx(
        plain.arrival_rate_rps
    )


def test_a_rate_above_the_reserve_stays() -> None:
    assert make_demands(with_reserve(20.0)) == make_demands(a_snapshot(windows=STEADY))


# Of every 20 s of burst at 100 rps the first 12 come before what they start; in windows of 6 s that is some 10. What
# the SLO forgives, 1 % or 20 %, may be beyond what is carried: 100 · (1 − 0.01 · 20 / 10) or 100 · (1 − 0.2 · 20 / 10).
@pytest.mark.parametrize(("percentile", "carried_rps"), [(0.99, 98.0), (0.8, 60.0)])
def test_the_judgement_says_how_much_to_keep_for_the_slo(
    percentile: float, carried_rps: float
) -> None:
    judged = judge(a_bursting_case(percentile=percentile, launch_s=10.0))
    assert SLACK * judged.room.floor_rps == pytest.approx(carried_rps, rel=0.03)
    assert judged.burst_until_s == NOW.timestamp()


def test_a_service_that_starts_fast_keeps_less() -> None:
    slow = judge(a_bursting_case(percentile=0.8, launch_s=10.0))
    fast = judge(a_bursting_case(percentile=0.8, launch_s=2.0))
    assert 0.0 < fast.room.floor_rps < slow.room.floor_rps


def test_a_service_that_nobody_asked_is_as_if_it_were_not_known() -> None:
    case = a_bursting_case(percentile=0.98, launch_s=10.0)
    silent = replace(case, load=replace(case.load, windows=None, outcomes=Outcomes()))
    assert judge(silent).room == UNKNOWN_ROOM


def a_bursting_case(*, percentile: float, launch_s: float) -> Case:
    """Half of what the SLO forgives is spent."""
    counts = np.array(burst_counts(1800), dtype=float)
    finished = 6.0 * counts.sum()
    # Of an hour and of the ten minutes that a service is not known before.
    late = (0.5 * 7.0 - 0.6) / 6.0 * (1.0 - percentile) * finished
    return Case(
        service="chat",
        project="default",
        bursts=False,
        choice=TechniqueChoice(),
        rates=None,
        until_s=NOW.timestamp(),
        horizon_s=5.0,
        load=HeardLoad(
            windows=RequestSeries(
                start_s=NOW.timestamp() - WINDOW_S * len(counts),
                window_s=WINDOW_S,
                arrivals=counts,
            ),
            outcomes=Outcomes(finished, late, 3600.0),
            percentile=percentile,
            scaling=Scaling(),
            launch_s=launch_s,
        ),
    )


def test_no_reserve_takes_room_from_what_is_there() -> None:
    solver = Answering(plan=lambda problem: up_to(60.0, problem, reason="stock"))
    fleet = a_fleet(solver=solver)
    fleet.store.choices["chat"] = TechniqueChoice(room=Room(1.0, 100.0))
    fleet.pass_time(20.0, rates_rps={"chat": 20.0})
    assert fleet.tick().state == "target"
    first, second = (
        request.problem.service("chat").arrival_rate_rps for request in solver.asked
    )
    assert first == 100.0
    assert 20.0 <= second < 40.0
    (record,) = fleet.store.plans.values()
    assert [demand.reserve_rps for demand in record.demands] == [0.0]


@pytest.mark.parametrize(
    ("reason", "other_rps"),
    [
        ("stock", 20.0),  # GPUs are short: none holds room for bursts.
        # Only `chat` cannot be served: what `search` holds takes nothing from it.
        ("slo", 100.0),
        ("replicas", 100.0),
    ],
)
def test_what_one_service_lacks_by_its_own_limits_costs_no_other_its_reserve(
    reason: UnservedReason, other_rps: float
) -> None:
    solver = Answering(plan=lambda problem: up_to(60.0, problem, reason=reason))
    fleet = a_fleet(a_service(), a_service("search"), solver=solver)
    for name in ("chat", "search"):
        fleet.store.choices[name] = TechniqueChoice(room=Room(1.0, 100.0))
    fleet.pass_time(20.0, rates_rps={"chat": 20.0, "search": 20.0})
    fleet.tick()
    problem = solver.asked[-1].problem
    assert problem.service("chat").arrival_rate_rps == pytest.approx(20.0, rel=0.01)
    assert problem.service("search").arrival_rate_rps == pytest.approx(
        other_rps, rel=0.01
    )


def up_to(rate_rps: float, problem: Problem, *, reason: UnservedReason) -> Plan:
    """A plan of that rate for `chat`, whatever it asks for."""
    plan = on_half_gpus(problem)
    missing_rps = problem.service("chat").arrival_rate_rps - rate_rps
    unserved = Unserved(service="chat", rate_rps=missing_rps, reason=reason)
    return plan if missing_rps <= 0.0 else replace(plan, unserved=(unserved,))


# 20 rps arrive, and the headroom is a quarter of that: 25 are asked for.
@pytest.mark.parametrize(
    ("rate_rps", "reason", "plans"),
    [
        (21.0, "stock", 1),  # Less headroom than wished for is no want.
        (15.0, "stock", 2),
        (15.0, "slo", 1),  # Less demand would not help.
    ],
)
def test_no_headroom_takes_room_from_what_is_foreseen(
    rate_rps: float, reason: UnservedReason, plans: int
) -> None:
    solver = Answering(plan=lambda problem: up_to(rate_rps, problem, reason=reason))
    fleet = a_fleet(solver=solver)
    fleet.store.choices["chat"] = TechniqueChoice(room=Room(1.25))
    fleet.pass_time(20.0, rates_rps={"chat": 20.0})
    fleet.tick()
    asked_rps = [
        request.problem.service("chat").arrival_rate_rps for request in solver.asked
    ]
    assert len(asked_rps) == plans
    assert asked_rps[-1] == pytest.approx(asked_rps[0] / (1.25 if plans == 2 else 1.0))


def test_headroom_is_a_part_of_the_demand() -> None:
    def of(factor: float) -> Demand:
        choices = {"chat": TechniqueChoice(room=Room(factor))}
        return make_demands(replace(a_snapshot(windows=STEADY), choices=choices))[0]

    (bare,) = without_headroom([of(1.1)])
    assert of(1.1).arrival_rate_rps == pytest.approx(1.1 * bare.arrival_rate_rps)
    assert without_headroom([bare]) == (bare,)
    # Less than what is foreseen holds no headroom.
    assert of(0.9).headroom_rps == 0.0
    assert of(0.9).arrival_rate_rps == pytest.approx(0.9 * bare.arrival_rate_rps)


def test_where_no_database_remembers_the_forecast_itself_does() -> None:
    forecast, whole = RememberedForecast(), windows_of("chat", burst_counts(1000))
    rates = [forecast(snapshot)[0] for snapshot in _every(60, whole)]
    assert {demand.method for demand in rates[:5]} == {"burst_aware"}
    assert rates[-1].method == RESERVE
    assert 70.0 < rates[-1].arrival_rate_rps < 100.0 / SLACK


def test_steady_traffic_is_remembered_without_a_reserve() -> None:
    forecast, whole = RememberedForecast(), windows_of("chat", [100] * 1000)
    assert {forecast(snapshot)[0].method for snapshot in _every(60, whole)} == {
        "burst_aware"
    }


def _every(windows: int, whole: tuple[ServiceWindow, ...]) -> list[Snapshot]:
    """Snapshots of `windows` windows each, one after the other; the last one ends in silence."""
    ends = range(windows, len(whole) - 20, windows)
    return [
        replace(
            a_snapshot(state=a_state(), windows=whole[end - windows : end]),
            at=whole[end - 1].start + timedelta(seconds=WINDOW_S),
        )
        for end in ends
    ]
