"""The target: which plan is in force, by compare-and-set, and the commands that carry it out."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import msgspec
from sqlalchemy import ColumnElement, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import DEFAULT_PROJECT, NodeCommand
from app.db.base.leader import holds_lead
from app.db.base.rows import one_row
from app.db.base.tables import AnyRow, cluster, event, plan
from app.db.decisions import policies
from app.db.decisions.commands import PUSHED, announce, save_commands
from app.db.workloads.task_progress import note_places
from app.store.plan_rules import (
    HELD,
    NOT_LEADING,
    RESTARTED,
    EndedState,
    PlanBasis,
    ended_event,
    overtaken_by,
    reason_with,
    why_lost,
)
from app.store.plan_states import UNDECIDED
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica, BoundTask


async def push(
    connection: AsyncConnection,
    plan_id: int,
    bound: BoundPlan,
    commands: Sequence[NodeCommand],
    at: datetime,
    *,
    epoch: int = 0,
) -> bool:
    """Make a plan the target if its parent still is and the catalogue revision is unchanged; see `Store.push_target`.

    A plan that nobody approved gives way to one that a person approved and that can still be pushed. `epoch`: of the
    leader who pushes.

    The one row of `cluster` is locked first, as every change of the catalogue and of the policy does: pushes and
    changes happen one after the other, and nothing is pushed after a pause has been confirmed. Raises NotFound.
    """
    counter = select(cluster, PUSHED.label("pushed")).with_for_update(of=cluster)
    now = (await connection.execute(counter)).one()
    row = await one_row(
        connection,
        select(plan.c.state, plan.c.catalogue_revision, plan.c.policy_version)
        .where(plan.c.id == plan_id)
        .with_for_update(),
        missing=f"there is no plan {plan_id}",
    )
    if row.state not in UNDECIDED:
        return False
    policy = await policies.load_current(connection)
    leads = await holds_lead(connection, epoch)
    if policy.holds or not leads:
        # What a person approved waits for whoever may push it.
        if row.state == "proposed":
            why = HELD if policy.holds else NOT_LEADING
            await _lose(connection, plan.c.id == plan_id, why, at)
        return False
    why_not = why_lost(
        bound,
        PlanBasis(
            generation=bound.parent,
            catalogue_revision=row.catalogue_revision,
            policy_version=row.policy_version,
        ),
        PlanBasis(
            generation=now.target_generation,
            catalogue_revision=now.catalogue_revision,
            policy_version=policy.version,
        ),
        is_approved=row.state == "approved",
        one_is_approved=await _is_one_approved(connection, now),
    )
    if why_not is not None:
        await _lose(connection, plan.c.id == plan_id, why_not, at)
        return False
    await _replace_target(connection, plan_id, bound, at)
    await _save_allocation(connection, plan_id, bound)
    await note_places(connection, bound)
    await save_commands(
        connection, commands, at, all_anew=now.target_generation > now.pushed
    )
    await announce(connection, str(bound.generation))
    return True


async def withdraw_proposals(
    connection: AsyncConnection, *, keep: int | None, at: datetime, epoch: int = 0
) -> None:
    """See `Store.withdraw_proposals`; nothing where another process leads, which knows better what waits."""
    # As a push does, before the plans' rows.
    await connection.execute(select(cluster).with_for_update())
    if await holds_lead(connection, epoch):
        stale = (plan.c.state == "proposed") & plan.c.id.is_distinct_from(keep)
        await _end(connection, stale, "withdrawn", RESTARTED, at)


async def _lose(
    connection: AsyncConnection, which: ColumnElement[bool], why: str, at: datetime
) -> None:
    await _end(connection, which, "lost", why, at)


async def _end(
    connection: AsyncConnection,
    which: ColumnElement[bool],
    state: EndedState,
    why: str,
    at: datetime,
) -> None:
    """These plans can never be pushed any more; each says why, and so does the audit."""
    # Locked: a person who rejects one at this moment comes first, and it does not end twice.
    found = await connection.execute(
        select(plan.c.id, plan.c.reason).where(which).with_for_update()
    )
    for row in sorted(found.all()):
        reason = reason_with(row.reason, state, why)
        await connection.execute(
            update(plan).where(plan.c.id == row.id).values(state=state, reason=reason)
        )
        line = asdict(ended_event(at, row.id, state, why))
        await connection.execute(insert(event).values(line))


async def _is_one_approved(connection: AsyncConnection, now: AnyRow) -> bool:
    """Whether the next tick can push a plan that a person approved."""
    pushable = (plan.c.state == "approved") & (plan.c.parent == now.target_generation)
    found = (
        select(plan.c.id)
        .where(pushable, plan.c.catalogue_revision == now.catalogue_revision)
        .limit(1)
    )
    return (await connection.execute(found)).first() is not None


async def _replace_target(
    connection: AsyncConnection, plan_id: int, bound: BoundPlan, at: datetime
) -> None:
    # Before the new one: the schema allows one plan in state `target`.
    await connection.execute(
        update(plan).where(plan.c.state == "target").values(state="superseded")
    )
    # Plans that wait were made from the target that ends here: nobody can push them any more.
    waiting = plan.c.state.in_(UNDECIDED) & (plan.c.id != plan_id)
    await _lose(connection, waiting, overtaken_by(plan_id), at)
    await connection.execute(
        update(plan)
        .where(plan.c.id == plan_id)
        .values(
            state="target",
            bound=msgspec.to_builtins(bound),
            generation=bound.generation,
            parent=bound.parent,
        )
    )
    # Two targets within one tick of the clock still follow each other: no period is empty.
    closed = await connection.execute(
        text(
            "UPDATE target SET valid = tstzrange(lower(valid), greatest(:at, lower(valid) + interval '1 microsecond')) "
            "WHERE upper_inf(valid) RETURNING upper(valid)"
        ),
        {"at": at},
    )
    await connection.execute(
        text(
            "INSERT INTO target (generation, plan_id, valid) "
            "VALUES (:generation, :plan_id, tstzrange(CAST(:start AS timestamptz), NULL))"
        ),
        {
            "generation": bound.generation,
            "plan_id": plan_id,
            "start": closed.scalar_one_or_none() or at,
        },
    )
    await connection.execute(update(cluster).values(target_generation=bound.generation))


async def _save_allocation(
    connection: AsyncConnection, plan_id: int, bound: BoundPlan
) -> None:
    """GPUs, replicas, tasks and spares as rows, with what they were at this moment: the ground of every cost report."""
    gpus: list[dict[str, object]] = []
    replicas: list[dict[str, object]] = []
    tasks: list[dict[str, object]] = []
    spares: list[dict[str, object]] = []
    for gpu in bound.gpus:
        # A GPU without work costs nothing of the plan, so it has no row; spares are no work.
        row = _gpu_row(gpu)
        spares += [{**row, **_replica_row(each)} for each in gpu.spares]
        if gpu.replicas or _residents(gpu):
            limits = {"node": gpu.node, "power_cap_w": gpu.power_cap_w}
            gpus.append({**row, **limits})
            replicas += [{**row, **_replica_row(each)} for each in gpu.replicas]
            tasks += [{**row, **_task_row(each)} for each in _residents(gpu)]
    # GPUs first: the rows of the others refer to theirs.
    for statement, rows in (
        (_INSERT_GPU, gpus),
        (_INSERT_REPLICA, replicas),
        (_INSERT_TASK, tasks),
        (_INSERT_SPARE, spares),
    ):
        if rows:
            # One statement for all of them; JSON writes floats as their shortest decimals: 0.1 stays 0.1, and costs
            # are exact.
            body = msgspec.json.encode(rows).decode()
            await connection.execute(
                text(statement), {"plan_id": plan_id, "rows": body}
            )


def _residents(gpu: BoundGpu) -> tuple[BoundTask, ...]:
    """Tasks that hold something of the GPU."""
    return tuple(task for task in gpu.tasks if task.is_resident)


def _gpu_row(gpu: BoundGpu) -> dict[str, object]:
    return {"gpu": gpu.id, "gpu_type": gpu.gpu_type, "clock_mhz": gpu.clock_mhz}


def _replica_row(replica: BoundReplica) -> dict[str, object]:
    return {
        "replica": replica.id,
        "service": replica.service,
        "arrival_rate_rps": replica.arrival_rate_rps,
        **_share_row(replica),
    }


def _task_row(task: BoundTask) -> dict[str, object]:
    return {"task": task.name, "kind": task.kind, **_share_row(task)}


def _share_row(part: BoundReplica | BoundTask) -> dict[str, object]:
    return {
        "network": part.network,
        "sm_percent": part.sm_percent,
        "batch": part.batch,
        "memory_mib": part.memory_mib,
    }


_INSERT_GPU = """
INSERT INTO plan_gpu (plan_id, gpu, node, gpu_type, clock_mhz, power_cap_w, memory_mib, idle_w)
SELECT :plan_id, r.gpu, r.node, t.name, r.clock_mhz, r.power_cap_w, t.memory_mib, t.idle_w
FROM json_to_recordset(CAST(:rows AS json))
     AS r (gpu text, node text, gpu_type text, clock_mhz float8, power_cap_w float8)
JOIN gpu_type t ON t.name = r.gpu_type
"""

_SHARES = """json_to_recordset(CAST(:rows AS json))
     AS r (gpu text, gpu_type text, clock_mhz float8, replica text, service text, arrival_rate_rps float8, task text,
           kind text, network text, sm_percent numeric, batch integer, memory_mib numeric)"""

# 0 where no profile has the point; reports take it as not known.
_POWER_W = """
       coalesce((SELECT o.power_w FROM profile p JOIN profile_point o ON o.profile_id = p.id
                 WHERE p.network = r.network AND p.gpu_type = r.gpu_type AND p.is_current
                   AND o.sm_percent = r.sm_percent AND o.batch = r.batch AND o.clock_mhz = r.clock_mhz), 0)
"""

_INSERT_REPLICA = f"""
INSERT INTO plan_replica (plan_id, gpu, replica, service, project, network, sm_percent, batch, memory_mib, power_w,
                          arrival_rate_rps)
SELECT :plan_id, r.gpu, r.replica, r.service,
       coalesce((SELECT project FROM service WHERE name = r.service), '{DEFAULT_PROJECT}'), r.network,
       r.sm_percent, r.batch, r.memory_mib, {_POWER_W}, r.arrival_rate_rps
FROM {_SHARES}
"""

_INSERT_TASK = f"""
INSERT INTO plan_task (plan_id, gpu, task, name, project, kind, network, sm_percent, batch, memory_mib, power_w)
SELECT :plan_id, r.gpu, r.task, coalesce(t.name, r.task), coalesce(t.project, '{DEFAULT_PROJECT}'), r.kind, r.network,
       r.sm_percent, r.batch, r.memory_mib, {_POWER_W}
FROM {_SHARES}
LEFT JOIN task t ON t.id = r.task
"""

_INSERT_SPARE = f"""
INSERT INTO plan_spare (plan_id, gpu, gpu_type, clock_mhz, replica, service, network, sm_percent, batch, memory_mib)
SELECT :plan_id, r.gpu, r.gpu_type, r.clock_mhz, r.replica, r.service, r.network, r.sm_percent, r.batch, r.memory_mib
FROM {_SHARES}
"""
