"""Budgets: what a project, or the whole cluster, may cost. A token that is bound to projects sees only theirs."""

from datetime import datetime

from fastapi import Response
from pydantic import Field

from app.api.http.answers import DELETE, LIST, READ, WRITE, created
from app.api.http.auth import Admin, Viewer
from app.api.http.body import ManifestRoute, resource_router
from app.api.http.known_names import check_known
from app.api.http.objects import (
    Conditions,
    ObjectKind,
    check_name,
    delete,
    list_page,
    read,
    replace,
)
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page, View
from app.base.errors import Conflict, NotFound
from app.db.base.transaction import Connection
from app.db.workloads import budgets, projects
from app.db.workloads.budgets import BudgetRow
from app.loop.budgets import BudgetState
from app.manifests import budgets as budget_manifests
from app.manifests.parts import Metadata, Name

router = resource_router("budgets", prefix="/budgets", route_class=ManifestRoute)

MAX_DEGRADED = 100


class DegradedView(View):
    """One service that is planned for less."""

    service: str
    demand_percent: float = Field(
        description="Share of its demand that it is planned for"
    )


class BudgetStatusView(View):
    """How a budget stands in its present period; the figures are those of report.budget_status."""

    since: datetime
    until: datetime
    spent_usd: float
    spent_percent: float
    usd_per_hour: float = Field(description="Its cost per hour under the plan in force")
    projected_usd: float = Field(
        description="Forecast of the spending at the period's end if that plan stays"
    )
    degraded_services: int = Field(
        default=0, description="How many services are planned for less because of it"
    )
    degraded: list[DegradedView] = Field(
        default_factory=list,
        max_length=MAX_DEGRADED,
        description="The first of these, by name",
    )


class BudgetView(budget_manifests.BudgetManifest):
    """A budget."""

    status: BudgetStatusView


@router.get("", responses=LIST)
async def list_budgets(context: Viewer, paging: Paging) -> Page[BudgetView]:
    """Budgets by name, with what is spent and what will be."""
    async with context.transaction() as connection:
        # All of them: those that the caller may not see are left out afterwards, and there are few.
        rows = await budgets.list_rows(connection, after=paging.after)
        return await list_page(
            KIND,
            connection,
            paging,
            [_view(row) for row in rows if _sees(context, row.state)],
        )


@router.get("/{name}", responses=READ)
async def get_budget(context: Viewer, name: Name, response: Response) -> BudgetView:
    """One budget, with what is spent and what will be."""
    return await read(context, KIND, name, response)


@router.put("/{name}", responses=WRITE | created(BudgetView))
async def put_budget(
    context: Admin,
    name: Name,
    manifest: budget_manifests.BudgetManifest,
    conditions: Conditions,
    response: Response,
) -> BudgetView:
    """Create or replace a budget."""
    check_name(name, manifest.metadata)
    return await replace(
        context, KIND, name, manifest, conditions=conditions, response=response
    )


@router.delete("/{name}", status_code=204, responses=DELETE)
async def delete_budget(context: Admin, name: Name, conditions: Conditions) -> None:
    """Delete a budget; what was spent stays in the reports."""
    await delete(context, KIND, name, conditions)


async def require_budget(
    context: Context, connection: Connection, project: str
) -> None:
    """Raise Conflict where a spent budget keeps the project from getting anything new."""
    spent = await budgets.load_blocking(connection, project)
    # Only what is new is refused: what runs already is planned as before.
    if spent is not None:
        until = f"accepts nothing new until {spent.until:%Y-%m-%d %H:%M} UTC"
        # That a budget refuses it the caller must learn; what others spend is theirs.
        refusal = (
            f"budget {spent.name!r} {until}: {spent.message}"
            if _sees(context, spent)
            else f"a budget of the whole cluster {until}"
        )
        raise Conflict(f"{refusal}; an admin may raise it, or set its action to warn")


def _sees(context: Context, budget: BudgetState) -> bool:
    """A budget of the whole cluster tells what everybody spends."""
    project = budget.project
    return context.caller.projects is None if project is None else context.sees(project)


def _view(row: BudgetRow) -> BudgetView:
    state = row.state
    degraded = [
        DegradedView(service=name, demand_percent=100 * share)
        for name, share in row.shares.items()
    ]
    return BudgetView(
        metadata=Metadata(name=state.name, created_at=row.created_at),
        spec=budget_manifests.BudgetSpec(
            project=state.project,
            period=state.period,
            usd=state.limit_usd,
            action=state.action,
            protected_priority=state.protected_priority,
        ),
        status=BudgetStatusView.model_validate(state).model_copy(
            update={
                "degraded_services": len(row.shares),
                # Cut: a cluster's budget may touch thousands of services, of which a page shows the first.
                "degraded": degraded[:MAX_DEGRADED],
            }
        ),
    )


async def _load(context: Context, connection: Connection, name: str) -> BudgetView:
    row = await budgets.get(connection, name)
    # 404 and not 403: that a budget of this name exists is the other project's business.
    if not _sees(context, row.state):
        raise NotFound(f"no budget is called {name!r}")
    return _view(row)


async def _save(
    context: Context, connection: Connection, manifest: budget_manifests.BudgetManifest
) -> None:
    spec = manifest.spec
    if spec.project is not None:
        known = [row.name for row in await projects.list_rows(connection)]
        check_known([spec.project], known, what="project", field="spec.project")
    await budgets.save(
        connection,
        manifest.metadata.name,
        project=spec.project,
        period=spec.period,
        limit_usd=spec.usd,
        action=spec.action,
        protected_priority=spec.protected_priority,
        at=context.now(),
    )


async def _remove(_context: Context, connection: Connection, name: str) -> None:
    await budgets.remove(connection, name)


KIND: ObjectKind[BudgetView, budget_manifests.BudgetManifest] = ObjectKind(
    name="Budget", notes_labels=True, load=_load, save=_save, remove=_remove
)
