"""What targets give to whom: rows that stay for as long as a GPU carries the same, the ground of every cost report."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import DEFAULT_PROJECT
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica, BoundTask
from solvers.types.state import GpuId, ReplicaId

Row = dict[str, object]


async def save_allocations(
    connection: AsyncConnection, bound: BoundPlan, before: BoundPlan | None
) -> None:
    """End the rows of what only the target `before` gave, and begin those of what this one gives otherwise.

    New rows have projects, watts and capacities as they are at this moment. Planned rates are those of the target in
    force: they change with every plan, and no report asks for old ones.
    """
    outdated = set((await connection.execute(text(_OUTDATED))).scalars())
    changes = _changes(bound, before, outdated)
    for statement, rows in (
        (_END, [{"gpu": name} for name in changes.ended]),
        (_BEGIN, [_gpu_row(gpu) for gpu in changes.begun]),
        # After the rows of their GPUs, to which these refer.
        (_BEGIN_REPLICAS, _replica_rows(changes.begun, _holders(bound))),
        (_BEGIN_TASKS, _task_rows(changes.begun)),
        (_SET_RATES, changes.rates),
    ):
        if rows:
            # One statement for all of them; JSON writes floats as their shortest decimals: 0.1 stays 0.1, and costs
            # are exact.
            body = msgspec.json.encode(rows).decode()
            values = {"rows": body, "generation": bound.generation}
            await connection.execute(text(statement), values)


@dataclass(frozen=True, slots=True)
class _Changes:
    """What one target has otherwise than the one before it."""

    ended: list[GpuId] = field(default_factory=list)
    begun: list[BoundGpu] = field(default_factory=list)
    rates: list[Row] = field(default_factory=list)


def _changes(
    bound: BoundPlan, before: BoundPlan | None, outdated: Collection[GpuId]
) -> _Changes:
    """`outdated`: GPUs whose rows are wrong by now, though they carry the same."""
    changes = _Changes()
    old = {}
    if before is not None:
        old = {gpu.id: gpu for gpu in before.gpus}
    new = {gpu.id: gpu for gpu in bound.gpus}
    for name in sorted(old.keys() | new.keys()):
        had = old.get(name)
        has = new.get(name)
        # Of most GPUs nothing at all has changed.
        if had == has and name not in outdated:
            continue
        was = _lasting(had)
        is_now = _lasting(has)
        if was == is_now and name not in outdated:
            planned = _rates(had)
            changes.rates.extend(row for row in _rates(has) if row not in planned)
        else:
            if was:
                changes.ended.append(name)
            if has and is_now:
                changes.begun.append(has)
    return changes


def _lasting(gpu: BoundGpu | None) -> BoundGpu | None:
    """What of a GPU has rows that end when it changes; None: a GPU without work costs nothing, and has none."""
    if gpu is None or not (gpu.replicas or _residents(gpu) or gpu.held_by):
        return None
    return replace(
        gpu,
        replicas=tuple(replace(each, arrival_rate_rps=0.0) for each in gpu.replicas),
        # How far a task has come is in a table of its own.
        tasks=tuple(
            replace(each, iterations=0, done_iterations=0.0) for each in _residents(gpu)
        ),
    )


def _residents(gpu: BoundGpu) -> tuple[BoundTask, ...]:
    """Tasks that hold something of the GPU."""
    return tuple(task for task in gpu.tasks if task.is_resident)


def _rates(gpu: BoundGpu | None) -> list[Row]:
    if gpu is None:
        return []
    return [
        {"gpu": gpu.id, "replica": each.id, "arrival_rate_rps": each.arrival_rate_rps}
        for each in gpu.replicas
    ]


def _holders(bound: BoundPlan) -> dict[ReplicaId, BoundReplica]:
    """Language models' replicas by id; without a rate, which counts once, on the GPU that they stand on."""
    return {
        each.id: replace(each, arrival_rate_rps=0.0)
        for gpu in bound.gpus
        for each in gpu.replicas
        if each.llm is not None
    }


def _replica_rows(
    gpus: Iterable[BoundGpu],
    holders: Mapping[ReplicaId, BoundReplica],
) -> list[Row]:
    """One per GPU and replica: a replica that spans several pays for each of them."""
    rows = []
    for gpu in gpus:
        held = holders.get(gpu.held_by) if gpu.held_by else None
        replicas = (held,) if held is not None else gpu.replicas
        rows += [{**_gpu_row(gpu), **_replica_row(each)} for each in replicas]
    return rows


def _task_rows(gpus: Iterable[BoundGpu]) -> list[Row]:
    return [
        {**_gpu_row(gpu), **_share_row(each), "task": each.name, "kind": each.kind}
        for gpu in gpus
        for each in _residents(gpu)
    ]


def _gpu_row(gpu: BoundGpu) -> Row:
    return {
        "gpu": gpu.id,
        "node": gpu.node,
        "gpu_type": gpu.gpu_type,
        "clock_mhz": gpu.clock_mhz,
        "power_cap_w": gpu.power_cap_w,
    }


def _replica_row(replica: BoundReplica) -> Row:
    return {
        **_share_row(replica),
        "replica": replica.id,
        "service": replica.service,
        "arrival_rate_rps": replica.arrival_rate_rps,
    }


def _share_row(part: BoundReplica | BoundTask) -> Row:
    return {
        "network": part.network,
        "sm_percent": part.sm_percent,
        "batch": part.batch,
        "memory_mib": part.memory_mib,
    }


# Capacities that an operator corrected. A service has one project for ever, and watts are left as they were: those of
# every new fit would give every GPU new rows.
_OUTDATED = """
SELECT a.gpu FROM allocation a JOIN gpu_type t ON t.name = a.gpu_type
WHERE upper_inf(a.generations) AND (a.memory_mib, a.idle_w) <> (t.memory_mib, t.idle_w)
"""

_END = """
UPDATE allocation a SET generations = int8range(lower(generations), :generation)
FROM json_to_recordset(CAST(:rows AS json)) AS r (gpu text)
WHERE a.gpu = r.gpu AND upper_inf(a.generations)
"""

_BEGIN = """
INSERT INTO allocation (gpu, generations, node, gpu_type, clock_mhz, power_cap_w, memory_mib, idle_w)
SELECT r.gpu, int8range(:generation, NULL), r.node, t.name, r.clock_mhz, r.power_cap_w, t.memory_mib, t.idle_w
FROM json_to_recordset(CAST(:rows AS json))
     AS r (gpu text, node text, gpu_type text, clock_mhz float8, power_cap_w float8)
JOIN gpu_type t ON t.name = r.gpu_type
"""

_SHARES = """json_to_recordset(CAST(:rows AS json))
     AS r (gpu text, gpu_type text, clock_mhz float8, replica text, service text, arrival_rate_rps float8, task text,
           kind text, network text, sm_percent numeric, batch integer, memory_mib numeric)"""

_BEGUN = "JOIN allocation a ON a.gpu = r.gpu AND lower(a.generations) = :generation"

# 0 where no profile has the point; reports take it as not known.
_POWER_W = """
       coalesce((SELECT o.power_w FROM profile p JOIN profile_point o ON o.profile_id = p.id
                 WHERE p.network = r.network AND p.gpu_type = r.gpu_type AND p.is_current
                   AND o.sm_percent = r.sm_percent AND o.batch = r.batch AND o.clock_mhz = r.clock_mhz), 0)
"""

_BEGIN_REPLICAS = f"""
INSERT INTO allocation_replica (allocation, replica, service, project, network, sm_percent, batch, memory_mib, power_w,
                                arrival_rate_rps)
SELECT a.id, r.replica, r.service,
       coalesce((SELECT project FROM service WHERE name = r.service), '{DEFAULT_PROJECT}'), r.network,
       r.sm_percent, r.batch, r.memory_mib, {_POWER_W}, r.arrival_rate_rps
FROM {_SHARES}
{_BEGUN}
"""

_BEGIN_TASKS = f"""
INSERT INTO allocation_task (allocation, task, name, project, kind, network, sm_percent, batch, memory_mib, power_w)
SELECT a.id, r.task, coalesce(t.name, r.task), coalesce(t.project, '{DEFAULT_PROJECT}'), r.kind, r.network,
       r.sm_percent, r.batch, r.memory_mib, {_POWER_W}
FROM {_SHARES}
{_BEGUN}
LEFT JOIN task t ON t.id = r.task
"""

_SET_RATES = """
UPDATE allocation_replica p SET arrival_rate_rps = r.arrival_rate_rps
FROM json_to_recordset(CAST(:rows AS json)) AS r (gpu text, replica text, arrival_rate_rps float8)
JOIN allocation a ON a.gpu = r.gpu AND upper_inf(a.generations)
WHERE p.allocation = a.id AND p.replica = r.replica
"""
