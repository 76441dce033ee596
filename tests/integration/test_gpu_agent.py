"""The agent as a process on fake GPUs: real NVML binding, fake driver and MPS, real workers."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from agents.base.protocol import (
    GpuCommand,
    NodeCommand,
    Observation,
    ReplicaCommand,
    Route,
    SyncReply,
    TaskCommand,
)
from agents.processes.procfs import marks, members
from app.base.token_file import write_token
from tests.agents.factories import a_replica
from tests.agents.fakes.nvml.fake_gpus import FakeGpus
from tests.agents.fakes.nvml.fixtures import library
from tests.agents.gpu_nodes import FAKES, OWN_USER, environment, inputs
from tests.ports import alone
from tests.waiting import PATIENCE_S, in_loop
from tests.waiting import eventually as until

pytestmark = pytest.mark.integration

__all__ = ("library", "until")

ROOT = Path(__file__).parents[2]
GPU_TYPE = "H100-80GB"
TEMPLATES = """
default = "own"
[templates.own]
command = [{words}]
start_limit_s = 60
drain_limit_s = 10
environment = {{ PYTHONPATH = "{root}" }}
"""


@pytest.fixture(autouse=True)
def workers_ports() -> Iterator[None]:
    """An agent as a process takes its workers' ports from the built-in range."""
    with alone("workers on an agent's own ports"):
        yield


@dataclass
class ControlPlane:
    """Answers with the newest command; remembers what it was told."""

    command: NodeCommand | None = None
    told: list[Observation] = field(default_factory=list)

    async def sync(self, request: web.Request) -> web.Response:
        told = msgspec.json.decode(await request.read(), type=Observation)
        self.told.append(told)
        newer = (
            self.command
            if self.command and self.command.generation > told.generation
            else None
        )
        reply = SyncReply(
            boot=told.boot,
            acknowledged=told.sequence,
            server_time_s=time.time(),
            command=newer,
        )
        return web.Response(
            body=msgspec.json.encode(reply), content_type="application/json"
        )

    def has_applied(self, generation: int, boot: str = "") -> bool:
        """Whether an agent (of that start) says so in its newest observation."""
        last = self.told[-1] if self.told else None
        acks = last.acks if last and last.boot != boot else ()
        return any(
            ack.generation == generation and ack.status == "applied" for ack in acks
        )

    @property
    def boot(self) -> str:
        """Of the agent that spoke last."""
        return self.told[-1].boot if self.told else ""


@dataclass
class Machine:
    """One node: its directories, its fake GPUs, and the agent's process."""

    directory: Path
    library: Path
    url: str
    options: tuple[str, ...] = ("--worker-user", OWN_USER)
    process: "subprocess.Popen[str] | None" = None

    def __post_init__(self) -> None:
        self.gpus = FakeGpus(self.directory / "gpus", count=1)
        self.state = self.directory / "state"
        self.token_file = self.directory / "agent.token"
        write_token(self.token_file, "token")
        words = "--engine timed --times-ms 1:2,64:2 --drain-s 5"
        words += " --service {service} --port {port} --batch {batch}"
        program = (sys.executable, str(FAKES / "mps_worker.py"))
        quoted = ", ".join(f'"{word}"' for word in (*program, *words.split()))
        (self.directory / "templates.toml").write_text(
            TEMPLATES.format(words=quoted, root=ROOT)
        )

    def start(
        self, *, keeps: bool = True, program: Sequence[str] = ("-m", "agents.main")
    ) -> None:
        """A new agent; `program` is one that takes its arguments."""
        words = f"--url {self.url} --node n1 --device gpu --gpu-type {GPU_TYPE} --period-s 0.3"
        arguments = [*words.split(), "--token-file", self.token_file]
        arguments += ["--state-dir", self.state, *self.options]
        arguments += ["--templates", self.directory / "templates.toml"]
        if keeps:
            arguments.append("--keep-replicas")
        with (self.directory / "agent.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, *map(str, arguments)],
                env={
                    **environment(),
                    **self.gpus.environment(self.library),
                    "PATH": environment()["PATH"],
                }
                | {"PYTHONPATH": str(ROOT)},
                stderr=log,
                text=True,
            )

    def end(self, number: signal.Signals) -> None:
        """By that signal."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE_S)

    def has_daemon(self) -> bool:
        """Whether some MPS daemon was left running."""
        return any(self.state.glob("mps/*/pipe/nvidia-cuda-mps-control.pid"))

    def workers(self) -> int:
        """Replicas whose processes live."""
        mark = self.state / "workers" / "mark"
        return (
            sum(1 for each in marks(mark.read_text()) if members(each))
            if mark.exists()
            else 0
        )

    def restore(self) -> str:
        """What `plimsoll-agent restore` says."""
        words = [
            sys.executable,
            "-m",
            "agents.main",
            "restore",
            "--state-dir",
            str(self.state),
        ]
        env = {**self.gpus.environment(self.library), "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            words,
            env=env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        ).stdout


@asynccontextmanager
async def machine(
    directory: Path, library: Path
) -> AsyncIterator[tuple[Machine, ControlPlane]]:
    """A node and its control plane; nothing of the node is left afterwards."""
    plane, app = ControlPlane(), web.Application(client_max_size=1 << 24)
    app.router.add_post("/api/v1/nodes/{node}/sync", plane.sync)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made = Machine(
        directory=directory,
        library=library,
        url=f"http://127.0.0.1:{runner.addresses[0][1]}",
    )
    try:
        yield made, plane
    finally:
        made.end(signal.SIGKILL)
        before = plane.boot
        made.start(keeps=False)
        await until(lambda: plane.boot != before, "the last agent never spoke")
        await asyncio.to_thread(made.end, signal.SIGTERM)
        await runner.cleanup()
        assert not made.has_daemon()


def a_command(
    generation: int,
    *replicas: ReplicaCommand,
    clock_mhz: float = 1200.0,
    tasks: tuple[TaskCommand, ...] = (),
) -> NodeCommand:
    gpu = GpuCommand(
        index=0,
        gpu_type=GPU_TYPE,
        clock_mhz=clock_mhz,
        power_cap_w=400.0,
        replicas=replicas,
        tasks=tasks,
    )
    routes = (
        Route(service="chat", slo_ms=500.0, percentile=0.99, arrival_rate_rps=10.0),
    )
    return NodeCommand(node="n1", generation=generation, gpus=(gpu,), routes=routes)


def locked_mhz(gpus: FakeGpus) -> int:
    """0 while the clock is not locked."""
    return int(gpus.gpu(0).lock_high)


@in_loop
async def test_a_command_is_in_force_served_through_the_agents_router_and_gone_after_the_end(
    tmp_path: Path, library: Path
) -> None:
    async with machine(tmp_path, library) as (node, plane):
        plane.command = a_command(1, a_replica("r1", sm_percent=40.0))
        node.start(keeps=False)
        await until(lambda: plane.has_applied(1), "generation 1 is not applied")
        assert (locked_mhz(node.gpus), node.gpus.gpu(0).power_limit) == (1200, 400_000)
        assert node.workers() == 1
        (replica,) = plane.told[-1].replicas
        assert (replica.id, replica.state, replica.sm_percent) == ("r1", "ready", 40.0)
        log = (tmp_path / "agent.log").read_text()
        port = int(log.split("requests are taken on port ")[1].split()[0])
        url = f"http://127.0.0.1:{port}/v2/models/chat/infer"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=inputs(41.0)) as answer,
        ):
            assert answer.status == 200
            assert (await answer.json())["outputs"][0]["data"] == [42.0]

        def arrivals() -> list[int]:
            return [each.arrivals for told in plane.told for each in told.services]

        await until(lambda: 1 in arrivals(), "the request is not counted")
        await asyncio.to_thread(node.end, signal.SIGTERM)
        assert (locked_mhz(node.gpus), node.gpus.gpu(0).power_limit) == (0, 700_000)
        assert node.workers() == 0
        assert node.restore() == "nothing to put back\n"
