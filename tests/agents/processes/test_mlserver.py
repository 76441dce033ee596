"""MLServer itself, by the template of docs/runtimes.md, our adapter and both routers.

Only where PLIMSOLL_MLSERVER names a virtual environment that has it:

    python3 -m venv /srv/mlserver && /srv/mlserver/bin/pip install mlserver==1.7.1 'uvloop<0.22'
    PLIMSOLL_MLSERVER=/srv/mlserver pytest tests/agents/processes/test_mlserver.py
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from agents.base.device import ServiceRoute
from agents.processes.launch import Launch
from agents.processes.template_file import load_templates
from agents.replicas.replicas import Workers, WorkersSettings
from tests.agents.factories import a_replica
from tests.agents.fakes.replicas import FIRST_PORT, gone, in_loop, the, until
from tests.agents.router.routers import both, front
from tests.ports import PORTS

VENV = os.environ.get("PLIMSOLL_MLSERVER", "")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not VENV, reason="PLIMSOLL_MLSERVER names no virtual environment with mlserver"
    ),
]

TEMPLATES = """
default = "mlserver"

[templates.mlserver]
server = "mlserver"
batch_change = "reload"
command = ["VENV/bin/mlserver", "start", "{directory}"]
environment = {MLSERVER_HOST = "127.0.0.1", MLSERVER_HTTP_PORT = "{port}", MLSERVER_GRPC_PORT = "{grpc_port}", \
MLSERVER_METRICS_PORT = "{metrics_port}"}

[templates.mlserver.files]
"model-settings.json" = '''
{"name": "{service}", "implementation": "rows.Rows", "max_batch_size": {batch}, "max_batch_time": 0.2}
'''
"rows.py" = '''
from mlserver import MLModel
from mlserver.types import InferenceResponse, ResponseOutput


class Rows(MLModel):
    async def predict(self, payload):
        rows = payload.inputs[0].shape[0]
        output = ResponseOutput(name="rows", shape=[rows, 1], datatype="FP32", data=[float(rows)] * rows)
        return InferenceResponse(model_name=self.name, outputs=[output])
'''
"""
"""Each row of an answer says how many rows were computed together."""

ROUTE = ServiceRoute(service="chat", slo_ms=10_000.0, shares=(("r1", 1.0),))


@asynccontextmanager
async def a_node(directory: Path) -> AsyncIterator[Workers]:
    file = directory / "templates.toml"
    file.write_text(TEMPLATES.replace("VENV", VENV))
    file.chmod(0o600)
    workers = Workers(
        WorkersSettings(
            directory=directory / "workers", first_port=FIRST_PORT, port_count=PORTS
        ),
        templates=load_templates(file),
    )
    await workers.open()
    try:
        yield workers
    finally:
        await workers.close(keep=False)


async def rows(session: aiohttp.ClientSession, url: str) -> float:
    """How many rows were computed together with this one."""
    body = {
        "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]
    }
    async with session.post(f"{url}/v2/models/chat/infer", json=body) as answer:
        assert answer.status == 200, await answer.text()
        read: list[float] = (await answer.json())["outputs"][0]["data"]
        return read[0]


async def largest(session: aiohttp.ClientSession, url: str) -> float:
    return max(await asyncio.gather(*(rows(session, url) for _ in range(24))))


async def is_ready(workers: Workers) -> None:
    await until(lambda: the(workers).state in ("ready", "failed"))
    assert the(workers).state == "ready", the(workers).message


@both
@in_loop
async def test_mlserver_serves_with_changed_batches(kind: str, tmp_path: Path) -> None:
    async with a_node(tmp_path) as workers, front(kind, tmp_path / "h") as door:
        router, url, session = door.router, door.url, door.client
        await workers.start(Launch(replica=a_replica("r1", batch=4), gpu_index=0))
        await is_ready(workers)
        traits = workers.traits("r1")
        await door.switch(ROUTE, traits={"r1": traits}, r1=the(workers).url)
        about = json.loads((await door.ask("GET", "/v2")).body)
        assert about["extensions"] == []
        asked = await door.ask("GET", "/v2/models/chat")
        assert json.loads(asked.body)["name"] == "chat"
        # As MLServer itself says that it is ready.
        own = await door.client.get(the(workers).url + traits.ready_path)
        assert own.status == 200
        assert await largest(session, url) == 4.0

        assert await workers.set_batch("r1", 8) == "reloading"
        await is_ready(workers)
        assert the(workers).batch == 8
        assert await largest(session, url) == 8.0

        counts = await workers.metrics("r1")
        # 24 requests twice; MLServer counts them all, over its worker processes too.
        assert (counts.requests, counts.failures) == (48, 0)

        await door.switch()
        await workers.drain("r1")
        await router.look()
        assert router.in_flight("r1") == 0
        leader = psutil.Process(the(workers).pid)
        family = [leader, *leader.children(recursive=True)]
        await workers.stop("r1")
        await gone(workers)
        assert not any(
            each.is_running() and each.status() != psutil.STATUS_ZOMBIE
            for each in family
        )
