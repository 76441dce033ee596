"""Forecast: recent windows → the arrival rate that the next plan must serve, per service.

The rate follows the load up after `upscale_delay_s` and down after `downscale_delay_s`, as Kubernetes' stabilisation
windows do: it leaves the planned rate only when every forecast of the last delay agrees.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from app.control.observe import age_s
from app.control.store import ServiceWindow, Snapshot
from solvers.forecast.arrival_rate import forecast_rate
from solvers.plan import planned_rates_rps
from solvers.state import Demand, Service

MOST_FORECASTS = 12
"""Looks back over a delay; more would cost a large fleet's tick more than they tell."""


def make_demands(snapshot: Snapshot) -> tuple[Demand, ...]:
    """One Demand per service. A service that was never observed, or whose telemetry stopped, keeps its planned rate.

    The planned rate is the one that the target serves; without a target it is zero.
    """
    windows: dict[str, list[ServiceWindow]] = defaultdict(list)
    for window in snapshot.windows:
        windows[window.service].append(window)
    planned = planned_rates_rps(snapshot.target)
    return tuple(
        Demand(
            service=service.name,
            arrival_rate_rps=_rate_rps(service, windows[service.name], snapshot, planned[service.name]),
        )
        for service in sorted(snapshot.state.services, key=lambda service: service.name)
    )


def _rate_rps(service: Service, windows: Sequence[ServiceWindow], snapshot: Snapshot, planned_rps: float) -> float:
    if not windows or age_s(windows[-1], snapshot.at) > snapshot.settings.stale_after_s:
        return planned_rps
    complete = [window for window in windows if age_s(window, snapshot.at) >= 0.0] or list(windows)
    scaling = service.scaling
    low = min(_forecasts(complete, snapshot, scaling.upscale_delay_s), default=planned_rps)
    high = max(_forecasts(complete, snapshot, scaling.downscale_delay_s), default=planned_rps)
    return min(max(planned_rps, low), high)


def _forecasts(windows: Sequence[ServiceWindow], snapshot: Snapshot, delay_s: float) -> list[float]:
    """Forecasts as of now and of up to MOST_FORECASTS earlier moments within the delay, evenly spaced."""
    ends = range(len(windows), 0, -1)
    within = [count for count in ends if count == len(windows) or age_s(windows[count - 1], snapshot.at) <= delay_s]
    stride = max(1, math.ceil(len(within) / MOST_FORECASTS))
    arrivals = np.array([window.arrivals for window in windows], dtype=float)
    seconds = np.array([window.window_s for window in windows])
    made = (
        forecast_rate(arrivals[:count], seconds[:count], headroom=snapshot.settings.headroom)
        for count in within[::stride]
    )
    return [rate for rate in made if rate is not None]
