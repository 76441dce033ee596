"""Services that change all the time, so that plans, pushes, starts and commands are always under way."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import aiohttp

from bench.campaign.deployment.plane import SERVICES, RunningPlane
from bench.campaign.deployment.processes import beside

PERIOD_S = 2.0
"""Each change makes the plan that is being made too old; many more are refused (`app.api.http.parts`)."""
MIN_REPLICAS = (2, 8)
"""Between which each service changes: many replicas are new at any time."""


@asynccontextmanager
async def changing_services(
    plane: RunningPlane, session: aiohttp.ClientSession, draw: Random
) -> AsyncIterator[Counter[str]]:
    """One service after the other changes; what the API answered is counted, by status."""
    answers: Counter[str] = Counter()
    async with beside(_change(plane, session, draw, answers)):
        yield answers


async def _change(
    plane: RunningPlane,
    session: aiohttp.ClientSession,
    draw: Random,
    answers: Counter[str],
) -> None:
    # Whatever the service is by now: nothing else changes it.
    headers = {"Authorization": f"Bearer {plane.admin}", "If-Match": "*"}
    while True:
        name = f"s{draw.randrange(SERVICES):02}"
        wanted = manifest(name, draw.randint(*MIN_REPLICAS))
        url = f"{plane.url}/api/v1/services/{name}"
        try:
            async with session.put(url, json=wanted, headers=headers) as answer:
                answers[str(answer.status)] += 1
        except (aiohttp.ClientError, TimeoutError):
            answers["none"] += 1
        await asyncio.sleep(PERIOD_S)


def manifest(
    name: str,
    min_replicas: int,
    *,
    network: str = "resnet50",
    latency_ms: float = 400.0,
) -> dict[str, object]:
    """A service that wants a number of replicas, as it is sent to the API."""
    return {
        "apiVersion": "plimsoll/v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "network": network,
            "slo": {"latency_ms": latency_ms, "percentile": 0.98},
            "scaling": {"min_replicas": min_replicas},
        },
    }
