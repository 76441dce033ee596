"""Physical GPUs over all nodes, and what was read of each."""

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Query
from pydantic import Field

from app.api.http.answers import LIST, READ
from app.api.http.auth import ClusterViewer
from app.api.http.body import resource_router
from app.api.http.pages import Paging
from app.api.http.views import Page, View
from app.db.fleet import nodes
from app.db.reports import gpu_board
from app.manifests.parts import Name


class GpuView(View):
    """One physical GPU."""

    id: str
    node: str
    gpu_type: str
    index: int
    healthy: bool
    cordoned: bool


class GpuReadingView(View):
    """One GPU over one step of time: means."""

    at: datetime = Field(description="When the step began")
    power_w: float
    memory_used_mib: float
    clock_mhz: float
    busy_percent: float | None = Field(
        description="Null: the driver does not say, as of MIG slices"
    )


class GpuReadings(View):
    """What was read of one GPU; steps without a reading are left out."""

    gpu: str
    step_s: int
    readings: list[GpuReadingView]


router = resource_router("gpus", prefix="/gpus")

MAX_READINGS = 240
"""An answer has at most as many as a chart can show."""


@router.get("", responses=LIST)
async def list_gpus(context: ClusterViewer, paging: Paging) -> Page[GpuView]:
    """GPUs by id."""
    async with context.transaction() as connection:
        rows = [
            # Cut here, not in SQL: a fleet has a few thousand GPUs, which one query reads anyway.
            gpu
            for gpu in await nodes.load_gpus(connection)
            if gpu.id > paging.after
        ]
    return paging.page(rows, view=GpuView.model_validate, key=lambda gpu: gpu.id)


@router.get("/{node}/{gpu}/readings", responses=READ)
async def list_readings(
    context: ClusterViewer,
    node: Name,
    gpu: Name,
    minutes: Annotated[int, Query(ge=1, le=180)] = 60,
) -> GpuReadings:
    """What was read of one GPU over the last minutes: means over equal steps, oldest first."""
    name = f"{node}/{gpu}"
    now = context.now()
    # Steps grow with the period, so that every answer has about as many points.
    step_s = max(1, minutes * 60 // MAX_READINGS)
    async with context.transaction() as connection:
        # For its 404: a GPU that never was has no readings either, and an empty chart would hide the typo.
        await nodes.get_gpu(connection, name)
        rows = await gpu_board.load_readings(
            connection, name, now - timedelta(minutes=minutes), now, step_s
        )
    return GpuReadings(
        gpu=name,
        step_s=step_s,
        readings=[GpuReadingView.model_validate(row) for row in rows],
    )
