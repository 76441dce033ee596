"""Requests that still wait at the end of a run though the SLO's latency has passed: late, but finished by nobody."""

import numpy as np

from agents.sim.cluster import SimulatedCluster
from agents.sim.engine import HEAD, LENGTH, ReplicaQueue
from agents.sim.front_door import ArrivalSource
from solvers.state import Service


def count_overdue(cluster: SimulatedCluster, service: Service, source: ArrivalSource | None) -> int:
    """How many of a service's requests have waited for longer than its SLO; `source`: where they came from, if open."""
    now_s = cluster.advance()
    before_s = now_s - service.slo.latency_ms / 1000.0
    queues = (
        each.queue
        for node in cluster.nodes.values()
        for _, each in node.replicas()
        if each.command.service == service.name
    )
    at_replicas = sum(count_older(queue, before_s) for queue in queues)
    if source is None:
        return at_replicas
    # At the front door wait the newest ones: all that came since the service lost its last replica, but the oldest.
    newest = len(source.arrivals(before_s, now_s))
    return at_replicas + max(0, cluster.waiting(service.name) - newest)


def count_older(queue: ReplicaQueue, before_s: float) -> int:
    """Requests that wait or run in a queue and arrived before a moment."""
    arrived_s, cursor, _, _ = queue.state
    places = (cursor[HEAD] + np.arange(cursor[LENGTH])) % len(arrived_s)
    return int(np.sum(arrived_s[places] < before_s))
