"""Nodes, their cordons, and the list of their GPUs.

They are the whole cluster's: what an agent says of its node names tasks of any project, with the end of their logs, so
that a token that is bound to projects reads none of it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Request, Response
from pydantic import Field

from agents.base.protocol import MAX_GPUS
from app.answers.status import node_applied
from app.api.http.answers import ACT, DELETE, LIST, READ, WRITE, created
from app.api.http.auth import Admin, ClusterOperator, ClusterViewer
from app.api.http.body import ManifestRoute, resource_router
from app.api.http.idempotency import IdempotencyKey, once
from app.api.http.known_names import check_gpu_types
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
from app.api.http.views import ConditionView, Page, View
from app.db.base.transaction import Connection
from app.db.fleet import acquittals, nodes
from app.db.fleet.nodes import DrainRow, NodeRow
from app.manifests import objects as manifests
from app.manifests.parts import Name, Strict


class DrainView(View):
    """How far a draining node has come; it is empty when nothing is left."""

    deadline: datetime
    replicas_left: int = Field(description="As its agent reported last")
    tasks_left: int


class DrainRequest(Strict):
    """How a node is drained."""

    deadline_s: int = Field(
        default=600,
        ge=0,
        le=7 * 86_400,
        description="Seconds after which everything must leave: running tasks, and replicas that other nodes have no "
        "room for",
    )


class AcquitRequest(Strict):
    """Which GPUs of a node are acquitted."""

    gpus: list[Annotated[int, Field(ge=0, le=64_999)]] | None = Field(
        default=None,
        max_length=MAX_GPUS,
        description="Their indices; null: all that are not healthy",
    )


class NodeStatus(View):
    """What a node's agent last said."""

    last_seen_at: datetime | None
    silent_for_s: float
    agent_version: str
    observed_generation: int = Field(
        description="Generation of the command in force; 0 = none"
    )
    wanted_generation: int = Field(
        description="Generation of its newest command; 0 = none. Lower than the one in force: the node follows a "
        "command that this control plane did not make, as after restoring an older state"
    )
    clock_skew_s: float = Field(
        description="Seconds by which the agent's clock is ahead"
    )
    problems: list[str]
    conditions: list[ConditionView]
    healthy_gpus: int
    drain: DrainView | None = Field(
        default=None, description="Null: the node is not drained"
    )


class NodeView(manifests.NodeManifest):
    """A node."""

    status: NodeStatus


def node_gpu_types(manifest: manifests.NodeManifest) -> dict[int, str]:
    """The types of a node's GPUs by index; slices (MIG) leave gaps between them."""
    return {
        gpu.index: gpu.gpu_type
        for gpu in sorted(manifest.spec.gpus, key=lambda gpu: gpu.index)
    }


async def node_views(connection: Connection, rows: Sequence[NodeRow]) -> list[NodeView]:
    """Stored nodes as manifests with what their agents last said."""
    # Most fleets drain nothing, and are then asked nothing.
    draining = [row.node.id for row in rows if row.node.drain_in_s is not None]
    drains = await nodes.list_drains(connection, draining) if draining else {}
    return [_node_view(row, drains.get(row.node.id)) for row in rows]


def _node_view(row: NodeRow, drain: DrainRow | None) -> NodeView:
    applied = node_applied(
        held=row.observed_generation,
        wanted=row.wanted_generation,
        is_renumbered=row.is_renumbered,
        said=row.ack_status,
        detail=row.ack_detail,
    )
    return NodeView(
        metadata=manifests.Metadata(
            name=row.node.id, labels=dict(row.labels), created_at=row.created_at
        ),
        spec=manifests.NodeSpec(
            gpus=[
                manifests.NodeGpu(index=gpu.index, gpu_type=gpu.gpu_type)
                for gpu in row.gpus
            ],
            cordoned=row.node.cordoned,
            power_cap_w=row.node.power_cap_w,
        ),
        status=NodeStatus(
            last_seen_at=row.last_seen_at,
            silent_for_s=row.node.silent_for_s,
            agent_version=row.agent_version,
            observed_generation=row.observed_generation,
            wanted_generation=row.wanted_generation,
            clock_skew_s=row.clock_skew_s,
            problems=list(row.problems),
            conditions=[ConditionView.model_validate(applied)],
            healthy_gpus=sum(gpu.healthy for gpu in row.gpus),
            drain=None if drain is None else DrainView.model_validate(drain),
        ),
    )


router = resource_router("nodes", prefix="/nodes", route_class=ManifestRoute)


@router.get("", responses=LIST)
async def list_nodes(context: ClusterViewer, paging: Paging) -> Page[NodeView]:
    """Nodes by name, with what their agents last said."""
    async with context.transaction() as connection:
        rows = await nodes.list_rows(
            connection, context.now(), after=paging.after, limit=paging.fetch
        )
        return await list_page(
            KIND, connection, paging, await node_views(connection, rows)
        )


@router.get("/{name}", responses=READ)
async def get_node(context: ClusterViewer, name: Name, response: Response) -> NodeView:
    """One node, with what its agent last said."""
    return await read(context, KIND, name, response)


@router.put("/{name}", responses=WRITE | created(NodeView))
async def put_node(
    context: Admin,
    name: Name,
    manifest: manifests.NodeManifest,
    conditions: Conditions,
    response: Response,
) -> NodeView:
    """Register a node or replace what is registered. An agent also registers its node itself, by its first sync."""
    check_name(name, manifest.metadata)
    return await replace(
        context, KIND, name, manifest, conditions=conditions, response=response
    )


@router.delete("/{name}", status_code=204, responses=DELETE)
async def delete_node(context: Admin, name: Name, conditions: Conditions) -> None:
    """Delete a node; what it reported stays.

    An agent that still runs registers it again with its next report: stop the agent first.
    """
    await delete(context, KIND, name, conditions)
    # After the transaction: a command that was remembered must not go to a node that is there no more.
    context.parts.commands.forget()


@router.post("/{name}/cordon", response_model=NodeView, responses=ACT)
async def cordon_node(
    context: ClusterOperator, name: Name, request: Request, key: IdempotencyKey = None
) -> Response:
    """Start nothing new on a node; what runs there stays."""
    return await _set_cordon(context, name, request, key, cordoned=True)


@router.post("/{name}/uncordon", response_model=NodeView, responses=ACT)
async def uncordon_node(
    context: ClusterOperator, name: Name, request: Request, key: IdempotencyKey = None
) -> Response:
    """Use a node again."""
    return await _set_cordon(context, name, request, key, cordoned=False)


@router.post("/{name}/drain", response_model=NodeView, responses=ACT)
async def drain_node(
    context: ClusterOperator,
    name: Name,
    request: Request,
    wanted: DrainRequest | None = None,
    key: IdempotencyKey = None,
) -> Response:
    """Empty a node: nothing starts there, services move to others as soon as these serve, and tasks run on until the
    deadline; then what is left goes, from where it last was."""
    deadline_s = (wanted or DrainRequest()).deadline_s

    async def work(connection: Connection) -> NodeView:
        until = context.now() + timedelta(seconds=deadline_s)
        await nodes.set_drain(connection, name, until=until)
        await context.audit(
            connection,
            "NodeDraining",
            f"node/{name}",
            after={"deadline": until.isoformat()},
        )
        return await _load(context, connection, name)

    return await once(context, request, key, work)


@router.post("/{name}/undrain", response_model=NodeView, responses=ACT)
async def undrain_node(
    context: ClusterOperator, name: Name, request: Request, key: IdempotencyKey = None
) -> Response:
    """Use a node again."""
    return await _set_cordon(context, name, request, key, cordoned=False)


@router.post("/{name}/acquit", response_model=NodeView, responses=ACT)
async def acquit_node(
    context: ClusterOperator,
    name: Name,
    request: Request,
    wanted: AcquitRequest | None = None,
    key: IdempotencyKey = None,
) -> Response:
    """Have a node's agent forget the critical errors (Xids) that its GPUs told so far, and use these GPUs again. What
    is wrong with a GPU still shows again with its next error."""
    indices = (wanted or AcquitRequest()).gpus

    async def work(connection: Connection) -> NodeView:
        acquitted = await acquittals.acquit(connection, name, indices, at=context.now())
        if acquitted:
            await context.audit(
                connection,
                "GpusAcquitted",
                f"node/{name}",
                after={"gpus": list(acquitted)},
            )
        return await _load(context, connection, name)

    return await once(context, request, key, work)


async def _set_cordon(
    context: Context, name: str, request: Request, key: str | None, *, cordoned: bool
) -> Response:
    async def work(connection: Connection) -> NodeView:
        await nodes.set_cordon(connection, name, cordoned=cordoned)
        verb = "NodeCordoned" if cordoned else "NodeUncordoned"
        await context.audit(
            connection, verb, f"node/{name}", after={"cordoned": cordoned}
        )
        # Read again in the same transaction, so that the answer is what was written.
        return await _load(context, connection, name)

    return await once(context, request, key, work)


async def _load(context: Context, connection: Connection, name: str) -> NodeView:
    row = await nodes.get(connection, name, context.now())
    return (await node_views(connection, [row]))[0]


async def _save(
    context: Context, connection: Connection, manifest: manifests.NodeManifest
) -> None:
    name = manifest.metadata.name
    types = node_gpu_types(manifest)
    await check_gpu_types(context, connection, list(types.values()), field="spec.gpus")
    await nodes.save(
        connection, name, types, at=context.now(), labels=manifest.metadata.labels
    )
    # The manifest says all that there is of a node: a cordon that it leaves out is taken away.
    await nodes.set_cordon(connection, name, cordoned=manifest.spec.cordoned)
    await nodes.set_power_cap(connection, name, power_cap_w=manifest.spec.power_cap_w)


async def _remove(context: Context, connection: Connection, name: str) -> None:
    await nodes.remove(connection, name, at=context.now())


KIND: ObjectKind[NodeView, manifests.NodeManifest] = ObjectKind(
    name="Node", load=_load, save=_save, remove=_remove
)
