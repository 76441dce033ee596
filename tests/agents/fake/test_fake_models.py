"""A language model's replica on the fake device: what drains is taken back with the streams that it has."""

import asyncio

import aiohttp

from agents.base.clock import ScaledClock
from agents.base.device import NodeState
from agents.enforce.actions import perform
from agents.enforce.diff import actions, is_settled
from agents.fake.device import FakeDevice
from tests.agents.enforce.test_spans import a_model, on_two
from tests.agents.factories import an_empty_gpu
from tests.agents.router_harness import served
from tests.waiting import eventually, in_loop

TOKENS = 100


def states(state: NodeState) -> set[str]:
    return {each.state for gpu in state.gpus for each in gpu.replicas}


async def carry_out(device: FakeDevice, *models: int, generation: int) -> None:
    """Rounds until nothing can be done at once."""
    wanted = on_two(*(a_model(each) for each in models), generation=generation)

    async def is_done() -> bool:
        todo = actions(wanted, await device.state())
        for action in todo:
            await perform(device, action)
        return not todo and (not models or is_settled(wanted, await device.state()))

    await eventually(is_done)


async def stream(client: aiohttp.ClientSession, url: str) -> int:
    """Tokens of one answer that lasts a second."""
    body = {"model": "chat", "prompt": "a", "max_tokens": TOKENS, "stream": True}
    async with client.post(f"{url}/services/chat/v1/completions", json=body) as answer:
        text = await answer.text()
    return text.count('"text":" token"')


@in_loop
async def test_a_stream_survives_that_its_replica_drains_and_is_taken_back() -> None:
    device = FakeDevice(
        (an_empty_gpu(0), an_empty_gpu(1)),
        execution_s=lambda *_: 0.001,
        iteration_s=lambda *_: 1.0,
        clock=ScaledClock(),
        launch_s=0.05,
    )
    async with (
        served(device.router.make_app()) as url,
        aiohttp.ClientSession() as client,
    ):
        await carry_out(device, 0, generation=1)
        first = asyncio.create_task(stream(client, url))
        await eventually(lambda: device.router.in_flight("m1") == 1)
        await carry_out(device, generation=2)
        assert states(await device.state()) == {"draining"}
        await carry_out(device, 0, generation=3)
        assert states(await device.state()) == {"ready"}
        second = asyncio.create_task(stream(client, url))
        assert await asyncio.gather(first, second) == [TOKENS, TOKENS]
    await device.close()
