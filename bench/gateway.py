"""Requests through the gateway while their service moves: moves between GPU types, drains of nodes, scale-downs.

    python -m bench.gateway [--moves 20] [--drains 5] [--scale-downs 5] [--rate 100]

All is real but the GPUs: `plimsoll up` with its PostgreSQL, control plane and gateway (HAProxy), three agents with fake
GPUs, their routers and their workers on the CPU. A change is over when every planned replica is ready and no other node
serves the service any more. A new replica is ready after two seconds; the old one serves on until its node is told so,
and for five more after that node has said that the service leaves. Needs HAProxy. Prints a table and writes
bench/results/gateway.json.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from bench.report import Figures, print_table, write_results
from tests.ports import a_free_port

PATIENCE_S = 90.0
LOOK_S = 0.2
ANSWER_S = 30.0
GPU_TYPES = {"g1": "V100-32GB", "g2": "A100-80GB", "g3": "V100-32GB"}
MEMORY_MIB = {"V100-32GB": 32768, "A100-80GB": 81920, "H100": 81920}
RUN = "from app.cli.main import main; main()"
BODY = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}


@dataclass(slots=True)
class CallerAnswers:
    """What callers got."""

    statuses: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    """Some of the failures."""

    @property
    def errors(self) -> int:
        """All that was not answered well."""
        return self.statuses.total() - self.statuses["200"]


@dataclass(slots=True, kw_only=True)
class GatewayDeployment:
    """What runs, and how it is asked."""

    url: str
    gateway: str
    token: str
    session: aiohttp.ClientSession

    async def call(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> Any:
        """The JSON of a good answer of the API."""
        async with self.session.request(
            method,
            f"{self.url}/api/v1/{path}",
            json=body,
            headers={"Authorization": f"Bearer {self.token}", **headers},
        ) as answer:
            text = await answer.text()
            # What is there already is replaced.
            if answer.status == HTTPStatus.PRECONDITION_REQUIRED:
                return await self.call(method, path, body, **{"If-Match": "*"})
            assert answer.ok, (path, answer.status, text)
            return json.loads(text) if text else None

    async def put(self, kind: str, path: str, spec: Mapping[str, object]) -> None:
        """Create or replace an object."""
        name = path.rpartition("/")[2]
        await self.call(
            "PUT", path, {"kind": kind, "metadata": {"name": name}, "spec": spec}
        )

    async def until(self, what: str, is_so: Callable[[list[Any]], bool]) -> list[Any]:
        """The service's nodes once that holds of them."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            found = await self.call("GET", "services/chat/endpoints")
            nodes: list[Any] = found["nodes"]
            if is_so(nodes):
                return nodes
            if time.monotonic() > end_s:
                service = await self.call("GET", "services/chat")
                events = await self.call("GET", "events?limit=10")
                raise TimeoutError(f"{what}: {found} {service['status']} {events}")
            await asyncio.sleep(LOOK_S)


def is_settled(nodes: list[Any]) -> bool:
    """Whether what is planned is ready, and nothing else serves."""
    return bool(nodes) and all(
        each["planned_replicas"] == each["ready_replicas"] > 0 for each in nodes
    )


def only_on(names: set[str], count: int = 1) -> Callable[[list[Any]], bool]:
    """Whether it is settled on `count` of these nodes and no other."""
    return lambda nodes: (
        is_settled(nodes)
        and len(nodes) == count
        and {each["node"] for each in nodes} <= names
    )


@contextmanager
def process(folder: Path, name: str, *words: str, **more: str) -> Iterator[None]:
    """A program of ours, ended by SIGTERM."""
    with (folder / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(
            [sys.executable, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HOME": str(folder), **more},
        )
        try:
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(60.0)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


@asynccontextmanager
async def control_plane(
    folder: Path, **settings: str
) -> AsyncIterator[GatewayDeployment]:
    """`plimsoll up` without nodes, which answers; its gateway's address is known, and nothing listens there yet."""
    url, gateway = (f"http://127.0.0.1:{a_free_port()}" for _ in range(2))
    words = ("-c", RUN, "up", "--nodes", "0", "--data-dir", str(folder / "data"))
    settings |= {"PLIMSOLL_PORT": url.rpartition(":")[-1]}
    connector = aiohttp.TCPConnector(limit=0)
    with process(folder, "up", *words, PLIMSOLL_GATEWAY_URL=gateway, **settings):
        async with aiohttp.ClientSession(connector=connector) as session:
            await _answers(session, f"{url}/readyz")
            token = (folder / ".config/plimsoll/token").read_text().strip()
            yield GatewayDeployment(
                url=url, gateway=gateway, token=token, session=session
            )


@asynccontextmanager
async def deployment(folder: Path) -> AsyncIterator[GatewayDeployment]:
    """Control plane, gateway and three nodes; the service serves."""
    async with control_plane(folder) as made:
        with contextlib.ExitStack() as running:
            running.enter_context(await start_gateway(made, folder))
            for node, gpu_type in GPU_TYPES.items():
                running.enter_context(await start_agent(made, folder, node, gpu_type))
            await serve_first(made)
            await _answers(made.session, f"{made.gateway}/v2/models/chat/ready")
            yield made


async def start_gateway(
    made: GatewayDeployment, folder: Path
) -> contextlib.AbstractContextManager[None]:
    """As an operator starts one, whose address PLIMSOLL_GATEWAY_URL says."""
    token = await made.call("POST", "tokens", {"name": "gateway", "scope": "viewer"})
    (folder / "gateway.token").write_text(token["secret"])
    return process(
        folder,
        "gateway",
        "-m",
        "agents.gateway.command",
        *("--url", made.url, "--token-file", str(folder / "gateway.token")),
        *("--port", made.gateway.rpartition(":")[-1]),
        *("--state-dir", str(folder / "gateway")),
    )


async def start_agent(
    made: GatewayDeployment,
    folder: Path,
    node: str,
    gpu_type: str,
    *,
    launch_s: float = 1.0,
    gpus: int = 1,
) -> contextlib.AbstractContextManager[None]:
    """A node with fake GPUs, whose replicas take so long to start."""
    asked = {"name": node, "scope": "agent", "node": node}
    token = await made.call("POST", "tokens", asked)
    (folder / f"{node}.token").write_text(token["secret"])
    return process(
        folder,
        node,
        "-m",
        "agents.main",
        *("--url", made.url, "--token-file", str(folder / f"{node}.token")),
        *("--node", node, "--device", "fake", "--gpu-type", gpu_type),
        *("--gpu-memory-mib", str(MEMORY_MIB[gpu_type]), "--gpus", str(gpus)),
        *("--launch-s", str(launch_s)),
    )


async def serve_first(made: GatewayDeployment) -> None:
    """Have V100s serve the service; routers know it by a plan, which takes a report of it: here one that is pushed."""
    await made.put(
        "Policy",
        "policies/default",
        {"policy": "hetsev_greedy", "period_s": 1, "mode": "auto"},
    )
    await save_service(made, allowed=["V100-32GB"])
    for _ in range(int(PATIENCE_S)):
        window = {
            "source": "bench",
            "window_start": datetime.fromtimestamp(time.time() - 1.0, UTC).isoformat(),
            "window_s": 1.0,
            "arrivals": 100,
            "served": 100,
            "in_slo": 100,
            "rejected": 0,
            "latency_ms": [{"up_to_ms": 100.0, "count": 100}],
        }
        await made.call("POST", "services/chat/telemetry", window)
        found = await made.call("GET", "services/chat/endpoints")
        if is_settled(found["nodes"]):
            return
        await asyncio.sleep(1.1)
    await made.until("first replica", is_settled)


async def _answers(session: aiohttp.ClientSession, url: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(url) as answer:
                if answer.status == 200:
                    return
        assert time.monotonic() < end_s, url
        await asyncio.sleep(LOOK_S)


async def save_service(
    made: GatewayDeployment, *, allowed: list[str] | None = None, replicas: int = 1
) -> None:
    """Create or change the service that is moved about."""
    spec: dict[str, object] = {
        "network": "resnet50",
        "slo": {"latency_ms": 1000, "percentile": 0.9},
        "scaling": {"min_replicas": replicas},
    }
    if allowed is not None:
        spec["gpu_types"] = {"allowed": allowed}
    if replicas > 1:
        # Replicas of which one node may have no more than half.
        spec |= {"survive": "node", "survive_share": 0.5}
    await made.put("Service", "services/chat", spec)


async def send(
    made: GatewayDeployment, rate_rps: float, stop: asyncio.Event
) -> CallerAnswers:
    """Requests at an even rate until `stop`, whatever becomes of those before."""
    answers = CallerAnswers()
    pending: set[asyncio.Task[None]] = set()
    begun_s, sent = time.monotonic(), 0
    while not stop.is_set():
        task = asyncio.create_task(_one(made, answers))
        pending.add(task)
        task.add_done_callback(pending.discard)
        sent += 1
        await asyncio.sleep(max(0.0, begun_s + sent / rate_rps - time.monotonic()))
    await asyncio.gather(*pending)
    return answers


async def _one(made: GatewayDeployment, answers: CallerAnswers) -> None:
    begun_s = time.perf_counter()
    try:
        async with made.session.post(
            f"{made.gateway}/v2/models/chat/infer",
            json=BODY,
            timeout=aiohttp.ClientTimeout(total=ANSWER_S),
        ) as answer:
            text = await answer.text()
            status = str(answer.status)
    except (aiohttp.ClientError, TimeoutError) as error:
        text, status = repr(error), type(error).__name__
    answers.statuses[status] += 1
    answers.latencies_ms.append(1000.0 * (time.perf_counter() - begun_s))
    if status != "200" and len(answers.examples) < 10:
        answers.examples.append(f"{status}: {text[:200]}")


async def move(made: GatewayDeployment, turn: int) -> None:
    """To nodes of the other GPU type."""
    gpu_type = ("A100-80GB", "V100-32GB")[turn % 2]
    await save_service(made, allowed=[gpu_type])
    names = {node for node, found in GPU_TYPES.items() if found == gpu_type}
    await made.until(f"move to {gpu_type}", only_on(names))


async def drain(made: GatewayDeployment, turn: int) -> None:  # noqa: ARG001  the node that has it
    """Off its node, which is used again afterwards."""
    await save_service(made)
    (carrier,) = await made.until("one node", only_on(set(GPU_TYPES)))
    node = carrier["node"]
    await made.call("POST", f"nodes/{node}/drain", {})
    await made.until(f"drain of {node}", only_on(set(GPU_TYPES) - {node}))
    await made.call("POST", f"nodes/{node}/undrain")


async def scale_down(made: GatewayDeployment, turn: int) -> None:  # noqa: ARG001  all are alike
    """From two nodes to one."""
    await save_service(made, replicas=2)
    await made.until("two nodes", only_on(set(GPU_TYPES), 2))
    await save_service(made)
    await made.until("one node again", only_on(set(GPU_TYPES)))


CHANGES = {"move": move, "drain": drain, "scale-down": scale_down}


async def measure(
    folder: Path, counts: Mapping[str, int], rate_rps: float
) -> list[Figures]:
    """One row for each kind of change, with what callers got meanwhile."""
    rows: list[Figures] = []
    async with deployment(folder) as made:
        for kind, count in counts.items():
            if count:
                rows.append(await _row(made, kind, count, rate_rps))
    return rows


async def _row(
    made: GatewayDeployment, kind: str, count: int, rate_rps: float
) -> Figures:
    stop = asyncio.Event()
    sending = asyncio.create_task(send(made, rate_rps, stop))
    begun_s = time.perf_counter()
    try:
        for turn in range(count):
            await CHANGES[kind](made, turn)
    finally:
        stop.set()
        answers = await sending
    for example in answers.examples:
        print(example, file=sys.stderr)
    latencies_ms = sorted(answers.latencies_ms)
    seconds = time.perf_counter() - begun_s
    return {
        "change": kind,
        "count": count,
        "requests": len(latencies_ms),
        "rps": len(latencies_ms) / seconds,
        "errors": answers.errors,
        "p50_ms": latencies_ms[len(latencies_ms) // 2],
        "p99_ms": latencies_ms[int(0.99 * len(latencies_ms))],
        "max_ms": latencies_ms[-1],
        "seconds_each": seconds / count,
    }


def main() -> int:
    """Print the table, write the JSON; 1 where a request failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway")
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--drains", type=int, default=5)
    parser.add_argument("--scale-downs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=100.0)
    options = parser.parse_args()
    counts = {
        "move": options.moves,
        "drain": options.drains,
        "scale-down": options.scale_downs,
    }
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="gw", dir="/tmp") as name:
        rows = asyncio.run(measure(Path(name), counts, options.rate))
    print_table(rows)
    write_results("gateway", rows, settings={**counts, "rate_rps": options.rate})
    return 1 if any(row["errors"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
