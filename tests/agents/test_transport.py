"""What goes over the wire between an agent and its control plane."""

import asyncio

import msgspec
from aiohttp import web

from agents.base.protocol import GpuReading, Observation, SyncReply, UseReading
from agents.sync.transport import HttpTransport
from tests.agents.factories import an_observation

SLICE = GpuReading(
    index=1001,
    gpu_type="H100-1g.10gb",
    memory_mib=10240.0,
    memory_used_mib=0.0,
    power_w=10.0,
    energy_j=10.0,
    clock_mhz=1380.0,
    busy_percent=None,
)
OBSERVATION = an_observation(
    gpus=(SLICE,),
    uses=(UseReading(kind="idle", name="(idle)", gpu_index=0, energy_j=1.0),),
)


def test_the_first_observation_arrives_whole_also_what_is_not_known() -> None:
    bodies: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        return web.Response(
            body=msgspec.json.encode(
                SyncReply(boot="b", acknowledged=1, server_time_s=0.0)
            )
        )

    async def play() -> None:
        app = web.Application()
        app.router.add_post("/api/v1/nodes/n1/sync", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        transport = HttpTransport(f"http://127.0.0.1:{runner.addresses[0][1]}", "token")
        try:
            reply = await transport.exchange(OBSERVATION, wait_s=0.0)
            assert (reply.acknowledged, reply.lease) == (1, None)
        finally:
            await transport.close()
            await runner.cleanup()

    asyncio.run(play())
    assert [msgspec.json.decode(body, type=Observation) for body in bodies] == [
        OBSERVATION
    ]
