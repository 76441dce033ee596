"""Forecast: recent windows → the arrival rate that the next plan must serve, per service.

Each service is forecast by the technique that was chosen for it (`app.learn.choose_forecasts`), at the planning
horizon: the windows of the loop's next period. The rate follows the median up after `upscale_delay_s` and down after
`downscale_delay_s`, as Kubernetes' stabilisation windows do. What is planned for is as much of it as the service's room
says (`solvers.forecast.room`), and no less than the room's floor, for bursts that come too suddenly to be followed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from app.loop.budgets import KEPT, degraded, shares_of
from app.loop.observe import age_s, late_nodes, windows_by_service
from app.loop.waking import WAKING, WAKING_RPS, is_awake
from app.store.store import PolicySettings, ServiceWindow, Snapshot
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.forecast.techniques import forecast_by
from solvers.forecast.types import (
    PLANNING_LEVEL,
    Forecast,
    History,
    RequestSeries,
    widen,
)
from solvers.types.llm import LlmTerms
from solvers.types.plan import planned_rates_rps
from solvers.types.state import Demand, Service

MAX_FORECASTS = 12
"""Looks back over a delay; more would cost a large fleet's tick more than they tell."""

RESERVE = "reserve"
"""Method of a demand that is above the forecast, for bursts."""

_LEVELS = (PLANNING_LEVEL, 0.05)
_DEFAULT = TechniqueChoice()


def make_demands(snapshot: Snapshot) -> tuple[Demand, ...]:
    """One Demand per service. A service that was never observed keeps its planned rate; one whose telemetry stopped
    the higher of that and of what was last known.

    The planned rate is the one that the target serves; without a target it is zero. Where somebody else carries plans
    out it is at least what the newest decision was made for: the target says nothing of what runs there. It does not
    fall while a node of the service reports what it kept during an outage. For an exceeded budget's sake some services'
    demands are only a share of what they would be.
    """
    windows = windows_by_service(snapshot.windows)
    planned = planned_rates_rps(snapshot.target)
    for name, decided_rps in snapshot.decided_rps.items():
        planned[name] = max(planned[name], decided_rps)
    catching_up = _catching_up(snapshot)
    made = (
        _demand(
            service,
            windows[service.name],
            snapshot,
            planned[service.name],
            may_fall=service.name not in catching_up,
        )
        for service in sorted(snapshot.state.services, key=lambda service: service.name)
    )
    return degraded(made, shares_of(snapshot.state.services, snapshot.degradations))


def without_reserves(
    demands: Iterable[Demand], services: Set[str]
) -> tuple[Demand, ...]:
    """The demands without what these services hold for bursts: for when that takes room from what is there."""
    return tuple(
        replace(
            demand,
            arrival_rate_rps=demand.arrival_rate_rps - demand.reserve_rps,
            reserve_rps=0.0,
            method="forecast",
        )
        if demand.reserve_rps and demand.service in services
        else demand
        for demand in demands
    )


def without_headroom(demands: Iterable[Demand]) -> tuple[Demand, ...]:
    """The demands as they are foreseen: for when the headroom of some takes what others will need."""
    return tuple(
        replace(
            demand,
            arrival_rate_rps=demand.arrival_rate_rps - demand.headroom_rps,
            headroom_rps=0.0,
        )
        for demand in demands
    )


def horizon_s(settings: PolicySettings) -> float:
    """How far ahead a plan must look: until the next one is made."""
    return max(settings.period_s, settings.window_s)


def _catching_up(snapshot: Snapshot) -> Set[str]:
    """Services planned on nodes that are still to report what they kept: their sums over all nodes are too low."""
    late = late_nodes(snapshot) - snapshot.late_too_long
    gpus = snapshot.target.gpus if snapshot.target else ()
    return {
        replica.service for gpu in gpus if gpu.node in late for replica in gpu.replicas
    }


def is_heard(windows: Sequence[ServiceWindow], snapshot: Snapshot) -> bool:
    """Whether anybody reported of a service lately; windows: its own, oldest first."""
    return (
        bool(windows)
        and age_s(windows[-1], snapshot.at) <= snapshot.settings.stale_after_s
    )


def make_series(windows: Sequence[ServiceWindow]) -> RequestSeries:
    """The arrivals of one service from its windows, oldest first, at least one; NaN where a window is missing."""
    window_s = windows[0].window_s
    start_s = windows[0].start.timestamp()
    # Windows are placed by time, since a window without reports is missing from the list.
    places = [
        round((window.start.timestamp() - start_s) / window_s) for window in windows
    ]
    arrivals = np.full(places[-1] + 1, np.nan)
    arrivals[places] = [window.arrivals for window in windows]
    return RequestSeries(start_s=start_s, window_s=window_s, arrivals=arrivals)


def complete_windows(
    windows: Sequence[ServiceWindow], snapshot: Snapshot
) -> Sequence[ServiceWindow]:
    """The windows that are over; all of them where none is."""
    return [
        window for window in windows if age_s(window, snapshot.at) >= 0.0
    ] or windows


def _demand(
    service: Service,
    windows: Sequence[ServiceWindow],
    snapshot: Snapshot,
    planned_rps: float,
    *,
    may_fall: bool,
) -> Demand:
    kept = Demand(service=service.name, arrival_rate_rps=planned_rps, method=KEPT)
    if not windows:
        return kept
    series = make_series(complete_windows(windows, snapshot))
    newest, followed_rps = _follow(service, series, snapshot)
    room = snapshot.choices.get(service.name, _DEFAULT).room
    needed_rps = room.factor_at(followed_rps) * followed_rps
    is_blind = not is_heard(windows, snapshot)
    if needed_rps <= planned_rps and (is_blind or not may_fall):
        return kept
    # The load before an outage may be higher than any plan served, as where it began shortly before.
    if is_blind:
        return replace(kept, arrival_rate_rps=needed_rps, method=newest.technique)
    if needed_rps < WAKING_RPS and is_awake(service, windows, snapshot):
        newest = replace(newest, technique=WAKING)
        # None of it is headroom, which is given up where GPUs are short: who waits is there.
        needed_rps = followed_rps = WAKING_RPS
    # The floor replaces what is missing, it is not added on top: the forecast may exceed it already.
    reserve_rps = max(0.0, room.floor_rps - needed_rps)
    return Demand(
        service=service.name,
        arrival_rate_rps=needed_rps + reserve_rps,
        method=RESERVE if reserve_rps else newest.technique,
        reserve_rps=reserve_rps,
        headroom_rps=max(0.0, needed_rps - followed_rps),
        interval_rps=(newest.rates_rps[1], newest.rates_rps[0]),
    )


def _follow(
    service: Service, series: RequestSeries, snapshot: Snapshot
) -> tuple[Forecast, float]:
    """The newest forecast, and the highest rate of the downscale delay that was expected for an upscale delay."""
    now_s = snapshot.at.timestamp()
    scaling = service.scaling
    # What is given up is missed for as long as its successor takes to start, but for the time in which it drains and
    # can be taken back. Answers may be faster than their SLO: half of the time that they may take is counted on.
    missed_s = _start_s(service, snapshot) - 0.5 * _answer_s(service.llm)
    hold_s = max(scaling.downscale_delay_s, missed_s)
    ends = _ends(series, now_s, hold_s)
    lag = math.ceil(scaling.upscale_delay_s / series.window_s)
    # A rate counts once it was expected for a delay: a jump that does not last is not followed.
    before = {end: _end_before(series, end - lag) for end in ends}
    made = _forecasts(service, series, {*ends, *before.values()}, snapshot)
    return made[ends[0]], max(
        min(each.expected_rps for at, each in made.items() if before[end] <= at <= end)
        for end in ends
    )


def _end_before(series: RequestSeries, end: int) -> int:
    """The last end of a heard window up to this one, the first of all where there is none."""
    ends = series.heard + 1
    return int(ends[ends <= max(end, ends[0])][-1])


def _answer_s(terms: LlmTerms | None) -> float:
    """How long an answer of a language model takes where it just keeps its SLO; 0 of others, who answer at once."""
    return 0.0 if terms is None else terms.output_tokens * terms.itl_ms / 1000.0


def _start_s(service: Service, snapshot: Snapshot) -> float:
    """How long a language model's replica takes to start, by the slowest row; 0 of other services."""
    return max(
        (
            row.start_s
            for points in snapshot.llm_points
            if points.service == service.name
            for row in points.rows
        ),
        default=0.0,
    )


def _ends(series: RequestSeries, now_s: float, delay_s: float) -> Sequence[int]:
    """Ends of the newest window, and of up to MAX_FORECASTS in all within the delay, evenly spaced; newest first.

    An end is the number of windows before it, the last of them heard.
    """
    ends = (series.heard[::-1] + 1).tolist()
    within = [
        end
        for end in ends
        if end == ends[0] or now_s - series.start_s - end * series.window_s <= delay_s
    ]
    # Evenly spaced from the newest on: the newest one must be among them, the oldest need not.
    return within[:: max(1, math.ceil(len(within) / MAX_FORECASTS))]


def _forecasts(
    service: Service, series: RequestSeries, ends: Set[int], snapshot: Snapshot
) -> Mapping[int, Forecast]:
    """The forecast as of each end."""
    choice = snapshot.choices.get(service.name, _DEFAULT)
    ahead_s = horizon_s(snapshot.settings)
    made: dict[int, Forecast] = {}
    for end in ends:
        history = History(recent=series.part(0, end), seasons=choice.seasons)
        forecast = forecast_by(
            choice.technique, history, horizon_s=ahead_s, levels=_LEVELS
        )
        assert forecast is not None, "the last window of each end was heard"
        made[end] = widen(forecast, choice.margin)
    return made
