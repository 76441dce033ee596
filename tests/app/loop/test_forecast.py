"""The rate to plan for: up and down with delays, and what is planned where nothing is heard."""

from dataclasses import replace

import pytest

from app.loop.forecast import make_demands
from app.loop.observe import LONGEST_LAG, HeardNodes, describe_late
from app.store.node_book import AgentStatus
from app.store.store import ServiceWindow
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.forecast.room import Room
from solvers.types.llm import LlmPoints, LlmRow, LlmTerms
from solvers.types.plan import BoundPlan, planned_rates_rps
from tests.app.fleets import SETTINGS, a_service
from tests.app.snapshots import a_bound_plan, a_replica, a_snapshot, a_state, windows_of

PLANNED_RPS = 50.0
TARGET = a_bound_plan([a_replica("a", rate_rps=30.0)], [a_replica("b", rate_rps=20.0)])


def rate_rps(
    windows: tuple[ServiceWindow, ...],
    *,
    target: BoundPlan | None = TARGET,
    statuses: tuple[AgentStatus, ...] = (),
    upscale_delay_s: float = 0.0,
    downscale_delay_s: float = 20.0,
) -> float:
    service = a_service(
        upscale_delay_s=upscale_delay_s, downscale_delay_s=downscale_delay_s
    )
    (demand,) = make_demands(
        a_snapshot(
            state=a_state(services=(service,)),
            windows=windows,
            target=target,
            statuses=statuses,
        )
    )
    return demand.arrival_rate_rps


def test_the_planned_rate_is_that_of_the_targets_replicas() -> None:
    assert planned_rates_rps(TARGET) == {"chat": PLANNED_RPS}
    assert planned_rates_rps(None) == {}


def test_a_service_that_nobody_heard_of_keeps_its_planned_rate() -> None:
    assert rate_rps(()) == PLANNED_RPS
    assert rate_rps((), target=None) == 0.0


@pytest.mark.parametrize(
    ("decided", "windows", "expected_rps"),
    [
        # Nothing was heard for so long that no window is left, or only just not.
        ({"chat": 200.0}, (), 200.0),
        (
            {"chat": 200.0},
            windows_of("chat", [0] * 30, last_ended_s=SETTINGS.stale_after_s + 1.0),
            200.0,
        ),
        # Less than what is in force.
        ({"chat": 20.0}, (), PLANNED_RPS),
        # A quiet service is heard.
        (
            {"chat": 200.0},
            windows_of("chat", [0] * 30, last_ended_s=SETTINGS.stale_after_s - 1.0),
            0.0,
        ),
    ],
)
def test_where_others_carry_plans_out_the_newest_decision_stays_while_nothing_is_heard(
    decided: dict[str, float], windows: tuple[ServiceWindow, ...], expected_rps: float
) -> None:
    state = a_state(services=(a_service(downscale_delay_s=20.0),))
    snapshot = a_snapshot(state=state, windows=windows, target=TARGET)
    (demand,) = make_demands(replace(snapshot, decided_rps=decided))
    assert demand.arrival_rate_rps == expected_rps


def test_a_service_whose_telemetry_stopped_keeps_its_planned_rate_and_a_quiet_one_does_not() -> (
    None
):
    stopped = windows_of("chat", [0] * 30, last_ended_s=SETTINGS.stale_after_s + 1.0)
    quiet = windows_of("chat", [0] * 30, last_ended_s=SETTINGS.stale_after_s - 1.0)
    assert rate_rps(stopped) == PLANNED_RPS
    assert rate_rps(quiet) == 0.0


def test_a_service_that_was_never_planned_gets_what_was_known_of_it_before_the_outage() -> (
    None
):
    # As where the API dies right after a fleet's first load: agents are heard, with windows that are old.
    loaded = windows_of("chat", [200] * 30, last_ended_s=SETTINGS.stale_after_s + 5.0)
    assert 100.0 < rate_rps(loaded, target=None) < 130.0
    assert 100.0 < rate_rps(loaded) < 130.0


@pytest.mark.parametrize(("lag_s", "falls"), [(1.0, True), (60.0, False)])
def test_the_rate_does_not_fall_while_a_node_reports_what_it_kept_during_an_outage(
    lag_s: float, falls: bool
) -> None:
    half = windows_of("chat", [20] * 60)
    statuses = (AgentStatus(node="n1", generation=1, lag_s=lag_s),)
    assert (rate_rps(half, statuses=statuses) < PLANNED_RPS) is falls
    # A node that is silent is done without: its windows are not waited for.
    assert rate_rps(half, statuses=(replace(statuses[0], node="gone"),)) < PLANNED_RPS


def test_a_late_node_holds_only_the_services_that_are_placed_on_it() -> None:
    half = windows_of("chat", [20] * 60)
    elsewhere = (AgentStatus(node="n3", generation=1, lag_s=60.0),)
    nodes = a_state(
        services=(a_service(downscale_delay_s=20.0),), silent_for_s=(0.0, 0.0, 0.0)
    )
    snapshot = a_snapshot(state=nodes, windows=half, target=TARGET, statuses=elsewhere)
    (demand,) = make_demands(snapshot)
    assert demand.arrival_rate_rps < PLANNED_RPS


def test_a_node_that_stays_late_longer_than_its_outbox_holds_is_not_waited_for() -> (
    None
):
    half = windows_of("chat", [20] * 60)
    telemetry = HeardNodes()
    late = a_snapshot(
        state=a_state(services=(a_service(downscale_delay_s=20.0),)),
        windows=half,
        target=TARGET,
        statuses=(AgentStatus(node="n1", generation=1, lag_s=60.0),),
    )
    assert telemetry.late_too_long(late) == frozenset()
    assert "not scaled down" in " ".join(describe_late(late))
    later = replace(late, at=late.at + LONGEST_LAG)
    given_up = replace(late, late_too_long=telemetry.late_too_long(later))
    (demand,) = make_demands(given_up)
    assert demand.arrival_rate_rps < PLANNED_RPS
    (said,) = describe_late(given_up)
    assert "n1: windows come late for 30 min" in said
    # On time once, it is waited for again.
    assert telemetry.late_too_long(replace(later, statuses=())) == frozenset()
    assert telemetry.late_too_long(later) == frozenset()


def test_the_rate_follows_a_steady_load_with_a_margin() -> None:
    assert 100.0 < rate_rps(windows_of("chat", [200] * 30)) < 130.0


def test_a_service_that_may_spend_saves_nothing_while_its_load_bursts() -> None:
    def planned_rps(room: Room) -> float:
        snapshot = a_snapshot(
            state=a_state(services=(a_service(),)),
            windows=windows_of("chat", [600] * 30),
        )
        choices = {"chat": TechniqueChoice(room=room)}
        return make_demands(replace(snapshot, choices=choices))[0].arrival_rate_rps

    expected = planned_rps(Room(1.0))
    assert planned_rps(Room(0.85)) == pytest.approx(0.85 * expected)
    assert planned_rps(Room(0.85, burst_rps=299.0)) == expected
    assert planned_rps(Room(1.2, burst_rps=299.0)) == pytest.approx(1.2 * expected)


@pytest.mark.parametrize(("high_windows", "follows"), [(4, False), (8, True)])
def test_the_rate_rises_only_when_every_forecast_of_the_upscale_delay_is_higher(
    high_windows: int, follows: bool
) -> None:
    # 10 s of delay are the forecasts at the ends of the newest 6 windows of 2 s.
    windows = windows_of("chat", [100] * (30 - high_windows) + [400] * high_windows)
    rate = rate_rps(windows, upscale_delay_s=10.0)
    assert (rate > 150.0) is follows
    assert rate_rps(windows) > 150.0


def test_spikes_that_come_again_and_again_are_no_rise() -> None:
    # One window of 2 s is high in every 10 s, which is the delay.
    windows = windows_of("chat", [400, 10, 10, 10, 10] * 6)
    assert rate_rps(windows, upscale_delay_s=10.0) < 150.0


@pytest.mark.parametrize(("quiet_windows", "follows"), [(5, False), (50, True)])
def test_the_rate_falls_only_when_every_forecast_of_the_downscale_delay_is_lower(
    quiet_windows: int, follows: bool
) -> None:
    windows = windows_of("chat", [100] * (60 - quiet_windows) + [0] * quiet_windows)
    assert (rate_rps(windows, downscale_delay_s=20.0) < PLANNED_RPS) is follows


def test_a_window_that_is_still_open_is_left_out() -> None:
    closed = windows_of("chat", [100] * 10, last_ended_s=1.0)
    opened = windows_of("chat", [3], last_ended_s=-1.0)
    assert rate_rps((*closed, *opened)) == rate_rps(closed)


def test_demands_come_by_name_one_for_every_service() -> None:
    state = a_state(services=(a_service("photo"), a_service("chat")))
    assert [demand.service for demand in make_demands(a_snapshot(state=state))] == [
        "chat",
        "photo",
    ]


def of_a_model(
    windows: tuple[ServiceWindow, ...],
    *,
    start_s: float = 0.0,
    target: BoundPlan | None = None,
) -> float:
    """The rate to plan for of a language model whose answers last for twenty seconds."""
    service = replace(
        a_service(downscale_delay_s=20.0),
        llm=LlmTerms(itl_ms=100.0, output_tokens=200.0),
    )
    row = LlmRow(1, 512, 64, 100.0, 1980.0, 5.0, 1000.0, 300.0, start_s)
    points = LlmPoints(
        service="chat",
        gpu_type="H100",
        network="net",
        provenance="predicted",
        rows=(row,),
    )
    (demand,) = make_demands(
        replace(
            a_snapshot(
                state=a_state(services=(service,)), windows=windows, target=target
            ),
            llm_points=(points,),
        )
    )
    return demand.arrival_rate_rps


def test_a_model_is_given_up_only_when_its_load_was_low_for_as_long_as_it_starts() -> (
    None
):
    fell = windows_of("chat", [*[40] * 60, *[4] * 20])
    assert of_a_model(fell, target=TARGET) < 20.0
    assert of_a_model(fell, target=TARGET, start_s=60.0) > 20.0
