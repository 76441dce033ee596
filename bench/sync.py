"""How many observations per second the API makes durable, over real HTTP, with PostgreSQL and the load next to it.

Run: `python -m bench.sync [--rates 500 1000 ...] [--seconds 15] [--nodes 500] [--servers 1]`. Prints a table, writes
bench/results/sync.json; with other numbers sync_NODES.json and sync_servers_SERVERS.json.

An embedded PostgreSQL (fsync on), `plimsoll serve` (API and controller in one process, the loop ticking) and the
sender share the machine's cores. 500 nodes with four GPUs, four replicas and four services each report in turn; the
sender is open-loop: an observation leaves when it is due, and its latency counts from then to the acknowledgement,
which comes after the commit. Observations that were not acknowledged with 200 count as failed, not as fast.

With several servers the nodes are divided among them. Where cores are short they make no more durable than one does;
whether they would elsewhere is told by the core time that an observation takes, in all of them and in PostgreSQL: as
long as it does not rise with their number, each with a core of its own adds as much as the first.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import NamedTuple

import aiohttp
import msgspec
import numpy as np
import psutil
import psycopg

from agents.base.protocol import Observation, ReplicaReading, ServiceReading, SyncReply
from app.db.base.listen import conninfo
from app.store.store import PolicySettings
from bench.real_store import (
    Fleet,
    agent_orders,
    json_headers,
    make_tokens,
    observations,
    open_fleet,
    place_replicas,
    temporary_database,
)
from bench.report import Figures, print_table, write_results
from tests.ports import a_free_port

NODES = 500
WINDOW_S = 2.0
MIB = 2**20
READY_WITHIN_S = 240.0
WARM_UP_S = 20.0
"""Its first ticks over 10,000 GPUs take both cores for several seconds, in which observations wait."""


@dataclass(slots=True)
class Tally:
    """What became of the observations of one rate."""

    latency_ms: list[float] = field(default_factory=list)
    failed: int = 0
    generations: dict[str, int] = field(default_factory=dict)
    """Of the command that each node has in force: it takes up what it is given, as an agent does."""


class _Agents(NamedTuple):
    """Those of a fleet, with their tokens by node."""

    fleet: Fleet
    secrets: dict[str, str]


class _Servers(NamedTuple):
    """Where agents send to, and the processes whose memory and core time count."""

    addresses: list[str]
    processes: list[psutil.Process]
    postgres: psutil.Process

    def core_s(self) -> tuple[float, float]:
        """Core seconds until now of the APIs, and of PostgreSQL with all that it started."""
        database = (self.postgres, *self.postgres.children())
        return (
            sum(_core_s(each) for each in self.processes),
            sum(_core_s(each) for each in database),
        )


def _core_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def main() -> int:
    """Measure each rate, one after the other, against one server."""
    parser = argparse.ArgumentParser(prog="python -m bench.sync", description=__doc__)
    parser.add_argument(
        "--rates",
        type=int,
        nargs="+",
        default=[500, 1000, 1500],
        help="observations per second",
    )
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="length of each rate's run"
    )
    parser.add_argument(
        "--nodes", type=int, default=NODES, help="of four GPUs (default: %(default)s)"
    )
    parser.add_argument(
        "--servers",
        type=int,
        default=1,
        choices=range(1, 9),
        metavar="N",
        help="on that database (default: %(default)s)",
    )
    options = parser.parse_args()
    fleet = Fleet(nodes=options.nodes, gpus_per_node=4, services=4)
    with temporary_database() as url, ExitStack() as started:
        agents = _Agents(fleet, asyncio.run(_fill(url, fleet)))
        served = [started.enter_context(serving(url)) for _ in range(options.servers)]
        addresses, processes = zip(*served, strict=True)
        servers = _Servers([*addresses], [*processes], _postgres_of(url))
        rows = asyncio.run(_measure(servers, agents, options.rates, options.seconds))
    print_table(rows)
    write_results(_name(fleet.nodes, len(served)), rows)
    return 0


def _name(nodes: int, servers: int) -> str:
    return (
        "sync"
        + (f"_{nodes}" if nodes != NODES else "")
        + (f"_servers_{servers}" if servers > 1 else "")
    )


def _postgres_of(url: str) -> psutil.Process:
    with psycopg.connect(conninfo(url)) as connection:
        own = psutil.Process(connection.info.backend_pid).parent()
    assert own is not None
    return own


async def _fill(url: str, fleet: Fleet) -> dict[str, str]:
    """The fleet; the tokens of its agents by their nodes."""
    now = datetime.now(UTC)
    async with open_fleet(
        url, fleet, PolicySettings(window_s=WINDOW_S, stale_after_s=3600.0), now
    ) as engine:
        await place_replicas(engine, _window(fleet, 1), now)
        return await make_tokens(engine, agent_orders(fleet.node_types()))


@contextmanager
def serving(url: str) -> Iterator[tuple[str, psutil.Process]]:
    """`plimsoll serve` in a process of its own: its address and process."""
    port = a_free_port()
    command = [
        sys.executable,
        "-c",
        "from app.cli.main import main; main()",
        "serve",
        "--port",
        str(port),
    ]
    environment = {
        **os.environ,
        "PLIMSOLL_DATABASE_URL": url,
        "PLIMSOLL_LOG_LEVEL": "warning",
    }
    with subprocess.Popen(command, env=environment) as started:
        try:
            yield f"http://127.0.0.1:{port}", psutil.Process(started.pid)
        finally:
            started.terminate()


async def _measure(
    servers: _Servers,
    agents: _Agents,
    rates: Sequence[int],
    seconds: float,
) -> list[Figures]:
    rows: list[Figures] = []
    async with AsyncExitStack() as opened:
        sessions = []
        for address in servers.addresses:
            connector = aiohttp.TCPConnector(limit=256)
            session = aiohttp.ClientSession(address, connector=connector)
            sessions.append(await opened.enter_async_context(session))
            await until_ready(session)
        sequence = 1
        # Caches, connections and the first ticks of a server that has just started are not counted.
        for rate in (rates[0], *rates):
            length_s = seconds if sequence > 1 else WARM_UP_S
            began, used_s = time.perf_counter(), servers.core_s()
            tally, sequence = await _send(sessions, agents, rate, length_s, sequence)
            wall_s = time.perf_counter() - began
            cost_ms = [
                1000.0 * (now - before) / max(1, len(tally.latency_ms))
                for now, before in zip(servers.core_s(), used_s, strict=True)
            ]
            rows.append(_row(rate, tally, wall_s, servers, cost_ms))
    return rows[1:]


async def until_ready(session: aiohttp.ClientSession) -> None:
    """Wait for /readyz. Raises TimeoutError."""
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        try:
            async with session.get("/readyz") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientConnectionError:
            pass
        await asyncio.sleep(0.2)
    raise TimeoutError(f"the server was not ready within {READY_WITHIN_S:.0f} s")


async def _send(
    sessions: Sequence[aiohttp.ClientSession],
    agents: _Agents,
    rate: int,
    seconds: float,
    sequence: int,
) -> tuple[Tally, int]:
    """Every node in turn, at Poisson times (seeded); bodies are made ahead of the run."""
    draw = Random(rate)
    bodies = [msgspec.json.encode(entry) for entry in _window(agents.fleet, sequence)]
    nodes = list(agents.secrets)
    headers = {node: json_headers(agents.secrets[node]) for node in nodes}
    tally = Tally()
    running: set[asyncio.Task[None]] = set()
    began = due = time.perf_counter()
    count = 0
    while due - began < seconds:
        wait_s = due - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        index, turn = count % len(nodes), count // len(nodes)
        generation = tally.generations.get(nodes[index], 0)
        body = bodies[index].replace(
            b'"sequence":0', b'"sequence":%d' % (sequence + turn), 1
        )
        body = body.replace(b'"generation":0', b'"generation":%d' % generation, 1)
        # A node's always to the same server.
        request = sessions[index % len(sessions)].post(
            f"/api/v1/nodes/{nodes[index]}/sync",
            data=body,
            headers=headers[nodes[index]],
        )
        task = asyncio.create_task(_sync(request, nodes[index], due, tally))
        running.add(task)
        task.add_done_callback(running.discard)
        count += 1
        due += draw.expovariate(rate)
    await asyncio.gather(*running)
    return tally, sequence + count // len(nodes) + 1


async def _sync(
    request: AbstractAsyncContextManager[aiohttp.ClientResponse],
    node: str,
    due: float,
    tally: Tally,
) -> None:
    try:
        async with request as answer:
            reply = await answer.read()
    except aiohttp.ClientError:
        tally.failed += 1
        return
    if answer.status != 200:
        tally.failed += 1
        return
    tally.latency_ms.append(1000.0 * (time.perf_counter() - due))
    command = msgspec.json.decode(reply, type=SyncReply).command
    if command is not None:
        tally.generations[node] = command.generation


def _window(fleet: Fleet, sequence: int) -> list[Observation]:
    empty = observations(
        fleet, {}, sequence=sequence, end=datetime.now(UTC), window_s=WINDOW_S
    )
    services = [service.name for service in fleet.nouns()]
    return [_full(entry, services) for entry in empty]


def _full(entry: Observation, services: Sequence[str]) -> Observation:
    """The observation with a replica on each GPU, and readings of all services; its sequence is written in later."""
    buckets = tuple((bucket, 5) for bucket in range(20, 32))
    unnumbered = msgspec.structs.replace(
        entry,
        replicas=tuple(
            ReplicaReading(
                id=f"{entry.node}-{gpu.index}",
                service=services[gpu.index % len(services)],
                gpu_index=gpu.index,
                state="ready",
                sm_percent=50.0,
                batch=8,
                memory_mib=1024.0,
                batches=20,
                requests=60,
                execution_ms=12.0,
            )
            for gpu in entry.gpus
        ),
        services=tuple(
            ServiceReading(
                service=name, arrivals=60, served=60, in_slo=60, latency_buckets=buckets
            )
            for name in services
        ),
    )
    return msgspec.structs.replace(unnumbered, sequence=0)


def _row(
    rate: int,
    tally: Tally,
    seconds: float,
    servers: _Servers,
    cost_ms: Sequence[float],
) -> Figures:
    latency_ms = tally.latency_ms or [float("nan")]
    children = [
        child
        for process in servers.processes
        for child in process.children()
        if "resource_tracker" not in " ".join(child.cmdline())
    ]
    # The controller has a solver of its own; the API's, which answers people's questions, has no child.
    controllers = [child for child in children if child.children()]
    solvers = [each for controller in controllers for each in controller.children()]
    solvers += [child for child in children if child not in controllers]
    return {
        "offered_per_s": rate,
        "durable_per_s": len(tally.latency_ms) / seconds,
        "failed": tally.failed,
        "latency_ms_p50": float(np.percentile(latency_ms, 50)),
        "latency_ms_p99": float(np.percentile(latency_ms, 99)),
        "api_core_ms_each": cost_ms[0],
        "postgres_core_ms_each": cost_ms[1],
        "api_and_controller_rss_mib": sum(
            each.memory_info().rss for each in (*servers.processes, *controllers)
        )
        / MIB,
        "solvers_rss_mib": sum(each.memory_info().rss for each in solvers) / MIB,
    }


if __name__ == "__main__":
    sys.exit(main())
