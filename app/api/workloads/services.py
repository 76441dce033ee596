"""Services: what teams submit. A token that is bound to projects sees and changes only theirs."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query, Response

from app.answers.status import (
    ServiceStatus,
    service_statuses,
    slo_objection,
    while_compiling,
)
from app.api.http.answers import DELETE, LIST, READ, WRITE, created
from app.api.http.auth import Operator, Viewer
from app.api.http.body import ManifestRoute, resource_router
from app.api.http.known_names import check_gpu_types, check_known, check_visible_project
from app.api.http.objects import (
    Conditions,
    LabelSelector,
    ObjectKind,
    check_name,
    delete,
    etag,
    parse_selector,
    replace,
)
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page
from app.api.workloads.budgets import require_budget
from app.api.workloads.endpoint_views import load_urls
from app.api.workloads.service_views import (
    ServiceForecast,
    ServiceView,
    service_forecast,
    service_view,
)
from app.base.errors import InvalidRequest, NotFound
from app.catalogue.catalogue import not_for_services
from app.catalogue.language_models import is_shipped, shipped_names
from app.db.base.transaction import Connection
from app.db.predictions import forecasts, profiles
from app.db.predictions.profiles import ProfileOrigin
from app.db.reports import service_board
from app.db.workloads import quotas, services
from app.learn.choose_forecasts import view_forecast
from app.manifests import objects as manifests
from app.manifests.parts import Name
from app.manifests.to_types import to_service
from solvers.llm.config_json import read_config
from solvers.llm.configs.context import refuse_longer
from solvers.types.errors import InvalidInput
from solvers.types.state import Service

router = resource_router("services", prefix="/services", route_class=ManifestRoute)


@router.get("", responses=LIST)
async def list_services(
    context: Viewer,
    paging: Paging,
    project: Annotated[Name | None, Query()] = None,
    label_selector: LabelSelector = None,
) -> Page[ServiceView]:
    """Services by name, with their status."""
    labels = parse_selector(label_selector)
    async with context.transaction() as connection:
        rows = await services.list_rows(
            connection,
            projects=context.projects_seen(project),
            labels=labels,
            after=paging.after,
            limit=paging.fetch,
        )
        urls = await load_urls(context, connection, [row.service.name for row in rows])
    # After the transaction of the rows: a snapshot is read by the store in one of its own.
    statuses = await _statuses(context, [row.service.name for row in rows])
    return paging.page(
        rows,
        view=lambda row: service_view(
            row,
            statuses.get(row.service.name),
            urls[row.service.name],
        ),
        key=lambda row: row.service.name,
    )


@router.get("/{name}", responses=READ)
async def get_service(context: Viewer, name: Name, response: Response) -> ServiceView:
    """One service, with its status: conditions, replicas, and what the agents saw."""
    async with context.transaction() as connection:
        row = await visible_service(context, connection, name)
        urls = await load_urls(context, connection, [name])
    statuses = await _statuses(context, [name])
    view = service_view(row, statuses.get(name), urls[name])
    response.headers["ETag"] = etag(view)
    return view


@router.get("/{name}/forecast", responses=READ)
async def get_service_forecast(context: Viewer, name: Name) -> ServiceForecast:
    """What the control loop expects of a service: technique, quantiles one plan ahead, telemetry, and back-tests."""
    async with context.transaction() as connection:
        await visible_service(context, connection, name)
        choice = await forecasts.get(connection, name)
    return service_forecast(view_forecast(await context.snapshot(), name, choice))


@router.put("/{name}", responses=WRITE | created(ServiceView))
async def put_service(
    context: Operator,
    name: Name,
    *,
    manifest: manifests.ServiceManifest,
    conditions: Conditions,
    response: Response,
    force: Annotated[
        bool, Query(description="Accept an SLO that no operating point can meet")
    ] = False,
) -> ServiceView:
    """Create or replace a service. An SLO that is impossible is refused with the least one that is possible."""
    check_name(name, manifest.metadata, of_project=True)
    context.require_project(manifest.metadata.project)
    # Before the transaction that writes: root finding takes milliseconds in which no lock should be held.
    if not force:
        await _check_feasible(context, to_service(manifest))
    return await replace(
        context, KIND, name, manifest, conditions=conditions, response=response
    )


@router.delete("/{name}", status_code=204, responses=DELETE)
async def delete_service(context: Operator, name: Name, conditions: Conditions) -> None:
    """Delete a service; its history stays."""
    await delete(context, KIND, name, conditions)


async def visible_service(
    context: Context, connection: Connection, name: str
) -> services.ServiceRow:
    """The service's row. Raises NotFound also where the caller's token does not reach its project."""
    row = await services.get(connection, name)
    # 404 and not 403: the name alone would tell of another project's service.
    if not context.sees(row.service.project):
        raise NotFound(f"no service is called {name!r}")
    return row


async def visible_services(
    context: Context, connection: Connection
) -> tuple[services.ServiceRow, ...]:
    """All services that the caller's token reaches, by name."""
    return await services.list_rows(connection, projects=context.caller.projects)


async def _statuses(
    context: Context, names: Sequence[str]
) -> Mapping[str, ServiceStatus]:
    snapshot = await context.snapshot()
    async with context.transaction() as connection:
        demands = await service_board.load_newest_demands(connection)
    # Those of hundreds of services take a while, and the server has other requests.
    found = await asyncio.to_thread(service_statuses, snapshot, names, demands)
    return while_compiling(found) if context.parts.compiling.is_set() else found


async def _check_feasible(context: Context, service: Service) -> None:
    """Raise InvalidRequest for names that do not exist, and for an SLO that nothing can keep."""
    async with context.transaction() as connection:
        await _check_names(context, connection, service)
    if context.batch is not None and service.name in context.batch.objections:
        reason = context.batch.objections[service.name]
    else:
        # In a thread: planned points and root finding take milliseconds, and the server has other requests.
        snapshot = await context.snapshot()
        reason = await asyncio.to_thread(slo_objection, snapshot, service)
    if reason is not None:
        raise InvalidRequest(reason, field="spec.slo", may_force=True)


async def _check_names(
    context: Context, connection: Connection, service: Service
) -> None:
    await _check_networks(connection, service)
    for field, names in (
        ("spec.gpu_types.allowed", service.allowed_gpu_types or ()),
        ("spec.gpu_types.excluded", service.excluded_gpu_types),
    ):
        await check_gpu_types(context, connection, names, field=field)
    await check_visible_project(context, connection, service.project)


async def _check_networks(connection: Connection, service: Service) -> None:
    if service.llm is not None:
        await _check_model(connection, service)
        return
    networks = {row.name: row for row in await profiles.list_networks(connection)}
    named = {"spec.network": service.network}
    named |= {
        f"spec.variants[{place}].network": each.network
        for place, each in enumerate(service.variants)
    }
    for field, network in named.items():
        check_known([network], tuple(networks), what="network", field=field)
        if networks[network].is_training:
            raise InvalidRequest(not_for_services(network), field=field)


async def _check_model(
    connection: Connection,
    service: Service,
) -> None:
    """Raise InvalidRequest where nothing is known of what the language model is made of."""
    found = await profiles.list_networks(connection, name=service.network)
    configs = [row.config for row in found if row.config]
    if configs:
        _check_terms(service, configs[0])
        return
    if is_shipped(service.network):
        return
    message = (
        f"nothing is known of {service.network!r}: apply a Network with its config.json as spec.config, "
        f"or name one that ships: {', '.join(shipped_names())}"
    )
    raise InvalidRequest(message, field="spec.network")


def _check_terms(service: Service, config: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a context or a degree that an engine would not start with."""
    terms = service.llm
    if terms is None:
        return
    try:
        network = read_config(config)
        refuse_longer(network.context, terms.max_model_len)
    except InvalidInput as error:
        # What is wrong with the configuration itself was said when it was applied.
        if error.field != "max_model_len":
            return
        message = f"{error.problem}: lower it"
        raise InvalidRequest(message, field="spec.llm.max_model_len") from error
    obstacle = network.architecture.undivided(terms.tp or 1)
    if obstacle is not None:
        message = f"an engine does not start: {obstacle.reason}"
        raise InvalidRequest(message, field="spec.llm.tp")


async def _add_model(
    context: Context,
    connection: Connection,
    name: str,
) -> None:
    """A network that ships gets its row with the first service that names it."""
    if not await profiles.list_networks(connection, name=name):
        description = f"language model; {ProfileOrigin.SHIPPED}"
        await profiles.save_network(
            connection, name, at=context.now(), description=description
        )


async def _load(context: Context, connection: Connection, name: str) -> ServiceView:
    return service_view(await visible_service(context, connection, name), None)


async def _save(
    context: Context, connection: Connection, manifest: manifests.ServiceManifest
) -> None:
    service = to_service(manifest)
    # Again: with `force` they were not checked, and they may have gone since.
    await _check_names(context, connection, service)
    if service.llm is not None:
        await _add_model(context, connection, service.network)
    try:
        present = await services.get(connection, service.name)
    except NotFound:
        present = None
        await require_budget(context, connection, service.project)
    await quotas.check_service(
        connection, service, None if present is None else present.service
    )
    generation = await services.save(
        connection,
        service,
        at=context.now(),
        actor=context.actor,
        labels=manifest.metadata.labels,
        annotations=manifest.metadata.annotations,
    )
    # Applied again without a change, a manifest disturbs no plan.
    if present is None or generation != present.generation:
        context.count_service_change(service.project)


async def _remove(context: Context, connection: Connection, name: str) -> None:
    row = await services.get(connection, name)
    context.count_service_change(row.service.project)
    await services.remove(connection, name, at=context.now())


KIND: ObjectKind[ServiceView, manifests.ServiceManifest] = ObjectKind(
    name="Service", has_note=False, load=_load, save=_save, remove=_remove
)
