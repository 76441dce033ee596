"""vLLM itself, on the CPU: a tiny model is applied, planned, started, streamed from, scaled and drained.

It takes four minutes of two cores. Speed is that of a CPU and proves nothing; what a plan expects is that of H100s.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import psutil
import pytest

from app.postgres import server as postgres
from tests.agents.fakes.nvml.fixtures import library
from tests.app.runner import cli
from tests.integration.fault_harness import plimsoll, until
from tests.integration.model_fleet import gpu_type, node
from tests.integration.testbed import FAKE_NODE
from tests.ports import a_free_port, alone, own_environment
from tests.real_vllm import ENVIRONMENT, VENV, make_network, needs_vllm

pytestmark = [pytest.mark.integration, needs_vllm]

__all__ = ("library",)

START_S = 300.0
CLIENTS, TOKENS = 6, 200

TEMPLATES = """
[networks]
tiny = "vllm"

[templates.vllm]
server = "vllm"
command = ["{venv}/bin/vllm", "serve", "{model}", "--served-model-name", "{{service}}", "--host", "127.0.0.1",
           "--port", "{{port}}", "--max-num-batched-tokens", "{{max_num_batched_tokens}}",
           "--max-num-seqs", "{{max_num_seqs}}", "--max-model-len", "{{max_model_len}}",
           "--tensor-parallel-size", "{{tp}}", "--enforce-eager", "--dtype", "bfloat16"]
start_limit_s = 300

[templates.vllm.environment]
{environment}
"""


@dataclass(kw_only=True)
class Streams:
    """Clients that ask again and again for TOKENS tokens."""

    url: str
    finished: int = 0
    broken: list[str] = field(default_factory=list)
    is_over: bool = False

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._all()))
        thread.start()
        try:
            yield
        finally:
            self.is_over = True
            thread.join(START_S)

    async def _all(self) -> None:
        limit = aiohttp.ClientTimeout(total=START_S)
        async with aiohttp.ClientSession(timeout=limit) as session:
            await asyncio.gather(*(self._client(session) for _ in range(CLIENTS)))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        body = {
            "model": "chat",
            "prompt": "What is a load line?",
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
            # Random bytes are often no characters: vLLM sends them with what follows.
            "stream_options": {"include_usage": True},
        }
        while not self.is_over:
            try:
                async with session.post(f"{self.url}/completions", json=body) as answer:
                    text = await answer.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                self.broken.append(repr(error))
                continue
            if answer.status == 200 and text.endswith("data: [DONE]\n\n"):
                self.finished += 1
            else:
                self.broken.append(f"{answer.status} {text[-300:]}")


@dataclass(kw_only=True)
class Plane:
    """`plimsoll up` without nodes."""

    url: str
    token: str
    folder: Path

    def run(self, *words: str | Path) -> str:
        environment = {"PLIMSOLL_URL": self.url, "PLIMSOLL_TOKEN": self.token}
        said = cli(*words, api=None, environment=environment, home=self.folder)
        assert said.code == 0, said.err
        return said.out

    def apply(self, *manifests: dict[str, Any]) -> None:
        file = self.folder / "manifests.json"
        versioned = [{"apiVersion": "plimsoll/v1", **each} for each in manifests]
        # YAML holds JSON.
        file.write_text("\n---\n".join(map(json.dumps, versioned)))
        self.run("apply", "-y", "-f", file)

    def get(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx2.get(f"{self.url}/api/v1/{path}", headers=headers, timeout=60.0)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def replicas(self) -> int:
        """Of the plan in force."""
        return sum(self.get("services/chat")["status"]["replicas"].values())


@contextmanager
def a_plane(folder: Path) -> Iterator[Plane]:
    port, data_dir = a_free_port(), folder / "data"
    words = ["up", "--nodes", "0", "--data-dir", str(data_dir)]
    process = plimsoll(words, folder, PLIMSOLL_PORT=str(port))
    try:
        token = folder / ".config" / "plimsoll" / "token"
        until(token.exists)
        url = f"http://127.0.0.1:{port}"
        until(_answers(f"{url}/readyz"))
        yield Plane(url=url, token=token.read_text().strip(), folder=folder)
    finally:
        process.terminate()
        process.wait(60)
        postgres.stop(data_dir)


@contextmanager
def a_node(plane: Plane, folder: Path, library: Path) -> Iterator[psutil.Process]:
    """The real agent on two GPUs that are none."""
    token, templates = folder / "join.token", folder / "templates.toml"
    token.write_text(plane.run("token", "create", "--scope", "join", "n1"))
    token.chmod(0o600)
    pairs = (f'{name} = "{value}"' for name, value in ENVIRONMENT.items())
    templates.write_text(
        TEMPLATES.format(venv=VENV, model=folder / "tiny", environment="\n".join(pairs))
    )
    templates.chmod(0o600)
    state = folder / "state"
    state.mkdir()
    fake = ["run", "--library", library, "--templates", templates, "--state-dir", state]
    agent = [
        "plimsoll-agent",
        "--url",
        plane.url,
        "--token-file",
        token,
        "--node",
        "n1",
    ]
    agent += ["--gpu-type", "H100", "--router-port", str(a_free_port())]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, FAKE_NODE, *fake, "--", *agent],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=own_environment() | {"PATH": path},
        )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(90)


def _answers(url: str) -> Callable[[], bool]:
    def is_so() -> bool:
        try:
            return bool(httpx2.get(url, timeout=10.0).status_code == 200)
        except httpx2.TransportError:
            return False

    return is_so


def engines(agent: psutil.Process) -> int:
    """Servers that the agent has started, which start processes of their own."""
    found = 0
    for each in agent.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += "--served-model-name" in each.cmdline()
    return found


def service(replicas: int) -> dict[str, Any]:
    return {
        "kind": "Service",
        "metadata": {"name": "chat", "annotations": {"expected-rps": "1"}},
        "spec": {
            "kind": "llm",
            "network": "tiny",
            "slo": {"ttft_ms": 10_000, "itl_ms": 1000, "percentile": 0.9},
            "llm": {
                "max_model_len": 1024,
                "tp": 1,
                "lengths": {"prompt": 32, "output": TOKENS},
            },
            "scaling": {"min_replicas": replicas, "downscale_delay_s": 0},
        },
    }


def test_a_model_is_served_scaled_and_drained_without_a_broken_stream(
    tmp_path: Path, library: Path
) -> None:
    model = make_network(tmp_path / "tiny")
    network = {
        "kind": "Network",
        "metadata": {"name": "tiny"},
        "spec": {"config": json.loads((model / "config.json").read_text())},
    }
    with (
        alone("workers on an agent's own ports"),
        a_plane(tmp_path) as plane,
        a_node(plane, tmp_path, library) as agent,
    ):
        plane.apply(gpu_type(), node("n1", 2), network, service(1))
        until(lambda: plane.replicas() == 1)
        plane.run("rollout", "status", "service/chat", "--timeout", "300s")
        streams = Streams(url=plane.get("services/chat")["status"]["endpoint"])
        with streams.running():
            until(lambda: streams.finished >= CLIENTS)
            plane.apply(service(2))
            until(lambda: plane.replicas() == 2)
            plane.run("rollout", "status", "service/chat", "--timeout", "300s")
            before = streams.finished
            until(lambda: streams.finished >= before + 2 * CLIENTS)
            plane.apply(service(1))
            until(lambda: plane.replicas() == 1)
            until(lambda: engines(agent) == 1)
            before = streams.finished
            until(lambda: streams.finished >= before + CLIENTS)
        assert streams.broken == []

        def tokens() -> int:
            table = plane.get("reports/tokens_by_service_hour")
            place = table["columns"].index("output_tokens")
            return sum(int(row[place]) for row in table["rows"])

        # The node reports what it counted within seconds.
        until(lambda: tokens() == TOKENS * streams.finished)
