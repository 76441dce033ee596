"""What plans bind to GPUs: of plans that change little only how they differ from the target they are made from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.packing import packed, unpacked
from app.db.base.tables import AnyRow, plan, target
from app.store.plan_states import PlanState
from solvers.types.plan import BoundPlan
from solvers.types.state import GpuId

FULL_EVERY = 32
"""Generations from one plan that is stored with all its GPUs to the next: the limit of rows to read for one plan."""


@dataclass(frozen=True, slots=True)
class StoredBinding:
    """What a plan binds, with its id and when it was made, which two histories of the database do not share."""

    plan_id: int
    at: datetime
    plan: BoundPlan

    def is_row(self, row: AnyRow) -> bool:
        """Whether this is what the row's plan binds; a push may have given it another number since."""
        mine = (self.plan_id, self.at, self.plan.generation)
        return mine == (row.id, row.at, row.generation)


async def load_bound(
    connection: AsyncConnection, state: PlanState, *, known: StoredBinding | None = None
) -> StoredBinding | None:
    """What the newest plan of a state binds, e.g. of `target`; `known` again where it is that one."""
    statement = (
        select(plan.c.id, plan.c.at, plan.c.generation)
        .where(plan.c.state == state)
        .order_by(plan.c.id.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None
    # It is as long as the fleet is large.
    if known is not None and known.is_row(row):
        return known
    bound = await bound_of(connection, row.id, known=known)
    return StoredBinding(row.id, row.at, bound)


async def bound_of(
    connection: AsyncConnection, plan_id: int, *, known: StoredBinding | None = None
) -> BoundPlan:
    """What a plan that is there binds; it was made with GPUs. `known`: a plan that need not be read for it."""
    differences = []
    while True:
        row = (await connection.execute(_STORED, {"plan_id": plan_id})).one()
        bound = unpacked(row.bound, BoundPlan)
        if row.dropped_gpus is None:
            break
        differences.append((bound, row.dropped_gpus))
        if known is not None and known.is_row(row):
            bound = known.plan
            break
        plan_id = row.id
    for difference, dropped in reversed(differences):
        bound = _applied(difference, dropped, bound)
    return bound


# The columns id, at and generation are the parent's.
_parent = plan.alias("parent")
_STORED = (
    select(
        plan.c.bound,
        plan.c.dropped_gpus,
        _parent.c.id,
        _parent.c.at,
        _parent.c.generation,
    )
    .outerjoin(target, target.c.generation == plan.c.parent)
    .outerjoin(_parent, _parent.c.id == target.c.plan_id)
    .where(plan.c.id == bindparam("plan_id"))
)


async def columns_of(
    connection: AsyncConnection, bound: BoundPlan, *, known: StoredBinding | None
) -> dict[str, object]:
    """What the row of a plan says of what it binds. `known`: the target, where it was read already."""
    difference, dropped = await _from_target(connection, bound, known)
    return {
        "generation": bound.generation,
        "parent": bound.parent,
        "bound": packed(difference),
        "dropped_gpus": dropped,
    }


async def _from_target(
    connection: AsyncConnection, bound: BoundPlan, known: StoredBinding | None
) -> tuple[BoundPlan, list[GpuId] | None]:
    """The plan as it is stored, and the GPUs that it drops; None: with all that it has."""
    if bound.generation // FULL_EVERY != bound.parent // FULL_EVERY:
        return bound, None
    base = await load_bound(connection, "target", known=known)
    # After a restore the counter is ahead of the target's own number: what is made then has no parent here.
    if base is None or base.plan.generation != bound.parent:
        return bound, None
    difference, dropped = _difference(bound, base.plan)
    is_short = 2 * len(difference.gpus) <= len(bound.gpus)
    # A plan in another order than that of its GPUs' ids would come back otherwise.
    if is_short and _applied(difference, dropped, base.plan) == bound:
        return difference, dropped
    return bound, None


def _difference(bound: BoundPlan, base: BoundPlan) -> tuple[BoundPlan, list[GpuId]]:
    """The plan with the GPUs alone that the base has not or has otherwise, and those that only the base has."""
    before = {gpu.id: gpu for gpu in base.gpus}
    changed = tuple(gpu for gpu in bound.gpus if before.pop(gpu.id, None) != gpu)
    return replace(bound, gpus=changed), sorted(before)


def _applied(
    difference: BoundPlan, dropped: Sequence[GpuId], base: BoundPlan
) -> BoundPlan:
    """The plan whose difference from the base that is; GPUs in the order of their ids."""
    gpus = {gpu.id: gpu for gpu in (*base.gpus, *difference.gpus)}
    for name in dropped:
        del gpus[name]
    return replace(difference, gpus=tuple(gpu for _, gpu in sorted(gpus.items())))
