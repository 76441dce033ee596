"""Physical GPUs over all nodes, and what was read of each."""

from datetime import timedelta
from typing import Annotated

from fastapi import Query

from app.api.answers import LIST, READ
from app.api.auth import ClusterViewer, Viewer
from app.api.body import resource_router
from app.api.pages import Paging
from app.api.schemas import GpuReading, GpuReadings, GpuView, Page
from app.db import gpu_board, nodes
from app.manifests import Name

router = resource_router("gpus", prefix="/gpus")

MOST_READINGS = 240
"""Of one answer: as many as a chart can show."""


@router.get("", responses=LIST)
async def list_gpus(context: Viewer, paging: Paging) -> Page[GpuView]:
    """GPUs by id."""
    async with context.transaction() as connection:
        rows = [gpu for gpu in await nodes.load_gpus(connection) if gpu.id > paging.after]
    return paging.page(rows, view=GpuView.model_validate, key=lambda gpu: gpu.id)


@router.get("/{node}/{gpu}/readings", responses=READ)
async def list_readings(
    context: ClusterViewer, node: Name, gpu: Name, minutes: Annotated[int, Query(ge=1, le=180)] = 60
) -> GpuReadings:
    """What was read of one GPU over the last minutes: means over equal steps, oldest first."""
    name, now = f"{node}/{gpu}", context.now()
    step_s = max(1, minutes * 60 // MOST_READINGS)
    async with context.transaction() as connection:
        await nodes.get_gpu(connection, name)
        rows = await gpu_board.load_readings(connection, name, now - timedelta(minutes=minutes), now, step_s)
    return GpuReadings(gpu=name, step_s=step_s, readings=[GpuReading.model_validate(row) for row in rows])
