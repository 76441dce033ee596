"""Telemetry: whether the nodes are heard well enough to decide.

Who was away decides nothing in a hurry: after an outage of the database, the API or the loop itself the first agents
come back within a second and the last ones after their longest pause. A plan made in between would take every node
that has not called yet for lost, and move its load.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from app.control.observe import hold_reason, silent_nodes
from app.control.store import Snapshot

MISSED_PERIODS = 3
"""A loop that did not look for so many periods was away."""


@dataclass(slots=True)
class Telemetry:
    """What one loop remembers of when it looked and whom it heard."""

    looked_at: datetime | None = None
    flows_since: datetime | None = None
    """When somebody was heard again after the last outage; None: nobody is."""

    def hold_reason(self, snapshot: Snapshot) -> str | None:
        """Why the loop must not decide now, in words; None when it may."""
        reason = hold_reason(snapshot)
        was_away = self._was_away(snapshot)
        self.looked_at = snapshot.at
        if reason is not None:
            self.flows_since = None
            return reason
        if was_away or self.flows_since is None:
            self.flows_since = snapshot.at
        return self._comeback_reason(snapshot, self.flows_since)

    def _was_away(self, snapshot: Snapshot) -> bool:
        settings = snapshot.settings
        longest_s = max(settings.stale_after_s, MISSED_PERIODS * settings.period_s)
        return self.looked_at is None or snapshot.at - self.looked_at > timedelta(seconds=longest_s)

    def _comeback_reason(self, snapshot: Snapshot, since: datetime) -> str | None:
        """Give every agent the time after which it would count as silent, where there is a plan to keep meanwhile."""
        silent = silent_nodes(snapshot)
        left_s = snapshot.settings.stale_after_s - (snapshot.at - since).total_seconds()
        if snapshot.target is None or not silent or left_s <= 0.0:
            return None
        return (
            f"telemetry comes back: {len(silent)} of {len(snapshot.state.nodes)} nodes were not heard yet and have "
            f"{left_s:.0f} s left; the current plan stays"
        )
