"""Scale to zero: from the first request of a service without a replica to its answer.

    python -m bench.first_request zero [--runs 20] [--start-s 2] [--path node|gateway|haproxy]

A control plane and two nodes, all real processes; the GPUs are fake, and a replica's start takes `--start-s`. Every run
is a service of its own: applied, asked as soon as a node knows it, then left alone until it is at rest, and asked once
more (`again`). Services may run on the second node's type alone, while the first node is the first by name, so that the
gateway's requests wait where no replica will start, too. Path `haproxy`: that node's agent drives the fake driver with
`--router haproxy`, and its replicas are processes. Runs overlap by ten services. Prints a table, and writes
bench/results/first_request_zero.json.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.gateway import (
    BODY,
    GatewayDeployment,
    control_plane,
    process,
    start_agent,
    start_gateway,
)
from bench.report import Figures, print_table, write_results
from tests.agents.fakes import fake_node, http_worker
from tests.agents.fakes.nvml.fake_gpus import build_library
from tests.ports import a_free_port

FIRST, SECOND = "a-first", "b-second"
TYPES = {FIRST: "A100-80GB", SECOND: "V100-32GB"}
GPUS = 8
AT_ONCE = 10
REST_S = 10.0
"""Downscale delay."""
LOOK_S = 0.02
PATIENCE_S = 300.0
TEMPLATES = """\
default = "slow"
[templates.slow]
command = ["sh", "-c", "sleep {start_s}; exec \\"$0\\" \\"$@\\"", "{python}", "{worker}", "--port", "{{port}}"]
start_limit_s = 600
"""
"""A worker that starts in 30 ms, so late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a caller saw of one request."""

    status: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Where requests go, and how long a start takes."""

    made: GatewayDeployment
    path: str
    start_s: float

    async def base(self, name: str) -> str:
        """The service's address, once there is one."""
        while True:
            if self.path == "gateway":
                return f"{self.made.gateway}/v2/models/{name}"
            found = await self.made.call("GET", f"services/{name}/endpoints")
            urls = {each["node"]: each["url"] for each in found["nodes"]}
            if urls.get(SECOND):
                return f"{urls[SECOND]}/v2/models/{name}"
            await asyncio.sleep(LOOK_S)

    async def until_known(self, name: str) -> float:
        """Seconds until the address knows the service: a node says that it has no replica yet."""
        begun_s, url = time.monotonic(), await self.base(name)
        while time.monotonic() < begun_s + PATIENCE_S:
            async with self.made.session.get(url) as answer:
                if "no ready replica" in await answer.text():
                    break
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - begun_s

    async def ask(self, name: str) -> Asked:
        """One request."""
        url, begun_s = await self.base(name), time.monotonic()
        limit = aiohttp.ClientTimeout(total=self.start_s + PATIENCE_S)
        async with self.made.session.post(
            f"{url}/infer", json=BODY, timeout=limit
        ) as answer:
            await answer.read()
        return Asked(status=answer.status, seconds=time.monotonic() - begun_s)

    async def until_at_rest(self, name: str) -> None:
        """Until no node is planned for it, or has a replica that is on its way out and still serves."""
        while not await self._is_at_rest(name):  # noqa: ASYNC110
            await asyncio.sleep(1.0)

    async def _is_at_rest(self, name: str) -> bool:
        found = await self.made.call("GET", f"services/{name}/endpoints")
        for each in found["nodes"]:
            url = f"{each['url']}/v2/models/{name}"
            async with self.made.session.get(url) as answer:
                if each["planned_replicas"] or answer.status == 200:
                    return False
        return True


async def measure(folder: Path, options: argparse.Namespace) -> list[Figures]:
    """A row for every service."""
    async with control_plane(folder) as made:
        with contextlib.ExitStack() as running:
            if options.path == "gateway":
                running.enter_context(await start_gateway(made, folder))
            for node in (FIRST, SECOND):
                is_haproxy = options.path == "haproxy" and node == SECOND
                start = _haproxy_node if is_haproxy else _fake_node
                running.enter_context(await start(made, folder, node, options.start_s))
            while len((await made.call("GET", "nodes"))["items"]) < len(TYPES):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            # Routers are known a report later than nodes.
            while not await _are_reachable(made):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            visit = Visit(made=made, path=options.path, start_s=options.start_s)
            turn = asyncio.Semaphore(AT_ONCE)
            runs = (_run(visit, f"doze{at}", turn) for at in range(options.runs))
            return list(await asyncio.gather(*runs))


async def _are_reachable(made: GatewayDeployment) -> bool:
    """Whether services can wait at both nodes, which one that is never asked shows; the loop has planned by then."""
    spec = {"network": "resnet50", "slo": {"latency_ms": 400, "percentile": 0.98}}
    await made.put("Service", "services/probe", spec)
    found = await made.call("GET", "services/probe/endpoints")
    plans = await made.call("GET", "plans?limit=1")
    return len(found["nodes"]) == len(TYPES) and bool(plans["items"])


async def _run(visit: Visit, name: str, turn: asyncio.Semaphore) -> Figures:
    async with turn:
        spec = {
            "network": "resnet50",
            "slo": {"latency_ms": 400, "percentile": 0.98},
            "gpu_types": {"allowed": [TYPES[SECOND]]},
            "scaling": {"min_replicas": 0, "downscale_delay_s": REST_S},
        }
        await visit.made.put("Service", f"services/{name}", spec)
        known_s = await visit.until_known(name)
        first = await visit.ask(name)
        await visit.until_at_rest(name)
        again = await visit.ask(name)
    row: Figures = {
        "service": name,
        "known_after_s": known_s,
        "first_status": first.status,
        "first_beyond_start_s": first.seconds - visit.start_s,
        "again_status": again.status,
        "again_beyond_start_s": again.seconds - visit.start_s,
    }
    print(row, flush=True)
    return row


async def _fake_node(
    made: GatewayDeployment, folder: Path, node: str, start_s: float
) -> contextlib.AbstractContextManager[None]:
    return await start_agent(
        made, folder, node, TYPES[node], launch_s=start_s, gpus=GPUS
    )


async def _haproxy_node(
    made: GatewayDeployment, folder: Path, node: str, start_s: float
) -> contextlib.AbstractContextManager[None]:
    """A node of real processes behind a real HAProxy; its driver is fake."""
    asked = {"name": node, "scope": "agent", "node": node}
    token = folder / f"{node}.token"
    token.write_text((await made.call("POST", "tokens", asked))["secret"])
    library = folder / "driver"
    library.mkdir()
    build_library(library)
    templates = folder / "templates.toml"
    templates.write_text(
        TEMPLATES.format(
            start_s=start_s, python=sys.executable, worker=http_worker.__file__
        )
    )
    templates.chmod(0o600)
    return process(
        folder,
        node,
        fake_node.__file__,
        *("run", "--library", str(library), "--gpus", str(GPUS)),
        *("--state-dir", str(folder / node), "--templates", str(templates), "--"),
        *(sys.executable, "-m", "agents.main", "--url", made.url, "--node", node),
        *("--token-file", str(token), "--gpu-type", TYPES[node]),
        *("--sharing", "turns", "--router", "haproxy"),
        *("--router-port", str(a_free_port())),
    )


def main(words: Sequence[str]) -> int:
    """Print the table and write the JSON; 0 where every request was answered."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_request zero")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--start-s", type=float, default=2.0)
    parser.add_argument(
        "--path", choices=("node", "gateway", "haproxy"), default="node"
    )
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="fz", dir="/tmp") as name:
        rows = asyncio.run(measure(Path(name), options))
    print_table(rows)
    write_results("first_request_zero", rows, settings=vars(options))
    statuses = {row[key] for row in rows for key in ("first_status", "again_status")}
    return 0 if statuses == {200} else 1
