"""Metrics of the cluster, and where those of the agents are; both for scrapers with a viewer's token.

The API's own are at `/metrics`, without a token: they say nothing of services.
"""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from starlette.responses import Response

from app.api.caches.cluster_families import MAX_SERIES
from app.api.http.answers import PROMETHEUS_TEXT, READ
from app.api.http.auth import ClusterViewer
from app.db.reports.cluster_figures import load_metrics_addresses

router = APIRouter(prefix="/metrics", tags=["metrics"])


@router.get("", response_class=Response, responses=READ | PROMETHEUS_TEXT)
async def get_cluster_metrics(context: ClusterViewer) -> Response:
    """Nodes, GPUs, services, costs in Prometheus' text format; every process of the API says the same."""
    # Kept for some seconds: several scrapers cost as much as one.
    text = await context.parts.cluster_page.load(context.parts.engine, context.now())
    return Response(text, media_type=CONTENT_TYPE_LATEST)


class TargetGroup(BaseModel):
    """One group of Prometheus' HTTP service discovery: an agent."""

    targets: list[str] = Field(
        description="Addresses, `host:port`", examples=[["10.0.0.7:9410"]]
    )
    labels: dict[str, str] = Field(
        description="Labels of every series that is read there",
        examples=[{"node": "gpu-01"}],
    )


@router.get("/targets", responses=READ)
async def list_metrics_targets(context: ClusterViewer) -> list[TargetGroup]:
    """The agents that show metrics, as Prometheus' HTTP service discovery reads them."""
    async with context.transaction() as connection:
        rows = await load_metrics_addresses(connection, MAX_SERIES)
    return [
        TargetGroup(targets=[row.metrics_address], labels={"node": row.id})
        for row in rows
    ]
