"""What a person says to a plan that waits: the facts are read here under locks; `plan_rules` decides."""

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import Conflict
from app.db.base.rows import one_row
from app.db.base.tables import plan
from app.db.decisions import bindings, plans, policies
from app.db.workloads import services
from app.loop.make_commands import advised_services
from app.store.plan_rules import (
    ApprovalFacts,
    JudgedPlan,
    PlanBasis,
    why_not_approved,
    why_not_rejected,
)
from app.store.plan_states import PlanState
from app.store.store import PolicySettings


async def approve(connection: AsyncConnection, plan_id: int) -> None:
    """A person says yes to a proposed plan: the next tick pushes it.

    Raises NotFound; Conflict, with what to do instead, where nothing would push it.
    """
    # Before the plan's row, as a push does: a push either sees this plan approved, or is seen here. Who changes the
    # policy needs this lock, too, so that the policy cannot change before the end.
    generation, revision = await plans.lock_target(connection)
    judged = await _lock(connection, plan_id)
    settings = await policies.load_current(connection)
    facts = ApprovalFacts(
        now=PlanBasis(
            generation=generation,
            catalogue_revision=revision,
            policy_version=settings.version,
        ),
        settings=settings,
        advised=await _advised(connection, judged, settings),
        waiting=await _other_proposal(connection, plan_id),
    )
    await _judge(connection, plan_id, "approved", why_not_approved(judged, facts))


async def reject(connection: AsyncConnection, plan_id: int) -> None:
    """A person says no to a proposed or approved plan. Raises NotFound, Conflict."""
    judged = await _lock(connection, plan_id)
    await _judge(connection, plan_id, "rejected", why_not_rejected(judged))


async def _lock(connection: AsyncConnection, plan_id: int) -> JudgedPlan:
    """Until the transaction ends: a push must not change the state in between."""
    row = await one_row(
        connection,
        select(*_JUDGED).where(plan.c.id == plan_id).with_for_update(),
        missing=f"there is no plan {plan_id}",
    )
    made_from = PlanBasis(
        # A plan that was kept or refused was bound to nothing, and has no parent.
        generation=row.parent or 0,
        catalogue_revision=row.catalogue_revision,
        policy_version=row.policy_version,
    )
    return JudgedPlan(
        id=row.id,
        state=row.state,
        made_from=made_from,
        reason=row.reason,
        replaced_by=row.replaced_by,
    )


async def _advised(
    connection: AsyncConnection, judged: JudgedPlan, settings: PolicySettings
) -> tuple[str, ...]:
    # Only a plan that waits has to be compared with the target; others may bind nothing.
    if judged.state != "proposed":
        return ()
    target = await bindings.load_bound(connection, "target")
    return advised_services(
        settings,
        await services.load_all(connection),
        None if target is None else target.plan,
        await bindings.bound_of(connection, judged.id, known=target),
    )


async def _other_proposal(connection: AsyncConnection, plan_id: int) -> int | None:
    newest = await connection.execute(
        select(func.max(plan.c.id)).where(
            plan.c.state == "proposed", plan.c.id != plan_id
        )
    )
    waiting: int | None = newest.scalar_one_or_none()
    return waiting


async def _judge(
    connection: AsyncConnection, plan_id: int, state: PlanState, why_not: str | None
) -> None:
    """Raises Conflict where there is a reason against it."""
    if why_not is not None:
        raise Conflict(why_not)
    await connection.execute(
        update(plan).where(plan.c.id == plan_id).values(state=state)
    )


_JUDGED = (
    plan.c.id,
    plan.c.state,
    plan.c.reason,
    plan.c.replaced_by,
    plan.c.parent,
    plan.c.catalogue_revision,
    plan.c.policy_version,
)
