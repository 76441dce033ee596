"""The rate to plan for: up and down with delays, and what is planned where nothing is heard."""

import pytest

from app.loop.forecast import make_demands
from app.store.store import ServiceWindow
from solvers.types.plan import BoundPlan, planned_rates_rps
from tests.app.fleets import SETTINGS, a_service
from tests.app.snapshots import a_bound_plan, a_replica, a_snapshot, a_state, windows_of

PLANNED_RPS = 50.0
TARGET = a_bound_plan([a_replica("a", rate_rps=30.0)], [a_replica("b", rate_rps=20.0)])


def rate_rps(
    windows: tuple[ServiceWindow, ...],
    *,
    target: BoundPlan | None = TARGET,
    upscale_delay_s: float = 0.0,
    downscale_delay_s: float = 20.0,
) -> float:
    service = a_service(
        upscale_delay_s=upscale_delay_s, downscale_delay_s=downscale_delay_s
    )
    (demand,) = make_demands(
        a_snapshot(state=a_state(services=(service,)), windows=windows, target=target)
    )
    return demand.arrival_rate_rps


def test_the_planned_rate_is_that_of_the_targets_replicas() -> None:
    assert planned_rates_rps(TARGET) == {"chat": PLANNED_RPS}
    assert planned_rates_rps(None) == {}


def test_a_service_that_nobody_heard_of_keeps_its_planned_rate() -> None:
    assert rate_rps(()) == PLANNED_RPS
    assert rate_rps((), target=None) == 0.0


def test_a_service_whose_telemetry_stopped_keeps_its_planned_rate_and_a_quiet_one_does_not() -> (
    None
):
    stopped = windows_of("chat", [0] * 30, last_ended_s=SETTINGS.stale_after_s + 1.0)
    quiet = windows_of("chat", [0] * 30, last_ended_s=SETTINGS.stale_after_s - 1.0)
    assert rate_rps(stopped) == PLANNED_RPS
    assert rate_rps(quiet) == 0.0


def test_the_rate_follows_a_steady_load_with_a_margin() -> None:
    assert 100.0 < rate_rps(windows_of("chat", [200] * 30)) < 130.0


@pytest.mark.parametrize(("high_windows", "follows"), [(4, False), (8, True)])
def test_the_rate_rises_only_when_every_forecast_of_the_upscale_delay_is_higher(
    high_windows: int, follows: bool
) -> None:
    # 10 s of delay are the forecasts at the ends of the newest 6 windows of 2 s.
    windows = windows_of("chat", [100] * (30 - high_windows) + [400] * high_windows)
    rate = rate_rps(windows, upscale_delay_s=10.0)
    assert (rate > 150.0) is follows
    assert rate_rps(windows) > 150.0


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
