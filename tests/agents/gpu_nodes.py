"""A node with fake GPUs and MPS, and with real workers, router and enforcement, for tests."""

import asyncio
import os
import pwd
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from agents.base.clock import ScaledClock
from agents.base.device import DeviceError, NotPermitted
from agents.base.protocol import (
    GpuCommand,
    NodeCommand,
    Observation,
    ReplicaCommand,
    Route,
    SyncReply,
)
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.gpu.mps.daemon import Mps, MpsSettings
from agents.gpu.mps.gpu_sharing import ByTurns, Sharing, UnderMps
from agents.gpu.node.device import GpuDevice
from agents.gpu.node.foreign_memory import ForeignMemory
from agents.gpu.node.open import Basis, put_together
from agents.gpu.node.parts import Looks
from agents.gpu.node.readonly_device import ReadOnlyDevice
from agents.gpu.nvml.power_watch import PowerWatch
from agents.gpu.nvml.types import (
    Capability,
    GpuCapabilities,
    GpuIdentity,
    GpuProcess,
    GpuSample,
    ProcessUse,
)
from agents.processes.templates import (
    SLEEP_VARIABLE,
    BatchChange,
    Template,
    Templates,
)
from agents.replicas.replicas import Workers, WorkersSettings
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.router import open_haproxy
from agents.router.request_router import RequestRouter
from agents.router.router import Router
from agents.sync.ledger import Ledger
from agents.tasks.tasks import TasksSettings
from tests.agents.fakes.answers import served
from tests.ports import PORTS, own_environment, own_ports
from tests.waiting import PATIENCE_S, run
from tests.waiting import eventually as until

FAKES = Path(__file__).with_name("fakes")
GPU_TYPE = "V100-32GB"
MODEL = "llama"
"""A network that is served by the stand-in of an engine."""
MEMORY_MIB = 16384.0
SMS = 132
FIRST_PORT = own_ports()
TASK_PORT = own_ports()
GPUS = tuple(
    GpuIdentity(
        index=at, uuid=f"GPU-{os.getpid()}p-{at}", name=GPU_TYPE, memory_mib=MEMORY_MIB
    )
    for at in range(2)
)
"""Of this process alone: MPS daemons of another's tests must not be taken for somebody else's on these GPUs."""


class FakeDriver:
    """What NVML would say: 100 W and no energy counter."""

    def gpus(self) -> tuple[GpuIdentity, ...]:
        return GPUS

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        return GpuSample(
            memory_used_mib=1000.0,
            power_w=100.0,
            energy_j=None,
            clock_mhz=1380.0,
            busy_percent=50.0,
        )

    def power_w(self, gpu: GpuIdentity) -> float:
        return self.sample(gpu).power_w

    def close(self) -> None:
        pass


@dataclass
class FakeMemory:
    """Memory of GPU 0 as a test wants it: all that is used, and by whom."""

    used_mib: float = 300.0
    strangers: tuple[GpuProcess, ...] = ()
    uses: tuple[ProcessUse, ...] = ()

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        used_mib = self.used_mib if gpu.index == 0 else 0.0
        return GpuSample(
            memory_used_mib=used_mib,
            power_w=100.0,
            energy_j=None,
            clock_mhz=1380.0,
            busy_percent=50.0,
        )

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        return self.strangers if gpu.index == 0 else ()

    def process_use(
        self, gpu: GpuIdentity, since_us: int = 0
    ) -> tuple[ProcessUse, ...]:
        return self.uses if gpu.index == 0 else ()


@dataclass
class FakeKnobs:
    """Remembers what was turned; refuses what it is told to."""

    refusal: DeviceError | None = None
    turned: list[tuple[str, int, float | None]] = field(default_factory=list)
    is_closed: bool = False

    def lock_clock_mhz(
        self, gpu: GpuIdentity, *, low_mhz: float, high_mhz: float
    ) -> None:
        assert low_mhz == high_mhz
        self._turn("clock", gpu, high_mhz)

    def unlock_clock(self, gpu: GpuIdentity) -> None:
        self._turn("clock", gpu, None)

    def limit_power_w(self, gpu: GpuIdentity, limit_w: float | None) -> None:
        self._turn("power", gpu, limit_w)

    def close(self) -> None:
        self.is_closed = True

    def _turn(self, knob: str, gpu: GpuIdentity, value: float | None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.turned.append((knob, gpu.index, value))


@dataclass
class FakeErrors:
    """Critical errors as a test wants them."""

    gpus: dict[str, str] = field(default_factory=dict)
    problem: str = ""

    def condemned(self) -> dict[str, str]:
        return self.gpus

    def close(self) -> None:
        pass


NOT_PERMITTED = NotPermitted("could not turn it: it needs CAP_SYS_ADMIN")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which node a test wants."""

    directory: Path
    has_mps: bool = False
    words: tuple[str, ...] = ()
    """Added to the worker's command, in front."""
    batch_ms: float = 2.0
    """Time of a batch of any size."""
    knobs: FakeKnobs = field(default_factory=FakeKnobs)
    errors: FakeErrors = field(default_factory=FakeErrors)
    memory: FakeMemory = field(default_factory=FakeMemory)
    batch_change: BatchChange = "live"
    haproxy_port: int | None = None
    """None: the router is in this process."""
    why_not: tuple[tuple[Capability, str], ...] = ()
    """What GPU 0 cannot do."""
    clocks_mhz: tuple[float, ...] = ()
    """What GPU 0 can be locked at."""
    keeps_replicas: bool = False
    looks: Looks = field(default_factory=lambda: Looks(fault_s=0.0, counts_s=0.0))


def templates(wanted: Wanted) -> Templates:
    """Our own worker, under the fake MPS where there is one."""
    program = (
        (str(FAKES / "mps_worker.py"),) if wanted.has_mps else ("-m", "agents.serving")
    )
    options = f"--engine timed --times-ms 1:{wanted.batch_ms:g},64:{wanted.batch_ms:g}"
    options += " --service {service} --port {port} --batch {batch} --drain-s 10"
    template = Template(
        name="own",
        command=(sys.executable, *program, *wanted.words, *options.split()),
        batch_change=wanted.batch_change,
        environment={"PYTHONPATH": str(Path(__file__).parents[2])},
        start_limit_s=PATIENCE_S,
        drain_limit_s=15.0,
    )
    trainer = (
        (str(FAKES / "mps_trainer.py"),)
        if wanted.has_mps
        else ("-m", "agents.trainer.trainer")
    )
    words = "--task {task} --kind {kind} --network {network} --batch {batch} --iterations {iterations} --port {port}"
    more = "--times-ms 1:10 --checkpoint {directory}/kept --checkpoint-s 0.1"
    task = Template(
        name="trainer",
        server="task",
        command=(sys.executable, *trainer, *words.split(), *more.split()),
        progress_file="{directory}/kept",
        environment={"PYTHONPATH": str(Path(__file__).parents[2])},
        start_limit_s=PATIENCE_S,
        drain_limit_s=15.0,
    )
    engine = Template(
        name="engine",
        server="vllm",
        command=(
            sys.executable,
            *("-m", "agents.llm", "--enable-sleep-mode"),
            *["--served-model-name", "{service}", "--port", "{port}"],
        ),
        batch_change="restart",
        environment={
            "PYTHONPATH": str(Path(__file__).parents[2]),
            SLEEP_VARIABLE: "1",
        },
        start_limit_s=PATIENCE_S,
    )
    return Templates(
        by_name={"own": template, "trainer": task, "engine": engine},
        default="own",
        networks={MODEL: "engine"},
    )


OWN_USER = pwd.getpwuid(os.geteuid()).pw_name
"""For `--worker-user`: an agent that is root runs replicas as root only where it is told to."""


def environment() -> dict[str, str]:
    """With the fake MPS in its PATH."""
    return {
        **own_environment("CUDA_", "FAKE_"),
        "PATH": f"{FAKES}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


@asynccontextmanager
async def gpu_device(wanted: Wanted) -> AsyncIterator[GpuDevice]:
    """The device, open; it and its MPS daemons are gone afterwards, and its workers unless it keeps them."""
    daemons = [
        Mps(
            gpu.uuid,
            wanted.directory / "m" / str(gpu.index),
            environment=environment(),
            settings=MpsSettings(answer_s=PATIENCE_S, start_s=PATIENCE_S),
        )
        for gpu in GPUS
    ]
    sharings: Mapping[int, Sharing] = {
        gpu.index: UnderMps(gpu, mps, total_sms=SMS)
        if wanted.has_mps
        else ByTurns(gpu, "no MPS in this test")
        for gpu, mps in zip(GPUS, daemons, strict=True)
    }
    basis = Basis(
        telemetry=ReadOnlyDevice(FakeDriver(), CLOCK, type_of=lambda gpu: gpu.name),
        gpus=GPUS,
        capabilities={
            0: GpuCapabilities(why_not=wanted.why_not, clocks_mhz=wanted.clocks_mhz),
            1: GpuCapabilities(),
        },
        sharings=sharings,
        errors=wanted.errors,
        peaks=partial(PowerWatch, FakeDriver().power_w, period_s=0.01),
        memory=ForeignMemory(wanted.memory, look_s=0.0),
        uses=wanted.memory,
        templates=templates(wanted),
        workers=WorkersSettings(
            directory=wanted.directory / "workers",
            first_port=FIRST_PORT,
            port_count=PORTS,
        ),
        tasks=TasksSettings(
            directory=wanted.directory / "tasks",
            first_port=TASK_PORT,
            port_count=PORTS,
            ask_s=0.05,
        ),
        knobs=wanted.knobs,
        environment=environment(),
        make_router=partial(a_router, wanted),
        keeps_replicas=wanted.keeps_replicas,
        looks=wanted.looks,
    )
    device = await put_together(basis, CLOCK)
    try:
        yield device
    finally:
        await device.close()
        assert wanted.keeps_replicas or not any(
            [await mps.is_alive() for mps in daemons if wanted.has_mps]
        )


CLOCK = ScaledClock(speed=1.0)


async def a_router(wanted: Wanted, workers: Workers) -> RequestRouter:
    """As a node opens it."""
    if wanted.haproxy_port is None:
        return Router()
    await workers.until_known()
    return await open_haproxy(
        HaProxySettings(
            port=wanted.haproxy_port,
            folder=wanted.directory / "h",
            services=4,
            replicas=4,
        )
    )


@asynccontextmanager
async def front(device: GpuDevice) -> AsyncIterator[str]:
    """The address of the router in this process."""
    assert isinstance(device.router, Router)
    async with served(device.router.make_app()) as url:
        yield url


async def states(device: GpuDevice) -> dict[str, str]:
    """Of every replica, by id."""
    return {
        each.id: each.state
        for gpu in (await device.state()).gpus
        for each in gpu.replicas
    }


async def is_ready(device: GpuDevice, *names: str) -> bool:
    found = await states(device)
    assert "failed" not in found.values(), (await device.read()).problems
    return all(found.get(name) == "ready" for name in names)


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it."""
    run(scenario())


class Commands:
    """A control plane that answers with the command it was given last."""

    def __init__(self) -> None:
        self.command: NodeCommand | None = None
        self.seen: list[Observation] = []

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        # Each once, as the real one keeps them.
        if not self.seen or self.seen[-1].sequence < observation.sequence:
            self.seen.append(observation)
        command = self.command
        if command and command.generation <= observation.generation:
            command = None
        return SyncReply(
            boot=observation.boot,
            acknowledged=observation.sequence,
            server_time_s=CLOCK.now_s(),
            command=command,
        )

    async def close(self) -> None:
        """Nothing is open."""

    async def applied(self, generation: int) -> None:
        """Wait until the agent has told that it is."""

        def is_applied() -> bool:
            acks = [ack for seen in self.seen for ack in seen.acks]
            return (generation, "applied") in [(x.generation, x.status) for x in acks]

        await until(is_applied)

    async def apply(self, generation: int, *replicas: ReplicaCommand) -> None:
        """Let GPU 0 have these replicas of chat."""
        self.command = a_node_command(generation, *replicas)
        await self.applied(generation)


def a_node_command(generation: int, *replicas: ReplicaCommand) -> NodeCommand:
    gpu = GpuCommand(
        index=0,
        gpu_type=GPU_TYPE,
        clock_mhz=1200.0,
        power_cap_w=250.0,
        replicas=replicas,
    )
    route = Route(
        service="chat", slo_ms=60_000.0, percentile=0.99, arrival_rate_rps=10.0
    )
    return NodeCommand(node="n1", generation=generation, gpus=(gpu,), routes=(route,))


@asynccontextmanager
async def commanded(
    device: GpuDevice, control: Commands, ledger: Ledger | None = None
) -> AsyncIterator[NodeAgent]:
    """The agent of this node, at work."""
    settings = AgentSettings(node="n1", boot="b1", period_s=0.2, enforce_period_s=0.1)
    agent = NodeAgent(
        settings, device, transport=control, clock=CLOCK, ledger=ledger or Ledger(None)
    )
    stop = asyncio.Event()
    task = asyncio.create_task(agent.run(stop))
    try:
        yield agent
    finally:
        stop.set()
        await task


@dataclass(slots=True, kw_only=True)
class Load:
    """What came of the requests of clients that ask one after the other."""

    url: str
    outcomes: Counter[str] = field(default_factory=Counter)
    clients: list["asyncio.Task[None]"] = field(default_factory=list)

    def begin(self, clients: int = 4) -> None:
        self.clients = [asyncio.create_task(self._ask()) for _ in range(clients)]

    async def more(self, count: int = 20) -> None:
        before = self.outcomes.total()
        await until(lambda: self.outcomes.total() >= before + count)

    async def end(self) -> None:
        for each in self.clients:
            each.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)

    async def _ask(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.post(
                        f"{self.url}/v2/models/chat/infer", json=inputs()
                    ) as answer:
                        await answer.read()
                        self.outcomes[str(answer.status)] += 1
                except aiohttp.ClientError as error:
                    self.outcomes[repr(error)] += 1
                # Requests at every moment, and processor time for what they meet.
                await asyncio.sleep(0.03)


def inputs(value: float = 1.0) -> dict[str, object]:
    """The body of a request; the fake answers the sum."""
    return {
        "inputs": [
            {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [value, 1.0]}
        ]
    }
