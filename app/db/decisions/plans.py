"""Plans: what was decided, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import msgspec
from sqlalchemy import insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import NotFound
from app.db.base.packing import packed, unpacked
from app.db.base.rows import one_row
from app.db.base.tables import AnyRow, cluster, plan, plan_content, target
from app.db.decisions.bindings import StoredBinding, bound_of, columns_of
from app.db.decisions.plan_contents import save_contents
from app.db.decisions.plan_parts import (
    load_demands,
    load_steps,
    load_violations,
    record_demands,
    record_steps,
    record_violations,
)
from app.db.decisions.problem_archive import PackedProblem, unpack
from app.store.plan_rules import UNCHANGED
from app.store.plan_states import PlanState
from app.store.store import PlanRecord, Proposal
from solvers.types.documents.plan_json import plan_document, plan_from_document
from solvers.types.outcome import PlanReport, Prices, Solution, Violation
from solvers.types.plan import BoundPlan, Plan
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
        select(*(*_SUMMARY, *_MORE_OF_REPORT, has_problem, plan_content.c.body))
        .join_from(plan, plan_content, plan_content.c.sha256 == plan.c.content)
        .where(plan.c.id == plan_id),
        missing=f"there is no plan {plan_id}",
    )
    summary = _summary(row)
    noun, _ = plan_from_document(unpacked(row.body, dict[str, object]))
    return PlanRow(
        summary=summary,
        plan=noun,
        report=PlanReport(
            status=summary.solution or "kept",
            cost_usd_per_hour=summary.cost_usd_per_hour,
            lower_bound_usd_per_hour=summary.lower_bound_usd_per_hour,
            gap_percent=summary.gap_percent,
            seconds=summary.seconds,
            method=summary.method,
            messages=tuple(row.messages),
            served_weight=row.served_weight,
            served_weight_upper_bound=row.served_weight_upper_bound,
            steps=await load_steps(connection, plan_id),
            prices=None if row.prices is None else msgspec.convert(row.prices, Prices),
        ),
        bound=None if row.generation is None else await bound_of(connection, plan_id),
        violations=await load_violations(connection, plan_id),
        demands=await load_demands(connection, plan_id),
        has_problem=row.has_problem,
    )


async def load_problem(connection: AsyncConnection, plan_id: int) -> Problem:
    """What a plan was made from. Raises NotFound, also for a plan that kept none."""
    statement = (
        select(plan_content.c.body)
        .join_from(plan, plan_content, plan_content.c.sha256 == plan.c.problem)
        .where(plan.c.id == plan_id)
    )
    body = (await connection.execute(statement)).scalar_one_or_none()
    if body is None:
        raise NotFound(
            f"there is no plan {plan_id}, or its problem was not kept because it changed nothing"
        )
    return await unpack(connection, body)


async def newest_proposed(
    connection: AsyncConnection,
    *,
    parent: int,
    catalogue_revision: int,
    known: Proposal | None,
    base: StoredBinding | None,
) -> Proposal | None:
    """The newest plan that is proposed and made from this target and catalogue; `known` again where it is that one.

    `base`: the target, which need not be read again.
    """
    is_fresh = (plan.c.parent == parent) & (
        plan.c.catalogue_revision == catalogue_revision
    )
    statement = (
        select(plan.c.id, plan.c.at, plan.c.catalogue_revision, plan.c.policy_version)
        .where(plan.c.state == "proposed", is_fresh)
        .order_by(plan.c.id.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None
    # What it binds is long and never changes, so that it is read once.
    if known is not None and known.plan_id == row.id:
        return known
    return Proposal(
        plan_id=row.id,
        bound=await bound_of(connection, row.id, known=base),
        at=row.at,
        catalogue_revision=row.catalogue_revision,
        policy_version=row.policy_version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The newest decision about which replicas there should be, under any launcher."""

    bound: BoundPlan | None
    """None: just what runs."""
    rates_rps: Mapping[str, float]
    """What it was made for, of every service that it knew."""


async def newest_advice(connection: AsyncConnection) -> Advice | None:
    """The newest decision; None: there was none.

    One that could no longer come into force, as where the catalogue has changed since, counts until the next one: to
    a program that follows advice, none at all would mean that nothing is needed.
    """
    row = (await connection.execute(text(_NEWEST_ADVICE))).one()
    if row.made is None and row.unchanged is None:
        return None
    is_unchanged = row.made is None or (row.unchanged or 0) > row.made
    demands = await load_demands(connection, max(row.made or 0, row.unchanged or 0))
    return Advice(
        bound=None if is_unchanged else await bound_of(connection, row.made),
        rates_rps={each.service: each.arrival_rate_rps for each in demands},
    )


# State by state, each of which the index finds at once: most plans are kept ones.
_NEWEST_ADVICE = f"""
SELECT max(found.id) FILTER (WHERE s.state <> 'kept') AS made,
    max(found.id) FILTER (WHERE s.state = 'kept') AS unchanged
FROM unnest(ARRAY['proposed', 'approved', 'target', 'superseded', 'withdrawn', 'lost', 'kept']) AS s (state)
CROSS JOIN LATERAL (
    SELECT id FROM plan
    WHERE plan.state = s.state
        AND CASE s.state WHEN 'kept' THEN reason = '{UNCHANGED}' ELSE generation IS NOT NULL END
    ORDER BY id DESC LIMIT 1
) AS found
"""


async def record(
    connection: AsyncConnection,
    noun: PlanRecord,
    problem: PackedProblem | None,
    *,
    known: StoredBinding | None = None,
) -> int:
    """Write a decision down with its steps, violations and demands; returns its id.

    Of one that waits for a person the caller has locked the target (`lock_target`), as a push does. `known`: a target
    that need not be read again.
    """
    report, bound = noun.report, noun.bound
    # Null where the plan holds no GPU: a plan is bound to GPUs before it can be pushed.
    binding: dict[str, object] = {}
    if bound is not None:
        binding = await columns_of(connection, bound, known=known)
    bodies = {"content": packed(plan_document(noun.plan))}
    archived: dict[str, object] = {}
    if problem is not None:
        bodies["problem"] = problem.body
        # Without the problem it is unknown what they are prices of; so a plan that is merely kept has none.
        if report.prices is not None:
            archived["prices"] = msgspec.to_builtins(report.prices)
    inserted = await connection.execute(
        insert(plan)
        .values(
            **_decision(noun),
            **binding,
            **await save_contents(connection, bodies),
            **archived,
        )
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
        "solution": report.solution,
        # With all its digits: PostgreSQL makes a numeric of fifteen of a float's.
        "cost_usd_per_hour": Decimal(str(report.cost_usd_per_hour)),
        "lower_bound_usd_per_hour": report.lower_bound_usd_per_hour,
        "gap_percent": report.gap_percent,
        "seconds": report.seconds,
        "method": report.method,
        "messages": list(report.messages),
        "served_weight": report.served_weight,
        "served_weight_upper_bound": report.served_weight_upper_bound,
        "reason": noun.reason,
    }


async def lock_target(connection: AsyncConnection) -> tuple[int, int]:
    """Generation in force and revision of the catalogue; neither changes until the transaction ends."""
    now = (await connection.execute(select(cluster).with_for_update())).one()
    return now.target_generation, now.catalogue_revision


# Not `select(plan)`: documents and problems are long, and a list shows none of them.
_SUMMARY = tuple(plan.c[name] for name in PlanSummary.__slots__)
_MORE_OF_REPORT = (
    plan.c.messages,
    plan.c.prices,
    plan.c.served_weight,
    plan.c.served_weight_upper_bound,
)


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
