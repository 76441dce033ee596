"""What the API answers about tasks."""

from datetime import datetime

from pydantic import Field

from app import task_manifests
from app.api.schemas import View
from app.control.task_book import TaskPhase


class TaskStatusView(View):
    """How a task stands."""

    id: str = Field(description="What plans and nodes call it; another one than its name where that was used before")
    state: TaskPhase = Field(
        description="queued: it runs nowhere; starting, running, swapped (its memory is with the host) and failed "
        "(its agent starts it again): as its node last said; finished; cancelled"
    )
    gpu: str | None = Field(description="Where the target wants it")
    sm_percent: float | None
    done_iterations: float
    iterations: int = Field(description="Until it is done")
    iterations_per_s: float | None = Field(description="Of the newest window in which it made progress")
    remaining_s: float | None = Field(description="Until it is done at that pace; null while it does not run")
    ends_at: datetime | None = Field(description="The same as a moment")
    deadline_at: datetime | None
    submitted_at: datetime
    submitted_by: str
    last_ran_at: datetime | None
    finished_at: datetime | None
    cancelled_at: datetime | None
    waiting_s: float = Field(description="Since it last ran, or was submitted; 0 while it runs, and when it is over")
    waited_s: float = Field(description="All the time since its submission in which it did not run")
    starts: int
    swaps: int = Field(description="How often it was swapped out")


class TaskView(task_manifests.Task):
    """Training or an offline job."""

    status: TaskStatusView
