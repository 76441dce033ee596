"""Physical GPUs over all nodes."""

from app.api.http.answers import LIST
from app.api.http.auth import ClusterViewer
from app.api.http.body import resource_router
from app.api.http.pages import Paging
from app.api.http.views import Page, View
from app.db.fleet import nodes


class GpuView(View):
    """One physical GPU."""

    id: str
    node: str
    gpu_type: str
    index: int
    healthy: bool
    cordoned: bool


router = resource_router("gpus", prefix="/gpus")


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
