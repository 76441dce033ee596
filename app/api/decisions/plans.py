"""Plans: what was decided and why; approval by a person; what-if."""

import asyncio
from typing import Annotated

from fastapi import Path, Query, Request, Response
from pydantic import AwareDatetime

from app.answers.explain import explain
from app.api.decisions.explain_views import ExplanationView
from app.api.decisions.plan_conversions import (
    diff_view,
    explanation_view,
    plan_view,
    summary_view,
)
from app.api.decisions.plan_views import DiffView, PlanSummaryView, PlanView
from app.api.http.answers import ACT, LIST, READ
from app.api.http.auth import ClusterOperator, ClusterViewer, Viewer
from app.api.http.body import resource_router
from app.api.http.idempotency import IdempotencyKey, once
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page
from app.api.workloads.services import visible_services
from app.base.errors import Forbidden, NotFound
from app.db.base.transaction import Connection
from app.db.decisions import approval, plans
from app.db.decisions import plans as generations
from app.solver.findings import Findings, Inquiry
from app.store.plan_states import PlanState
from solvers.types.outcome import Budget

router = resource_router("plans", prefix="/plans")

Thorough = Annotated[
    bool,
    Query(
        description="Include alternatives for the GPUs and tested savings; needs a solver"
    ),
]
InquirySeconds = Annotated[
    float,
    Query(ge=0.1, le=60.0, description="How long a thorough explanation may take"),
]

PlanId = Annotated[int, Path(ge=1, le=2**53)]
OtherPlanId = Annotated[
    int | None,
    Query(ge=1, le=2**53, description="Absent: the plan that it was made from"),
]


@router.get("", responses=LIST)
async def list_plans(
    context: ClusterViewer,
    paging: Paging,
    state: Annotated[
        list[PlanState] | None, Query(description="Repeat it for several")
    ] = None,
    since: Annotated[AwareDatetime | None, Query()] = None,
    until: Annotated[AwareDatetime | None, Query()] = None,
) -> Page[PlanSummaryView]:
    """Plans, newest first."""
    async with context.transaction() as connection:
        rows = await plans.list_rows(
            connection,
            states=None if state is None else tuple(state),
            since=since,
            until=until,
            before=paging.after_number,
            limit=paging.fetch,
        )
    return paging.page(rows, view=summary_view, key=lambda row: row.id)


@router.get("/{plan_id}", responses=READ)
async def get_plan(context: ClusterViewer, plan_id: PlanId) -> PlanView:
    """One plan with GPUs, replicas, steps, violations and demands."""
    async with context.transaction() as connection:
        return plan_view(await plans.get(connection, plan_id))


@router.get("/{plan_id}/diff", responses=READ)
async def get_plan_diff(
    context: ClusterViewer, plan_id: PlanId, against: OtherPlanId = None
) -> DiffView:
    """How the plan differs from another one."""
    async with context.transaction() as connection:
        after = await plans.get(connection, plan_id)
        if against is None:
            against = await _parent_id(connection, after.summary)
        before = None if against is None else await plans.get(connection, against)
    return diff_view(before, after)


@router.get("/{plan_id}/explain", responses=READ)
async def explain_plan(
    context: Viewer,
    plan_id: PlanId,
    thorough: Thorough = False,
    time_limit_s: InquirySeconds = 10.0,
) -> ExplanationView:
    """Why the plan is as it is. A token that is bound to projects sees only their services."""
    async with context.transaction() as connection:
        row = await plans.get(connection, plan_id)
        problem = (
            await plans.load_problem(connection, plan_id) if row.has_problem else None
        )
        visible = None
        # The explanation is made in full and cut afterwards, since prices follow from all services together.
        if context.caller.projects is not None:
            visible = {
                entry.service.name
                for entry in await visible_services(context, connection)
            }
    findings = None
    # A plan that is kept without its problem is explained by what there is of it.
    if thorough and problem is not None:
        findings = await _find_out(
            context,
            Inquiry(
                problem=problem, plan=row.plan, budget=Budget(seconds=time_limit_s)
            ),
        )
    explanation = await asyncio.to_thread(
        explain,
        row.plan,
        row.report,
        problem=problem,
        demands=row.demands,
        violations=row.violations,
        reason=row.summary.reason,
        bound=row.bound,
        findings=findings,
    )
    return explanation_view(row.summary, explanation, visible)


async def _find_out(context: Context, inquiry: Inquiry) -> Findings:
    if context.caller.projects is not None:
        raise Forbidden(
            "a thorough explanation covers the services of all projects; this token is bound to projects"
        )
    # It only reads, and yet occupies the solver: the turn that previews of operators have, shared by token.
    async with context.parts.solver_turn.taken(context.caller.root):
        return await context.parts.solver.inquire(inquiry)


@router.post("/{plan_id}/approve", response_model=PlanSummaryView, responses=ACT)
async def approve_plan(
    context: ClusterOperator,
    plan_id: PlanId,
    request: Request,
    key: IdempotencyKey = None,
) -> Response:
    """Say yes to a proposed plan: the next tick pushes it, unless the fleet changed meanwhile.

    409, with what to do instead, where nothing would push it: the policy is paused or in mode off or advise, a newer
    proposal replaced it, the target or the catalogue changed, or it does not wait any more.
    """
    return await _approve_or_reject(context, plan_id, request, key, approve=True)


@router.post("/{plan_id}/reject", response_model=PlanSummaryView, responses=ACT)
async def reject_plan(
    context: ClusterOperator,
    plan_id: PlanId,
    request: Request,
    key: IdempotencyKey = None,
) -> Response:
    """Say no to a proposed or approved plan."""
    return await _approve_or_reject(context, plan_id, request, key, approve=False)


async def _approve_or_reject(
    context: Context, plan_id: int, request: Request, key: str | None, *, approve: bool
) -> Response:
    async def work(connection: Connection) -> PlanSummaryView:
        # Only marked: the loop pushes it in its next tick, since it alone writes targets.
        await (approval.approve if approve else approval.reject)(connection, plan_id)
        await context.audit(
            connection,
            "PlanApproved" if approve else "PlanRejected",
            f"plan/{plan_id}",
            plan_id=plan_id,
        )
        return summary_view((await plans.get(connection, plan_id)).summary)

    return await once(context, request, key, work)


async def _parent_id(connection: Connection, summary: plans.PlanSummary) -> int | None:
    """The plan whose generation this one was made from; None: nothing ran. Raises NotFound for one that is gone."""
    # 0 is no generation: the plan was made while nothing ran.
    if not summary.parent:
        return None
    parent = await generations.plan_of(connection, summary.parent)
    if parent is None:
        raise NotFound(
            f"the plan of generation {summary.parent} is no longer kept; name one with `against`"
        )
    return parent
