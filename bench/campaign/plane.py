"""A whole deployment of real processes, each started again whenever it is gone: what every row makes faults in.

PostgreSQL, the API alone, `plimsoll controller` with its solver worker, and one agent per node. Their files and logs
lie in one directory, which is removed afterwards.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import aiohttp
import msgspec
import psutil

from app.catalogue.catalogue import load_gpu_types
from app.db.operations.token_secrets import TokenOrder, create_locally
from app.postgres import server as postgres
from app.postgres.files import DataDirLayout
from app.store.store import PolicySettings
from bench.campaign.journal import JournalReader
from bench.campaign.node import JOURNAL, SPEC, NodeSpec
from bench.real_store import Fleet, node_secrets, open_fleet, temporary_server
from tests.integration.fault_harness import API_ALONE, a_free_port

LOOK_S = 0.02
SERVICES, GPUS_PER_NODE = 4, 2
POLICY = PolicySettings(period_s=1.0, min_dwell_s=0.0)
"""It decides every second and rearranges at once, so that kills meet pushes and commands."""
CONTROLLER = ("-c", "from app.cli.main import main; main()", "controller")
NODE = ("-m", "bench.campaign.node")


class Kept(Protocol):
    """What may be killed at any time and is started again."""

    def kill(self) -> bool:
        """kill -9; False: it was dead already."""
        ...

    async def keep(self) -> None:
        """Start it whenever it is gone, until cancelled."""
        ...


@dataclass(slots=True, kw_only=True)
class Program:
    """A Python process that is started again whenever it has ended, as a service manager does."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """A new process; what it prints is added to the log."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
            )

    def kill(self) -> bool:
        """kill -9; False: it was dead already."""
        if self.process is None or self.process.poll() is not None:
            return False
        self.process.kill()
        return True

    def kill_child(self) -> bool:
        """kill -9 of a worker of it; False: it has none now."""
        workers = [each for each in self._children() if _is_worker(each)]
        for worker in workers[:1]:
            worker.kill()
        return bool(workers)

    def _children(self) -> list[psutil.Process]:
        if self.process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children()
        return []

    async def keep(self) -> None:
        """Start it whenever it is gone; the end kills it."""
        try:
            while True:
                if self.process is None or self.process.poll() is not None:
                    self.start()
                await asyncio.sleep(LOOK_S)
        finally:
            self.kill()
            if self.process is not None:
                self.process.wait()


def _is_worker(process: psutil.Process) -> bool:
    """Whether it is a process that works for its parent; multiprocessing's tracker of resources does not."""
    with contextlib.suppress(psutil.Error):
        return "spawn_main" in " ".join(process.cmdline())
    return False


@dataclass(slots=True, kw_only=True)
class Database:
    """The embedded PostgreSQL, which is started again likewise."""

    server: postgres.Server

    def kill(self) -> bool:
        """kill -9 of the server and all its backends; False: it was dead already."""
        pid = DataDirLayout(root=self.server.data_dir).postmaster_pid()
        if pid is None or not psutil.pid_exists(pid):
            return False
        # Backends outlive their postmaster by a moment, in which they could commit as if nothing had happened.
        with contextlib.suppress(psutil.NoSuchProcess):
            backends = psutil.Process(pid).children()
            os.kill(pid, signal.SIGKILL)
            for backend in backends:
                with contextlib.suppress(psutil.NoSuchProcess):
                    backend.kill()
            return True
        return False

    async def keep(self) -> None:
        """Start it whenever it is gone."""
        while True:
            # A start that is killed in turn fails, and the next one follows.
            with contextlib.suppress(postgres.PostgresError):
                await asyncio.to_thread(postgres.start, self.server.data_dir)
            await asyncio.sleep(LOOK_S)


@dataclass(slots=True, kw_only=True)
class RunningPlane:
    """The deployment, and what can be seen of it from outside."""

    database: Database
    api: Program
    controller: Program
    agents: dict[str, Program]
    journals: dict[str, JournalReader]
    url: str
    """The API's."""
    metrics_url: str
    """The controller's."""
    admin: str
    keepers: "list[asyncio.Task[None]]" = field(default_factory=list)

    def first_answers_s(self, *, asked_after_s: float) -> float | None:
        """When the last of the nodes had its first answer to what it asked after that time; None: not yet."""
        found = [
            journal.first_answer_s(asked_after_s=asked_after_s)
            for journal in self.journals.values()
        ]
        answers = [each for each in found if each is not None]
        return max(answers) if len(answers) == len(found) else None

    async def ticks(self, session: aiohttp.ClientSession) -> int:
        """Ticks that decided something since the controller's process began; 0 while there is none."""
        try:
            async with session.get(self.metrics_url) as answer:
                lines = (await answer.text()).splitlines()
        except (aiohttp.ClientError, TimeoutError):
            return 0
        counted = (line for line in lines if line.startswith("plimsoll_ticks_total{"))
        return sum(
            int(float(line.split()[-1]))
            for line in counted
            if 'state="held"' not in line
        )

    async def stop(self) -> None:
        """Nothing runs afterwards but the database, which answers."""
        for keeper in self.keepers:
            keeper.cancel()
        await asyncio.gather(*self.keepers, return_exceptions=True)
        await asyncio.to_thread(postgres.start, self.database.server.data_dir)


@asynccontextmanager
async def running_plane(directory: Path, *, nodes: int) -> AsyncIterator[RunningPlane]:
    """A deployment with a fleet of so many nodes under load; not necessarily ready."""
    fleet = Fleet(nodes=nodes, gpus_per_node=GPUS_PER_NODE, services=SERVICES)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(temporary_server())
        now = datetime.now(UTC)
        async with open_fleet(server.url, fleet, POLICY, now) as engine:
            secrets = await node_secrets(engine, fleet, now)
            order = TokenOrder(name="campaign", scope="admin")
            admin = (await create_locally(engine, order, at=now)).secret
        plane = _make_plane(directory, server, fleet, secrets, admin)
        everything: tuple[Kept, ...] = (
            plane.database,
            plane.api,
            plane.controller,
            *plane.agents.values(),
        )
        plane.keepers += [asyncio.create_task(kept.keep()) for kept in everything]
        stack.push_async_callback(plane.stop)
        yield plane


def _make_plane(
    directory: Path,
    server: postgres.Server,
    fleet: Fleet,
    secrets: Mapping[str, str],
    admin: str,
) -> RunningPlane:
    port, metrics_port = a_free_port(), a_free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        **_surroundings(),
        "PLIMSOLL_DATABASE_URL": server.url,
        "PLIMSOLL_LOG_LEVEL": "warning",
    }

    def program(name: str, *arguments: str) -> Program:
        return Program(
            arguments=arguments,
            environment=environment,
            log=directory / f"{name}.log",
        )

    specs = _node_specs(fleet, url, secrets)
    for node, spec in specs.items():
        (directory / node).mkdir()
        (directory / node / SPEC).write_bytes(msgspec.json.encode(spec))
    return RunningPlane(
        database=Database(server=server),
        api=program("api", *API_ALONE, "--port", str(port), "--log-level", "warning"),
        controller=program(
            "controller", *CONTROLLER, "--metrics-port", str(metrics_port)
        ),
        agents={node: program(node, *NODE, str(directory / node)) for node in specs},
        journals={
            node: JournalReader(path=directory / node / JOURNAL) for node in specs
        },
        url=url,
        metrics_url=f"http://127.0.0.1:{metrics_port}/metrics",
        admin=admin,
    )


def _surroundings() -> dict[str, str]:
    """This process's environment without settings of ours."""
    # Programs that are not compiled once and for all would take seconds longer at each start.
    unwanted = ("PLIMSOLL_", "PYTHONDONTWRITEBYTECODE")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(unwanted)
    }


def _node_specs(
    fleet: Fleet, url: str, secrets: Mapping[str, str]
) -> dict[str, NodeSpec]:
    memory_mib = {
        each.name: each.memory_mib
        for each in load_gpu_types(sorted({*fleet.node_types().values()}))
    }
    return {
        node: NodeSpec(
            node=node,
            url=url,
            secret=secrets[node],
            gpu_type=gpu_type,
            memory_mib=memory_mib[gpu_type],
            gpus=fleet.gpus_per_node,
            services=tuple(service.name for service in fleet.nouns()),
        )
        for node, gpu_type in fleet.node_types().items()
    }
