"""What a node answers to a balancer that asks whether it serves a service."""

from dataclasses import replace

import aiohttp
import pytest

from agents.base.device import ServiceRoute
from agents.router.router import Router
from tests.agents.router_harness import a_route, served
from tests.waiting import in_loop

SERVED = a_route(("a", 1.0))


@pytest.mark.parametrize(
    ("route", "status"),
    [(SERVED, 200), (replace(SERVED, is_leaving=True), 503), (a_route(), 503)],
    ids=["served", "leaving", "none"],
)
@in_loop
async def test_a_node_is_ready_for_what_it_serves_and_does_not_leave(
    route: ServiceRoute, status: int
) -> None:
    router = Router()
    router.switch((route,), {"a": "http://127.0.0.1:9"})
    async with (
        served(router.make_app()) as url,
        aiohttp.ClientSession() as client,
        client.get(f"{url}/v2/models/chat/ready") as answer,
    ):
        assert answer.status == status
