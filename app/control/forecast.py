"""Forecast: recent windows → the arrival rate that the next plan must serve, per service."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from app.control.observe import age_s
from app.control.store import ServiceWindow, Snapshot
from solvers.forecast.arrival_rate import forecast_rate
from solvers.state import Demand


def make_demands(snapshot: Snapshot) -> tuple[Demand, ...]:
    """One Demand per service. A service that was never observed, or whose telemetry stopped, keeps its last rate.

    The last rate is the one that the target serves; without a target it is zero.
    """
    windows: dict[str, list[ServiceWindow]] = defaultdict(list)
    for window in snapshot.windows:
        windows[window.service].append(window)
    return tuple(
        Demand(service=service.name, arrival_rate_rps=_rate(windows[service.name], snapshot, service.name))
        for service in sorted(snapshot.state.services, key=lambda service: service.name)
    )


def _rate(windows: Sequence[ServiceWindow], snapshot: Snapshot, service: str) -> float:
    if windows and age_s(windows[-1], snapshot.at) <= snapshot.settings.stale_after_s:
        complete = [window for window in windows if age_s(window, snapshot.at) >= 0.0] or windows
        rate = forecast_rate(
            np.array([window.arrivals for window in complete], dtype=float),
            np.array([window.window_s for window in complete]),
            headroom=snapshot.settings.headroom,
        )
        if rate is not None:
            return rate
    return planned_rate_rps(snapshot, service)


def planned_rate_rps(snapshot: Snapshot, service: str) -> float:
    """The rate that the target plan serves for a service."""
    if snapshot.target is None:
        return 0.0
    return sum(
        replica.arrival_rate_rps
        for gpu in snapshot.target.gpus
        for replica in gpu.replicas
        if replica.service == service
    )
