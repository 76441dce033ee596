"""Metrics of the cluster, and where those of the agents are; both for scrapers with a viewer's token.

The API's own are at `/metrics`, without a token: they say nothing of services.
"""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from app.api.answers import READ, Responses
from app.api.auth import ClusterViewer
from app.api.cluster_families import MOST
from app.api.metrics_schemas import TargetGroup
from app.db.cluster_figures import load_metrics_addresses

router = APIRouter(prefix="/metrics", tags=["metrics"])

_TEXT: Responses = {200: {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("", response_class=Response, responses=READ | _TEXT)
async def cluster_metrics(context: ClusterViewer) -> Response:
    """Nodes, GPUs, services, costs in Prometheus' text format; every process of the API says the same."""
    text = await context.parts.cluster_page.load(context.parts.engine, context.now())
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/targets", responses=READ)
async def metrics_targets(context: ClusterViewer) -> list[TargetGroup]:
    """The agents that show metrics, as Prometheus' HTTP service discovery reads them."""
    async with context.transaction() as connection:
        rows = await load_metrics_addresses(connection, MOST)
    return [TargetGroup(targets=[row.metrics_address], labels={"node": row.id}) for row in rows]
