"""How many requests one router takes per second and core, what it adds to their latency, and how fast a switch is.

Run: `python -m bench.router`. Prints two tables and writes bench/results/router.json and router_switch.json.

One process is the router, two are timed workers that answer at once, this one sends: every connection asks again as
soon as it was answered. `rps_per_core` divides the answers by the router's own processor time, so that senders and
workers on the same cores do not count; `to_direct` is the same load's rate through the router over that straight to a
worker. Second table: replicas are switched under load, `last_request_ms` after the call the old one got its last. Where
HAProxy is installed it is measured next to the router.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from aiohttp import web

from agents.base.device import ServiceRoute
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.process import HaProxy
from agents.router.router import Router
from bench.processes import start_process
from bench.report import Figures, print_table, write_results
from tests.ports import a_free_port

SECONDS = 8.0
"""Of each measurement."""
CONNECTIONS = 32
BODIES = {"small": 0, "64 KiB": 64 * 1024, "1 MiB": 1024 * 1024}
"""Bytes of padding around a small inference request."""
SERVICES = 100
"""Rows of the table that is switched; the others have no load."""
SWITCHES = 20
SWITCH_PAUSE_S = 0.1
TURN_AROUND_S = 0.2
"""Until a worker is asked for its last request: whatever was under way has come."""
_SERVICE = "s000"
_ANSWER = b'{"model_name":"s000","id":"1","outputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[2.0]}]}'
_OK = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_ANSWER), _ANSWER)
)
_END = b"\r\n\r\n"
_GOOD = b"HTTP/1.1 200"

Times = tuple[float, float, float]
"""When a switch was called, returned, and had drained the old replica; by the machine's monotonic clock."""


class _Messages(asyncio.Protocol, ABC):
    """Cuts a connection's bytes into HTTP messages that state their length."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._length = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        while True:
            if not self._length:
                head = self._bytes.find(_END)
                if head < 0:
                    return
                lower = bytes(self._bytes[:head]).lower()
                self._length = (
                    head
                    + len(_END)
                    + int(
                        lower.partition(b"content-length:")[2].split(b"\r", 1)[0] or 0
                    )
                )
            if len(self._bytes) < self._length:
                return
            start = bytes(self._bytes[: len(_GOOD)])
            del self._bytes[: self._length]
            self._length = 0
            self.took(start)

    @abstractmethod
    def took(self, start: bytes) -> None:
        """A whole message has come that starts so."""


@dataclass(slots=True)
class _LastCome:
    """When a worker got its last request, in seconds of the machine's monotonic clock."""

    at_s: float = 0.0


class _Worker(_Messages):
    """Answers every request with the same bytes."""

    def __init__(self, last: _LastCome) -> None:
        super().__init__()
        self._last = last

    def took(self, start: bytes) -> None:
        if start.startswith(b"POST"):  # else a probe
            self._last.at_s = time.monotonic()
        self.transport.write(_OK)


@dataclass(slots=True, kw_only=True)
class Load:
    """What is sent, and what came of it."""

    request: bytes
    until_s: float
    latency_ms: list[float] = field(default_factory=list)
    failed: int = 0


class _Sender(_Messages):
    """Asks again as soon as it was answered, until the time is over."""

    def __init__(self, load: Load, ended: "asyncio.Future[None]") -> None:
        super().__init__()
        self._load = load
        self._ended = ended
        self._sent_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._send()

    def _send(self) -> None:
        self._sent_s = time.monotonic()
        self.transport.write(self._load.request)

    def took(self, start: bytes) -> None:
        now_s = time.monotonic()
        self._load.latency_ms.append(1000.0 * (now_s - self._sent_s))
        self._load.failed += start != _GOOD
        if now_s < self._load.until_s:
            self._send()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.failed += exc is not None
        if not self._ended.done():
            self._ended.set_result(None)


def run_worker(pipe: Connection) -> None:
    """A worker's process: tells its port, then for every message when its last request came."""
    asyncio.run(_serve_worker(pipe))


async def _serve_worker(pipe: Connection) -> None:
    loop, last = asyncio.get_running_loop(), _LastCome()
    server = await loop.create_server(lambda: _Worker(last), "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    while await asyncio.to_thread(pipe.recv):
        pipe.send(last.at_s)


def run_router(pipe: Connection, workers: dict[str, str]) -> None:
    """The router's process: tells its port, then switches to the replica that each message names."""
    asyncio.run(_serve_router(pipe, workers))


async def _serve_router(pipe: Connection, workers: dict[str, str]) -> None:
    router = Router()
    runner = web.AppRunner(router.make_app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    addresses = _addresses(workers)
    router.switch(_table(*workers), addresses)
    pipe.send(runner.addresses[0][1])
    while name := await asyncio.to_thread(pipe.recv):
        old = [each for each in workers if each != name]
        called_s = time.monotonic()
        router.switch(_table(name), addresses)
        returned_s = time.monotonic()
        while any(map(router.in_flight, old)):  # noqa: ASYNC110  drained is a state, nothing tells of it
            await asyncio.sleep(0.0005)
        pipe.send((called_s, returned_s, time.monotonic()))
    await runner.cleanup()


def _table(*replicas: str) -> tuple[ServiceRoute, ...]:
    """The service with load, and others with replicas of their own that change with it."""
    tables = {_SERVICE: tuple((each, 1.0) for each in sorted(replicas))}
    for number in range(1, SERVICES):
        tables[f"s{number:03}"] = tuple(
            (f"{each}-{number}-{turn}", 1.0)
            for each in sorted(replicas)
            for turn in "xy"
        )
    return tuple(
        ServiceRoute(service=name, slo_ms=100.0, shares=shares)
        for name, shares in tables.items()
    )


def _addresses(workers: dict[str, str]) -> dict[str, str]:
    """Of all replicas in the table: those without load share the workers' addresses."""
    table = _table(*workers)
    return {
        replica: workers[replica[0]] for route in table for replica, _ in route.shares
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What stands in front of the workers."""

    name: str
    port: int
    pid: int
    switch: Callable[[str], Times]
    """To the worker of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The processes that are measured."""

    ports: dict[str, int]
    """Of the workers."""
    workers: dict[str, Connection]
    fronts: tuple[Front, ...]


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    """Two workers, the router, and HAProxy where it is installed; ended afterwards."""
    with contextlib.ExitStack() as stack:
        workers = {name: start_process(stack, run_worker) for name in ("a", "b")}
        ports = {name: port for name, (_, port, _) in workers.items()}
        urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        fronts = [_router(stack, urls)]
        if program := shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin"):
            fronts.append(_haproxy(stack, program, urls))
        yield Processes(
            ports=ports,
            workers={name: pipe for name, (pipe, _, _) in workers.items()},
            fronts=tuple(fronts),
        )


def _router(stack: contextlib.ExitStack, urls: dict[str, str]) -> Front:
    pipe, port, pid = start_process(stack, run_router, urls)

    def switch(name: str) -> Times:
        pipe.send(name)
        times: Times = pipe.recv()
        return times

    return Front(name="router", port=port, pid=pid, switch=switch)


def _haproxy(stack: contextlib.ExitStack, program: str, urls: dict[str, str]) -> Front:
    port = a_free_port()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    settings = HaProxySettings(port=port, folder=folder, services=SERVICES, replicas=4)
    proxy, addresses = HaProxy(settings), _addresses(urls)
    proxy.write_config()
    process = subprocess.Popen(
        [program, "-db", "-f", settings.config_path], stderr=subprocess.DEVNULL
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    while not settings.socket_path.exists():
        time.sleep(0.01)
    proxy.switch(_table(*urls), addresses)

    def switch(name: str) -> Times:
        called_s = time.monotonic()
        proxy.switch(_table(name), addresses)
        returned_s = time.monotonic()
        while any(proxy.in_flight(each) for each in urls if each != name):
            time.sleep(0.0005)
        return called_s, returned_s, time.monotonic()

    return Front(name="haproxy", port=port, pid=process.pid, switch=switch)


def make_request(padding: int) -> bytes:
    """A whole request with `padding` bytes of padding in its body."""
    filler = "p" * padding
    body = (
        b'{"id":"%s","inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1.0]}]}'
        % filler.encode()
    )
    head = (
        f"POST /v2/models/{_SERVICE}/infer HTTP/1.1\r\nHost: node\r\nAccept: */*\r\nUser-Agent: bench\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def send(port: int, padding: int, seconds: float) -> Load:
    """Closed-loop load on a port."""
    loop = asyncio.get_running_loop()
    load = Load(request=make_request(padding), until_s=time.monotonic() + seconds)
    ends = [loop.create_future() for _ in range(CONNECTIONS)]
    for ended in ends:
        await loop.create_connection(partial(_Sender, load, ended), "127.0.0.1", port)
    await asyncio.gather(*ends)
    return load


def measure_rates(parts: Processes, front: Front, seconds: float) -> list[Figures]:
    """One row per size of body: through the front, with the direct rate next to it."""
    rows: list[Figures] = []
    for name, padding in BODIES.items():
        asyncio.run(
            send(front.port, padding, 0.3)
        )  # Connections are opened and code is warm.
        direct, direct_s, _ = _timed(front, parts.ports["a"], padding, seconds)
        routed, routed_s, cpu_s = _timed(front, front.port, padding, seconds)
        direct_rps, routed_rps = (
            len(direct.latency_ms) / direct_s,
            len(routed.latency_ms) / routed_s,
        )
        rows.append(
            {
                "front": front.name,
                "body": name,
                "direct_rps": direct_rps,
                "routed_rps": routed_rps,
                "to_direct": routed_rps / direct_rps,
                "rps_per_core": len(routed.latency_ms) / cpu_s,
                "front_core_percent": 100.0 * cpu_s / routed_s,
                "latency_ms_p50": _quantile(routed.latency_ms, 0.5),
                "latency_ms_p99": _quantile(routed.latency_ms, 0.99),
                "direct_ms_p50": _quantile(direct.latency_ms, 0.5),
                "failed": direct.failed + routed.failed,
            }
        )
    return rows


def _timed(
    front: Front, port: int, padding: int, seconds: float
) -> tuple[Load, float, float]:
    """The load, how long it took, and the front's processor time in it."""
    process = psutil.Process(front.pid)
    times, began_s = process.cpu_times(), time.monotonic()
    load = asyncio.run(send(port, padding, seconds))
    after = process.cpu_times()
    return (
        load,
        time.monotonic() - began_s,
        after.user + after.system - times.user - times.system,
    )


async def measure_switches(parts: Processes, front: Front) -> Figures:
    """Switches to and fro under load: a row with the worst of each time."""
    seconds = SWITCHES * (SWITCH_PAUSE_S + TURN_AROUND_S) + 1.0
    sending = asyncio.create_task(send(front.port, 0, seconds))
    await asyncio.sleep(0.5)
    calls, lasts, drains = [], [], []
    for number in range(SWITCHES):
        old, new = ("a", "b") if number % 2 == 0 else ("b", "a")
        called_s, returned_s, drained_s = await asyncio.to_thread(front.switch, new)
        await asyncio.sleep(TURN_AROUND_S)
        parts.workers[old].send(True)
        last_s = await asyncio.to_thread(parts.workers[old].recv)
        calls.append(1000.0 * (returned_s - called_s))
        lasts.append(1000.0 * max(0.0, last_s - called_s))
        drains.append(1000.0 * (drained_s - called_s))
        await asyncio.sleep(SWITCH_PAUSE_S)
    load = await sending
    return {
        "front": front.name,
        "services": SERVICES,
        "switches": SWITCHES,
        "call_ms_p50": _quantile(calls, 0.5),
        "call_ms_max": max(calls),
        "last_request_ms_max": max(lasts),
        "drained_ms_max": max(drains),
        "requests": len(load.latency_ms),
        "failed": load.failed,
        "latency_ms_p99": _quantile(load.latency_ms, 0.99),
    }


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.router", description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="of each measurement (default: %(default)s)",
    )
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    with processes() as parts:
        rates = [
            row
            for front in parts.fronts
            for row in measure_rates(parts, front, options.seconds)
        ]
        switches = [
            asyncio.run(measure_switches(parts, front)) for front in parts.fronts
        ]
    print_table(rates)
    print()
    print_table(switches)
    if not options.dry:
        settings = {"seconds": options.seconds, "connections": CONNECTIONS}
        write_results("router", rates, settings=settings)
        write_results("router_switch", switches, settings=settings)


if __name__ == "__main__":
    main()
