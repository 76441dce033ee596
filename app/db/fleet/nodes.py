"""Nodes, their GPUs, and what is known of their agents."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Text, delete, literal_column, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import Label

from app.base.errors import InvalidRequest, NotFound
from app.db.base.rows import all_rows, one_row
from app.db.base.tables import (
    AnyRow,
    cluster,
    gpu,
    gpu_type,
    node,
)
from app.db.base.upsert import upsert
from app.db.decisions.commands import NODE_GONE, PUSHED, WANTED, announce
from app.db.fleet.overuses import lose_overuses
from app.store.node_book import AgentStatus, followed
from solvers.types.state import ZONE_LABEL, Gpu, GpuId, Node, NodeId, gpu_id

MAX_AHEAD = timedelta(minutes=1)
"""When a node was last heard, or its last window ended, is unknown where it lies further in the future: a wrong clock
has set it."""

_WANTED = WANTED.label("wanted_generation")
_RENUMBERED = (
    select(cluster.c.target_generation > PUSHED)
    .scalar_subquery()
    .label("is_renumbered")
)


def _ack(column: str) -> Label[str]:
    """What a node's agent said last of its newest command."""
    newest = "SELECT max(c.generation) FROM command c WHERE c.node = node.id"
    sql = f"(SELECT a.{column} FROM acknowledgement a WHERE a.node = node.id AND a.generation = ({newest}))"
    return literal_column(sql, Text).label(f"ack_{column}")


_ACK = (_ack("status"), _ack("detail"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node with what its agent last said of itself."""

    node: Node
    gpus: tuple[Gpu, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime
    last_seen_at: datetime | None = None
    agent_version: str = ""
    observed_generation: int = 0
    wanted_generation: int = 0
    """Its newest command's; 0 = none."""
    ack_status: str = ""
    """What its agent said of that command; empty: nothing yet."""
    ack_detail: str = ""
    is_renumbered: bool = False
    """Generations began again after a restore, and no plan was pushed since."""
    clock_skew_s: float = 0.0
    """Seconds by which the agent's clock is ahead."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRow:
    """How far a draining node has come."""

    deadline: datetime
    replicas_left: int
    """Replicas that its agent reported in its last window."""
    tasks_left: int
    """Tasks that run or are kept there."""


async def list_drains(
    connection: AsyncConnection, names: Sequence[str]
) -> dict[str, DrainRow]:
    """Those of these nodes that drain, by name."""
    return {
        row.id: DrainRow(
            deadline=row.drain_at,
            replicas_left=row.replicas_left,
            tasks_left=row.tasks_left,
        )
        for row in await all_rows(connection, _DRAINS, names=list(names))
    }


# Of the last window alone: its start is one length before its end. The hour bounds what is searched. What starts after
# its end was filed by a clock that was ahead.
_DRAINS = """
SELECT n.id, n.drain_at,
    (SELECT count(DISTINCT r.replica) FROM replica_observation r
     WHERE r.gpu IN (SELECT g.id FROM gpu g WHERE g.node = n.id) AND r.state NOT IN ('asleep', 'failed')
       AND r.window_start >= n.last_window_end - interval '1 hour' AND r.window_start < n.last_window_end
       AND r.window_start >= n.last_window_end - 1.5 * r.window_s * interval '1 second') AS replicas_left,
    (SELECT count(*) FROM task t
     WHERE t.gpu IN (SELECT g.id FROM gpu g WHERE g.node = n.id)
       AND t.finished_at IS NULL AND t.cancelled_at IS NULL) AS tasks_left
FROM node n WHERE n.id = ANY(CAST(:names AS text[])) AND n.drain_at IS NOT NULL
"""


async def list_rows(
    connection: AsyncConnection,
    now: datetime,
    *,
    after: str = "",
    limit: int | None = None,
) -> tuple[NodeRow, ...]:
    """Nodes with their GPUs, by id."""
    found = (
        await connection.execute(
            select(node, _WANTED, _RENUMBERED, *_ACK)
            .where(node.c.id > after)
            .order_by(node.c.id)
            .limit(limit)
        )
    ).all()
    by_node: dict[str, list[Gpu]] = {row.id: [] for row in found}
    for noun in await load_gpus(connection, nodes=tuple(by_node)):
        by_node[noun.node].append(noun)
    return tuple(_node_row(row, tuple(by_node[row.id]), now) for row in found)


async def get(connection: AsyncConnection, name: str, now: datetime) -> NodeRow:
    """One node with its GPUs. Raises NotFound."""
    statement = select(node, _WANTED, _RENUMBERED, *_ACK).where(node.c.id == name)
    row = await one_row(connection, statement, missing=_missing(name))
    return _node_row(row, await load_gpus(connection, nodes=(name,)), now)


async def load_all(
    connection: AsyncConnection, now: datetime
) -> tuple[tuple[Node, ...], tuple[AgentStatus, ...]]:
    """Every node with its agent's status, by id."""
    statement = select(node, _WANTED, PUSHED.label("pushed")).order_by(node.c.id)
    found = (await connection.execute(statement)).all()
    return (
        tuple(_node(row, now) for row in found),
        tuple(
            AgentStatus(
                node=row.id,
                generation=followed(
                    held=row.observed_generation,
                    wanted=row.wanted_generation,
                    pushed=row.pushed,
                ),
                repartition=tuple(row.repartition),
                lag_s=_lag_s(row, now),
            )
            for row in found
        ),
    )


def _lag_s(row: AnyRow, now: datetime) -> float:
    """Age of the newest window that the node reported; 0 where it reported none."""
    if row.last_window_end is None:
        return 0.0
    age_s: float = (now - row.last_window_end).total_seconds()
    return max(0.0, age_s)


async def load_gpus(
    connection: AsyncConnection, *, nodes: Sequence[str] | None = None
) -> tuple[Gpu, ...]:
    """Every GPU, or those of some nodes, by id."""
    statement = select(gpu).order_by(gpu.c.id)
    if nodes is not None:
        statement = statement.where(gpu.c.node.in_(nodes))
    return tuple(_gpu(row) for row in await connection.execute(statement))


async def get_gpu(connection: AsyncConnection, name: str) -> Gpu:
    """One GPU. Raises NotFound."""
    statement = select(gpu).where(gpu.c.id == name)
    missing = f"no GPU is called {name!r}"
    return _gpu(await one_row(connection, statement, missing=missing))


async def save(
    connection: AsyncConnection,
    name: str,
    gpu_types: Mapping[int, str],
    *,
    at: datetime,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Add or replace a node; `gpu_types`: of its GPUs, by index. Raises InvalidRequest for unknown types.

    Cordons and health of GPUs that stay are kept.
    """
    await _check_types(connection, gpu_types)
    await upsert(
        connection,
        node,
        {"id": name},
        {"labels": dict(labels or {})},
        only_new={"created_at": at},
    )
    # A manifest lists all GPUs: one that it does not list any more was taken out.
    await connection.execute(
        delete(gpu).where(gpu.c.node == name, gpu.c.index.not_in(list(gpu_types)))
    )
    for index, wanted in sorted(gpu_types.items()):
        await upsert(
            connection,
            gpu,
            {"id": gpu_id(name, index)},
            {"gpu_type": wanted},
            only_new={"node": name, "index": index, "created_at": at},
        )


async def _check_types(
    connection: AsyncConnection, gpu_types: Mapping[int, str]
) -> None:
    # The foreign key would refuse them, too, but without saying which GPU's type is wrong.
    known = set((await connection.execute(select(gpu_type.c.name))).scalars())
    for index, wanted in sorted(gpu_types.items()):
        if wanted not in known:
            raise InvalidRequest(
                f"no GPU type is called {wanted!r}", field=f"gpus[{index}].gpu_type"
            )


async def set_cordon(connection: AsyncConnection, name: str, *, cordoned: bool) -> None:
    """Keep new replicas off a node, or let them on again, which ends its draining. Raises NotFound."""
    values: dict[str, object] = {"cordoned": cordoned}
    ended = {} if cordoned else {"drain_at": None, "drained_at": None}
    await _set(connection, name, {**values, **ended})


async def set_drain(connection: AsyncConnection, name: str, *, until: datetime) -> None:
    """Cordon a node and have it emptied, at the latest by then. Raises NotFound."""
    begun = {"cordoned": True, "drain_at": until, "drained_at": None}
    await _set(connection, name, begun)


async def note_drained(
    connection: AsyncConnection, names: Iterable[str], at: datetime
) -> list[str]:
    """Note that draining nodes are empty; those of which that was not known, by name."""
    wanted = node.c.id.in_(list(names))
    # By id, as reports lock nodes; an UPDATE would lock them as it finds them.
    await connection.execute(
        select(node.c.id)
        .where(wanted)
        .order_by(node.c.id)
        .with_for_update(key_share=True)
    )
    is_new = node.c.drain_at.is_not(None) & node.c.drained_at.is_(None)
    changed = await connection.execute(
        update(node).where(wanted, is_new).values(drained_at=at).returning(node.c.id)
    )
    return sorted(changed.scalars())


async def _set(
    connection: AsyncConnection, name: str, values: Mapping[str, object]
) -> None:
    done = await connection.execute(
        update(node).where(node.c.id == name).values(**values)
    )
    if done.rowcount == 0:
        raise NotFound(_missing(name))


def _missing(name: str) -> str:
    return f"no node is called {name!r}"


async def set_power_cap(
    connection: AsyncConnection, name: str, *, power_cap_w: float | None
) -> None:
    """Limit what a node's GPUs may draw together; None = no limit. The same limit again changes nothing."""
    # Every update of this column moves the catalogue's revision, and a plan that is being made would be lost.
    changed = node.c.power_cap_w.is_distinct_from(power_cap_w)
    await connection.execute(
        update(node).where(node.c.id == name, changed).values(power_cap_w=power_cap_w)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddresses:
    """Ports of a node that others may reach; empty = none."""

    metrics: str
    """host:port of its agent's metrics."""
    router: str
    """Base URL of its router."""


async def set_addresses(
    connection: AsyncConnection, name: str, addresses: NodeAddresses
) -> None:
    """Where the node's agent shows its metrics and takes requests. The same again changes nothing."""
    values = {
        node.c.metrics_address: addresses.metrics,
        node.c.router_url: addresses.router,
    }
    changed = or_(*(column != value for column, value in values.items()))
    await connection.execute(
        update(node).where(node.c.id == name, changed).values(values)
    )


async def remove(connection: AsyncConnection, name: str, *, at: datetime) -> None:
    """Delete a node with its GPUs and commands; what it reported stays. Raises NotFound."""
    # In the order in which a push takes its locks.
    await connection.execute(select(cluster).with_for_update())
    if (await connection.execute(delete(node).where(node.c.id == name))).rowcount == 0:
        raise NotFound(_missing(name))
    await lose_overuses(connection, [name], at, why="since its node was removed")
    await announce(connection, NODE_GONE)


def _gpu(row: AnyRow) -> Gpu:
    return Gpu(
        id=GpuId(row.id),
        node=NodeId(row.node),
        gpu_type=row.gpu_type,
        index=row._mapping["index"],  # a Row is a tuple, whose own `index` is a method
        healthy=row.healthy,
        cordoned=row.cordoned,
    )


def _node(row: AnyRow, now: datetime) -> Node:
    heard_at = row.last_seen_at
    # A node that never reported counts as silent since it was registered. One that reported under a clock that was
    # ahead, too: it may be gone, and its windows lie where none are read yet, so that nothing can be planned by them.
    if heard_at is None or heard_at > now + MAX_AHEAD:
        heard_at = row.created_at
    return Node(
        id=row.id,
        cordoned=row.cordoned,
        silent_for_s=max(0.0, (now - heard_at).total_seconds()),
        power_cap_w=row.power_cap_w,
        zone=row.labels.get(ZONE_LABEL, ""),
        drain_in_s=None
        if row.drain_at is None
        else (row.drain_at - now).total_seconds(),
    )


def _node_row(row: AnyRow, gpus: tuple[Gpu, ...], now: datetime) -> NodeRow:
    return NodeRow(
        node=_node(row, now),
        gpus=gpus,
        labels=row.labels,
        created_at=row.created_at,
        last_seen_at=row.last_seen_at,
        agent_version=row.agent_version,
        observed_generation=row.observed_generation,
        wanted_generation=row.wanted_generation,
        ack_status=row.ack_status or "",
        ack_detail=row.ack_detail or "",
        is_renumbered=row.is_renumbered,
        clock_skew_s=row.clock_skew_s,
        problems=tuple(row.problems),
    )
