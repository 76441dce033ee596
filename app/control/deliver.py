"""Deliver: a bound plan → one NodeCommand per node. A pure function; the Store writes and the sync endpoint sends."""

from collections import defaultdict
from dataclasses import asdict

from agents.protocol import GovernorCommand, GpuCommand, NodeCommand, ReplicaCommand, Route, TaskCommand
from solvers.governors import GOVERNORS
from solvers.plan import BoundGpu, BoundPlan, planned_rates_rps
from solvers.state import ClusterState, GpuType

NET = 1.1
"""The board's own limit over the power cap where a governor holds the cap: it must see a breach to answer it, and a
breach between two of its steps must stay small."""


def make_commands(bound: BoundPlan, state: ClusterState) -> tuple[NodeCommand, ...]:
    """A command for every node of the cluster, in the order of node ids; a node without replicas gets an empty one.

    GPUs that left the fleet since the plan was bound are left out; the Store refuses to push such a plan.
    """
    index_of = {gpu.id: gpu.index for gpu in state.gpus}
    types = {gpu_type.name: gpu_type for gpu_type in state.gpu_types}
    by_node: dict[str, list[BoundGpu]] = defaultdict(list)
    for gpu in bound.gpus:
        if gpu.id in index_of:
            by_node[gpu.node].append(gpu)
    routes = _routes(bound, state)
    return tuple(
        NodeCommand(
            node=node.id,
            generation=bound.generation,
            gpus=tuple(
                _gpu(gpu, index_of[gpu.id], _governor(bound.governor, gpu, types[gpu.gpu_type]))
                for gpu in sorted(by_node[node.id], key=lambda gpu: index_of[gpu.id])
            ),
            routes=routes,
        )
        for node in sorted(state.nodes, key=lambda node: node.id)
    )


def _governor(name: str | None, gpu: BoundGpu, gpu_type: GpuType) -> GovernorCommand | None:
    """The governor of a GPU: any of its type's clocks, batches up to the plan's, power up to the plan's cap."""
    if name is None:
        return None
    return GovernorCommand(
        name=name,
        clocks_mhz=gpu_type.clocks_mhz,
        power_limit_w=gpu.power_cap_w * (NET if GOVERNORS[name].holds_power else 1.0),
    )


def _gpu(gpu: BoundGpu, index: int, governor: GovernorCommand | None) -> GpuCommand:
    return GpuCommand(
        index=index,
        gpu_type=gpu.gpu_type,
        clock_mhz=gpu.clock_mhz,
        power_cap_w=gpu.power_cap_w,
        replicas=tuple(
            ReplicaCommand(
                id=replica.id,
                service=replica.service,
                network=replica.network,
                sm_percent=replica.sm_percent,
                batch=replica.batch,
                memory_mib=replica.memory_mib,
                arrival_rate_rps=replica.arrival_rate_rps,
            )
            for replica in gpu.replicas
        ),
        tasks=tuple(TaskCommand(**asdict(task)) for task in gpu.tasks),
        governor=governor,
    )


def _routes(bound: BoundPlan, state: ClusterState) -> tuple[Route, ...]:
    rates = planned_rates_rps(bound)
    return tuple(
        Route(
            service=service.name,
            slo_ms=service.slo.latency_ms,
            percentile=service.slo.percentile,
            arrival_rate_rps=rates[service.name],
        )
        for service in sorted(state.services, key=lambda service: service.name)
    )
