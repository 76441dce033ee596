"""Whether streams of tokens survive what a plan does, and what a router adds to their first token.

Run: `python -m bench.llm.streams [streams]`. Prints two tables and writes bench/results/llm_streams.json.

1. A node's agent with its router and stand-in engines, whose command changes every CHANGE_S seconds: replicas are
   added, removed and moved to other GPUs. Clients keep CLIENTS streams open. A stream is broken where it ends without
   all its tokens.
2. Engines as processes, and OPEN_STREAMS streams of 50 tokens a second: asked directly, through the own router, and
   through HAProxy. What is compared is how long the first token took. More would measure a machine of two cores.
"""

import asyncio
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from agents.base.clock import ScaledClock
from agents.base.device import GpuState, ServiceRoute
from agents.base.protocol import (
    EngineCommand,
    GpuCommand,
    NodeCommand,
    ReplicaCommand,
    Route,
)
from agents.fake.device import FakeDevice
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.router import open_haproxy
from agents.router.haproxy.supervised import PLACES
from agents.router.router import Router
from bench.report import Figures, print_table, write_results
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.ports import a_free_port

STREAMS = 10_000
CLIENTS = 300
CHANGE_S = 4.0
GPUS = 6
MEMORY_MIB = 80_000.0
SEED = 7

OPEN_STREAMS, TOKENS, STEP_MS = 100, 100, 20.0
ENGINES = 4
"""A stand-in writes some thousands of events per second: it must not be what is measured."""


def main(streams: int = STREAMS) -> None:
    """Both tables."""
    changes = asyncio.run(_through_changes(streams))
    print_table([changes])
    ways = asyncio.run(_added())
    print_table(ways)
    write_results("llm_streams", ways, settings=changes)


class _Node:
    """A node whose command changes."""

    def __init__(self) -> None:
        self.generation = 0
        self.numbers = 0
        self.drained = 0

    def command(self, gpus: Sequence[int], kept: dict[int, str]) -> NodeCommand:
        """Replicas on these GPUs; `kept`: which stay, by GPU."""
        self.generation += 1
        for gpu in gpus:
            if gpu not in kept:
                self.numbers += 1
                kept[gpu] = f"chat-{self.numbers}"
        self.drained += len(set(kept) - set(gpus))
        for gpu in set(kept) - set(gpus):
            del kept[gpu]
        return NodeCommand(
            node="n1",
            generation=self.generation,
            gpus=tuple(_gpu(index, kept[index]) for index in sorted(gpus)),
            routes=(
                Route(
                    service="chat",
                    slo_ms=2000.0,
                    percentile=0.95,
                    arrival_rate_rps=float(len(gpus)),
                    slo_itl_ms=200.0,
                ),
            ),
        )


def _gpu(index: int, replica: str) -> GpuCommand:
    engine = EngineCommand(
        gpus=(index,),
        max_num_batched_tokens=2048,
        max_num_seqs=256,
        max_model_len=4096,
        drain_s=600.0,
    )
    return GpuCommand(
        index=index,
        gpu_type="H100",
        clock_mhz=0.0,
        power_cap_w=0.0,
        replicas=(
            ReplicaCommand(
                id=replica,
                service="chat",
                network="llama",
                sm_percent=100.0,
                batch=256,
                memory_mib=0.9 * MEMORY_MIB,
                arrival_rate_rps=1.0,
                engine=engine,
            ),
        ),
    )


async def _through_changes(streams: int) -> Figures:
    clock = ScaledClock()
    gpus = tuple(
        GpuState(index=index, gpu_type="H100", memory_mib=MEMORY_MIB)
        for index in range(GPUS)
    )
    device = FakeDevice(
        gpus,
        execution_s=lambda *_: 0.01,
        iteration_s=lambda *_: 0.01,
        clock=clock,
        launch_s=0.5,
    )
    node, kept, random_ = _Node(), dict[int, str](), random.Random(SEED)
    plane = PaperControlPlane(clock, node.command(range(2), kept))
    agent = an_agent(device, plane, clock)
    stop = asyncio.Event()
    began_s = time.monotonic()
    async with _served(device.router.make_app()) as url, _session() as session:
        loops = asyncio.create_task(agent.run(stop))
        await _until_routed(device)
        changes = asyncio.create_task(_change(plane, node, kept, random_))
        left = iter(range(streams))
        results = await asyncio.gather(
            *(_client(session, url, left, random_) for _ in range(CLIENTS))
        )
        changes.cancel()
        stop.set()
        await loops
    await device.close()
    return {
        "streams": streams,
        "broken": sum(results),
        "commands": node.generation,
        "drained": node.drained,
        "seconds": round(time.monotonic() - began_s),
    }


async def _until_routed(device: FakeDevice) -> None:
    for _ in range(600):
        if any(route.shares for route in device.router.routes):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("no replica is ready")


async def _change(
    plane: PaperControlPlane, node: _Node, kept: dict[int, str], random_: random.Random
) -> None:
    """Another number of replicas on other GPUs, again and again."""
    while True:
        await asyncio.sleep(CHANGE_S)
        gpus = random_.sample(range(GPUS), random_.randint(1, GPUS - 1))
        plane.command = node.command(gpus, kept)


async def _client(
    session: aiohttp.ClientSession,
    url: str,
    left: Iterator[int],
    random_: random.Random,
) -> int:
    """Streams that broke, of those that this client had."""
    broken = 0
    for _ in left:
        tokens = random_.randint(10, 120)
        text, _ = await _stream(session, f"{url}/services/chat", tokens)
        is_whole = text.count(b'"text":" token"') == tokens and b"[DONE]" in text
        broken += not is_whole
    return broken


async def _stream(
    session: aiohttp.ClientSession, url: str, tokens: int
) -> tuple[bytes, float]:
    """All that came, and seconds until the first of it; what it says of an error is no token."""
    body = {"prompt": "one two three", "max_tokens": tokens, "stream": True}
    began_s, first_s, parts = time.monotonic(), 0.0, []
    try:
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            async for part in answer.content.iter_any():
                first_s = first_s or time.monotonic() - began_s
                parts.append(part)
    except aiohttp.ClientError as error:
        parts.append(str(error).encode())
    return b"".join(parts), first_s


async def _added() -> list[Figures]:
    """Median and p99 of the time to the first token, by way, and the p99 over that of asking directly."""
    found: dict[str, tuple[float, float]] = {}
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(_engine()) for _ in range(ENGINES)]
        session = await stack.enter_async_context(_session())
        found["direct"] = await _times(session, engines)
        addresses = {f"r{number}": url for number, url in enumerate(engines)}
        route = ServiceRoute(
            service="chat",
            slo_ms=2000.0,
            slo_itl_ms=200.0,
            shares=tuple((name, 1.0) for name in addresses),
        )
        router = Router(replica_limit=OPEN_STREAMS)
        own = await stack.enter_async_context(_served(router.make_app()))
        router.switch((route,), addresses)
        found["own router"] = await _times(session, [f"{own}/services/chat"])
        if shutil.which("haproxy", path=PLACES) or shutil.which("haproxy"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            settings = HaProxySettings(port=a_free_port(), folder=folder)
            proxy = await open_haproxy(settings)
            await proxy.switch_routes((route,), addresses)
            front = f"http://127.0.0.1:{settings.port}/services/chat"
            found["HAProxy"] = await _times(session, [front])
            await proxy.close(keep=False)
    return [
        {
            "way": way,
            "streams": OPEN_STREAMS,
            "tokens per s": 1000.0 / STEP_MS,
            "median ms": times[0],
            "p99 ms": times[1],
            "p99 added ms": times[1] - found["direct"][1],
        }
        for way, times in found.items()
    ]


async def _times(
    session: aiohttp.ClientSession, urls: Sequence[str]
) -> tuple[float, float]:
    """Median and p99 in ms of streams that begin while so many others run."""

    async def one(number: int) -> float:
        # Spread over the length of a stream, so that they do not all begin at once.
        await asyncio.sleep(number / OPEN_STREAMS * TOKENS * STEP_MS / 1000.0)
        url = urls[number % len(urls)]
        firsts = [await _stream(session, url, TOKENS) for _ in range(2)]
        return 1000.0 * firsts[1][1]

    times = await asyncio.gather(*map(one, range(OPEN_STREAMS)))
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


@asynccontextmanager
async def _engine() -> AsyncIterator[str]:
    """The URL of a stand-in that runs as a process."""
    port = a_free_port()
    words = ("-m", "agents.llm", "--served-model-name", "chat", "--port", str(port))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, "--step-ms", str(STEP_MS)
    )
    try:
        async with _session() as session:
            await _until_ready(session, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def _until_ready(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(300):
        try:
            async with session.get(f"{url}/health") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{url} is not ready")


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
    )


@asynccontextmanager
async def _served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
