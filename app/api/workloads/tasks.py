"""Tasks: training and offline jobs on what services leave over. A token that is bound to projects sees only theirs."""

from typing import Annotated

from fastapi import Query, Request, Response

from app.api.http.answers import ACT, DELETE, LIST, READ, WRITE, created
from app.api.http.auth import Operator, Viewer
from app.api.http.body import ManifestRoute, resource_router
from app.api.http.idempotency import IdempotencyKey, once
from app.api.http.known_names import check_known, check_visible_project
from app.api.http.objects import (
    Conditions,
    LabelSelector,
    ObjectKind,
    check_name,
    delete,
    parse_selector,
    read,
    replace,
)
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page
from app.api.workloads.budgets import require_budget
from app.api.workloads.task_views import TaskView, submission_of, task_view
from app.base.errors import InvalidRequest, NotFound
from app.db.base.transaction import Connection, lock_object
from app.db.predictions import profiles
from app.db.workloads import quotas, tasks
from app.manifests import tasks as task_manifests
from app.manifests.parts import Name
from app.store.task_book import TaskPhase

router = resource_router("tasks", prefix="/tasks", route_class=ManifestRoute)


@router.get("", responses=LIST)
async def list_tasks(
    context: Viewer,
    paging: Paging,
    project: Annotated[Name | None, Query()] = None,
    label_selector: LabelSelector = None,
    state: Annotated[
        list[TaskPhase] | None,
        Query(description="Only tasks in this state; several: in any of them"),
    ] = None,
) -> Page[TaskView]:
    """Tasks by name, with how far they have come."""
    labels = parse_selector(label_selector)
    async with context.transaction() as connection:
        rows = await tasks.list_rows(
            connection,
            projects=context.projects_seen(project),
            labels=labels,
            phases=state,
            after=paging.after,
            limit=paging.fetch,
        )
    now = context.now()
    return paging.page(
        rows, view=lambda row: task_view(row, now), key=lambda row: row.name
    )


@router.get("/{name}", responses=READ)
async def get_task(context: Viewer, name: Name, response: Response) -> TaskView:
    """One task, with how far it has come."""
    return await read(context, KIND, name, response)


@router.put("/{name}", responses=WRITE | created(TaskView))
async def put_task(
    context: Operator,
    name: Name,
    manifest: task_manifests.TaskManifest,
    conditions: Conditions,
    response: Response,
) -> TaskView:
    """Submit a task, or change its deadline, priority, labels and the like; what it does cannot be changed."""
    check_name(name, manifest.metadata, of_project=True)
    context.require_project(manifest.metadata.project)
    return await replace(
        context, KIND, name, manifest, conditions=conditions, response=response
    )


@router.delete("/{name}", status_code=204, responses=DELETE)
async def delete_task(context: Operator, name: Name, conditions: Conditions) -> None:
    """Take a task out of the list, and end it where it is not over; what it cost stays in the reports."""
    await delete(context, KIND, name, conditions)


@router.post("/{name}/cancel", response_model=TaskView, responses=ACT)
async def cancel_task(
    context: Operator, name: Name, request: Request, key: IdempotencyKey = None
) -> Response:
    """End a task; it stays in the list. One that has finished cannot be cancelled."""

    async def work(connection: Connection) -> TaskView:
        # A report that finishes the task may come at the same moment: one of the two must be first.
        await lock_object(connection, KIND.name, name)
        before = await visible_task(context, connection, name)
        # False where it was cancelled before: a repeated request leaves no second line in the audit.
        if await tasks.cancel(connection, name, at=context.now()):
            done = before.record.done_iterations
            await context.audit(
                connection,
                "TaskCancelled",
                f"task/{name}",
                reason=f"after {done:,.0f} iterations",
                after={"done": done},
            )
        return await _load(context, connection, name)

    return await once(context, request, key, work)


async def visible_task(
    context: Context, connection: Connection, name: str
) -> tasks.TaskRow:
    """The task's row. Raises NotFound also where the caller's token does not reach its project."""
    row = await tasks.get(connection, name)
    if not context.sees(row.record.task.project):
        raise NotFound(f"no task is called {name!r}")
    return row


async def _check_names(
    context: Context, connection: Connection, manifest: task_manifests.TaskManifest
) -> None:
    """Raise InvalidRequest for a project or network that is not there, or cannot do it."""
    spec = manifest.spec
    await check_visible_project(context, connection, manifest.metadata.project)
    named = [
        (f"spec.variants[{place}].network", each.network)
        for place, each in enumerate(spec.variants)
    ]
    # A task that states its layers may have a network that was never profiled: its times are estimated.
    if spec.network is not None and spec.layers is None:
        named.insert(0, ("spec.network", spec.network))
    for field, network in named:
        await _check_network(connection, spec, network, field)


async def _check_network(
    connection: Connection, spec: task_manifests.TaskSpec, network: str, field: str
) -> None:
    known = {row.name: row for row in await profiles.list_networks(connection)}
    fitting = [
        row.name
        for row in known.values()
        if row.is_training == (spec.kind == "training")
    ]
    # Named apart from "no such network": it exists, and the caller mixed up the two kinds.
    if network in known and network not in fitting:
        other = "training" if known[network].is_training else "offline"
        raise InvalidRequest(
            f"{network} is for tasks of kind {other}; this one's is {spec.kind}",
            field=field,
        )
    check_known([network], fitting, what=f"network for {spec.kind} tasks", field=field)
    batches = await profiles.list_batches(connection, network)
    # Without a profile the planner would leave the task waiting for ever, and say so only later.
    if not batches:
        raise InvalidRequest(
            f"{network} has not been profiled on any GPU type; send a profile of it",
            field=field,
        )
    if spec.batch not in batches:
        problem = f"{network} was profiled with batches {', '.join(map(str, batches))}, not {spec.batch}"
        raise InvalidRequest(problem, field="spec.batch")


async def _load(context: Context, connection: Connection, name: str) -> TaskView:
    return task_view(await visible_task(context, connection, name), context.now())


async def _save(
    context: Context, connection: Connection, manifest: task_manifests.TaskManifest
) -> None:
    wanted = submission_of(manifest)
    try:
        present = (await tasks.get(connection, manifest.metadata.name)).record.task
    except NotFound:
        present = None
        await _check_names(context, connection, manifest)
        # Only for a new task: a budget that is spent must not keep anybody from changing a deadline.
        await require_budget(context, connection, wanted.task.project)
    await quotas.check_task(connection, wanted.task, present)
    await tasks.save(connection, wanted, at=context.now(), actor=context.actor)


async def _remove(context: Context, connection: Connection, name: str) -> None:
    await tasks.remove(connection, name, at=context.now())


KIND: ObjectKind[TaskView, task_manifests.TaskManifest] = ObjectKind(
    name="Task",
    has_note=False,
    created="Submitted",
    load=_load,
    save=_save,
    remove=_remove,
)
