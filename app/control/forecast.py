"""Forecast: recent windows → the arrival rate that the next plan must serve, per service.

The rate follows the load up after `upscale_delay_s` and down after `downscale_delay_s`, as Kubernetes' stabilisation
windows do: it leaves the planned rate only when every forecast of the last delay agrees.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from app.control.observe import age_s
from app.control.store import ServiceWindow, Snapshot
from solvers.forecast.arrival_rate import forecast_rate
from solvers.plan import planned_rates_rps
from solvers.state import Demand, Service


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
    """The forecasts that were made, or would have been, at the end of each window within the delay."""
    rates: list[float] = []
    for count in range(len(windows), 0, -1):
        if rates and age_s(windows[count - 1], snapshot.at) > delay_s:
            break
        rate = forecast_rate(
            np.array([window.arrivals for window in windows[:count]], dtype=float),
            np.array([window.window_s for window in windows[:count]]),
            headroom=snapshot.settings.headroom,
        )
        if rate is not None:
            rates.append(rate)
    return rates
