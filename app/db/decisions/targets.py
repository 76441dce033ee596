"""The target: which plan is in force, by compare-and-set, and the commands that carry it out."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import ColumnElement, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agents.base.protocol import NodeCommand
from app.db.base.leader import holds_lead
from app.db.base.rows import one_row
from app.db.base.tables import AnyRow, cluster, event, plan
from app.db.decisions import policies
from app.db.decisions.allocations import save_allocations
from app.db.decisions.bindings import StoredBinding, columns_of, load_bound
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
from solvers.types.plan import BoundPlan


async def push(
    connection: AsyncConnection,
    plan_id: int,
    bound: BoundPlan,
    commands: Sequence[NodeCommand],
    at: datetime,
    *,
    epoch: int = 0,
    known: StoredBinding | None = None,
) -> bool:
    """Make a plan the target if its parent still is and the catalogue revision is unchanged; see `Store.push_target`.

    A plan that was not approved gives way to one that a person approved and that can still be pushed. `epoch`: of the
    leader who pushes. `known`: a target that need not be read again.

    The one row of `cluster` is locked first, as every change of the catalogue and of the policy does: pushes and
    changes happen one after the other, and nothing is pushed after a pause has been confirmed. Raises NotFound.
    """
    counter = select(cluster, PUSHED.label("pushed")).with_for_update(of=cluster)
    now = (await connection.execute(counter)).one()
    recorded = select(*_RECORDED).where(plan.c.id == plan_id).with_for_update()
    missing = f"there is no plan {plan_id}"
    row = await one_row(connection, recorded, missing=missing)
    if row.state not in UNDECIDED:
        return False
    policy = await policies.load_current(connection)
    leads = await holds_lead(connection, epoch)
    if policy.holds or not leads:
        # What a person approved waits for a leader that may push it.
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
    before = await load_bound(connection, "target", known=known)
    if (row.generation, row.parent) != (bound.generation, bound.parent):
        # It was renumbered since it was recorded.
        await _record_bound(connection, plan_id, bound, before)
    await _replace_target(connection, plan_id, bound.generation, at)
    await save_allocations(connection, bound, before.plan if before else None)
    await note_places(connection, bound)
    await save_commands(
        connection, commands, at, all_anew=now.target_generation > now.pushed
    )
    await announce(connection, str(bound.generation))
    return True


_RECORDED = (
    plan.c.state,
    plan.c.catalogue_revision,
    plan.c.policy_version,
    plan.c.generation,
    plan.c.parent,
)


async def _record_bound(
    connection: AsyncConnection,
    plan_id: int,
    bound: BoundPlan,
    before: StoredBinding | None,
) -> None:
    columns = await columns_of(connection, bound, known=before)
    await connection.execute(update(plan).where(plan.c.id == plan_id).values(columns))


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
    connection: AsyncConnection, plan_id: int, generation: int, at: datetime
) -> None:
    # Before the new one: the schema allows one plan in state `target`.
    await connection.execute(
        update(plan).where(plan.c.state == "target").values(state="superseded")
    )
    # Plans that wait were made from the target that ends here: they cannot be pushed any more.
    waiting = plan.c.state.in_(UNDECIDED) & (plan.c.id != plan_id)
    await _lose(connection, waiting, overtaken_by(plan_id), at)
    await connection.execute(
        update(plan).where(plan.c.id == plan_id).values(state="target")
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
            "generation": generation,
            "plan_id": plan_id,
            "start": closed.scalar_one_or_none() or at,
        },
    )
    await connection.execute(update(cluster).values(target_generation=generation))
