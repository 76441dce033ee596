"""Roll back: an earlier plan in force again. The API writes it down as approved; the next tick pushes it."""

import asyncio
from dataclasses import replace

from fastapi import Request, Response

from app.api.decisions.plan_conversions import summary_view
from app.api.decisions.plan_views import RestoreView
from app.api.decisions.plans import PlanId
from app.api.http.answers import ACT
from app.api.http.auth import ClusterOperator
from app.api.http.body import resource_router
from app.api.http.idempotency import IdempotencyKey, once
from app.api.http.objects import POLICY_NAME
from app.api.http.parts import Context
from app.base.errors import Conflict
from app.catalogue.catalogue import load_training_layers
from app.db.base.transaction import Connection, lock_object
from app.db.decisions import plans, policies
from app.db.decisions.problem_archive import PackedProblem, PartCache, pack, save_parts
from app.loop.planning.llm_rows import SizedModels
from app.loop.restore import Restored, restore
from app.store.plan_rules import why_held
from app.store.store import PlanRecord, Snapshot
from solvers.types.plan import BoundPlan
from solvers.types.state import Mode

router = resource_router("plans", prefix="/plans")

MAX_TRIES = 3
"""To bind a plan to a fleet that changes meanwhile."""


@router.post("/{plan_id}/restore", response_model=RestoreView, responses=ACT)
async def restore_plan(
    context: ClusterOperator,
    plan_id: PlanId,
    request: Request,
    key: IdempotencyKey = None,
) -> Response:
    """Put a plan that was in force back in force: bound again to the fleet as it is, approved, pushed by the next tick.

    409 where it cannot run any more, and why: a GPU type, a service or an operating point is gone, or GPUs are short.
    Where the policy is in mode auto it is put in mode approve, else the next tick would undo this.
    """

    async def work(connection: Connection) -> RestoreView:
        snapshot, restored, packed = await _bound(context, connection, plan_id)
        mode = await _calm(context, connection, plan_id)
        reason = f"plan {plan_id} is restored"
        new_id = await _record(connection, restored.record(snapshot, reason), packed)
        await context.audit(
            connection,
            "PlanRestored",
            f"plan/{plan_id}",
            after={"plan_id": new_id},
            plan_id=new_id,
        )
        return RestoreView(
            plan=summary_view((await plans.get(connection, new_id)).summary),
            restored_plan_id=plan_id,
            mode_before=snapshot.settings.mode.value,
            mode=mode.value,
            warnings=[
                f"{entry.where}: {entry.detail}"
                for entry in restored.decision.violations
            ],
        )

    return await once(context, request, key, work)


async def _bound(
    context: Context, connection: Connection, plan_id: int
) -> tuple[Snapshot, Restored, PackedProblem]:
    """The plan on the fleet and next to the target that stay as they are until the transaction ends. Raises Conflict.

    Where another plan came into force, or the fleet changed, while it was bound, it is bound again.
    """
    for _ in range(MAX_TRIES):
        snapshot, restored = await _bind(context, connection, plan_id)
        packed = await asyncio.to_thread(pack, restored.problem, PartCache())
        # A savepoint: its rollback gives the locks back, since binding takes seconds on a large fleet.
        locks = await connection.begin_nested()
        # The policy is locked first, as by everybody who changes it.
        await lock_object(connection, "Policy", POLICY_NAME)
        generation = snapshot.target.generation if snapshot.target else 0
        if await plans.lock_target(connection) == (
            generation,
            snapshot.state.catalogue_revision,
        ):
            await locks.commit()
            return snapshot, restored, packed
        await locks.rollback()
    raise Conflict(
        f"the fleet or the plan in force changed {MAX_TRIES} times while plan {plan_id} was bound; try again"
    )


async def _bind(
    context: Context, connection: Connection, plan_id: int
) -> tuple[Snapshot, Restored]:
    earlier = await _earlier(connection, plan_id)
    solver = context.parts.solver
    snapshot = await SizedModels().sized(solver, await context.snapshot())
    if (reason := why_held(snapshot.settings)) is not None:
        raise Conflict(f"nothing would push plan {plan_id}: {reason}")
    restored = await restore(snapshot, earlier, layers=load_training_layers())
    _check(plan_id, restored)
    return snapshot, restored


async def _earlier(connection: Connection, plan_id: int) -> BoundPlan:
    row = await plans.get(connection, plan_id)
    if row.summary.state == "target":
        raise Conflict(f"plan {plan_id} is in force")
    # Of a plan that never was in force it is unknown whether the fleet would run it.
    if row.summary.state != "superseded" or row.bound is None:
        raise Conflict(
            f"plan {plan_id} is {row.summary.state} and never was in force; only plans that were can be restored"
        )
    return row.bound


def _check(plan_id: int, restored: Restored) -> None:
    decision = restored.decision
    if decision.state == "refused":
        raise Conflict(
            f"plan {plan_id} cannot run on the present fleet: {decision.reason}"
        )
    if decision.bound is None:
        raise Conflict(f"plan {plan_id} is running already: {decision.reason}")


async def _calm(context: Context, connection: Connection, plan_id: int) -> Mode:
    """Keep the loop from undoing it: in mode auto it would push its own plan next. The policy is locked."""
    present = await policies.load_current(connection)
    # In any other mode the loop waits for a person, and leaves this target alone.
    if present.mode is not Mode.AUTO:
        return present.mode
    saved = await policies.save(
        connection,
        replace(present, mode=Mode.APPROVE),
        at=context.now(),
        actor=context.actor,
    )
    await context.audit(
        connection,
        "PolicyChanged",
        f"policy/{POLICY_NAME}",
        before={"version": present.version, "mode": present.mode.value},
        after={"version": saved.version, "mode": saved.mode.value},
        reason=f"plan {plan_id} is restored; mode auto would undo it",
    )
    return saved.mode


async def _record(
    connection: Connection, record: PlanRecord, packed: PackedProblem
) -> int:
    """As approved at once: the person who restores it has decided already, and the loop pushes what is approved."""
    await save_parts(connection, packed.parts)
    return await plans.record(connection, record, packed)
