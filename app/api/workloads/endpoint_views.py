"""Where the requests of services go, as the API answers it."""

from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from app.api.http.parts import Context
from app.api.http.views import View
from app.db.base.tables import AnyRow
from app.db.base.transaction import Connection
from app.db.reports.endpoints import load_carriers, load_models, load_routers

NAMED_NODES = 4
"""Nodes that are named for a service without a replica: enough that one of them is there."""


class NodeEndpoint(View):
    """A node that takes a service's requests."""

    node: str
    url: str = Field(
        description="Base URL of the node's router, e.g. http://10.0.0.7:8000; empty: others cannot reach it"
    )
    weight_rps: float = Field(
        description="Its share of the requests: the rate that its replicas are planned for"
    )
    planned_replicas: int
    ready_replicas: int = Field(
        description="As its agent last reported; more than planned while replicas are leaving"
    )


class ServiceEndpoints(View):
    """Where the requests of a service go."""

    service: str
    url: str | None = Field(
        description="Send requests here, by POST (Open Inference Protocol v2): the gateway's fixed address, or that "
        "of a node, which changes with the plans; null: no node serves it"
    )
    gateway: str | None = Field(description="Base URL of the gateway; null: none")
    nodes: list[NodeEndpoint] = Field(
        description="Nodes with replicas; of a service without any, some nodes where its requests wait and are counted"
    )


async def load_urls(
    context: Context, connection: Connection, names: Sequence[str]
) -> Mapping[str, str | None]:
    """Where to send the requests of these services, by service; None: nothing takes them."""
    # A gateway takes those of all services, wherever their replicas are.
    if gateway := context.parts.gateway_url:
        models = await load_models(connection, names)
        return {name: gateway + _path(name, name in models) for name in names}
    endpoints = await load_endpoints(context, connection, names)
    return {name: endpoints[name].url for name in names}


async def load_endpoints(
    context: Context, connection: Connection, names: Sequence[str]
) -> Mapping[str, ServiceEndpoints]:
    """Where the requests of these services go, by service."""
    carriers = await _carriers(context, connection, names)
    routers: Sequence[AnyRow] = ()
    # Only a service without a replica is answered with nodes where its requests may wait.
    if not all(carriers.values()):
        routers = await load_routers(connection, NAMED_NODES, context.now())
    gateway = context.parts.gateway_url
    models = await load_models(connection, names)
    return {
        name: _endpoints(
            name,
            carriers[name],
            routers,
            gateway=gateway,
            path=_path(name, name in models),
        )
        for name in names
    }


async def _carriers(
    context: Context, connection: Connection, names: Sequence[str]
) -> Mapping[str, list[AnyRow]]:
    """The nodes of each service; of one that has none an empty list."""
    found: dict[str, list[AnyRow]] = {name: [] for name in names}
    for row in await load_carriers(connection, names, context.now()):
        found[row.service].append(row)
    return found


def _endpoints(
    service: str,
    carriers: Sequence[AnyRow],
    routers: Sequence[AnyRow],
    *,
    gateway: str | None,
    path: str,
) -> ServiceEndpoints:
    nodes = _carrying(carriers) or [
        NodeEndpoint(
            node=row.node,
            url=row.router_url,
            weight_rps=0.0,
            planned_replicas=0,
            ready_replicas=0,
        )
        for row in routers
    ]
    base = gateway or _first(nodes)
    return ServiceEndpoints(
        service=service,
        url=None if base is None else base + path,
        gateway=gateway,
        nodes=nodes,
    )


def _path(service: str, is_model: bool) -> str:
    """Where its requests go; with a language model what clients of OpenAI's API call their base URL."""
    return f"/services/{service}/v1" if is_model else f"/v2/models/{service}/infer"


def _carrying(rows: Sequence[AnyRow]) -> list[NodeEndpoint]:
    planned = sum(row.planned for row in rows)
    rate_rps = sum(row.rate_rps for row in rows)
    # A node whose replicas are about to leave is no longer planned for: its part is what as many others carry.
    mean_rps = rate_rps / planned if planned else 0.0
    return [
        NodeEndpoint(
            node=row.node,
            url=row.router_url,
            weight_rps=row.rate_rps if row.planned else mean_rps * row.ready,
            planned_replicas=row.planned,
            ready_replicas=row.ready,
        )
        for row in rows
    ]


def _first(nodes: Iterable[NodeEndpoint]) -> str | None:
    """The address of a node that answers, as far as it is known."""
    reachable = [node for node in nodes if node.url]
    reachable.sort(key=lambda node: (not node.ready_replicas, -node.weight_rps))
    return reachable[0].url if reachable else None
