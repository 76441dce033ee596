"""What a change of SM shares costs requests: none may fail, and the slow ones may not become much slower.

    python -m bench.switching --requests 10000

The real agent, router and enforcement run in this process on fake GPUs; replicas are our own worker as processes,
with 2 ms per batch on the processor. Another process sends requests at a fixed rate, whether or not they are answered
(a latency counts from the moment that the request was due). A fifth of them come while nothing changes; then the only
replica's share is changed again and again, each time by a shadow switch. A request is `during` when it was due between
a command and the end of the old replica. `switched_ms` is from the command to the router's new table, without the new
worker's start. One row with the fake MPS, one with GPUs shared by turns.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import aiohttp

from agents.base.protocol import GpuCommand, NodeCommand, Route
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.gpu.node.device import GpuDevice
from agents.gpu.node.parts import DEFAULT_LOOKS
from agents.sync.ledger import Ledger
from agents.sync.transport import DirectTransport
from bench.command import WaitingPlane
from bench.report import Figures, print_table, write_results
from tests.agents.factories import a_replica
from tests.agents.gpu_nodes import CLOCK, GPU_TYPE, Wanted, front, gpu_device, inputs

REQUESTS, RATE_RPS = 10_000, 100.0
CALM = 0.2
"""Part of the requests that come before the first switch."""
PAUSE_S = 1.0
"""From the end of a switch to the next command."""
SHARES = (20.0, 40.0, 60.0)
LOOK_S = 0.005
PATIENCE_S = 120.0

Answer = tuple[float, float, int]
"""When a request was due by the machine's monotonic clock, milliseconds until its answer, its status (0 = none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Moments of one switch, by the machine's monotonic clock."""

    commanded_s: float
    started_s: float
    """The new worker's process was there."""
    ready_s: float
    switched_s: float
    ended_s: float
    """The old replica was gone."""

    @property
    def switched_ms(self) -> float:
        """From the command to the new table, without the worker's start."""
        return 1000.0 * (
            self.switched_s - self.commanded_s - (self.ready_s - self.started_s)
        )


@dataclass(slots=True, kw_only=True)
class _Node:
    """The node under measurement."""

    device: GpuDevice
    plane: WaitingPlane
    generations: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def switch(self) -> Switch:
        """Give the service's replica another share, and wait until the old one has gone."""
        generation = next(self.generations)
        name = f"r{generation}"
        replica = a_replica(
            name, sm_percent=SHARES[generation % len(SHARES)], rate_rps=RATE_RPS
        )
        gpu = GpuCommand(
            index=0,
            gpu_type=GPU_TYPE,
            clock_mhz=1200.0,
            power_cap_w=250.0,
            replicas=(replica,),
        )
        routes = (
            Route(
                service="chat",
                slo_ms=2000.0,
                percentile=0.99,
                arrival_rate_rps=RATE_RPS,
            ),
        )
        commanded_s = time.monotonic()
        self.plane.publish(
            NodeCommand(node="n1", generation=generation, gpus=(gpu,), routes=routes)
        )
        moments = [
            await self._reached(step, name)
            for step in ("started", "ready", "switched", "ended")
        ]
        started_s, ready_s, switched_s, ended_s = moments
        return Switch(
            commanded_s=commanded_s,
            started_s=started_s,
            ready_s=ready_s,
            switched_s=switched_s,
            ended_s=ended_s,
        )

    async def _reached(self, step: str, name: str) -> float:
        end_s = time.monotonic() + PATIENCE_S
        while step not in self._steps(states := await self._states(), name):
            if time.monotonic() > end_s:
                raise TimeoutError(
                    f"after {PATIENCE_S:.0f} s {name} is not {step}: {states}"
                )
            await asyncio.sleep(LOOK_S)
        return time.monotonic()

    async def _states(self) -> dict[str, str]:
        return {
            each.id: each.state
            for gpu in (await self.device.state()).gpus
            for each in gpu.replicas
        }

    def _steps(self, states: dict[str, str], name: str) -> set[str]:
        routed = {
            replica
            for route in self.device.router.routes
            for replica, _ in route.shares
        }
        is_so = {
            "started": name in states,
            "ready": states.get(name) == "ready",
            "switched": routed == {name},
            "ended": states == {name: "ready"} and routed == {name},
        }
        return {step for step, holds in is_so.items() if holds}


def run_sender(pipe: Connection, url: str, requests: int) -> None:
    """The process that sends; tells what became of each request."""
    pipe.send(True)  # It is there: from now on nothing but requests takes its time.
    pipe.send(asyncio.run(_send(url, requests)))


async def _send(url: str, requests: int) -> list[Answer]:
    body = json.dumps(inputs()).encode()
    # Without a limit of connections, so that what waits keeps nothing from being sent when it is due.
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        begin_s, asked = time.monotonic() + 0.5, []
        for number in range(requests):
            due_s = begin_s + number / RATE_RPS
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            asked.append(
                asyncio.create_task(
                    ask(session, f"{url}/v2/models/chat/infer", body, due_s)
                )
            )
        return list(await asyncio.gather(*asked))


async def ask(
    session: aiohttp.ClientSession, url: str, body: bytes, due_s: float
) -> Answer:
    """Send one request; what became of it."""
    status = 0
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.post(
            url, data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            await answer.read()
            status = answer.status
    return due_s, 1000.0 * (time.monotonic() - due_s), status


async def measure(*, has_mps: bool, requests: int) -> Figures:
    """One row."""
    with tempfile.TemporaryDirectory(prefix="sw") as name:
        wanted = Wanted(directory=Path(name), has_mps=has_mps, looks=DEFAULT_LOOKS)
        async with gpu_device(wanted) as device, front(device) as url:
            node, stop = _Node(device=device, plane=WaitingPlane()), asyncio.Event()
            settings, transport = (
                AgentSettings(node="n1", boot="b1"),
                DirectTransport(node.plane.answer),
            )
            agent = NodeAgent(
                settings, device, transport=transport, clock=CLOCK, ledger=Ledger(None)
            )
            running = asyncio.create_task(agent.run(stop))
            try:
                await node.switch()
                answers, switches = await _under_load(node, url, requests)
            finally:
                stop.set()
                await running
    return _row("mps" if has_mps else "turns", answers, switches)


async def _under_load(
    node: _Node, url: str, requests: int
) -> tuple[list[Answer], list[Switch]]:
    """What became of the requests, and the switches made meanwhile."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(
        target=run_sender, args=(theirs, url, requests), daemon=True
    )
    process.start()
    try:
        await asyncio.to_thread(ours.recv)
        told = asyncio.create_task(asyncio.to_thread(ours.recv))
        await asyncio.sleep(CALM * requests / RATE_RPS)
        switches = []
        while not told.done():
            switches.append(await node.switch())
            await asyncio.sleep(PAUSE_S)
        return await told, switches
    finally:
        process.kill()
        process.join()


def _row(sharing: str, answers: list[Answer], switches: list[Switch]) -> Figures:
    calm = [each for each in answers if each[0] < switches[0].commanded_s]
    during = [
        each
        for each in answers
        if any(it.commanded_s <= each[0] < it.ended_s for it in switches)
    ]
    if not calm or not during:
        raise SystemExit(
            "too few requests: none came before the first switch, or none during one; ask for more"
        )
    before_ms, during_ms = [each[1] for each in calm], [each[1] for each in during]
    return {
        "sharing": sharing,
        "requests": len(answers),
        "errors": sum(status != 200 for _, _, status in answers),
        "error_statuses": " ".join(
            sorted({str(status) for _, _, status in answers if status != 200})
        ),
        "switches": len(switches),
        "during": len(during),
        "before_ms_p50": median(before_ms),
        "before_ms_p99": quantile(before_ms, 0.99),
        "during_ms_p50": median(during_ms),
        "during_ms_p99": quantile(during_ms, 0.99),
        "p99_ratio": quantile(during_ms, 0.99) / quantile(before_ms, 0.99),
        "start_ms_p50": median(
            1000.0 * (each.ready_s - each.started_s) for each in switches
        ),
        "switched_ms_p50": median(each.switched_ms for each in switches),
        "switched_ms_max": max(each.switched_ms for each in switches),
    }


def quantile(values: list[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.switching",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=REQUESTS,
        help="in each row (default: %(default)s)",
    )
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    rows = [
        asyncio.run(measure(has_mps=has_mps, requests=options.requests))
        for has_mps in (False, True)
    ]
    print_table(rows)
    if not options.dry:
        write_results(
            "switching", rows, settings={"rate_rps": RATE_RPS, "pause_s": PAUSE_S}
        )


if __name__ == "__main__":
    main()
