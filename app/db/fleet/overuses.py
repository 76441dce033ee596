"""Overuse as it begins and ends: one line of the audit each, however many windows it lasts.

Agents judge it over several windows (`agents.gpu.node.attribution`) and tell it as long as it goes on; the table
`overuse` holds what goes on, so that only changes are written down. An observation without uses says nothing about it.
What goes on at a node ends, too, when the node is removed or falls silent; it begins again if it still goes on
afterwards.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.base.observation_rows import WindowedObservation
from app.db.base.rows import all_rows
from app.db.base.tables import AnyRow
from app.db.operations.events import add, add_limited
from app.store.event_limits import LimitedEvents
from app.store.store import AuditEvent
from solvers.types.state import gpu_id


async def note_overuses(
    connection: AsyncConnection,
    newest: Sequence[WindowedObservation],
    at: datetime,
    limited: LimitedEvents,
) -> None:
    """Compare each node's newest observation with what went on there; the nodes are locked."""
    reported = [entry for entry in newest if entry.observation.uses]
    if not reported:
        return
    rows = [row for entry in reported for row in _rows(entry)]
    columns: dict[str, object] = {
        name: [row[position] for row in rows] for position, name in enumerate(_COLUMNS)
    }
    nodes = [entry.observation.node for entry in reported]
    # What ended goes first: the rows that stay are then only brought up to date.
    key = {name: columns[name] for name in _KEY}
    changed = await all_rows(connection, _END, at=at, nodes=nodes, **key)
    if rows:
        changed = [*changed, *await all_rows(connection, _BEGIN, at=at, **columns)]
    await add_limited(connection, [_line(row, at) for row in changed], limited)


async def lose_overuses(
    connection: AsyncConnection, nodes: Sequence[str], at: datetime, *, why: str
) -> None:
    """End all that goes on at nodes that are not heard of any more; `why`, as in "since its node was removed"."""
    lost = await all_rows(connection, _LOSE, at=at, nodes=list(nodes), why=why)
    for row in lost:
        await add(connection, _line(row, at))


def _line(row: AnyRow, at: datetime) -> AuditEvent:
    """`row`: of one of the statements below."""
    node = f"node/{row.node}"
    has_begun = row.kind == "OveruseBegan"
    return AuditEvent(
        at=at,
        actor=node,
        kind=row.kind,
        subject=node,
        reason=row.reason,
        before=None if has_begun else row.what,
        after=row.what if has_begun else None,
    )


def _rows(entry: WindowedObservation) -> Iterator[tuple[object, ...]]:
    node = entry.observation.node
    for use in entry.observation.uses:
        for each in use.over:
            gpu = gpu_id(node, use.gpu_index)
            owner = (node, gpu, use.kind, use.name, each.quantity, use.service)
            yield (*owner, each.granted, each.used, each.is_estimated)


_KEY = ("gpu", "kind", "name", "quantity")
_COLUMNS = ("node", *_KEY, "service", "granted", "used", "is_estimated")
"""What `_rows` yields, by name."""
_UNIT = "CASE quantity WHEN 'memory' THEN 'MiB of memory' WHEN 'sm_count' THEN '% of the SMs' ELSE '% SM use' END"
_WHAT = """jsonb_build_object('node', {node}, 'gpu', gpu, 'kind', kind, 'name', name, 'service', nullif(service, ''),
                   'quantity', quantity, 'granted', granted, 'used', used, 'is_estimated', is_estimated)"""
_WHO = "format('%s %s%s on %s', kind, name, CASE WHEN service <> '' THEN ' of ' || service ELSE '' END, gpu)"

# A GPU's id is `node/gpu-index`. The rows that end are deleted and returned as lines of the audit, with what they were;
# `{unless}` and `{message}` are filled in below.
_ENDED = f"""
WITH over AS (
    DELETE FROM overuse o WHERE split_part(o.gpu, '/', 1) = ANY(CAST(:nodes AS text[])) {{unless}}
    RETURNING *
)
SELECT split_part(gpu, '/', 1) AS node, 'OveruseEnded' AS kind,
       format({{message}}, {_WHO}, round(granted::numeric), {_UNIT}, round(used::numeric),
              CASE WHEN is_estimated THEN ' (estimated)' ELSE '' END,
              greatest(0, round(extract(epoch FROM CAST(:at AS timestamptz) - begun_at)))) AS reason,
       {_WHAT.format(node="split_part(gpu, '/', 1)")} AS what
FROM over ORDER BY gpu, kind, name, quantity
"""

_END = _ENDED.format(
    unless="""
    AND NOT EXISTS (SELECT FROM unnest(CAST(:gpu AS text[]), CAST(:kind AS text[]), CAST(:name AS text[]),
                                       CAST(:quantity AS text[])) AS w (gpu, kind, name, quantity)
                    WHERE (w.gpu, w.kind, w.name, w.quantity) = (o.gpu, o.kind, o.name, o.quantity))""",
    message="'%s is within its %s %s again, or is gone; it used up to %s%s for %s s'",
)

_LOSE = _ENDED.format(
    unless="",
    message="'%s can no longer be measured, ' || CAST(:why AS text) || '; of its %s %s it used up to %s%s for %s s'",
)

# What went on before is only brought up to date, and is no event; xmax is 0 of a row that is new.
_BEGIN = f"""
WITH reported AS (
    SELECT * FROM unnest(
        CAST(:node AS text[]), CAST(:gpu AS text[]), CAST(:kind AS text[]), CAST(:name AS text[]),
        CAST(:quantity AS text[]), CAST(:service AS text[]), CAST(:granted AS float8[]), CAST(:used AS float8[]),
        CAST(:is_estimated AS boolean[])) AS w (node, gpu, kind, name, quantity, service, granted, used, is_estimated)
), begun AS (
    INSERT INTO overuse AS o (gpu, kind, name, quantity, service, granted, used, is_estimated, begun_at)
    SELECT DISTINCT ON (gpu, kind, name, quantity) gpu, kind, name, quantity, service, granted, used, is_estimated,
           CAST(:at AS timestamptz) FROM reported ORDER BY gpu, kind, name, quantity
    ON CONFLICT (gpu, kind, name, quantity) DO UPDATE SET granted = excluded.granted, used = excluded.used,
        is_estimated = excluded.is_estimated
        WHERE (o.granted, o.used, o.is_estimated) <> (excluded.granted, excluded.used, excluded.is_estimated)
    RETURNING o.*, o.xmax = 0 AS is_new
)
SELECT split_part(gpu, '/', 1) AS node, 'OveruseBegan' AS kind,
       format('%s uses %s%s; it was granted %s %s', {_WHO}, round(used::numeric),
              CASE WHEN is_estimated THEN ' (estimated)' ELSE '' END, round(granted::numeric), {_UNIT}) AS reason,
       {_WHAT.format(node="split_part(gpu, '/', 1)")} AS what
FROM begun WHERE is_new ORDER BY gpu, kind, name, quantity
"""
