"""A replica that moves to another node: agents, routers and workers as processes, under a real control plane."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from bench.gateway import (
    LOOK_S,
    GatewayDeployment,
    control_plane,
    only_on,
    save_service,
    serve_first,
    start_agent,
)

pytestmark = pytest.mark.integration

LAUNCH_S = 25.0
"""Longer than old replicas ever served on by the clock alone."""


@pytest.mark.thorough
def test_the_old_one_serves_until_the_new_one_is_ready_however_long_that_takes(
    tmp_path: Path,
) -> None:
    asyncio.run(_move(tmp_path))


async def _move(folder: Path) -> None:
    async with control_plane(folder) as made:
        with contextlib.ExitStack() as running:
            running.enter_context(await start_agent(made, folder, "g1", "V100-32GB"))
            await serve_first(made)
            (old,) = await made.until("the first node", only_on({"g1"}))
            slow = await start_agent(made, folder, "g2", "A100-80GB", launch_s=LAUNCH_S)
            running.enter_context(slow)
            # A plan of a fleet without A100s would have the service nowhere.
            while not await _is_known(made, "g2"):  # noqa: ASYNC110  another process
                await asyncio.sleep(LOOK_S)
            await save_service(made, allowed=["A100-80GB"])
            while not await _is_ready_on(made, "g2"):
                assert await _serves(made, old["url"])
                await asyncio.sleep(LOOK_S)
            # Then it leaves, long before the limit that it has where it is not told.
            await made.until("the second node alone", only_on({"g2"}))
            assert not await _serves(made, old["url"])


async def _is_known(made: GatewayDeployment, node: str) -> bool:
    found = await made.call("GET", "nodes")
    return node in {each["metadata"]["name"] for each in found["items"]}


async def _is_ready_on(made: GatewayDeployment, node: str) -> bool:
    found = await made.call("GET", "services/chat/endpoints")
    ready = {each["node"] for each in found["nodes"] if each["ready_replicas"]}
    return node in ready


async def _serves(made: GatewayDeployment, url: str) -> bool:
    async with made.session.get(f"{url}/v2/models/chat/ready") as answer:
        return answer.status == 200
