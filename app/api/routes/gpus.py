"""Physical GPUs over all nodes."""

from app.api.answers import LIST
from app.api.auth import Viewer
from app.api.body import resource_router
from app.api.pages import Paging
from app.api.schemas import GpuView, Page
from app.db import nodes

router = resource_router("gpus", prefix="/gpus")


@router.get("", responses=LIST)
async def list_gpus(context: Viewer, paging: Paging) -> Page[GpuView]:
    """GPUs by id."""
    async with context.transaction() as connection:
        rows = [gpu for gpu in await nodes.load_gpus(connection) if gpu.id > paging.after]
    return paging.page(rows, view=GpuView.model_validate, key=lambda gpu: gpu.id)
