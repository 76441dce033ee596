"""Simulations that were asked for: a queue of which one at a time runs, under a lease, and what became of them.

    queued → running → finished | failed
    queued | running → cancelled
    running → queued       its runner ended, or its lease did; at most so often

Leases go by the database's clock: it is one for all runners, and never runs faster than the wall's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Literal, TypeAlias

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import Conflict, NotFound
from app.db.base.columns import JSON
from app.db.base.rows import one_row
from app.db.base.tables import AnyRow
from app.db.base.transaction import lock_object
from solvers.types.state import Json

State: TypeAlias = Literal["queued", "running", "finished", "failed", "cancelled"]

KEPT = 50
"""That are over, the newest."""
WAITING_LIMIT = 5
MAX_TRIES = 2
"""A simulation that ended two runners would end the third one, too."""
LOST = (
    "its runner was lost {tries} times: the control plane was stopped or ran out of memory; request a smaller "
    "one, or run it with `plimsoll simulate`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSimulation:
    """A simulation that can be run, as far as anybody knows before."""

    name: str
    """The scenario's."""
    example: str | None
    """Name of the shipped scenario; None: the caller sent one."""
    document: Mapping[str, Json]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRow:
    """One simulation, without its scenario and reports."""

    id: int
    asked_by: str
    project: str | None
    """Whose quota it counts for; None: no quota."""
    name: str
    example: str | None
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    duration_s: float
    state: State
    progress: float
    """Share of the simulated time of all runs."""
    error: str | None
    summary: Json
    """Null until the simulation is finished."""
    has_json: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A simulation that is ours to run."""

    id: int
    document: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What a simulation came to; texts are compressed by gzip."""

    summary: Json
    html: bytes
    json: bytes | None
    """None: too long to be kept."""


async def add(
    connection: AsyncConnection,
    wanted: NewSimulation,
    *,
    asked_by: str,
    at: datetime,
    project: str | None = None,
) -> int | None:
    """Put one into the queue, and forget the oldest that are over; its id, or None where the queue is full."""
    # The limit holds for all callers together: each must see what the one before it put in.
    await lock_object(connection, "simulation", "queue")
    waiting = await connection.execute(
        text("SELECT count(*) FROM simulation WHERE state = 'queued'")
    )
    if waiting.scalar_one() >= WAITING_LIMIT:
        return None
    # Not `asdict`, which would copy the entire scenario.
    values = {field.name: getattr(wanted, field.name) for field in fields(wanted)}
    lists = {"policies": list(wanted.policies), "seeds": list(wanted.seeds)}
    made = await connection.execute(
        _ADD, {**values, **lists, "asked_by": asked_by, "project": project, "at": at}
    )
    await connection.execute(text(_FORGET), {"kept": KEPT})
    return int(made.scalar_one())


async def list_rows(
    connection: AsyncConnection,
    *,
    before: int | None = None,
    limit: int | None = None,
    projects: Sequence[str] | None = None,
) -> tuple[SimulationRow, ...]:
    """Simulations, newest first, without what they came to; with `before` only those that are older than that id.

    `projects`: only theirs; None: all, also those of no project.
    """
    # Casts, so that PostgreSQL knows what a null is.
    where = (
        "WHERE (CAST(:before AS bigint) IS NULL OR id < :before) "
        "AND (CAST(:projects AS text[]) IS NULL OR project = ANY(CAST(:projects AS text[])))"
    )
    of = None if projects is None else list(projects)
    found = await connection.execute(
        text(
            f"SELECT {_COLUMNS}, NULL AS summary FROM simulation {where} ORDER BY id DESC LIMIT :limit"
        ),
        {"before": before, "limit": limit, "projects": of},
    )
    return tuple(_row(row) for row in found)


async def get(connection: AsyncConnection, simulation_id: int) -> SimulationRow:
    """One simulation. Raises NotFound."""
    row = await one_row(
        connection,
        text(f"SELECT {_COLUMNS}, summary FROM simulation WHERE id = :id"),
        {"id": simulation_id},
        missing=missing(simulation_id),
    )
    return _row(row)


def missing(simulation_id: int) -> str:
    """What is said of one that is not there."""
    return f"there is no simulation {simulation_id}; the {KEPT} newest are kept"


async def get_report(
    connection: AsyncConnection, simulation_id: int, kind: Literal["html", "json"]
) -> bytes:
    """A report, compressed by gzip. Raises NotFound, and Conflict where the simulation has not finished."""
    row = await get(connection, simulation_id)
    if row.state != "finished":
        raise Conflict(
            f"simulation {simulation_id} is {row.state}; only one that has finished has reports"
        )
    found = await connection.execute(
        text(f"SELECT report_{kind} AS report FROM simulation WHERE id = :id"),
        {"id": simulation_id},
    )
    report = found.one().report
    if report is None:
        raise NotFound(
            f"the report of simulation {simulation_id} as JSON was too long to store; its HTML page is available"
        )
    return bytes(report)


async def cancel(
    connection: AsyncConnection, simulation_id: int, *, at: datetime
) -> bool:
    """End one; the process that runs it notices. False: it was cancelled before.

    Raises NotFound, and Conflict when it is over.
    """
    # The write itself decides: a look before it could be overtaken by the runner that finishes.
    ended = await connection.execute(text(_CANCEL), {"id": simulation_id, "at": at})
    if ended.rowcount:
        return True
    row = await get(connection, simulation_id)
    if row.state == "cancelled":
        return False
    raise Conflict(
        f"simulation {simulation_id} is over: it {'failed' if row.state == 'failed' else 'has finished'}"
    )


async def is_work(connection: AsyncConnection) -> bool:
    """Whether anything waits for a runner, as far as one look without locks can tell."""
    return bool((await connection.execute(text(_IS_WORK))).scalar_one())


async def claim(
    connection: AsyncConnection, runner: str, *, lease_s: float, at: datetime
) -> Claimed | None:
    """The oldest that waits, ours from now on; None where there is none, or one runs. Takes lost ones up again."""
    # One at a time in the whole cluster: a simulation takes the cores that the tick needs.
    await lock_object(connection, "simulation", "turn")
    await _take_back(connection, at)
    values = {"runner": runner, "lease_s": lease_s, "at": at}
    row = (await connection.execute(text(_CLAIM), values)).one_or_none()
    return None if row is None else Claimed(id=row.id, document=row.document)


async def renew(
    connection: AsyncConnection,
    simulation_id: int,
    runner: str,
    *,
    progress: float,
    lease_s: float,
) -> bool:
    """Note how far it is, and go on holding it; False: it is not ours any more."""
    values = {
        "id": simulation_id,
        "runner": runner,
        "progress": progress,
        "lease_s": lease_s,
    }
    return bool((await connection.execute(text(_RENEW), values)).rowcount)


async def finish(
    connection: AsyncConnection,
    simulation_id: int,
    runner: str,
    outcome: Reports | str,
    *,
    at: datetime,
) -> bool:
    """Note what it came to, or why it failed; False: it is not ours any more."""
    base = {"id": simulation_id, "runner": runner, "at": at}
    if isinstance(outcome, str):
        return bool(
            (await connection.execute(text(_FAIL), {**base, "error": outcome})).rowcount
        )
    values = {"summary": outcome.summary, "html": outcome.html, "json": outcome.json}
    return bool((await connection.execute(_FINISH, {**base, **values})).rowcount)


async def give_back(connection: AsyncConnection, runner: str) -> None:
    """A runner that ends in good order: what it runs waits for the next one, as if it had not begun."""
    await connection.execute(text(_GIVE_BACK), {"runner": runner})


async def _take_back(connection: AsyncConnection, at: datetime) -> None:
    """Running ones whose lease is over: back into the queue, or given up."""
    lost = await connection.execute(text(_LOST))
    for row in lost.all():
        if row.tries < MAX_TRIES:
            await connection.execute(text(_REQUEUE), {"id": row.id})
        else:
            # A simulation that takes its runner with it would otherwise do so for ever.
            error = LOST.format(tries=row.tries)
            await connection.execute(
                text(_GIVE_UP), {"id": row.id, "at": at, "error": error}
            )


_COLUMNS = """
id, asked_by, project, name, example, policies, seeds, duration_s, state, progress, error,
report_json IS NOT NULL AS has_json, created_at, started_at, finished_at
"""

_ADD = text("""
INSERT INTO simulation (asked_by, project, name, example, document, policies, seeds, duration_s, state, created_at)
VALUES (:asked_by, :project, :name, :example, :document, :policies, :seeds, :duration_s, 'queued', :at)
RETURNING id
""").bindparams(bindparam("document", type_=JSON))

# `finished_at` is set by every end; what waits or runs is never forgotten.
_FORGET = """
DELETE FROM simulation WHERE id IN (
    SELECT id FROM simulation WHERE finished_at IS NOT NULL ORDER BY id DESC OFFSET :kept
)
"""

_CANCEL = """
UPDATE simulation SET state = 'cancelled', finished_at = :at, runner = NULL, lease_until = NULL
WHERE id = :id AND state IN ('queued', 'running')
"""

# While one runs, only a lost one is work: two never run at once.
_IS_WORK = """
SELECT CASE WHEN EXISTS (SELECT FROM simulation WHERE state = 'running')
       THEN EXISTS (SELECT FROM simulation WHERE state = 'running' AND lease_until < clock_timestamp())
       ELSE EXISTS (SELECT FROM simulation WHERE state = 'queued') END
"""

_CLAIM = """
UPDATE simulation SET state = 'running', runner = :runner, tries = tries + 1, progress = 0, started_at = :at,
    lease_until = clock_timestamp() + make_interval(secs => :lease_s)
WHERE id = (SELECT id FROM simulation WHERE state = 'queued' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
  AND NOT EXISTS (SELECT FROM simulation WHERE state = 'running')
RETURNING id, document
"""

# `runner` and `state`: a runner that lost the lease or was cancelled changes nothing. So in the statements below.
_RENEW = """
UPDATE simulation SET progress = greatest(progress, :progress),
    lease_until = clock_timestamp() + make_interval(secs => :lease_s)
WHERE id = :id AND runner = :runner AND state = 'running'
"""

_FINISH = text("""
UPDATE simulation SET state = 'finished', progress = 1, finished_at = :at, runner = NULL, lease_until = NULL,
    summary = :summary, report_html = :html, report_json = :json
WHERE id = :id AND runner = :runner AND state = 'running'
""").bindparams(bindparam("summary", type_=JSON))

_FAIL = """
UPDATE simulation SET state = 'failed', finished_at = :at, runner = NULL, lease_until = NULL, error = :error
WHERE id = :id AND runner = :runner AND state = 'running'
"""

# The try does not count: nothing went wrong with the simulation.
_GIVE_BACK = """
UPDATE simulation SET state = 'queued', runner = NULL, lease_until = NULL, progress = 0, started_at = NULL,
    tries = tries - 1
WHERE runner = :runner AND state = 'running'
"""

_LOST = """
SELECT id, tries FROM simulation WHERE state = 'running' AND lease_until < clock_timestamp() FOR UPDATE SKIP LOCKED
"""

_REQUEUE = """
UPDATE simulation SET state = 'queued', runner = NULL, lease_until = NULL, progress = 0, started_at = NULL
WHERE id = :id
"""

_GIVE_UP = """
UPDATE simulation SET state = 'failed', finished_at = :at, runner = NULL, lease_until = NULL, error = :error
WHERE id = :id
"""


def _row(row: AnyRow) -> SimulationRow:
    values = dict(row._mapping)
    lists: dict[str, Sequence[object]] = {
        name: tuple(values[name]) for name in ("policies", "seeds")
    }
    return SimulationRow(**{**values, **lists})
