"""InSS's batch decision: for replicas that share a GPU, the batches that carry most and still keep every SLO.

Sets: the replicas of one GPU, each with the batches that were profiled at its SM percent (InSS: 1 to 32).
Parameters: execution times t(b) with the neighbours, memory m(b), watts; SLO, arrival rate λ, requests that wait G.
Variables: a batch b per replica.
Objective: Σ h(b), h the rate that a replica carries under the capacity law.
Constraints: Σ m(b) and Σ watts within the GPU's (4a); the task latency T(b) within the SLO (4b, `task_latency_ms`).
That the rate is carried, h(b) ≥ λ (4c), is for the caller to ask: where it is not, GPUs must be provisioned again.

Replicas decide in the order given: all first get their smallest batch, then each takes its best one while memory lasts.
Neighbours count with the batch that presses most, so that no decision unsettles another.

Method: with at most 32 candidates a scan is exact. The paper's Algorithm 1 sets its flag in the wrong branch, where a
batch was too large, and takes T for monotone; but by eq. 2 T can fall with b while requests wait.

Source: InSS, sections 4.2 and 5.3. Changed: h is not b / t, at which a queue of random arrivals grows without end, but
what the capacity law leaves of it; and T has no wait for a full batch unless `fills_batches`, since our replicas take
whatever waits. (With that wait a lower rate would allow smaller batches only, and could not be carried by a provision
that carries a higher one.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from solvers.laws.colocation import Neighbours, capacity_rps, execution_ms
from solvers.types.problem import CapacityLaw, OperatingPoint
from solvers.types.state import GpuType

_ROUNDING = 1e-7
"""Rounding of memory and watts, as in the contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTenant:
    """One replica whose batch is to be decided."""

    rows: tuple[OperatingPoint, ...]
    """At its SM percent and its GPU's clock, by batch, ascending; at least one."""
    sensitivity: float
    slo_ms: float
    percentile: float
    arrival_rate_rps: float
    """This replica's part of the service's rate."""
    queued: float = 0.0
    """Requests that wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHost:
    """The GPU that the tenants share."""

    gpu_type: GpuType
    law: CapacityLaw
    knows_neighbours: bool = True
    """False: as if every tenant were alone (the paper's InSS-ni)."""
    fills_batches: bool = False
    """Whether replicas wait until a batch is full, as the paper's do; ours take whatever waits."""


def carried_rps(
    host: BatchHost,
    tenant: BatchTenant,
    row: OperatingPoint,
    neighbours: Neighbours,
) -> float:
    """What the tenant carries with that row; 0 where its task latency is over the SLO (4b)."""
    duration_ms = execution_ms(
        row, neighbours, sensitivity=tenant.sensitivity, gpu_type=host.gpu_type
    )
    # At an infinite rate a batch is gathered at once, so that eq. 2 has no wait for it.
    rate_rps = tenant.arrival_rate_rps if host.fills_batches else math.inf
    latency_ms = task_latency_ms(
        row.batch, duration_ms, arrival_rate_rps=rate_rps, queued=tenant.queued
    )
    if latency_ms > tenant.slo_ms:
        return 0.0
    return capacity_rps(
        host.law,
        percentile=tenant.percentile,
        batch=row.batch,
        slo_ms=tenant.slo_ms,
        execution_ms=duration_ms,
    )


class BatchDecision(NamedTuple):
    """What was decided for one tenant."""

    row: OperatingPoint
    carried_rps: float
    """0 where no batch keeps the SLO; the row is then the smallest batch's."""


def task_latency_ms(
    batch: int,
    execution_ms: float,
    *,
    arrival_rate_rps: float,
    queued: float = 0.0,
    remainder_ms: float | None = None,
) -> float:
    """Eq. 2: from a request's arrival to its answer.

    Either enough wait to fill batches, W = queued + 1 ≥ b, and it goes with the ⌈W / b⌉-th of them; or it waits until
    its batch is gathered. Both begin when the running batch is through, of which `remainder_ms` is left (None: all).
    """
    # The worst case: it comes just after a batch has begun.
    remainder = execution_ms if remainder_ms is None else remainder_ms
    waiting = queued + 1.0
    if waiting >= batch:
        return remainder + math.ceil(waiting / batch) * execution_ms
    gather_ms = (
        1000.0 * (batch - waiting) / arrival_rate_rps
        if arrival_rate_rps > 0.0
        else math.inf
    )
    return max(remainder, gather_ms) + execution_ms


def decide_batches(
    host: BatchHost,
    tenants: Sequence[BatchTenant],
) -> tuple[BatchDecision, ...] | None:
    """A batch for every tenant, in their order; None where the GPU has not even room for the smallest ones."""
    smallest = [tenant.rows[0] for tenant in tenants]
    room_mib, room_w = _left_beside(smallest, host.gpu_type)
    if room_mib < 0.0 or room_w < 0.0:
        return None
    decided = []
    neighbours = neighbours_of_all(host, tenants)
    for tenant, first, others in zip(tenants, smallest, neighbours, strict=True):
        rows = [
            row
            for row in tenant.rows
            if row.memory_mib - first.memory_mib <= room_mib
            and row.power_w - first.power_w <= room_w
        ]
        best = _decided(host, tenant, rows, others)
        room_mib -= best.row.memory_mib - first.memory_mib
        # A larger batch may draw less by its profile; the others are not given what may be noise.
        room_w -= max(0.0, best.row.power_w - first.power_w)
        decided.append(best)
    return tuple(decided)


def _left_beside(
    rows: Sequence[OperatingPoint], gpu_type: GpuType
) -> tuple[float, float]:
    """MiB and watts of a GPU that these rows leave; below 0 where they need more."""
    room_mib = gpu_type.memory_mib * (1.0 + _ROUNDING)
    room_w = gpu_type.power_cap_w * (1.0 + _ROUNDING) - gpu_type.idle_w
    return (
        room_mib - sum(row.memory_mib for row in rows),
        room_w - sum(row.power_w for row in rows),
    )


def _decided(
    host: BatchHost,
    tenant: BatchTenant,
    rows: Sequence[OperatingPoint],
    neighbours: Neighbours,
) -> BatchDecision:
    best = _best(host, tenant, rows, neighbours)
    if best.carried_rps > 0.0 or tenant.queued == 0.0:
        return best
    # The queue is too long for every batch: the one that carries most ends it soonest.
    return _best(host, replace(tenant, queued=0.0), rows, neighbours)


def _best(
    host: BatchHost,
    tenant: BatchTenant,
    rows: Sequence[OperatingPoint],
    neighbours: Neighbours,
) -> BatchDecision:
    """What carries most; of batches that carry alike, the smallest."""
    options = [
        BatchDecision(row, carried_rps(host, tenant, row, neighbours)) for row in rows
    ]
    return max(options, key=lambda option: (option.carried_rps, -option.row.batch))


def neighbours_of_all(
    host: BatchHost,
    tenants: Sequence[BatchTenant],
) -> list[Neighbours]:
    """Each tenant's neighbours, at the batches that press most."""
    if not host.knows_neighbours:
        return [Neighbours(count=0, pressure=0.0)] * len(tenants)
    # The most pressure over its batches: a neighbour's batch may be decided after this one.
    worst = [max(row.pressure for row in tenant.rows) for tenant in tenants]
    return [
        Neighbours(
            count=len(tenants) - 1, pressure=math.fsum(worst[:at] + worst[at + 1 :])
        )
        for at in range(len(tenants))
    ]
