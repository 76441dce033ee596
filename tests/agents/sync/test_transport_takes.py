"""What a control plane says that it takes decides what an agent sends."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
from aiohttp import web

from agents.base.protocol import TAKES_HEADER, TAKES_UNKNOWN, TAKES_USES, GpuReading, Observation, SyncReply, UseReading
from agents.sync.transport import ControlPlaneSilent, HttpTransport, Unacceptable

USE = UseReading(kind="idle", name="(idle)", gpu_index=0, energy_j=1.0)

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


@dataclass
class Plane:
    """Remembers the bodies that it got; answers as told."""

    takes: str | None = None
    status: int = 200
    bodies: list[bytes] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        reply = SyncReply(boot="b", acknowledged=1, server_time_s=time.time())
        headers = {} if self.takes is None else {TAKES_HEADER: self.takes}
        return web.Response(status=self.status, body=msgspec.json.encode(reply), headers=headers)

    @property
    def told(self) -> list[bool]:
        """Whether each observation had uses."""
        return [b'"uses"' in body for body in self.bodies]


@asynccontextmanager
async def reached(plane: Plane) -> AsyncIterator[HttpTransport]:
    app = web.Application()
    app.router.add_post("/api/v1/nodes/n1/sync", plane.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    transport = HttpTransport(f"http://127.0.0.1:{runner.addresses[0][1]}", "token")
    try:
        yield transport
    finally:
        await transport.close()
        await runner.cleanup()


async def send(transport: HttpTransport, sequence: int = 1) -> None:
    await transport.exchange(
        Observation(
            node="n1",
            boot="b",
            sequence=sequence,
            window_start_s=0.0,
            window_s=1.0,
            generation=0,
            gpus=(SLICE,),
            uses=(USE,),
        ),
        wait_s=0.0,
    )


def test_an_older_control_plane_never_sees_uses() -> None:
    async def play() -> None:
        async with reached(plane := Plane()) as transport:
            for _ in range(3):
                await send(transport)
            assert plane.told == [False] * 3

    asyncio.run(play())


def test_one_that_takes_uses_gets_them_after_its_first_answer() -> None:
    async def play() -> None:
        async with reached(plane := Plane(takes=f"other, {TAKES_USES}")) as transport:
            for _ in range(3):
                await send(transport)
            assert plane.told == [False, True, True]
            assert msgspec.json.decode(plane.bodies[-1], type=Observation).uses == (USE,)

    asyncio.run(play())


def test_one_that_is_set_back_to_an_older_release_loses_one_observation() -> None:
    async def play() -> None:
        async with reached(plane := Plane(takes=TAKES_USES)) as transport:
            await send(transport)
            plane.takes, plane.status = None, 422
            with pytest.raises(Unacceptable):
                await send(transport)
            plane.status = 200
            await send(transport)
            assert plane.told == [False, True, False]

    asyncio.run(play())


def test_one_that_is_busy_is_still_the_same() -> None:
    async def play() -> None:
        async with reached(plane := Plane(takes=TAKES_USES)) as transport:
            await send(transport)
            plane.takes, plane.status = None, 503
            with pytest.raises(ControlPlaneSilent):
                await send(transport)
            await send_anyway(transport)
            assert plane.told == [False, True, True]

    async def send_anyway(transport: HttpTransport) -> None:
        with pytest.raises(ControlPlaneSilent):
            await send(transport)

    asyncio.run(play())


def test_that_something_is_not_known_is_told_to_who_takes_it_and_is_0_to_an_older_one() -> None:
    async def play() -> None:
        for takes, told in ((TAKES_USES, [0.0, 0.0]), (f"{TAKES_USES}, {TAKES_UNKNOWN}", [0.0, None])):
            async with reached(plane := Plane(takes=takes)) as transport:
                for _ in range(2):
                    await send(transport)
                seen = [msgspec.json.decode(body, type=Observation).gpus[0].busy_percent for body in plane.bodies]
                assert seen == told

    asyncio.run(play())
