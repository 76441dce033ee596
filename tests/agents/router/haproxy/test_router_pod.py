"""HAProxy that somebody else keeps up, as kubelet does in a Pod of its own: deploy/router.sh in a loop."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import aiohttp
import pytest
from aiohttp import web

from agents.base.waits import cancel
from agents.processes.procfs import MARK
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.router import open_haproxy
from agents.router.haproxy.supervised import PLACES
from tests.agents.router.haproxy.test_router import PORT
from tests.agents.router_harness import a_route, served, tick_until
from tests.waiting import in_loop

HAS_HAPROXY = shutil.which("haproxy", path=f"{os.environ['PATH']}:{PLACES}")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not HAS_HAPROXY, reason="HAProxy is not installed"),
]
SCRIPT = Path(__file__).parents[4] / "deploy/router.sh"


@asynccontextmanager
async def kubelet(folder: Path, mark: str) -> AsyncIterator[None]:
    """Starts it, and starts it again whenever it has ended."""
    environment = {
        "PATH": f"{os.environ['PATH']}:{PLACES}",
        MARK: mark,
        "PLIMSOLL_VERSION": "test",
    }

    async def run() -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                str(SCRIPT), str(folder), env=environment, start_new_session=True
            )
            try:
                await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        await cancel(task)


async def answer(session: aiohttp.ClientSession, port: int) -> int:
    try:
        async with session.post(
            f"http://127.0.0.1:{port}/v2/models/chat/infer", json={}
        ) as response:
            return response.status
    except aiohttp.ClientError:
        return 0


async def infer(request: web.Request) -> web.Response:
    return web.json_response({"outputs": []})


@in_loop
async def test_it_serves_without_its_agent_and_takes_up_what_the_next_one_says(
    tmp_path: Path,
) -> None:
    settings = HaProxySettings(
        port=PORT,
        folder=tmp_path,
        mark=f"test-{token_hex(4)}",
        services=4,
        replicas=2,
    )
    app = web.Application()
    app.router.add_post("/v2/models/chat/infer", infer)

    async with (
        kubelet(tmp_path, settings.mark),
        served(app) as url,
        aiohttp.ClientSession() as session,
    ):
        routes, addresses = (a_route(("r1", 1.0)),), {"r1": url}
        router = await open_haproxy(settings)
        await router.switch_routes(routes, addresses)
        assert await answer(session, settings.port) == 200
        pid = router.pid
        await router.close(keep=False)
        assert await answer(session, settings.port) == 200, "it is not ours to end"
        router = await open_haproxy(settings)
        assert router.pid == pid, "the same configuration keeps the process"
        await router.switch_routes(routes, addresses)
        os.kill(pid, signal.SIGKILL)
        # Started again without a table, it gets the last one.
        await tick_until(lambda: router.pid not in (0, pid))
        while await answer(session, settings.port) != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await router.close(keep=True)
        # Another port is another configuration, for which it is started again.
        moved = replace(settings, port=PORT + 1)
        router = await open_haproxy(moved)
        await router.switch_routes(routes, addresses)
        assert await answer(session, moved.port) == 200
        await router.close(keep=True)
