"""Tasks: manifests → what the database keeps, and rows of it → what the API answers."""

from datetime import datetime, timedelta

from pydantic import Field

from app.api.http.views import View
from app.db.workloads.tasks import TaskRow, TaskSubmission
from app.manifests import objects as manifests
from app.manifests import tasks as task_manifests
from app.manifests.to_types import to_task
from app.store.task_book import TaskPhase, TaskRecord, remaining_s, waited_s, waiting_s
from solvers.types.state import Task

STATED = ("network", "iterations", "epochs", "examples", "inputs", "checkpoint_command")
"""Fields of the manifest that the control loop needs in another form, or not at all; kept as they were written."""


def submission_of(manifest: task_manifests.TaskManifest) -> TaskSubmission:
    """What a manifest asks for."""
    return TaskSubmission(
        task=to_task(manifest),
        stated=manifest.spec.model_dump(
            mode="json", include=set(STATED), exclude_none=True
        ),
        labels=manifest.metadata.labels,
        annotations=manifest.metadata.annotations,
    )


class TaskStatusView(View):
    """How a task stands."""

    id: str = Field(
        description="Its name in plans and on nodes; differs from its name if that was used before"
    )
    state: TaskPhase = Field(
        description="queued: it runs nowhere; starting, running, swapped (its memory is with the host) and failed "
        "(its agent starts it again): as last reported by its node; finished; cancelled"
    )
    gpu: str | None = Field(description="Where the target places it")
    sm_percent: float | None
    done_iterations: float
    iterations: int = Field(description="Until it is done")
    iterations_per_s: float | None = Field(
        description="Of the newest window in which it made progress"
    )
    remaining_s: float | None = Field(
        description="Time until it is done at that pace; null while it is not running"
    )
    ends_at: datetime | None = Field(description="The same as a point in time")
    deadline_at: datetime | None
    submitted_at: datetime
    submitted_by: str
    last_ran_at: datetime | None
    finished_at: datetime | None
    cancelled_at: datetime | None
    waiting_s: float = Field(
        description="Since it last ran, or was submitted; 0 while it runs, and when it is over"
    )
    waited_s: float = Field(
        description="All the time since its submission in which it did not run"
    )
    starts: int
    swaps: int = Field(description="How often it was swapped out")


class TaskView(task_manifests.TaskManifest):
    """Training or an offline job."""

    status: TaskStatusView


def task_view(row: TaskRow, now: datetime) -> TaskView:
    """A stored task as a manifest with its status."""
    return TaskView(
        metadata=manifests.Metadata(
            name=row.name,
            project=row.record.task.project,
            labels=dict(row.labels),
            annotations=dict(row.annotations),
            generation=row.generation,
            created_at=row.record.submitted_at,
        ),
        spec=_spec(row.record.task, row),
        status=_status(row.record, row.submitted_by, now),
    )


def _spec(noun: Task, row: TaskRow) -> task_manifests.TaskSpec:
    return task_manifests.TaskSpec.model_validate(
        {
            "kind": noun.kind,
            "layers": dict(noun.layers) or None,
            "memory_mib": noun.memory_mib,
            "variants": [
                {"network": each.network, "accuracy": each.accuracy}
                for each in noun.variants
            ],
            "accuracy_floor": noun.accuracy_floor,
            "batch": noun.batch,
            "deadline_after_s": noun.due_in_s,
            "priority": noun.priority,
            "weight": noun.weight,
            # Last, so that fields are shown as they were written and not as the loop needs them.
            **row.stated,
        }
    )


def _status(record: TaskRecord, submitted_by: str, now: datetime) -> TaskStatusView:
    # None while it does not run: at which pace it will go on is unknown.
    left_s = remaining_s(record)
    return TaskStatusView(
        id=record.task.name,
        state=record.phase,
        # A task that is over keeps its last place in the record, which would look as if it ran there.
        gpu=record.place[0] if record.place and not record.is_over else None,
        sm_percent=record.place[1] if record.place and not record.is_over else None,
        done_iterations=record.done_iterations,
        iterations=record.task.iterations,
        iterations_per_s=1000.0 / record.iteration_ms
        if record.iteration_ms > 0.0
        else None,
        remaining_s=left_s,
        ends_at=None if left_s is None else now + timedelta(seconds=left_s),
        deadline_at=record.deadline_at,
        submitted_at=record.submitted_at,
        submitted_by=submitted_by,
        last_ran_at=record.last_ran_at,
        finished_at=record.finished_at,
        cancelled_at=record.cancelled_at,
        waiting_s=waiting_s(record, now),
        waited_s=waited_s(record, now),
        starts=record.starts,
        swaps=record.swaps,
    )
