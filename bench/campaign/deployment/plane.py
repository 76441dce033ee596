"""A whole deployment of real processes, each started again whenever it is gone: what every row makes faults in.

PostgreSQL, the API alone, `plimsoll controller` with its solver worker, and one agent per node. Their files and logs
lie in one directory, which is removed afterwards.
"""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import aiohttp
import msgspec

from agents.router.haproxy.supervised import PLACES
from app.catalogue.catalogue import load_gpu_types
from app.db.operations.token_secrets import TokenOrder
from app.postgres import server as postgres
from app.store.store import PolicySettings
from bench.campaign import oracle
from bench.campaign.deployment.journal import JournalReader
from bench.campaign.deployment.node import JOURNAL, SPEC, NodeSpec
from bench.campaign.deployment.node_files import NodeFiles
from bench.campaign.deployment.processes import Database, Kept, Program
from bench.campaign.outcome import GIVEN_UP_S
from bench.real_store import (
    Fleet,
    agent_orders,
    make_tokens,
    open_fleet,
    temporary_server,
)
from tests.integration.fault_harness import API_ALONE
from tests.ports import a_free_port, own_environment, own_ports

SERVICES = 4
POLICY = PolicySettings(period_s=1.0, min_dwell_s=0.0)
"""It decides every second and rearranges at once, so that kills meet pushes and commands."""
CONTROLLER = ("-c", "from app.cli.main import main; main()", "controller")
NODE = ("-m", "bench.campaign.deployment.node")
ADMIN = "admin"
PROGRAMS = f"{os.environ.get('PATH', '')}:{PLACES}"
LOOK_S = 0.1
"""Between two questions to a process, each of which costs it some milliseconds."""
FOLLOWS_WITHIN_S = 20.0
AT_WORK_WITHIN_S = 600.0
"""At the start, when all processes load their programs at once."""

Way: TypeAlias = Callable[[str], str]
"""The address to use in place of the real one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneOptions:
    """Which deployment a row wants."""

    nodes: int
    gpus_per_node: int = 2
    has_replicas: bool = False
    """Whether replicas and, where there is one, HAProxy are real processes; else they are on paper."""
    to_api: Way = str
    """For agents."""
    api_to_database: Way = str
    controller_to_database: Way = str
    of_agents: Mapping[str, str] = field(default_factory=dict)
    """Variables of the agents' environment; the other two have `of_plane`."""
    of_plane: Mapping[str, str] = field(default_factory=dict)
    of_api: Mapping[str, str] = field(default_factory=dict)
    api: tuple[str, ...] = API_ALONE
    """The arguments by which Python serves the API."""
    policy: PolicySettings = POLICY
    address: str = "127.0.0.1"
    """Of this machine, at which the API is reached."""
    data_in: Path | None = None
    """Where PostgreSQL's data lie; None: as temporary files do."""
    postgres_programs: Path | None = None


@dataclass(slots=True, kw_only=True)
class RunningPlane:
    """The deployment, and what can be seen of it from outside."""

    database: Database
    api: Program
    controller: Program
    agents: dict[str, Program]
    journals: dict[str, JournalReader]
    files: dict[str, NodeFiles]
    """Of nodes with real replicas."""
    router_ports: dict[str, int]
    """Of nodes with an HAProxy."""
    url: str
    """The API's."""
    metrics_url: str
    """The controller's."""
    admin: str
    """A token."""
    keepers: "list[asyncio.Task[None]]" = field(default_factory=list)

    def answers_s(self, *, asked_after_s: float) -> tuple[float, ...]:
        """When each node had its first answer to what it asked after that time; nodes without one yet are left out."""
        found = (
            journal.first_answer_s(asked_after_s=asked_after_s)
            for journal in self.journals.values()
        )
        return tuple(each for each in found if each is not None)

    def all_answered_s(self, *, asked_after_s: float) -> float | None:
        """When the last of all nodes had its first one; None: not yet."""
        answers = self.answers_s(asked_after_s=asked_after_s)
        return max(answers) if len(answers) == len(self.journals) else None

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

    async def until_at_work(self, session: aiohttp.ClientSession) -> None:
        """Every node is answered and the loop decides. Raises TimeoutError."""
        async with asyncio.timeout(AT_WORK_WITHIN_S):
            await self.until_answered(0.0)
            await self.until_planned(session)

    async def until_planned(self, session: aiohttp.ClientSession) -> None:
        """The loop has decided once."""
        while await self.ticks(session) == 0:  # noqa: ASYNC110  no process says so
            await asyncio.sleep(LOOK_S)

    async def until_answered(self, asked_after_s: float) -> None:
        """Every node has an answer to what it asked after that time. Raises TimeoutError after GIVEN_UP_S."""
        async with asyncio.timeout(GIVEN_UP_S):
            while self.all_answered_s(asked_after_s=asked_after_s) is None:  # noqa: ASYNC110  no process says so
                await asyncio.sleep(LOOK_S)

    async def not_following(self) -> list[str]:
        """Nodes that do not take up the newest command within FOLLOWS_WITHIN_S, in words; for when the load is over."""
        found = await asyncio.to_thread(self._behind)
        ends_s = time.monotonic() + FOLLOWS_WITHIN_S
        while found and time.monotonic() < ends_s:
            await asyncio.sleep(LOOK_S)
            now = await asyncio.to_thread(self._behind)
            # Who has followed once follows: a new command may come at any time.
            found = {node: now[node] for node in found if node in now}
        return list(found.values())

    def _behind(self) -> dict[str, str]:
        return oracle.behind(self.database.server.url, self.journals)

    async def stop(self) -> None:
        """Nothing runs afterwards but the database, which answers."""
        for keeper in self.keepers:
            keeper.cancel()
        await asyncio.gather(*self.keepers, return_exceptions=True)
        for files in self.files.values():
            files.end_all()
        await asyncio.to_thread(self.database.start)


@asynccontextmanager
async def running_plane(
    directory: Path, options: PlaneOptions
) -> AsyncIterator[RunningPlane]:
    """A deployment with a fleet of a number of nodes under load; not necessarily ready."""
    fleet = Fleet(
        nodes=options.nodes, gpus_per_node=options.gpus_per_node, services=SERVICES
    )
    async with AsyncExitStack() as stack:
        server = stack.enter_context(
            temporary_server(options.data_in, bin_dir=options.postgres_programs)
        )
        now = datetime.now(UTC)
        async with open_fleet(server.url, fleet, options.policy, now) as engine:
            orders = agent_orders(fleet.node_types())
            orders += [TokenOrder(name=ADMIN, scope="admin")]
            secrets = await make_tokens(engine, orders)
        plane = _make_plane(directory, server, fleet, options, secrets)
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
    options: PlaneOptions,
    secrets: Mapping[str, str],
) -> RunningPlane:
    port, metrics_port = a_free_port(), a_free_port()
    url = f"http://{options.address}:{port}"
    surroundings = {**own_environment(), "PLIMSOLL_LOG_LEVEL": "warning"}

    def program(name: str, more: Mapping[str, str], *arguments: str) -> Program:
        return Program(
            arguments=arguments,
            environment={**surroundings, **more},
            log=directory / f"{name}.log",
        )

    def with_database(way: Way) -> dict[str, str]:
        return {"PLIMSOLL_DATABASE_URL": way(server.url), **options.of_plane}

    specs = _node_specs(fleet, options, options.to_api(url), secrets)
    for node, spec in specs.items():
        (directory / node).mkdir()
        (directory / node / SPEC).write_bytes(msgspec.json.encode(spec))
    api = (*options.api, "--host", options.address, "--port", str(port))
    api += ("--log-level", "warning")
    controller = (*CONTROLLER, "--metrics-port", str(metrics_port))
    return RunningPlane(
        database=Database(server=server, bin_dir=options.postgres_programs),
        api=program(
            "api",
            {**with_database(options.api_to_database), **options.of_api},
            *api,
        ),
        controller=program(
            "controller", with_database(options.controller_to_database), *controller
        ),
        agents={
            node: program(node, options.of_agents, *NODE, str(directory / node))
            for node in specs
        },
        journals={
            node: JournalReader(path=directory / node / JOURNAL) for node in specs
        },
        files={
            node: NodeFiles(directory=directory / node)
            for node in specs
            if options.has_replicas
        },
        router_ports={
            node: spec.router_port for node, spec in specs.items() if spec.router_port
        },
        url=url,
        admin=secrets[ADMIN],
        metrics_url=f"http://127.0.0.1:{metrics_port}/metrics",
    )


def _node_specs(
    fleet: Fleet, options: PlaneOptions, url: str, secrets: Mapping[str, str]
) -> dict[str, NodeSpec]:
    has_router = options.has_replicas and shutil.which("haproxy", path=PROGRAMS)
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
            first_port=own_ports() if options.has_replicas else 0,
            router_port=a_free_port() if has_router else 0,
        )
        for node, gpu_type in fleet.node_types().items()
    }
