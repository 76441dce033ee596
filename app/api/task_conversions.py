"""Tasks: manifests → what the database keeps, and rows of it → what the API answers."""

from datetime import datetime, timedelta

from app import manifests, task_manifests
from app.api.task_schemas import TaskStatusView, TaskView
from app.control.task_book import TaskRecord, remaining_s, waited_s, waiting_s
from app.db.tasks import Submission, TaskRow
from app.nouns import to_task
from solvers.state import Task

STATED = ("network", "iterations", "epochs", "examples", "inputs", "checkpoint_command")
"""Fields of the manifest that the control loop needs in another form, or not at all; kept as they were written."""


def submission_of(manifest: task_manifests.Task) -> Submission:
    """What a manifest asks for."""
    return Submission(
        task=to_task(manifest),
        stated=manifest.spec.model_dump(mode="json", include=set(STATED), exclude_none=True),
        labels=manifest.metadata.labels,
        annotations=manifest.metadata.annotations,
    )


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
            "variants": [{"network": each.network, "accuracy": each.accuracy} for each in noun.variants],
            "accuracy_floor": noun.accuracy_floor,
            "batch": noun.batch,
            "deadline_after_s": noun.due_in_s,
            "priority": noun.priority,
            "weight": noun.weight,
            **row.stated,
        }
    )


def _status(record: TaskRecord, submitted_by: str, now: datetime) -> TaskStatusView:
    left_s = remaining_s(record)
    return TaskStatusView(
        id=record.task.name,
        state=record.phase,
        gpu=record.place[0] if record.place and not record.is_over else None,
        sm_percent=record.place[1] if record.place and not record.is_over else None,
        done_iterations=record.done_iterations,
        iterations=record.task.iterations,
        iterations_per_s=1000.0 / record.iteration_ms if record.iteration_ms > 0.0 else None,
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
