"""What goes over the wire between an agent and its control plane."""

import asyncio

import msgspec
from aiohttp import web
from msgspec import structs

from agents.base.protocol import (
    GpuReading,
    Observation,
    ReplicaReading,
    ServiceReading,
    SyncReply,
    UseReading,
)
from agents.sync.transport import HttpTransport
from tests.agents.factories import an_observation
from tests.agents.router_harness import served

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


def test_what_an_earlier_control_plane_refuses_is_left_out_until_one_takes_it() -> None:
    counted = ServiceReading(service="chat", arrivals=3, served=1, in_slo=1)
    left = structs.replace(counted, gone=2, unmeasured=1)
    fresh = ReplicaReading(
        id="chat-1",
        service="chat",
        gpu_index=0,
        state="starting",
        sm_percent=50.0,
        batch=1,
        memory_mib=100.0,
    )
    again = structs.replace(fresh, restarts=4)
    seen = an_observation(services=(left,), replicas=(again, fresh))
    told: list[Observation] = []
    # The first one is of before, the next ones take the fields, as they say in their answers.
    takes = iter(("", "gone, unmeasured, restarts", "unmeasured", ""))

    async def answer(request: web.Request) -> web.Response:
        told.append(msgspec.json.decode(await request.read(), type=Observation))
        reply = SyncReply(boot="b", acknowledged=1, server_time_s=0.0)
        headers = {"Plimsoll-Takes": fields} if (fields := next(takes)) else {}
        return web.Response(body=msgspec.json.encode(reply), headers=headers)

    async def play() -> None:
        app = web.Application()
        app.router.add_post("/api/v1/nodes/n1/sync", answer)
        async with served(app) as url:
            transport = HttpTransport(url, "token")
            for _ in range(4):
                await transport.exchange(seen, wait_s=0.0)
            await transport.close()

    asyncio.run(play())
    assert [each.services[0] for each in told] == [
        counted,
        counted,
        left,
        structs.replace(left, gone=0),
    ]
    plain = (fresh, fresh)
    assert [each.replicas for each in told] == [plain, plain, seen.replicas, plain]
