"""Tasks: training and offline work as teams submitted it, and how far it has come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, case, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import Conflict, InvalidRequest
from app.db.base.rows import one_row
from app.db.base.tables import AnyRow, task
from app.store.task_book import TaskPhase, TaskRecord, as_of
from app.store.task_book import cancelled as cancelled_record
from solvers.types.state import GpuId, Json, Task, Variant

MAX_OPEN = 2000
"""Tasks that are not over, of all projects: each of them is looked at in every tick."""

FIXED = ("kind", "network", "layers", "memory_mib", "variants", "batch", "iterations")
"""What a task does; none of it can be changed under a task that may run."""

_DESCRIPTIVE = frozenset(("labels", "annotations"))
"""What may change in a task that is over, too."""

_WORK = (
    "kind",
    "network",
    "batch",
    "iterations",
    "priority",
    "weight",
    "accuracy_floor",
    "memory_mib",
)
"""Fields of a task that have columns of their names."""

PROGRESS = (
    "state",
    "done_iterations",
    "iteration_ms",
    "last_ran_at",
    "finished_at",
    "ran_s",
    "starts",
    "swaps",
)
"""Fields of a task's record that reports change; columns of their names hold them."""

IS_OPEN = task.c.finished_at.is_(None) & task.c.cancelled_at.is_(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSubmission:
    """What a team asks for."""

    task: Task
    """Its name as its team calls it."""
    stated: Mapping[str, Json] = field(default_factory=dict)
    """What the manifest says that the control loop has no use for."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task in its present generation."""

    name: str
    """As its team calls it; `record.task.name` is what plans and nodes call it."""
    record: TaskRecord
    generation: int
    stated: Mapping[str, Json]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    submitted_by: str


async def load_open(connection: AsyncConnection, now: datetime) -> tuple[Task, ...]:
    """Every task that is not over, as it stands now, by id."""
    found = await connection.execute(
        # By bytes, as Python sorts: plans list tasks by id, and both stores must give the same order.
        select(task).where(IS_OPEN).order_by(task.c.id.collate("C"))
    )
    return tuple(as_of(record_of(row), now) for row in found)


async def list_rows(
    connection: AsyncConnection,
    *,
    projects: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    phases: Sequence[TaskPhase] | None = None,
    after: str = "",
    limit: int | None = None,
) -> tuple[TaskRow, ...]:
    """Tasks by name; of some projects, with all of some labels, and that stand so, where given."""
    statement = _listed().where(task.c.name > after).order_by(task.c.name).limit(limit)
    if projects is not None:
        statement = statement.where(task.c.project.in_(projects))
    if labels:
        statement = statement.where(task.c.labels.contains(dict(labels)))
    if phases is not None:
        statement = statement.where(_PHASE.in_(phases))
    return tuple(_row(row) for row in await connection.execute(statement))


async def count_by_phase(connection: AsyncConnection) -> Sequence[AnyRow]:
    """Numbers of listed tasks, as `tasks`, by `kind` and `phase`."""
    # By phase: the column `state` is null for a task that runs nowhere, of which a metric has no label.
    phase = _PHASE.label("phase")
    statement = (
        select(task.c.kind, phase, func.count().label("tasks"))
        .where(task.c.deleted_at.is_(None))
        .group_by(task.c.kind, phase)
        .order_by(task.c.kind, phase)
    )
    return (await connection.execute(statement)).all()


async def get(connection: AsyncConnection, name: str) -> TaskRow:
    """One task. Raises NotFound."""
    return _row(await _one(connection, _listed().where(task.c.name == name), name))


async def _one(
    connection: AsyncConnection, statement: Select[*tuple[Any, ...]], name: str
) -> AnyRow:
    return await one_row(connection, statement, missing=f"no task is called {name!r}")


async def save(
    connection: AsyncConnection, wanted: TaskSubmission, *, at: datetime, actor: str
) -> int:
    """Submit a task, or change when and how urgently it is wanted; returns its generation, which stays when nothing
    changes.

    Raises Conflict for a name that another project has, for a task that is over, and where too many tasks are open;
    InvalidRequest for a change of what a task does.
    """
    noun = wanted.task
    row = (
        await connection.execute(
            _listed().where(task.c.name == noun.name).with_for_update()
        )
    ).one_or_none()
    if row is None:
        return await _insert(connection, wanted, at=at, actor=actor)
    if row.project != noun.project:
        # Which project that is stays unsaid: the caller's token may not reach it.
        raise Conflict(
            f"another project has a task {noun.name!r}; names are unique in the cluster; choose another one"
        )
    values = _specification(wanted)
    changed = [key for key, value in values.items() if getattr(row, key) != value]
    if not changed:
        return int(row.generation)
    _refuse_fixed(wanted, changed)
    if not _DESCRIPTIVE.issuperset(changed) and (before := record_of(row)).is_over:
        raise Conflict(
            f"task {noun.name!r} is over ({before.phase}); delete it and submit it again"
        )
    generation = int(row.generation) + 1
    await connection.execute(
        update(task).where(task.c.id == row.id).values(generation=generation, **values)
    )
    return generation


def _refuse_fixed(wanted: TaskSubmission, changed: Sequence[str]) -> None:
    for key in FIXED:
        if key not in changed:
            continue
        stated = key
        # The message names the field that the manifest has: how much is to be done can be stated in three ways.
        if key == "iterations":
            ways = (name for name in ("epochs", "inputs") if name in wanted.stated)
            stated = next(ways, key)
        raise InvalidRequest(
            "cannot be changed once the task is submitted; delete it and submit it again, or give the new one "
            "another name",
            field=f"spec.{stated}",
        )


async def cancel(connection: AsyncConnection, name: str, *, at: datetime) -> bool:
    """End a task, which stays in the list; False: it was so before. Raises NotFound; Conflict for a finished one."""
    # Locked: a report that says it is done must not come between the look and the write.
    statement = _listed().where(task.c.name == name).with_for_update()
    row = await _one(connection, statement, name)
    before = record_of(row)
    after = cancelled_record(before, at)
    if after == before:
        return False
    ended = {"cancelled_at": at, "gpu": None, "sm_percent": None, "state": None}
    await connection.execute(update(task).where(task.c.id == row.id).values(**ended))
    return True


async def remove(connection: AsyncConnection, name: str, *, at: datetime) -> None:
    """Take a task out of the list, and end it where it is not over; what it cost stays. Raises NotFound."""
    if not (await get(connection, name)).record.is_over:
        await cancel(connection, name, at=at)
    listed = (task.c.name == name) & task.c.deleted_at.is_(None)
    await connection.execute(update(task).where(listed).values(deleted_at=at))


async def _insert(
    connection: AsyncConnection, wanted: TaskSubmission, *, at: datetime, actor: str
) -> int:
    count = (
        await connection.execute(select(func.count()).select_from(task).where(IS_OPEN))
    ).scalar_one()
    if count >= MAX_OPEN:
        raise Conflict(
            f"{count:,} tasks are already waiting or running, which is the limit; cancel some, or wait until some "
            "are done"
        )
    name = wanted.task.name
    run = await _next_run(connection, name)
    await connection.execute(
        insert(task).values(
            id=_id_of(name, run),
            name=name,
            run=run,
            project=wanted.task.project,
            generation=1,
            submitted_at=at,
            submitted_by=actor,
            done_iterations=wanted.task.done_iterations,
            **_specification(wanted),
        )
    )
    return 1


async def _next_run(connection: AsyncConnection, name: str) -> int:
    """The run of a new task: a name may be used again once its task is deleted, and reports tell runs apart by id."""
    before = await connection.execute(
        select(func.max(task.c.run)).where(task.c.name == name)
    )
    run = 1 + (before.scalar_one() or 0)
    # The row of a task goes after months, its costs and energy stay under its id: no other task may get that.
    while await _was_planned(connection, _id_of(name, run)):
        run += 1
    return run


async def _was_planned(connection: AsyncConnection, task_id: str) -> bool:
    statement = text("SELECT EXISTS (SELECT FROM allocation_task WHERE task = :id)")
    found = await connection.execute(statement, {"id": task_id})
    return bool(found.scalar_one())


def _id_of(name: str, run: int) -> str:
    return name if run == 1 else f"{name}.{run}"


def _listed() -> Select[*tuple[Any, ...]]:
    return select(task).where(task.c.deleted_at.is_(None))


# In SQL, so that a filter by phase and the limit of a page work on the same rows.
_PHASE = case(
    (task.c.finished_at.is_not(None), "finished"),
    (task.c.cancelled_at.is_not(None), "cancelled"),
    (task.c.state == "swapping", "swapped"),
    else_=func.coalesce(task.c.state, "queued"),
)
"""`TaskRecord.phase`."""


def _specification(wanted: TaskSubmission) -> dict[str, object]:
    noun = wanted.task
    return {
        "labels": dict(wanted.labels),
        "annotations": dict(wanted.annotations),
        **{name: getattr(noun, name) for name in _WORK},
        "layers": [list(entry) for entry in noun.layers],
        # Compared with what is stored, where tuples came back as lists.
        "variants": [[entry.network, entry.accuracy] for entry in noun.variants],
        "deadline_after_s": noun.due_in_s,
        "stated": dict(wanted.stated),
    }


def record_of(row: AnyRow) -> TaskRecord:
    """A row of the table as the task's record."""
    after_s = row.deadline_after_s
    return TaskRecord(
        task=_noun(row),
        submitted_at=row.submitted_at,
        deadline_at=None
        if after_s is None
        else row.submitted_at + timedelta(seconds=after_s),
        place=None if row.gpu is None else (GpuId(row.gpu), row.sm_percent),
        cancelled_at=row.cancelled_at,
        **{name: row._mapping[name] for name in PROGRESS},
    )


def _noun(row: AnyRow) -> Task:
    return Task(
        name=row.id,
        project=row.project,
        due_in_s=row.deadline_after_s,
        **{name: row._mapping[name] for name in _WORK},
        variants=tuple(
            Variant(network=network, accuracy=accuracy)
            for network, accuracy in row.variants
        ),
        layers=tuple((kind, number) for kind, number in row.layers),
    )


def _row(row: AnyRow) -> TaskRow:
    return TaskRow(
        name=row.name,
        record=record_of(row),
        generation=row.generation,
        stated=row.stated,
        labels=row.labels,
        annotations=row.annotations,
        submitted_by=row.submitted_by,
    )
