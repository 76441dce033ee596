"""Metrics of the API: rate, errors and duration by route, and what the sync endpoint does. Labels are few and known."""

import asyncio
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_PERIOD_S = 0.05
"""A step that holds the loop for a quarter of a second is seen to a fifth; twenty looks a second cost nothing."""


class ApiMetrics:
    """The API's instruments on one registry. `route` is a path template, never a path."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "plimsoll_http_requests",
            "Requests answered, by route and status",
            ("method", "route", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "plimsoll_http_request_seconds",
            "Time until the answer was sent, by route",
            ("method", "route"),
            buckets=SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "plimsoll_http_requests_in_flight",
            "Requests being answered now",
            registry=registry,
        )
        self.loop_lag = Histogram(
            "plimsoll_event_loop_lag_seconds",
            "Delay of a timer of the API's event loop, during which no request was answered",
            buckets=SECONDS,
            registry=registry,
        )
        self.observations = Counter(
            "plimsoll_sync_observations",
            "Observations by outcome",
            ("result",),
            registry=registry,
        )
        self.dropped_readings = Counter(
            "plimsoll_sync_dropped_readings",
            "Readings that a node may not report: of unknown services, of GPUs, replicas and tasks of other nodes, and "
            "acknowledgements of unknown commands",
            ("kind",),
            registry=registry,
        )
        # Without the node as a label: the line in the audit names it.
        self.dropped_events = Counter(
            "plimsoll_sync_dropped_events",
            "Events caused by nodes beyond the first 60 per kind, node and hour; the audit only counts them",
            registry=registry,
        )
        # Without the address as a label: it is the client's to choose, and each would be a time series.
        self.guessing = Counter(
            "plimsoll_http_guessing_addresses",
            "Episodes of many unknown tokens from one address",
            registry=registry,
        )
        self.commands = Counter(
            "plimsoll_sync_commands", "Commands handed to agents", registry=registry
        )
        self.clock_skew = Counter(
            "plimsoll_sync_clock_skews",
            "Agents found with a wrong clock",
            registry=registry,
        )

    async def watch_loop(self) -> None:
        """Note how late this loop's timers come, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self.loop_lag.observe(max(0.0, loop.time() - due_s))

    def note_dropped(self, dropped: Mapping[str, int]) -> None:
        """Count readings that were left out, by kind."""
        for kind, count in dropped.items():
            self.dropped_readings.labels(kind).inc(count)
