"""Observe: recent windows → readings per service, and the reasons why the loop must hold.

A quiet service and a missing metric are different things: a node that reports zero arrivals is telemetry, silence is
not. Silence of one node takes its GPUs out of the plan; silence of all nodes makes the loop hold.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from agents.base.latency_buckets import bucket_end_ms
from app.loop.planning.draining import draining_nodes
from app.loop.planning.reschedule import avoiding_tasks
from app.store.store import ServiceWindow, Snapshot
from solvers.types.outcome import Reason
from solvers.types.state import (
    ClusterState,
    GpuId,
    Mode,
    Observed,
    Service,
    ServiceObservation,
    gpu_id,
)

_QUIET = 0.3
"""A node of which nothing was heard for this part of the limit misses reports: agents send one each second."""
FLAPS = 3
"""A node that fell silent so often within FLAP_WINDOW flaps."""
FLAP_WINDOW = timedelta(hours=1)
_MAX_FLAPPING_SHARE = 1 / 3
"""Where more of the nodes flap it is the network between, and each of them is as good as the others."""
READING_WINDOW_S = 60.0
"""Readings for policies look back this far."""


class HoldKind(StrEnum):
    """Why the loop decides nothing; `app.loop.events.describe_hold` words them."""

    PAUSED = "Paused"
    MODE_OFF = "ModeOff"
    """Figures: policy."""
    NO_GPUS = "NoGpus"
    TELEMETRY_STALE = "TelemetryStale"
    """Figures: silent_s of the node that was heard last, limit_s."""
    TELEMETRY_RETURNS = "TelemetryReturns"
    """Figures: silent of nodes, left_s until the silent ones are planned without."""


def observe(snapshot: Snapshot) -> Observed:
    """One Reading per service that was ever observed, over the last READING_WINDOW_S seconds."""
    by_service = windows_by_service(snapshot.windows)
    services = {service.name: service for service in snapshot.state.services}
    return Observed(
        at_s=snapshot.at.timestamp(),
        readings=tuple(
            make_reading(services[name], windows, snapshot.at)
            for name, windows in sorted(by_service.items())
            if name in services
        ),
        repartition=asking_services(snapshot),
        actor=snapshot.actor,
        launch_s=snapshot.launch_s,
    )


def windows_by_service(
    windows: Iterable[ServiceWindow],
) -> Mapping[str, Sequence[ServiceWindow]]:
    """The windows of each service, in their order; none of any other."""
    by_service: dict[str, list[ServiceWindow]] = defaultdict(list)
    for window in windows:
        by_service[window.service].append(window)
    return by_service


def asking_gpus(snapshot: Snapshot) -> tuple[GpuId, ...]:
    """GPUs of the target whose governor asks for other SM percents, of nodes that follow it; sorted."""
    target = snapshot.target
    if target is None:
        return ()
    follow = [
        status for status in snapshot.statuses if status.generation == target.generation
    ]
    asking = {
        gpu_id(status.node, index) for status in follow for index in status.repartition
    }
    return tuple(sorted(asking & {gpu.id for gpu in target.gpus}))


def asking_services(snapshot: Snapshot) -> tuple[str, ...]:
    """Services that run on those GPUs, sorted."""
    asking = set(asking_gpus(snapshot))
    gpus = snapshot.target.gpus if snapshot.target else ()
    return tuple(
        sorted(
            {
                replica.service
                for gpu in gpus
                if gpu.id in asking
                for replica in gpu.replicas
            }
        )
    )


def make_reading(
    service: Service, windows: Sequence[ServiceWindow], now: datetime
) -> ServiceObservation:
    """The reading of one service from its windows, oldest first; at least one.

    A window that is still open counts only while there is no other.
    """
    recent = [
        window
        for window in windows
        if 0.0 <= age_s(window, now) <= READING_WINDOW_S
        # Never empty: a policy that reads nothing would take a busy service for a quiet one.
    ] or [windows[-1]]
    seconds = sum(window.window_s for window in recent)
    served = sum(window.served for window in recent)
    finished = served + sum(window.rejected for window in recent)
    return ServiceObservation(
        service=service.name,
        arrival_rate_rps=sum(window.arrivals for window in recent) / seconds,
        served_rps=served / seconds,
        latency_ms=latency_percentile_ms(recent, service.slo.percentile),
        attainment=sum(window.in_slo for window in recent) / finished
        if finished
        else None,
        age_s=age_s(windows[-1], now),
    )


def latency_percentile_ms(
    windows: Sequence[ServiceWindow], percentile: float
) -> float | None:
    """Upper end of the latency bucket that holds the percentile; None when nothing finished."""
    counts: dict[int, int] = defaultdict(int)
    for window in windows:
        for bucket, count in window.latency_buckets:
            counts[bucket] += count
    return bucket_percentile_ms(counts, percentile)


def bucket_percentile_ms(counts: Mapping[int, int], percentile: float) -> float | None:
    """Upper end of the bucket that holds the percentile of the counted requests; None when there are none."""
    total = sum(counts.values())
    below = 0
    for bucket in sorted(counts):
        below += counts[bucket]
        # The bucket's upper end: a latency must not look shorter than it was.
        if total and below >= percentile * total:
            return bucket_end_ms(bucket)
    return None


def hold_reason(snapshot: Snapshot) -> Reason | None:
    """Why the loop must not decide now; None when it may."""
    if not snapshot.state.gpus:
        return Reason(kind=HoldKind.NO_GPUS)
    heard = [
        node
        for node in snapshot.state.nodes
        if node.silent_for_s <= snapshot.settings.stale_after_s
    ]
    if not heard:
        freshest = min(node.silent_for_s for node in snapshot.state.nodes)
        return Reason(
            kind=HoldKind.TELEMETRY_STALE,
            figures={"silent_s": freshest, "limit_s": snapshot.settings.stale_after_s},
        )
    return None


def silent_nodes(snapshot: Snapshot) -> tuple[str, ...]:
    """Nodes whose agents are silent for longer than the limit."""
    limit = snapshot.settings.stale_after_s
    return tuple(
        sorted(node.id for node in snapshot.state.nodes if node.silent_for_s > limit)
    )


def silence_due_at(snapshot: Snapshot) -> datetime | None:
    """When the next node comes to count as silent, unless it is heard; None where the next tick is early enough."""
    limit_s = snapshot.settings.stale_after_s
    # One that was heard just now is most likely heard again, and looked at by the next tick; where the period is long,
    # that one would come too late.
    longest_s = min(_QUIET * limit_s, limit_s - snapshot.settings.period_s)
    silent_s = [
        node.silent_for_s
        for node in snapshot.state.nodes
        if longest_s < node.silent_for_s <= limit_s
    ]
    if not silent_s:
        return None
    return snapshot.at + timedelta(seconds=limit_s - max(silent_s))


def usable_state(snapshot: Snapshot, *, is_patient: bool = False) -> ClusterState:
    """The state in which the GPUs of silent and of draining nodes are not healthy, so that nothing is planned there.

    `is_patient`: what runs on a draining node may stay until its deadline; nothing new starts there.
    Tasks have the GPUs that they avoid.
    """
    gone = {*silent_nodes(snapshot), *draining_nodes(snapshot, overdue=is_patient)}
    gpus = tuple(
        replace(gpu, healthy=False) if gpu.node in gone else gpu
        for gpu in snapshot.state.gpus
    )
    state = replace(snapshot.state, gpus=gpus)
    return replace(state, tasks=avoiding_tasks(snapshot, state))


def draining_gpus(snapshot: Snapshot) -> frozenset[GpuId]:
    """GPUs of draining nodes that answer and whose deadline has not passed."""
    draining = set(draining_nodes(snapshot))
    usable = usable_state(snapshot, is_patient=True).gpus
    return frozenset(gpu.id for gpu in usable if gpu.healthy and gpu.node in draining)


def age_s(window: ServiceWindow, now: datetime) -> float:
    """Seconds since the window ended; negative while it is still open."""
    return (now - window.start).total_seconds() - window.window_s


def late_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Nodes that are heard and have not yet reported their newest windows, as after an outage: sums are too low."""
    # A slow clock looks the same, and is: its node's counts lie in windows that are not read any more.
    limit_s = snapshot.settings.stale_after_s
    heard = {node.id for node in snapshot.state.nodes if node.silent_for_s <= limit_s}
    return frozenset(
        status.node
        for status in snapshot.statuses
        if status.node in heard and status.lag_s > limit_s
    )


def describe_late(snapshot: Snapshot) -> tuple[str, ...]:
    """What a plan's report says of them."""
    late = late_nodes(snapshot)
    awaited = ", ".join(sorted(late - snapshot.late_too_long))
    given_up = ", ".join(sorted(late & snapshot.late_too_long))
    messages = []
    if awaited:
        messages.append(
            f"services on {awaited} are not scaled down until these nodes have reported their latest windows"
        )
    if given_up:
        messages.append(
            f"{given_up}: windows come late for {LONGEST_LAG.total_seconds() / 60:g} min: check the nodes' clocks; "
            "services there are scaled down anyway"
        )
    return tuple(messages)


LONGEST_LAG = timedelta(minutes=30)
"""An agent's outbox holds no more (`agents.sync.outbox`): a node that is late for longer does not catch up."""

MISSED_PERIODS = 3
"""A loop that did not look for this number of periods was away."""


@dataclass(slots=True)
class HeardNodes:
    """What one loop remembers of when it looked and whom it heard."""

    looked_at: datetime | None = None
    flows_since: datetime | None = None
    """When somebody was heard again after the last outage; None: none is."""
    late_since: dict[str, datetime] = field(default_factory=dict)
    """When each node that is late now was first seen to be."""
    silences: dict[str, tuple[datetime, ...]] = field(default_factory=dict)
    """When each node fell silent, the last FLAPS times."""
    silent: frozenset[str] = frozenset()
    """Who counted as silent when it looked."""
    silence_due_at: datetime | None = None
    """When it is to be seen whether another node does; None: the next tick is early enough."""

    def late_too_long(self, snapshot: Snapshot) -> frozenset[str]:
        """Nodes that are late for LONGEST_LAG; asked at every tick."""
        # Built again: a node that caught up starts from zero when it is late again.
        self.late_since = {
            node: self.late_since.get(node, snapshot.at)
            for node in sorted(late_nodes(snapshot))
        }
        return frozenset(
            node
            for node, since in self.late_since.items()
            if snapshot.at - since >= LONGEST_LAG
        )

    def note_silences(self, nodes: Iterable[str], at: datetime) -> None:
        """These nodes have just fallen silent."""
        for node in nodes:
            self.silences[node] = (*self.silences.get(node, ()), at)[-FLAPS:]

    def _forget_removed(self, snapshot: Snapshot) -> None:
        nodes = {node.id for node in snapshot.state.nodes}
        self.silences = {
            node: times for node, times in self.silences.items() if node in nodes
        }

    def has_new_silence(self, snapshot: Snapshot) -> bool:
        """Whether a node came to count as silent since the last tick; if not, the next time to see is noted."""
        self.silence_due_at = silence_due_at(snapshot)
        return not self.silent.issuperset(silent_nodes(snapshot))

    def flapping(self, snapshot: Snapshot) -> frozenset[str]:
        """Nodes that come and go; none where that is true of many."""
        since = snapshot.at - FLAP_WINDOW
        found = frozenset(
            node.id
            for node in snapshot.state.nodes
            if sum(at > since for at in self.silences.get(node.id, ())) >= FLAPS
        )
        is_rare = len(found) <= _MAX_FLAPPING_SHARE * len(snapshot.state.nodes)
        return found if is_rare else frozenset()

    def operator_or_telemetry_hold(self, snapshot: Snapshot) -> Reason | None:
        """Why the loop must not decide now; what the operator asked for comes before what was heard."""
        # Whom it heard is remembered in either case: else each resumption would look like an absence.
        telemetry = self.hold_reason(snapshot)
        if snapshot.settings.paused:
            return Reason(kind=HoldKind.PAUSED)
        if snapshot.settings.mode is Mode.OFF:
            return Reason(
                kind=HoldKind.MODE_OFF, figures={"policy": snapshot.settings.policy}
            )
        return telemetry

    def hold_reason(self, snapshot: Snapshot) -> Reason | None:
        """Why telemetry does not let the loop decide now; None when it does."""
        reason = hold_reason(snapshot)
        was_away = self._was_away(snapshot)
        self.looked_at = snapshot.at
        self.silence_due_at = silence_due_at(snapshot)
        self.silent = frozenset(silent_nodes(snapshot))
        self._forget_removed(snapshot)
        if reason is not None:
            self.flows_since = None
            return reason
        if was_away or self.flows_since is None:
            self.flows_since = snapshot.at
        return self._comeback_reason(snapshot, self.flows_since)

    def _was_away(self, snapshot: Snapshot) -> bool:
        settings = snapshot.settings
        longest_s = max(settings.stale_after_s, MISSED_PERIODS * settings.period_s)
        return self.looked_at is None or snapshot.at - self.looked_at > timedelta(
            seconds=longest_s
        )

    def _comeback_reason(self, snapshot: Snapshot, since: datetime) -> Reason | None:
        """Give every agent the time after which it would count as silent, where there is a plan to keep meanwhile."""
        silent = silent_nodes(snapshot)
        left_s = snapshot.settings.stale_after_s - (snapshot.at - since).total_seconds()
        if snapshot.target is None or not silent or left_s <= 0.0:
            return None
        return Reason(
            kind=HoldKind.TELEMETRY_RETURNS,
            figures={
                "silent": len(silent),
                "nodes": len(snapshot.state.nodes),
                "left_s": left_s,
            },
        )
