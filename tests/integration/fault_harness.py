"""Real processes to be killed: PostgreSQL, `plimsoll serve`, controllers; agents that count what was acknowledged."""

import asyncio
import multiprocessing
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx2
import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.clock import ScaledClock
from agents.base.device import GpuState, NodeState
from agents.base.protocol import Observation, ServiceReading, SyncReply
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sync.ledger import Ledger
from agents.sync.transport import HttpTransport
from app.db.base.engine import make_engine
from app.db.base.leader import Leader
from app.db.base.listen import conninfo
from app.db.decisions import policies
from app.db.fleet import nodes
from app.db.operations.token_secrets import TokenOrder
from app.db.postgres_store import PostgresStore
from bench.campaign import oracle
from bench.real_store import agent_orders, make_tokens
from solvers.types.state import Json
from tests.agents.paper_device import BusyPaperDevice
from tests.app.runner import interruptible
from tests.integration import fault_bodies
from tests.integration.fleet import make_fleet, make_observation, make_service_reading
from tests.ports import a_free_port, own_environment
from tests.waiting import eventually, until

NODES = ("n1", "crew-0", "crew-1", "crew-2")
"""Each has a token of its own."""
CREW_PERIOD_S = 0.2
SECOND_SERVICE = {
    "apiVersion": "plimsoll/v1",
    "kind": "Service",
    "metadata": {"name": "second"},
    "spec": {
        "network": "resnet50",
        "slo": {"latency_ms": 100.0, "percentile": 0.98},
        "scaling": {"min_replicas": 1},
    },
}


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(conninfo(url)) as connection:
        return connection.execute(query.encode()).fetchall()


def execute(url: str, statement: str) -> None:
    with psycopg.connect(conninfo(url), autocommit=True) as connection:
        connection.execute(statement.encode())


def scalar(url: str, query: str) -> Any:
    ((value,),) = rows(url, query)
    return value


def with_store(url: str, work: Callable[[PostgresStore, AsyncEngine], Any]) -> Any:
    """What `work` returns, on an engine of its own."""

    async def run() -> Any:
        engine = make_engine(url, pool_size=4)
        try:
            return await work(PostgresStore(engine), engine)
        finally:
            await engine.dispose()

    return asyncio.run(run())


@asynccontextmanager
async def leading_store(
    engine: AsyncEngine, holder: str = "test"
) -> AsyncIterator[PostgresStore]:
    """A store that may push, as soon as no other leads."""
    leader = Leader(engine, holder)
    await eventually(leader.acquire)
    try:
        yield PostgresStore(engine, epoch=lambda: leader.epoch)
    finally:
        await leader.release()


async def remember(engine: AsyncEngine, memory: Json) -> None:
    """Let the policy find that it wrote this down."""
    async with engine.begin() as connection:
        await policies.save_memory(connection, "joint", memory)


def make_busy_fleet(url: str) -> None:
    """The small fleet, heard a moment ago, with load on its service: the next tick has something to push."""

    async def work(_: PostgresStore, engine: AsyncEngine) -> None:
        store = await make_fleet(engine, {"default": ["chat"]})
        await hear(store, 1)

    with_store(url, work)


async def without_the_silent_node(_: PostgresStore, engine: AsyncEngine) -> None:
    """The crew's nodes are all; the fleet's own would fall silent and make the loop wait for it."""
    async with engine.begin() as connection:
        await nodes.remove(connection, "n1", at=datetime.now(UTC))


async def hear(store: PostgresStore, sequence: int, arrivals: int = 20) -> None:
    """The node reports a window that ends now."""
    now = datetime.now(UTC)
    reading = make_service_reading(arrivals=arrivals, served=arrivals, in_slo=arrivals)
    await store.ingest(
        (make_observation(sequence, now, boot="test", services=[reading]),), now
    )


def until_heard(url: str, is_so: Callable[[], object]) -> None:
    """Wait while the node goes on reporting: a busy machine may start a controller when what was heard is too old."""
    heard_s = time.monotonic()

    def looked() -> bool:
        nonlocal heard_s
        if is_so():
            return True
        if time.monotonic() > heard_s + 5.0:
            sequence = int(time.time() * 1000)
            with_store(url, lambda store, _: hear(store, sequence))
            heard_s = time.monotonic()
        return False

    until(looked)


def assert_consistent(url: str) -> int:
    """Target, plans, commands and history say the same, and generations only rise; the generation in force."""
    assert list(oracle._broken_history(lambda query: rows(url, query))) == []
    generation = int(scalar(url, "SELECT target_generation FROM cluster"))
    assert scalar(url, "SELECT count(*) FROM target") == generation
    assert scalar(url, "SELECT coalesce(max(generation), 0) FROM command") == generation
    # What was in force has its replicas.
    bare = """
        SELECT id FROM plan p WHERE p.state IN ('target', 'superseded')
        AND NOT EXISTS (SELECT FROM plan_replica r WHERE r.plan_id = p.id)"""
    assert rows(url, bare) == []
    return generation


@contextmanager
def controller(
    url: str, holder: str, step: str, reached: Path
) -> Iterator[BaseProcess]:
    """A controller as a process; killed at the end."""
    # Forked by a server that has imported what a controller needs, which takes seconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([fault_bodies.__name__])
    process = context.Process(
        target=fault_bodies.control, args=(url, holder, step, reached), name=holder
    )
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


@dataclass(slots=True, kw_only=True)
class Served:
    """A running `plimsoll serve`."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path
    secrets: dict[str, str]

    def call(
        self, method: str, path: str, *, token: str = "admin", **request: Any
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.secrets[token]}"}
        return httpx2.request(
            method, f"{self.address}/{path}", headers=headers, timeout=15.0, **request
        )

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx2.get(f"{self.address}/readyz", timeout=5.0).status_code == 200
        except httpx2.TransportError:
            return False


def plimsoll(
    arguments: Sequence[str], directory: Path, **environment: str
) -> subprocess.Popen[bytes]:
    """A `plimsoll` command with nothing of ours around it; what it prints goes to `directory`/log."""
    run = ["-c", "from app.cli.main import main; main()"]
    return python([*run, *arguments], directory, **environment)


def python(
    arguments: Sequence[str], directory: Path, **environment: str
) -> subprocess.Popen[bytes]:
    """Python, likewise; it hears SIGINT also where these tests were started in the background."""
    with (directory / "log").open("wb") as log, interruptible():
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=own_environment() | {"HOME": str(directory)} | environment,
        )


SERVE = ("-c", "from app.cli.main import main; main()", "serve")
API_ALONE = ("-m", "uvicorn", "--factory", "app.serve.api_process:app_from_environment")


@contextmanager
def served(
    url: str, directory: Path, program: Sequence[str] = SERVE
) -> Iterator[Served]:
    """`plimsoll serve` on that database, or the API alone, ready; killed at the end."""

    orders = [TokenOrder(name="admin", scope="admin"), *agent_orders(NODES)]
    secrets = with_store(url, lambda _, engine: make_tokens(engine, orders))
    directory.mkdir()
    port = a_free_port()
    process = python(
        [*program, "--port", str(port)], directory, PLIMSOLL_DATABASE_URL=url
    )
    plane = Served(
        process=process,
        address=f"http://127.0.0.1:{port}",
        log=directory / "log",
        secrets=secrets,
    )
    try:
        until(plane.is_ready)
        yield plane
    finally:
        process.kill()
        process.wait()


class CountingTransport(HttpTransport):
    """HTTP to the control plane; notes which observations it acknowledged."""

    acknowledged = 0
    refusals = 0

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        try:
            reply = await super().exchange(observation, wait_s=wait_s)
        except Exception:
            self.refusals += 1
            raise
        self.acknowledged = max(self.acknowledged, reply.acknowledged)
        return reply


@dataclass(slots=True)
class Crew:
    """Real agents on T4s that report several times a second."""

    plane: Served
    count: int
    transports: list[CountingTransport] = field(default_factory=list)
    agents: list[NodeAgent] = field(default_factory=list)
    devices: list[BusyPaperDevice] = field(default_factory=list)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: "list[asyncio.Task[None]]" = field(default_factory=list)

    async def __aenter__(self) -> "Crew":
        load = ServiceReading(service="chat", arrivals=3, served=3, in_slo=3)
        for number in range(self.count):
            transport = CountingTransport(
                self.plane.address, self.plane.secrets[f"crew-{number}"]
            )
            gpus = tuple(
                GpuState(index=index, gpu_type="T4", memory_mib=16384.0)
                for index in range(2)
            )
            device = BusyPaperDevice(
                NodeState(gpus=gpus), passed_s=CREW_PERIOD_S, load=(load,)
            )
            agent = NodeAgent(
                AgentSettings(
                    node=f"crew-{number}",
                    boot=f"boot-{number}",
                    period_s=CREW_PERIOD_S,
                    enforce_period_s=0.1,
                ),
                device,
                transport=transport,
                clock=ScaledClock(speed=1.0),
                ledger=Ledger(None),
            )
            self.transports.append(transport)
            self.devices.append(device)
            self.agents.append(agent)
            self._tasks.append(asyncio.create_task(agent.run(self._stop)))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        for transport in self.transports:
            await transport.close()
