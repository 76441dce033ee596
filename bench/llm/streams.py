"""Whether streams of tokens survive what a plan does, and what a router adds to their first token.

Run: `python -m bench.llm.streams [streams]`. Prints two tables and writes bench/results/llm_streams.json.

1. A node's agent with its router and stand-in engines, whose command changes every CHANGE_S seconds: replicas are
   added, removed and moved to other GPUs. Clients keep CLIENTS streams open. A stream is broken where it ends without
   all its tokens.
2. Streams of 50 tokens a second from a node's engines: asked directly, through the own router, and through HAProxy, in
   turn and with the same arrivals. Either router has one core of its own; engines and client (`bench.llm.raw_streams`)
   have another one together. `added` compares the way's time to the first token with that of asking directly, each
   without the time that the engine itself took, which the engine tells. `router %` is how long the router had its core,
   `router waits %` how long it was ready while another program had that core. `parties %` is how long engines and
   client had theirs. Where anybody waits for long, or the engines' steps begin late, the machine was measured.
"""

import asyncio
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

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
from agents.router.haproxy.process import HaProxy
from agents.router.haproxy.supervised import PLACES
from agents.router.router import Router
from bench.llm.raw_streams import (
    PARTIES_CORE,
    ROUTER_CORE,
    STREAM_S,
    ReadStream,
    StreamClient,
    run_engines,
    spread,
    used_s,
)
from bench.processes import start_process
from bench.report import Figures, print_table, write_results
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.ports import a_free_port

STREAMS = 10_000
CLIENTS = 300
CHANGE_S = 4.0
GPUS = 6
MEMORY_MIB = 80_000.0
SEED = 7

OPEN_STREAMS = (50, 100, 200, 300, 500)
MEASURED_S, ROUNDS = 8.0, 2
PAUSE_S = 1.0


def main(streams: int = STREAMS) -> None:
    """Both tables."""
    changes = asyncio.run(_through_changes(streams))
    print_table([changes])
    ways = measure_ways()
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
        text = await _stream(session, f"{url}/services/chat", tokens)
        is_whole = text.count(b'"text":" token"') == tokens and b"[DONE]" in text
        broken += not is_whole
    return broken


async def _stream(session: aiohttp.ClientSession, url: str, tokens: int) -> bytes:
    """All that came; what it says of an error is no token."""
    body = {"prompt": "one two three", "max_tokens": tokens, "stream": True}
    parts = []
    try:
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            async for part in answer.content.iter_any():
                parts.append(part)
    except aiohttp.ClientError as error:
        parts.append(str(error).encode())
    return b"".join(parts)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How streams are asked for."""

    name: str
    ports: list[int]
    path: str = "/services/chat/v1/completions"
    pid: int = 0
    """The router's; 0: there is none."""


@dataclass(slots=True)
class _Found:
    """What one way did with a number of streams, in all rounds."""

    way: _Way
    streams: list[ReadStream] = field(default_factory=list)
    events_per_s: list[float] = field(default_factory=list)
    used: dict[str, list[float]] = field(default_factory=dict)
    """Percent of a core, by whose."""
    late_ms: list[float] = field(default_factory=list)
    """Of the engines' steps."""

    def way_ms(self, share: float) -> float:
        """A quantile of the time to the first token without the engine's part of it."""
        return _quantile([each.way_ms for each in self.streams], share)


def measure_ways() -> list[Figures]:
    """A row for each number of streams and way."""
    with ExitStack() as stack:
        pipe, ports, pid = start_process(stack, run_engines)
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        ways = _open_ways(stack, ports)
        os.sched_setaffinity(0, {PARTIES_CORE})
        rows: list[Figures] = []
        for streams in OPEN_STREAMS:
            found = [_Found(way) for way in ways]
            for number in range(ROUNDS):
                arrivals_s = spread(streams, STREAM_S + MEASURED_S, SEED + number)
                for each in found:
                    _measure(each, arrivals_s, pid, pipe)
            rows += [_row(each, found[0], streams) for each in found]
    return rows


def _open_ways(stack: ExitStack, ports: list[int]) -> list[_Way]:
    """All ways to the engines at these ports; that without a router first."""
    addresses = {f"r{port}": f"http://127.0.0.1:{port}" for port in ports}
    _, own_ports, own_pid = start_process(stack, _run_router, addresses)
    ways = [
        _Way(name="direct", ports=ports, path="/v1/completions"),
        _Way(name="own router", ports=own_ports, pid=own_pid),
    ]
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:{PLACES}")
    if program is None:
        return ways
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    settings = HaProxySettings(port=a_free_port(), folder=folder)
    proxy = HaProxy(settings)
    proxy.write_config()
    # It takes as many threads as there are cores when it starts.
    os.sched_setaffinity(0, {ROUTER_CORE})
    process = subprocess.Popen(
        (program, "-db", "-f", settings.config_path), stderr=subprocess.DEVNULL
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    while not settings.socket_path.exists() and process.poll() is None:
        time.sleep(0.01)
    proxy.switch(_table(addresses), addresses)
    return [*ways, _Way(name="HAProxy", ports=[settings.port], pid=process.pid)]


def _table(addresses: dict[str, str]) -> tuple[ServiceRoute, ...]:
    shares = tuple((name, 1.0) for name in addresses)
    route = ServiceRoute(service="chat", slo_ms=2000.0, slo_itl_ms=200.0, shares=shares)
    return (route,)


def _run_router(pipe: Connection, addresses: dict[str, str]) -> None:
    """The own router's process."""
    os.sched_setaffinity(0, {ROUTER_CORE})
    asyncio.run(_serve_router(pipe, addresses))


async def _serve_router(pipe: Connection, addresses: dict[str, str]) -> None:
    router = Router()
    async with _served(router.make_app()) as url:
        router.switch(_table(addresses), addresses)
        pipe.send([urlsplit(url).port])
        await asyncio.Event().wait()


def _measure(
    found: _Found,
    arrivals_s: Sequence[float],
    engines_pid: int,
    pipe: Connection,
) -> None:
    """One round of a way."""
    looks: list[tuple[float, dict[str, float]]] = []

    def look() -> None:
        pipe.send(True)
        late_ms = pipe.recv()
        if looks:
            found.late_ms += late_ms
        looks.append((time.monotonic(), used_s(found.way.pid, engines_pid)))

    client = StreamClient(found.way.ports, found.way.path, arrivals_s)
    client.run(look)
    (begun_s, before), (ended_s, after) = looks
    for whose in after:
        percent = 100.0 * (after[whose] - before[whose]) / (ended_s - begun_s)
        found.used.setdefault(whose, []).append(percent)
    found.streams += client.measured
    found.events_per_s.append(client.events / (ended_s - begun_s))
    # A client that is behind gets rid of what was left.
    time.sleep(PAUSE_S)


def _row(found: _Found, direct: _Found, streams: int) -> Figures:
    used = {whose: statistics.fmean(each) for whose, each in found.used.items()}
    ttft_ms = [each.ttft_ms for each in found.streams]
    return {
        "streams": streams,
        "way": found.way.name,
        "events per s": round(statistics.fmean(found.events_per_s)),
        "first tokens": len(found.streams),
        "TTFT ms p50": _quantile(ttft_ms, 0.5),
        "TTFT ms p99": _quantile(ttft_ms, 0.99),
        "added ms p50": found.way_ms(0.5) - direct.way_ms(0.5),
        "added ms p99": found.way_ms(0.99) - direct.way_ms(0.99),
        "router %": used["router"] if found.way.pid else None,
        "router waits %": used["router waits"] if found.way.pid else None,
        "parties %": used["parties"],
        "engines wait %": used["engines wait"],
        "client waits %": used["client waits"],
        "step late ms p99": _quantile(found.late_ms, 0.99),
        "broken": sum(each.is_broken for each in found.streams),
    }


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
