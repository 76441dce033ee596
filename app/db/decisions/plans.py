"""Plans: what was decided, why, and what a person said to it."""

from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import Conflict, NotFound
from app.db.base.rows import one_row
from app.db.base.tables import AnyRow, cluster, plan, target
from app.db.decisions.plan_parts import (
    load_demands,
    load_steps,
    load_violations,
    record_demands,
    record_steps,
    record_violations,
)
from app.db.decisions.problem_archive import PackedProblem, unpack
from app.store.plan_rules import PlanBasis, outdated_by_fleet
from app.store.plan_states import UNDECIDED, PlanState
from app.store.store import PlanRecord
from solvers.types.outcome import PlanReport, Prices, Solution, Violation
from solvers.types.plan import BoundPlan, Plan
from solvers.types.plan_json import plan_document, plan_from_document
from solvers.types.problem import Problem
from solvers.types.state import Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """One line of the list of plans."""

    id: int
    at: datetime
    state: PlanState
    policy: str
    policy_version: int
    catalogue_revision: int
    generation: int | None
    parent: int | None
    solution: Solution | None
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float | None
    gap_percent: float | None
    seconds: float
    method: str
    reason: str
    replaced_by: int | None
    """The newer proposal that took the place of a withdrawn one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One plan with everything but its problem, which `load_problem` gives."""

    summary: PlanSummary
    plan: Plan
    report: PlanReport
    bound: BoundPlan | None
    violations: tuple[Violation, ...]
    demands: tuple[Demand, ...]
    has_problem: bool


async def list_rows(
    connection: AsyncConnection,
    *,
    states: tuple[PlanState, ...] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> tuple[PlanSummary, ...]:
    """Plans, newest first: of some states, made in [since, until), with an id below `before`, where given."""
    # By id, not by time: it is unique, and a page goes on where the last one ended.
    statement = select(*_SUMMARY).order_by(plan.c.id.desc()).limit(limit)
    if states is not None:
        statement = statement.where(plan.c.state.in_(states))
    if since is not None:
        statement = statement.where(plan.c.at >= since)
    if until is not None:
        statement = statement.where(plan.c.at < until)
    if before is not None:
        statement = statement.where(plan.c.id < before)
    return tuple(_summary(row) for row in await connection.execute(statement))


async def get(connection: AsyncConnection, plan_id: int) -> PlanRow:
    """One plan with its steps, violations and demands. Raises NotFound."""
    # Without the problem itself, which is long: whether there is one is enough here.
    has_problem = plan.c.problem.is_not(None).label("has_problem")
    row = await one_row(
        connection,
        select(
            *_SUMMARY, plan.c.document, plan.c.bound, plan.c.prices, has_problem
        ).where(plan.c.id == plan_id),
        missing=f"there is no plan {plan_id}",
    )
    noun, report = plan_from_document(row.document)
    # `record` always writes both into the document.
    assert report is not None
    return PlanRow(
        summary=_summary(row),
        plan=noun,
        report=replace(
            report,
            steps=await load_steps(connection, plan_id),
            prices=None if row.prices is None else msgspec.convert(row.prices, Prices),
        ),
        bound=None if row.bound is None else msgspec.convert(row.bound, BoundPlan),
        violations=await load_violations(connection, plan_id),
        demands=await load_demands(connection, plan_id),
        has_problem=row.has_problem,
    )


async def load_problem(connection: AsyncConnection, plan_id: int) -> Problem:
    """What a plan was made from. Raises NotFound, also for a plan that kept none."""
    body = (
        await connection.execute(select(plan.c.problem).where(plan.c.id == plan_id))
    ).scalar_one_or_none()
    if body is None:
        raise NotFound(
            f"there is no plan {plan_id}, or its problem was not kept because it changed nothing"
        )
    return await unpack(connection, body)


async def load_bound(
    connection: AsyncConnection, state: PlanState
) -> tuple[int, BoundPlan] | None:
    """The newest plan of a state with its id, e.g. of `target`."""
    statement = (
        select(plan.c.id, plan.c.bound)
        .where(plan.c.state == state)
        .order_by(plan.c.id.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else (row.id, msgspec.convert(row.bound, BoundPlan))


async def newest_proposed(
    connection: AsyncConnection, *, parent: int, catalogue_revision: int
) -> int | None:
    """The id of the newest plan that is proposed and made from this target and catalogue."""
    is_fresh = (plan.c.parent == parent) & (
        plan.c.catalogue_revision == catalogue_revision
    )
    statement = (
        select(plan.c.id)
        .where(plan.c.state == "proposed", is_fresh)
        .order_by(plan.c.id.desc())
        .limit(1)
    )
    plan_id: int | None = (await connection.execute(statement)).scalar_one_or_none()
    return plan_id


async def bound_of(connection: AsyncConnection, plan_id: int) -> BoundPlan:
    """What a plan that is there binds; it was made with GPUs."""
    body = (
        await connection.execute(select(plan.c.bound).where(plan.c.id == plan_id))
    ).scalar_one()
    return msgspec.convert(body, BoundPlan)


async def record(
    connection: AsyncConnection, noun: PlanRecord, problem: PackedProblem | None
) -> int:
    """Write a decision down with its steps, violations and demands; returns its id.

    Of one that waits for a person the caller has locked the target (`lock_target`), as a push does.
    """
    report, bound = noun.report, noun.bound
    # Null where the plan holds no GPU: a plan is bound to GPUs before it can be pushed.
    binding: dict[str, object] = {}
    if bound is not None:
        binding = {
            "generation": bound.generation,
            "parent": bound.parent,
            "bound": msgspec.to_builtins(bound),
        }
    archived: dict[str, object] = {}
    if problem is not None:
        archived["problem"] = problem.body
        # Without the problem nobody can tell what they are prices of; so a plan that is merely kept has none.
        if report.prices is not None:
            archived["prices"] = msgspec.to_builtins(report.prices)
    inserted = await connection.execute(
        insert(plan)
        .values(**_decision(noun), **binding, **archived)
        .returning(plan.c.id)
    )
    plan_id = int(inserted.scalar_one())
    if noun.waits:
        await connection.execute(
            update(plan)
            .where(plan.c.state == "proposed", plan.c.id < plan_id)
            .values(state="withdrawn", replaced_by=plan_id)
        )
    await record_steps(connection, plan_id, report.steps)
    await record_violations(connection, plan_id, noun.violations)
    await record_demands(connection, plan_id, noun)
    return plan_id


def _decision(noun: PlanRecord) -> dict[str, object]:
    report = noun.report
    return {
        "at": noun.at,
        "state": noun.state,
        "policy": noun.plan.policy,
        "policy_version": noun.policy_version,
        "catalogue_revision": noun.catalogue_revision,
        "document": plan_document(noun.plan, report),
        "solution": report.solution,
        "cost_usd_per_hour": report.cost_usd_per_hour,
        "lower_bound_usd_per_hour": report.lower_bound_usd_per_hour,
        "gap_percent": report.gap_percent,
        "seconds": report.seconds,
        "method": report.method,
        "messages": list(report.messages),
        "reason": noun.reason,
    }


async def approve(connection: AsyncConnection, plan_id: int) -> None:
    """A person says yes to a proposed plan: the next tick pushes it.

    Raises NotFound; Conflict, with what to do instead, when it does not wait or was made from another target or
    catalogue than the present ones. Whether the policy lets anybody push it is for the caller to know.
    """
    # Before the plan's row, as a push does: a push either sees this plan approved, or is seen here.
    generation, revision = await lock_target(connection)
    row = await _lock(connection, plan_id)
    why = _why_not_approved(row)
    if why is None:
        made_from = PlanBasis(
            generation=row.parent,
            catalogue_revision=row.catalogue_revision,
            policy_version=row.policy_version,
        )
        now = replace(made_from, generation=generation, catalogue_revision=revision)
        why = outdated_by_fleet(made_from, now)
        why = why and f"plan {plan_id} can no longer be pushed: {why}"
    if why is not None:
        raise Conflict(f"{why}; {await _instead(connection, plan_id)}")
    await _put_in(connection, plan_id, "approved")


def _why_not_approved(row: AnyRow) -> str | None:
    if row.replaced_by is not None:
        return f"plan {row.id} was replaced by plan {row.replaced_by}"
    reasons = {
        "approved": "is approved already, and the next tick pushes it",
        "target": "is in force already",
        "superseded": "was in force before, and `plimsoll rollback` restores it",
        "lost": f"is lost: {row.reason}",
        "rejected": "was rejected",
        "refused": "was refused by the checker",
        "kept": "changes nothing",
    }
    return f"plan {row.id} {reasons[row.state]}" if row.state in reasons else None


async def _instead(connection: AsyncConnection, plan_id: int) -> str:
    """What a person can do who wanted to approve the plan."""
    newer = await connection.execute(
        select(func.max(plan.c.id)).where(
            plan.c.state == "proposed", plan.c.id != plan_id
        )
    )
    waiting: int | None = newer.scalar_one_or_none()
    if waiting is None:
        return "no other plan waits; `plimsoll get plans` lists the next one once the loop proposes it"
    return f"look at plan {waiting}, which waits now, and approve that one"


async def lock_target(connection: AsyncConnection) -> tuple[int, int]:
    """Generation in force and revision of the catalogue; neither changes until the transaction ends."""
    now = (await connection.execute(select(cluster).with_for_update())).one()
    return now.target_generation, now.catalogue_revision


async def reject(connection: AsyncConnection, plan_id: int) -> None:
    """A person says no to a proposed or approved plan. Raises NotFound, Conflict."""
    row = await _lock(connection, plan_id)
    if row.state not in UNDECIDED:
        raise Conflict(
            f"plan {plan_id} is {row.state}; only {' or '.join(UNDECIDED)} plans can become rejected"
        )
    await _put_in(connection, plan_id, "rejected")


async def _lock(connection: AsyncConnection, plan_id: int) -> AnyRow:
    """Until the transaction ends: a push must not change the state in between."""
    return await one_row(
        connection,
        select(*_JUDGED).where(plan.c.id == plan_id).with_for_update(),
        missing=f"there is no plan {plan_id}",
    )


async def _put_in(connection: AsyncConnection, plan_id: int, state: PlanState) -> None:
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

# Not `select(plan)`: documents and problems are long, and a list shows none of them.
_SUMMARY = tuple(plan.c[name] for name in PlanSummary.__slots__)


def _summary(row: AnyRow) -> PlanSummary:
    values = {name: row._mapping[name] for name in PlanSummary.__slots__}
    # Numeric in the table, so that reports add it up exactly; a person reads a float.
    return PlanSummary(**{**values, "cost_usd_per_hour": float(row.cost_usd_per_hour)})


async def plan_of(connection: AsyncConnection, generation: int) -> int | None:
    """The id of the plan that was, or is, in force under that generation; None: there was none."""
    rows = await connection.execute(
        select(target.c.plan_id).where(target.c.generation == generation)
    )
    plan_id: int | None = rows.scalar_one_or_none()
    return plan_id
