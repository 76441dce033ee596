"""The forecast with reserves, where no database remembers: it keeps the windows of the last hour itself.

Simulations decide with it. Reserves are the same as in production; techniques are not chosen anew, since back-tests of
every service would take longer than the simulation.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace

from app.control.forecast import horizon_s, make_demands, make_series
from app.control.forecasts import JUDGED_S, REJUDGE_S, needed_reserve_rps
from app.control.observe import age_s
from app.control.store import ServiceWindow, Snapshot
from solvers.forecast.choose import Choice
from solvers.state import Demand


@dataclass(slots=True)
class RememberedForecast:
    """Makes the demands of one snapshot after the other; reserves are renewed every REJUDGE_S."""

    _windows: dict[str, deque[ServiceWindow]] = field(default_factory=lambda: defaultdict(deque))
    _reserves_rps: dict[str, float] = field(default_factory=dict)
    _judged_s: float | None = None

    def __call__(self, snapshot: Snapshot) -> tuple[Demand, ...]:
        """One Demand per service."""
        self._remember(snapshot)
        now_s = snapshot.at.timestamp()
        if self._judged_s is None or now_s - self._judged_s >= REJUDGE_S:
            self._judged_s, self._reserves_rps = now_s, self._reserves(snapshot)
        choices = {
            name: replace(snapshot.choices.get(name, Choice()), reserve_rps=reserve_rps)
            for name, reserve_rps in self._reserves_rps.items()
        }
        return make_demands(replace(snapshot, choices={**snapshot.choices, **choices}))

    def _remember(self, snapshot: Snapshot) -> None:
        for window in snapshot.windows:
            mine = self._windows[window.service]
            # Agents report after a window is over: the newest two may be incomplete.
            is_whole = age_s(window, snapshot.at) >= 2.0 * window.window_s
            if is_whole and (not mine or window.start > mine[-1].start):
                mine.append(window)
        for mine in self._windows.values():
            while mine and age_s(mine[0], snapshot.at) > JUDGED_S:
                mine.popleft()

    def _reserves(self, snapshot: Snapshot) -> dict[str, float]:
        """What each service's windows ask for, where they ask for any."""
        found = {
            service.name: needed_reserve_rps(
                make_series(self._windows[service.name]),
                slo=service.slo,
                scaling=service.scaling,
                horizon_s=horizon_s(snapshot.settings),
            )
            for service in snapshot.state.services
            if self._windows[service.name]
        }
        return {name: reserve_rps for name, reserve_rps in found.items() if reserve_rps}
