"""Snapshots and bound plans, written down directly."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from app.store.node_book import AgentStatus
from app.store.store import PolicySettings, ServiceWindow, Snapshot
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica
from solvers.types.state import (
    ClusterState,
    Gpu,
    GpuId,
    Node,
    NodeId,
    ReplicaId,
    Service,
)
from tests.app.fleets import FAST, POINTS, SETTINGS, a_node, a_service

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def windows_of(
    service: str,
    counts: Sequence[int],
    *,
    window_s: float = 2.0,
    last_ended_s: float = 0.0,
    **counted: int,
) -> tuple[ServiceWindow, ...]:
    """Consecutive windows with these arrivals; the last one ended `last_ended_s` seconds ago."""
    return tuple(
        ServiceWindow(
            service=service,
            start=NOW
            - timedelta(seconds=last_ended_s + window_s * (len(counts) - index)),
            window_s=window_s,
            arrivals=count,
            served=counted.get("served", count),
            in_slo=counted.get("in_slo", count),
            rejected=counted.get("rejected", 0),
        )
        for index, count in enumerate(counts)
    )


def a_state(
    *,
    services: Sequence[Service] = (a_service(),),
    silent_for_s: Sequence[float] = (0.0, 0.0),
    gpus: Sequence[Gpu] | None = None,
) -> ClusterState:
    """Nodes n1, n2, ... with one GPU each."""
    nodes = [a_node(f"n{number}") for number in range(1, len(silent_for_s) + 1)]
    return ClusterState(
        gpu_types=(FAST,),
        nodes=tuple(
            Node(id=node.id, silent_for_s=silent)
            for (node, _), silent in zip(nodes, silent_for_s, strict=True)
        ),
        gpus=tuple(gpus)
        if gpus is not None
        else tuple(gpu for _, own in nodes for gpu in own),
        services=tuple(services),
        catalogue_revision=1,
    )


def a_snapshot(
    *,
    state: ClusterState | None = None,
    windows: Sequence[ServiceWindow] = (),
    target: BoundPlan | None = None,
    settings: PolicySettings = SETTINGS,
    statuses: Sequence[AgentStatus] = (),
) -> Snapshot:
    return Snapshot(
        at=NOW,
        state=state or a_state(),
        points=(POINTS,),
        target=target,
        settings=settings,
        windows=tuple(windows),
        statuses=tuple(statuses),
    )


def a_replica(
    name: str,
    *,
    service: str = "chat",
    rate_rps: float = 20.0,
    sm_percent: float = 50.0,
    batch: int = 1,
) -> BoundReplica:
    return BoundReplica(
        id=ReplicaId(name),
        service=service,
        network="net",
        sm_percent=sm_percent,
        batch=batch,
        arrival_rate_rps=rate_rps,
        memory_mib=4000.0,
    )


def a_bound_plan(
    *gpus: Sequence[BoundReplica], generation: int = 1, clock_mhz: float = 1000.0
) -> BoundPlan:
    """The replicas of node n1's GPU, of n2's, and so on."""
    return BoundPlan(
        generation=generation,
        parent=generation - 1,
        policy="test",
        gpus=tuple(
            BoundGpu(
                id=GpuId(f"n{number}/gpu-0"),
                node=NodeId(f"n{number}"),
                gpu_type="fast",
                clock_mhz=clock_mhz,
                power_cap_w=250.0,
                replicas=tuple(replicas),
            )
            for number, replicas in enumerate(gpus, start=1)
            if replicas
        ),
    )
